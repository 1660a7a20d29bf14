// What ranks agree on beside a step: what one of them alone knows is told to all.
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

/// All ranks call each function in the same order. Of one rank they do nothing.
class agreement {
public:
  explicit agreement(communicator& hosts) : hosts_(hosts) {}

  bool alone() const { return ranks_of(hosts_.ranks()) == 1; }
  /// Whether others are processes of their own, with files of their own.
  bool apart() const { return !hosts_.in_one_process(); }
  /// Whether this is the rank that tells, saves, and decides what is not everyone's.
  bool first() const { return hosts_.rank() == 0; }

  /// Whether it is so on any rank; of several things, each.
  bool any(bool here) { return any(std::array{here})[0]; }
  template <std::size_t N> std::array<bool, N> any(std::array<bool, N> here) {
    if (alone()) return here;
    std::array<std::int32_t, N> n{};
    std::copy_n(here.begin(), N, n.begin());
    hosts_.run(exchange::all_reduce(everyone, dtype::i32, n.data(), n.data(), N));
    std::transform(n.begin(), n.end(), here.begin(), [](std::int32_t x) { return x > 0; });
    return here;
  }
  /// What the first rank says.
  bool as_first(bool here) { return any(first() && here); }
  /// The text of the first of those that have one, up to 512 bytes of it.
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
  /// What every rank says, by rank.
  void of_each(double here, std::span<double> all) {
    hosts_.run(exchange::all_gather(everyone, dtype::f64, &here, all.data(), 1));
  }
  /// What every rank hands in, by rank, on the first one; nothing on the others.
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
  /// Throws mc::error(exit_code::mismatch) on the first rank that has another `what` than rank 0,
  /// of which `here` is the hash; the others wait for its end. Ranks of one process have the same.
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
  /// What lies between these two calls the first rank does before the others do: what it is
  /// refused, it tells, and not all at once; and what it has found, they are told.
  std::string before_others() { return first() ? "" : any(std::string()); }
  void after_first(const std::string& found = "") {
    if (first()) any(found);
  }
  /// Waits for the first rank, which ends the run with a sentence: then the others' exchanges
  /// throw.
  void wait_for_end() {
    if (!first()) wait_for_another();
  }
  /// Waits for any rank that ends the run so.
  void wait_for_another() { hosts_.run(exchange::barrier(everyone)); }

private:
  static constexpr std::int64_t most_bytes = 512;
  communicator& hosts_;
};

} // namespace mc
