// permutation shuffles [0, n) in constant memory, by a key.
#pragma once

#include <megacpp/num/random.hpp>

#include <cstdint>

namespace mc {

/// permutation is a bijection i -> p(i) of [0, n), n <= 2^62, that a key chooses.
///
/// The method is a Feistel network over 2h bits, with the least h such that 4^h >= n. A round maps
/// (l, r) to (r, l ^ f(round, r)), where f is a number of Philox; a round is invertible whatever f
/// is (Luby, Rackoff 1988). A result >= n is encrypted again until one is < n (cycle walking;
/// Black, Rogaway 2002). The map stays a bijection, and takes under 4 tries on average.
class permutation {
public:
  constexpr permutation(std::int64_t n, std::uint64_t key)
      : n_(static_cast<std::uint64_t>(n)), key_(key) {
    while (half_bits_ < 31 && (std::uint64_t{1} << (2 * half_bits_)) < n_) ++half_bits_;
  }

  constexpr std::int64_t operator()(std::int64_t i) const {
    if (n_ <= 1) return i;
    auto x = static_cast<std::uint64_t>(i);
    do x = encrypt(x);
    while (x >= n_);
    return static_cast<std::int64_t>(x);
  }

private:
  constexpr std::uint64_t encrypt(std::uint64_t x) const {
    const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
    std::uint64_t left = x >> half_bits_, right = x & mask;
    for (std::uint64_t round = 0; round < 6; ++round) {
      const std::uint64_t next = left ^ (philox(key_, right, round)[0] & mask);
      left = right;
      right = next;
    }
    return (left << half_bits_) | right;
  }

  std::uint64_t n_, key_;
  int half_bits_ = 1;
};

} // namespace mc
