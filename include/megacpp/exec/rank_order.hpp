// Sums and maxima over ranks, which communicators take in memory of the host. Bodies take them in
// memory of a device (kernel/rows/reduce.hpp).
#pragma once

#include <megacpp/num/dtype.hpp>
#include <megacpp/num/reduction.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

namespace mc {

namespace detail {
/// The type in which sums of T are kept: integers wrap around.
template <class T> struct sum_over_ranks { using type = accumulator_t<T>; };
template <> struct sum_over_ranks<std::int32_t> { using type = std::uint32_t; };
template <> struct sum_over_ranks<std::int64_t> { using type = std::uint64_t; };

template <class T>
void sum_in_rank_order(std::span<const void* const> arrays, T* out, std::int64_t n) {
  using A = typename sum_over_ranks<T>::type;
  constexpr std::int64_t block = 512;
  A sum[block];
  for (std::int64_t first = 0; first < n; first += block) {
    const std::int64_t count = std::min(block, n - first);
    const T* x = static_cast<const T*>(arrays[0]) + first;
    for (std::int64_t i = 0; i < count; ++i) sum[i] = static_cast<A>(x[i]);
    for (const void* const array : arrays.subspan(1)) {
      x = static_cast<const T*>(array) + first;
      for (std::int64_t i = 0; i < count; ++i) sum[i] += static_cast<A>(x[i]);
    }
    for (std::int64_t i = 0; i < count; ++i) out[first + i] = static_cast<T>(sum[i]);
  }
}

inline void maximum_in_rank_order(std::span<const void* const> arrays, float* out, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    float most = static_cast<const float*>(arrays[0])[i];
    for (const void* const array : arrays.subspan(1))
      if (const float x = static_cast<const float*>(array)[i]; x > most || (x != x && most == most))
        most = x;
    out[i] = most;
  }
}
} // namespace detail

/// Computes out (n) = arrays[0] + arrays[1] + ..., added from the first rank on: bf16 in fp32 and
/// rounded once, fp32 in fp32, fp64 in fp64, integers modulo 2^32 or 2^64. `out` may be one of the
/// arrays. A maximum is of fp32 alone: each element of `out` is the largest of the arrays'
/// elements, that of the first array among equals, or the first that is a NaN.
inline void reduce_in_rank_order(reduction by, dtype t, std::span<const void* const> arrays,
                                 void* out, std::int64_t n) {
  if (by == reduction::maximum)
    return detail::maximum_in_rank_order(arrays, static_cast<float*>(out), n);
  switch (t) {
  case dtype::f64: return detail::sum_in_rank_order(arrays, static_cast<double*>(out), n);
  case dtype::f32: return detail::sum_in_rank_order(arrays, static_cast<float*>(out), n);
  case dtype::bf16: return detail::sum_in_rank_order(arrays, static_cast<bf16*>(out), n);
  case dtype::i32: return detail::sum_in_rank_order(arrays, static_cast<std::int32_t*>(out), n);
  case dtype::i64: return detail::sum_in_rank_order(arrays, static_cast<std::int64_t*>(out), n);
  case dtype::u8: return; // communicator::start refuses u8
  }
}

} // namespace mc
