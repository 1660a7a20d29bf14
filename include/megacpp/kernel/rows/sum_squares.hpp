// The sum of squares of a flat range: gradient norms. Blocks of fixed size are summed in double,
// then their sums in order, so the result does not depend on the number of threads.
#pragma once

#include <megacpp/exec/parallel.hpp>

#include <numeric>

namespace mc::rows {

inline constexpr std::int64_t sum_squares_elements = 65536;

/// Blocks of a range of n elements: the doubles that sum_squares needs.
constexpr std::int64_t sum_squares_parts(std::int64_t n) {
  return (n + sum_squares_elements - 1) / sum_squares_elements;
}

template <class T> struct sum_squares_block {
  std::int64_t n;
  const T* x;    // (n)
  double* parts; // (sum_squares_parts(n))

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t block) const {
    const std::int64_t first = block * sum_squares_elements, left = n - first;
    const double part = team.template sum<T>(
        left < sum_squares_elements ? left : sum_squares_elements, [&](auto i) {
          const auto v = load<double>(x + first, i);
          return v * v;
        });
    if (team.leader()) parts[block] = part;
  }
};

template <class T> double sum_squares(std::int64_t n, const T* x, double* parts) {
  const std::int64_t blocks = sum_squares_parts(n);
  for_rows(blocks, sum_squares_block<T>{n, x, parts});
  return std::accumulate(parts, parts + blocks, 0.0);
}

} // namespace mc::rows
