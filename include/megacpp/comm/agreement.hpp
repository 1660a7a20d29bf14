// Agreements of ranks between their steps: what one rank alone knows is told to all others.
#pragma once

#include <megacpp/comm/communicator.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <vector>

namespace mc {

/// An agreement lets ranks compare and share values. All ranks call each function in the same
/// order. In a run of one rank the functions send nothing.
class agreement {
public:
  explicit agreement(communicator& hosts) : hosts_(hosts) {}

  bool alone() const { return ranks_of(hosts_.ranks()) == 1; }
  /// Tells whether the other ranks are processes of their own, with files of their own.
  bool separate_processes() const { return !hosts_.in_one_process(); }
  /// Tells whether this is rank 0, which prints, saves, and decides for all ranks.
  bool first() const { return hosts_.rank() == 0; }

  /// Returns whether `here` is true on any rank; the overload for an array does so for each
  /// element.
  bool any(bool here) { return any(std::array{here})[0]; }
  template <std::size_t N> std::array<bool, N> any(std::array<bool, N> here) {
    if (alone()) return here;
    std::array<std::int32_t, N> n{};
    std::copy_n(here.begin(), N, n.begin());
    hosts_.run(exchange::all_reduce(everyone, dtype::i32, n.data(), n.data(), N));
    std::transform(n.begin(), n.end(), here.begin(), [](std::int32_t x) { return x > 0; });
    return here;
  }
  /// Returns rank 0's value of `here`, on every rank.
  bool value_of_first(bool here) { return any(first() && here); }
  /// Returns on every rank the first text, by rank, that is not empty, up to 512 bytes of it; "" if
  /// no rank has one.
  std::string any(const std::string& here) {
    if (alone()) return here;
    std::array<char, most_bytes> mine{};
    std::copy_n(here.begin(), std::min(here.size(), mine.size()), mine.begin());
    std::string all(static_cast<std::size_t>(ranks_of(hosts_.ranks())) * most_bytes, '\0');
    hosts_.run(exchange::all_gather(everyone, dtype::u8, mine.data(), all.data(), most_bytes));
    for (std::size_t i = 0; i < all.size(); i += most_bytes)
      if (all[i] != '\0') {
        const std::string one = all.substr(i, most_bytes);
        return one.substr(0, one.find('\0'));
      }
    return "";
  }
  /// Fills `all` with every rank's value of `here`, in the order of ranks.
  void of_each(double here, std::span<double> all) {
    hosts_.run(exchange::all_gather(everyone, dtype::f64, &here, all.data(), 1));
  }
  /// Returns on rank 0 every rank's text, in the order of ranks; on the other ranks nothing.
  std::vector<std::string> gather(const std::string& here) {
    if (alone()) return {here};
    const auto n = static_cast<std::size_t>(ranks_of(hosts_.ranks()));
    const std::int64_t bytes = std::ssize(here);
    std::vector<std::int64_t> bytes_of(n);
    hosts_.run(exchange::all_gather(everyone, dtype::i64, &bytes, bytes_of.data(), 1));
    if (!first()) {
      hosts_.run(exchange::send(everyone, dtype::u8, here.data(), bytes, 0));
      return {};
    }
    std::vector<std::string> all(n, here);
    for (std::size_t r = 1; r < n; ++r) {
      all[r].resize(static_cast<std::size_t>(bytes_of[r]));
      hosts_.run(
          exchange::receive(everyone, dtype::u8, all[r].data(), bytes_of[r], static_cast<int>(r)));
    }
    return all;
  }
  /// Throws mc::error(exit_code::mismatch) on the first rank whose hash `here` differs from rank
  /// 0's; the other ranks wait until that rank ends the run. `what`: the sentence's name for what
  /// differs, such as "other data". Ranks of one process are not compared.
  void require_same(std::uint64_t here, const std::string& what, const std::string& remedy) {
    if (alone() || hosts_.in_one_process()) return;
    std::vector<std::uint64_t> all(static_cast<std::size_t>(ranks_of(hosts_.ranks())));
    hosts_.run(exchange::all_gather(everyone, dtype::i64, &here, all.data(), 1));
    for (std::size_t r = 1; r < all.size(); ++r) {
      if (all[r] == all[0]) continue;
      if (static_cast<int>(r) != hosts_.rank()) hosts_.run(exchange::barrier(everyone));
      std::string says = "this rank has ";
      says += what + " than rank 0: ";
      throw error(exit_code::mismatch, says += remedy);
    }
  }
  /// Begins a section that rank 0 runs before the other ranks do. They wait here until rank 0 lets
  /// them enter, and get the text that it passes. If rank 0 throws in the section, the others never
  /// enter, so an error that all ranks would meet is told once.
  std::string enter_after_first() { return first() ? "" : any(std::string()); }
  /// Ends the section on rank 0 and passes a text to the other ranks. On these it does nothing.
  void let_others_enter(const std::string& passed = "") {
    if (first()) any(passed);
  }
  /// Waits on every rank but rank 0 until rank 0 ends the run with an error; the waiting ranks
  /// then throw, too.
  void wait_for_end() {
    if (!first()) wait_for_another();
  }
  /// Waits until any other rank ends the run with an error, and then throws, too.
  void wait_for_another() { hosts_.run(exchange::barrier(everyone)); }

private:
  static constexpr std::int64_t most_bytes = 512;
  communicator& hosts_;
};

} // namespace mc
