// The first of the greatest marked numbers, as the threads of a block find it
// (team.first_greatest): each thread among the numbers that it has seen, then all threads among
// theirs.
#pragma once

#include <megacpp/vectors/team.hpp>

#include <cstdint>
#include <limits>

namespace mc::detail {

/// Maps numbers to integers above 0 in the same order: -0 and 0 are equal. No number is NaN.
MEGACPP_HD std::uint32_t ordered_bits(float x) {
  const std::uint32_t u = __builtin_bit_cast(std::uint32_t, x + 0.0f);
  return u ^ (u >> 31 != 0 ? 0xffffffffu : 0x80000000u);
}
MEGACPP_HD float of_ordered_bits(std::uint32_t u) {
  return __builtin_bit_cast(float, u ^ (u >> 31 != 0 ? 0x80000000u : 0xffffffffu));
}

/// The first of the greatest marked numbers that a thread has seen, in the order of their indices.
template <class A> struct running_first {
  static constexpr std::uint32_t none = 0xffffffffu;
  A greatest = -std::numeric_limits<A>::infinity();
  std::uint32_t index = none;

  MEGACPP_HD void add(A value, bool counts, std::int64_t i) {
    if (!counts || (index != none && !(value > greatest))) return;
    greatest = value, index = static_cast<std::uint32_t>(i);
  }
  /// Returns the ordered bits of the greatest number; 0 where no number was marked.
  MEGACPP_HD std::uint32_t bits() const { return index == none ? 0 : ordered_bits(greatest); }
  /// Returns the number and its index, from the greatest bits of all threads and the least index
  /// among the threads that have them.
  MEGACPP_HD static two<A> from_bits(std::uint32_t bits, std::uint32_t at) {
    constexpr A infinite = std::numeric_limits<A>::infinity();
    return bits == 0 ? two<A>{-infinite, infinite}
                     : two<A>{of_ordered_bits(bits), static_cast<A>(at)};
  }
  /// Returns the index of the number if it equals `top`, the greatest of all threads; else
  /// infinity.
  MEGACPP_HD A index_of(A top) const {
    return index != none && greatest == top ? static_cast<A>(index)
                                            : std::numeric_limits<A>::infinity();
  }
};

} // namespace mc::detail
