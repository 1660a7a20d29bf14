// Row bodies on a CUDA device: a block of threads is the team of a row. For nvcc alone.
#pragma once

#include <megacpp/exec/team.hpp>

#include <cuda_runtime.h>

namespace mc::cuda {

/// A grid has as many blocks as there are rows, up to the most that a grid can have.
template <int Threads, class Body> __global__ void __launch_bounds__(Threads)
    rows_kernel(std::int64_t rows, const __grid_constant__ Body body) {
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x)
    body(block_team<Threads>{}, row);
}

/// Starts body(block_team<Threads>{}, row) for every row on a stream. Tells what cannot be started;
/// what goes wrong in the kernel shows in a later call, as everywhere in CUDA. Rows of one block
/// follow each other without a barrier: a body must not write what it reads for another row.
template <int Threads, class Body>
[[nodiscard]] cudaError_t for_rows(cudaStream_t stream, std::int64_t rows, const Body& body) {
  if (rows <= 0) return cudaSuccess;
  constexpr std::int64_t most = 2147483647; // blocks of a grid
  const auto blocks = static_cast<unsigned>(rows < most ? rows : most);
  rows_kernel<Threads><<<blocks, Threads, 0, stream>>>(rows, body);
  return cudaGetLastError();
}

} // namespace mc::cuda
