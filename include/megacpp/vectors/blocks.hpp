// Flat ranges in blocks: what one call of a flat body covers.
#pragma once

#include <megacpp/vectors/team.hpp>

#include <cstdint>

namespace mc {

/// Elements of a flat range that one call of a flat body covers. Fixed, so that what is summed per
/// block does not depend on the number of threads.
inline constexpr std::int64_t flat_block = 4096;

/// f(lanes) for the elements of one block of a range of n; lanes count from the range's start.
template <class T, class Team, class F>
MEGACPP_HD void each_in_block(const Team& team, std::int64_t block, std::int64_t n, F f) {
  const std::int64_t first = block * flat_block, left = n - first;
  team.template each<T>(left < flat_block ? left : flat_block,
                        [&](auto i) { f(behind(first, i)); });
}

/// The same, and the sum of what f returns of each element.
template <class T, class Team, class F>
MEGACPP_HD auto sum_in_block(const Team& team, std::int64_t block, std::int64_t n, F f) {
  const std::int64_t first = block * flat_block, left = n - first;
  return team.template sum<T>(left < flat_block ? left : flat_block,
                              [&](auto i) { return f(behind(first, i)); });
}

/// Blocks of a range of n elements.
constexpr std::int64_t blocks_of(std::int64_t n) { return (n + flat_block - 1) / flat_block; }

} // namespace mc
