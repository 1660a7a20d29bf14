// Sums and maxima over ranks that share one device's memory, with the bits of exec/rank_order.hpp.
#pragma once

#include <megacpp/exec/launch.hpp>
#include <megacpp/num/reduction.hpp>

#include <type_traits>

namespace mc::rows {

/// Computes out (n) = arrays[0] + arrays[1] + ..., added in this order: bf16 in fp32 and rounded
/// once, else in T. Integers are unsigned, and wrap around. `out` may be one of the arrays.
template <class T> struct sum_of_ranks_block {
  using A = std::conditional_t<std::is_integral_v<T>, T, accumulator_t<T>>;
  std::int64_t n;
  int count;                     // number of arrays, at least one
  const T* arrays[most_reduced]; // (n) each
  T* out;                        // (n)

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t block) const {
    each_in_block<T>(team, block, n, [&](auto i) {
      auto sum = load<A>(arrays[0], i);
      for (int q = 1; q < count; ++q) sum = sum + load<A>(arrays[q], i);
      store(out, i, sum);
    });
  }
};

/// Each element of out (n) is the largest of the arrays' elements, that of the first array among
/// equals, or the first that is a NaN. `out` may be one of the arrays.
struct maximum_of_ranks_block {
  std::int64_t n;
  int count;                         // number of arrays, at least one
  const float* arrays[most_reduced]; // (n) each
  float* out;                        // (n)

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t block) const {
    each_in_block<float>(team, block, n, [&](auto i) {
      auto most = load<float>(arrays[0], i);
      for (int q = 1; q < count; ++q) {
        const auto x = load<float>(arrays[q], i);
        most = select((most < x) | ((x != x) & (most == most)), x, most);
      }
      store(out, i, most);
    });
  }
};

} // namespace mc::rows
