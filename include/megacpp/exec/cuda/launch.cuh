// Row bodies on a CUDA device: a block of threads is the team of a row. For nvcc alone, whose units
// instantiate launch_on_cuda for the bodies that there are (kernel/rows/bodies.inc).
#pragma once

#include <megacpp/exec/cuda/launch.hpp>
#include <megacpp/exec/team.hpp>

#include <cuda_runtime.h>

namespace mc {

/// A grid has as many blocks as there are rows, up to the most that a grid can have.
template <int Threads, class Body> __global__ void __launch_bounds__(Threads)
    rows_kernel(std::int64_t rows, const __grid_constant__ Body body) {
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x)
    body(block_team<Threads>{}, row);
}

/// Starts body(block_team<Threads>{}, row) for every row on a stream. Rows of one block follow each
/// other without a barrier: a body must not write what it reads for another row.
template <int Threads, class Body>
[[nodiscard]] cudaError_t launch_blocks(cudaStream_t on, std::int64_t rows, const Body& body) {
  if (rows <= 0) return cudaSuccess;
  constexpr std::int64_t most = 2147483647; // blocks of a grid
  const auto blocks = static_cast<unsigned>(rows < most ? rows : most);
  rows_kernel<Threads><<<blocks, Threads, 0, on>>>(rows, body);
  return cudaGetLastError();
}

template <class Body> int launch_on_cuda(CUstream_st* on, std::int64_t rows, const Body& body) {
  return launch_blocks<128>(on, rows, body);
}

} // namespace mc
