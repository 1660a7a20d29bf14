// Flat ranges of elements are cut into blocks: a flat body covers one block in one call.
#pragma once

#include <megacpp/vectors/team.hpp>

#include <cstdint>

namespace mc {

/// The number of elements in a block. The number is fixed, so that sums per block do not depend on
/// the number of threads.
inline constexpr std::int64_t flat_block = 4096;

/// Calls f(lanes) for the elements of one block of a range of n elements; lanes count from the
/// start of the range.
template <class T, class Team, class F>
MEGACPP_HD void each_in_block(const Team& team, std::int64_t block, std::int64_t n, F f) {
  const std::int64_t first = block * flat_block, left = n - first;
  team.template each<T>(left < flat_block ? left : flat_block,
                        [&](auto i) { f(behind(first, i)); });
}

/// Calls f(lanes) for the elements of one block and returns the sum of the results.
template <class T, class Team, class F>
MEGACPP_HD auto sum_in_block(const Team& team, std::int64_t block, std::int64_t n, F f) {
  const std::int64_t first = block * flat_block, left = n - first;
  return team.template sum<T>(left < flat_block ? left : flat_block,
                              [&](auto i) { return f(behind(first, i)); });
}

/// Returns the number of blocks in a flat range of n elements.
constexpr std::int64_t blocks_of(std::int64_t n) { return (n + flat_block - 1) / flat_block; }

} // namespace mc
