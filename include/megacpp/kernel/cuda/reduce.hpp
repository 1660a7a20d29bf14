// Sums and maxima over ranks that share a CUDA device (exec/cuda/launch.hpp). One unit of a program
// includes this header: the unit with the bodies that have no element type.
#pragma once

#include <megacpp/exec/cuda/launch.hpp>
#include <megacpp/kernel/rows/reduce.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace mc {

namespace detail {
template <class Body, class T>
int start_reduction(CUstream_st* on, Body body, std::span<const void* const> arrays, T* out) {
  body.count = static_cast<int>(arrays.size()), body.out = out;
  for (std::size_t q = 0; q < arrays.size(); ++q) body.arrays[q] = static_cast<const T*>(arrays[q]);
  return launch_on_cuda(on, blocks_of(body.n), body);
}
template <class T>
int start_sum(CUstream_st* on, std::span<const void* const> arrays, void* out, std::int64_t n) {
  return start_reduction(on, rows::sum_of_ranks_block<T>{n, 0, {}, nullptr}, arrays,
                         static_cast<T*>(out));
}
} // namespace detail

int reduce_on_cuda(CUstream_st* on, reduction by, dtype t, std::span<const void* const> arrays,
                   void* out, std::int64_t n) {
  using namespace detail;
  if (by == reduction::maximum)
    return start_reduction(on, rows::maximum_of_ranks_block{n, 0, {}, nullptr}, arrays,
                           static_cast<float*>(out));
  switch (t) {
  case dtype::f64: return start_sum<double>(on, arrays, out, n);
  case dtype::f32: return start_sum<float>(on, arrays, out, n);
  case dtype::bf16: return start_sum<bf16>(on, arrays, out, n);
  case dtype::i32: return start_sum<std::uint32_t>(on, arrays, out, n);
  case dtype::i64: return start_sum<std::uint64_t>(on, arrays, out, n);
  case dtype::u8: break; // communicator::start refuses u8
  }
  return 0;
}

} // namespace mc
