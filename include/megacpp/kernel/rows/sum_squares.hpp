// The sum of squares of a flat range, for gradient norms. Blocks of fixed size are summed in
// double, then their sums in order, so the result does not depend on the number of threads.
#pragma once

#include <megacpp/exec/launch.hpp>

namespace mc::rows {

inline constexpr std::int64_t sum_squares_elements = 65536;

/// Returns the number of blocks of a range of n elements: the number of doubles that sum_squares
/// needs.
constexpr std::int64_t sum_squares_partials(std::int64_t n) {
  return (n + sum_squares_elements - 1) / sum_squares_elements;
}

template <class T> struct sum_squares_block {
  std::int64_t n;
  const T* x;       // (n)
  double* partials; // (sum_squares_partials(n))

  std::int64_t row_bytes() const {
    return std::int64_t{sum_squares_elements} * std::int64_t{sizeof(T)};
  }
  bool aligned() const { return rows_aligned<T>(sum_squares_elements, x); }
  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t block) const {
    const std::int64_t first = block * sum_squares_elements, left = n - first;
    const double partial = team.template sum<T>(
        left < sum_squares_elements ? left : sum_squares_elements, [&](auto i) {
          const auto v = load<double>(x + first, i);
          return v * v;
        });
    if (team.leader()) partials[block] = partial;
  }
};

/// Adds up n partial sums of squares, in order.
struct sum_in_order {
  std::int64_t n;
  const double* x; // (n)
  double* sum;     // ()

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t) const {
    if (!team.leader()) return;
    double all = 0;
    for (std::int64_t i = 0; i < n; ++i) all += x[i];
    *sum = all;
  }
};

/// Computes the sums of squares of all blocks. `partials` is memory for sum_squares_partials(n)
/// doubles.
template <class T, class Device>
void squares(Device& on, std::int64_t n, const T* x, double* partials) {
  for_rows(on, sum_squares_partials(n), sum_squares_block<T>{n, x, partials});
}
template <class T, class Device>
void sum_squares(Device& on, std::int64_t n, const T* x, double* partials, double* sum) {
  squares(on, n, x, partials);
  for_one(on, sum_in_order{sum_squares_partials(n), partials, sum});
}

} // namespace mc::rows
