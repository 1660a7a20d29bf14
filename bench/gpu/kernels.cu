#include "kernels.hpp"

#include "device.hpp"

#include <megacpp/exec/cuda/launch.cuh>
#include <megacpp/kernel/rows/elementwise.hpp>

#include <cuda_runtime.h>

// Products of fp64 ask for it, of which this program has none.
template int mc::launch_on_cuda(CUstream_st*, std::int64_t,
                                const mc::rows::bias_add_row<double, std::int64_t>&);

namespace gpu {
namespace {

constexpr int copy_threads = 256, pieces_of_thread = 4;

__global__ void __launch_bounds__(copy_threads)
    copy_kernel(uint4* __restrict__ to, const uint4* __restrict__ from, std::int64_t pieces) {
  const std::int64_t first =
      std::int64_t{blockIdx.x} * (copy_threads * pieces_of_thread) + threadIdx.x;
#pragma unroll
  for (int k = 0; k < pieces_of_thread; ++k) {
    const std::int64_t i = first + k * copy_threads;
    if (i < pieces) to[i] = from[i];
  }
}

} // namespace

bool kernels_run_here() {
  cudaFuncAttributes of{};
  const bool runs = cudaFuncGetAttributes(&of, copy_kernel) == cudaSuccess;
  (void)cudaGetLastError();
  return runs;
}

std::string kernel_architecture() { return MEGACPP_GPU_ARCHITECTURE; }

void start_copy(std::byte* to, const std::byte* from, std::int64_t bytes) {
  const std::int64_t pieces = bytes / 16, of_block = copy_threads * pieces_of_thread;
  const auto blocks = static_cast<unsigned>((pieces + of_block - 1) / of_block);
  copy_kernel<<<blocks, copy_threads>>>(reinterpret_cast<uint4*>(to),
                                        reinterpret_cast<const uint4*>(from), pieces);
  require_launch(cudaGetLastError());
}

} // namespace gpu
