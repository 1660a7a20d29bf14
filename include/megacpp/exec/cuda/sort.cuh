// The sort of a CUDA device: CUB's radix sort. One unit of nvcc includes this header.
#pragma once

#include <megacpp/exec/cuda/launch.hpp>

#include <cub/device/device_radix_sort.cuh>
#include <cuda_runtime.h>

namespace mc {

int sort_on_cuda(CUstream_st* on, std::uint64_t* numbers, std::int64_t n, int first, int bits,
                 std::byte* room, std::int64_t* needed) {
  if (n <= 1) return cudaSuccess;
  const std::int64_t second = (n * 8 + 255) / 256 * 256; // bytes of the second copy of the numbers
  cub::DoubleBuffer<std::uint64_t> both(numbers, reinterpret_cast<std::uint64_t*>(room));
  std::size_t bytes = 0;
  cudaError_t e = cub::DeviceRadixSort::SortKeys(nullptr, bytes, both, n, first, first + bits, on);
  if (e != cudaSuccess) return e;
  *needed = second + static_cast<std::int64_t>(bytes);
  if (*needed > sort_bytes_on_cuda(n)) return cudaSuccess; // the caller reports it
  e = cub::DeviceRadixSort::SortKeys(room + second, bytes, both, n, first, first + bits, on);
  if (e != cudaSuccess || both.Current() == numbers) return e;
  return cudaMemcpyAsync(numbers, both.Current(), static_cast<std::size_t>(n) * 8,
                         cudaMemcpyDeviceToDevice, on);
}

} // namespace mc
