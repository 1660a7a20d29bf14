// Agreement of ranks between their steps: what one of them alone knows, all of them learn.
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

/// Lets ranks agree. All ranks call each function, in the same order. If there is one rank, nothing
/// is exchanged.
class agreement {
public:
  explicit agreement(communicator& hosts) : hosts_(hosts) {}

  bool alone() const { return ranks_of(hosts_.ranks()) == 1; }
  /// Tells whether the other ranks are processes of their own, with files of their own.
  bool separate_processes() const { return !hosts_.in_one_process(); }
  /// Tells whether this is the first rank, which reports, saves, and decides for all.
  bool first() const { return hosts_.rank() == 0; }

  /// Tells whether something holds on any rank; of several things, each.
  bool any(bool here) { return any(std::array{here})[0]; }
  template <std::size_t N> std::array<bool, N> any(std::array<bool, N> here) {
    if (alone()) return here;
    std::array<std::int32_t, N> n{};
    std::copy_n(here.begin(), N, n.begin());
    hosts_.run(exchange::all_reduce(everyone, dtype::i32, n.data(), n.data(), N));
    std::transform(n.begin(), n.end(), here.begin(), [](std::int32_t x) { return x > 0; });
    return here;
  }
  /// Returns on all ranks what the first one passes.
  bool value_of_first(bool here) { return any(first() && here); }
  /// Returns on all ranks the text of the first rank that has one, up to 512 bytes of it.
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
  /// Fills `all` with the numbers that the ranks pass, by rank.
  void of_each(double here, std::span<double> all) {
    hosts_.run(exchange::all_gather(everyone, dtype::f64, &here, all.data(), 1));
  }
  /// Returns on the first rank the texts that all ranks pass, by rank; on others, nothing.
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
  /// Compares hashes of `what`, such as "other data", between processes. Throws
  /// mc::error(exit_code::mismatch) on the first rank whose hash is another than that of rank 0,
  /// and the other ranks wait for its end. Ranks of one process are taken to have the same.
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
  /// Begins a critical section. The first rank goes in; the other ranks wait until it lets them
  /// enter, and get the text that it passes them. If the first rank throws within, the others never
  /// enter, so an error that all would meet is told once.
  std::string enter_after_first() { return first() ? "" : any(std::string()); }
  /// Ends the critical section on the first rank. On other ranks it does nothing.
  void let_others_enter(const std::string& passed = "") {
    if (first()) any(passed);
  }
  /// Waits, on other ranks than the first, until that one ends the run with an error. The wait ends
  /// with an error, too.
  void wait_for_end() {
    if (!first()) wait_for_another();
  }
  /// Waits until another rank ends the run with an error, as wait_for_end does.
  void wait_for_another() { hosts_.run(exchange::barrier(everyone)); }

private:
  static constexpr std::int64_t most_bytes = 512;
  communicator& hosts_;
};

} // namespace mc
