// The architectures of the devices for which nvcc has compiled the bodies of a program. One unit of
// nvcc includes this.
#pragma once

#include <megacpp/exec/cuda/launch.hpp>

#include <cuda_runtime.h>

#include <span>

namespace mc {

/// A kernel that is compiled as all bodies are.
__global__ void kernel_of_no_body() {}

int find_bodies_on_cuda() {
  cudaFuncAttributes of{};
  const cudaError_t e = cudaFuncGetAttributes(&of, kernel_of_no_body);
  (void)cudaGetLastError(); // the caller tells it
  return e;
}

std::span<const int> architectures_of_bodies() {
  static constexpr int all[] = {__CUDA_ARCH_LIST__}; // of nvcc: 900 of sm_90a
  return all;
}

} // namespace mc
