// The architectures for which nvcc has compiled the bodies of a program. One unit of nvcc includes
// this header.
#pragma once

#include <megacpp/exec/cuda/launch.hpp>

#include <cuda_runtime.h>

#include <span>

namespace mc {

/// An empty kernel that is compiled with the options of all bodies.
__global__ void kernel_of_no_body() {}

int find_bodies_on_cuda() {
  cudaFuncAttributes of{};
  const cudaError_t e = cudaFuncGetAttributes(&of, kernel_of_no_body);
  (void)cudaGetLastError(); // clears the error, which the caller reports
  return e;
}

std::span<const int> architectures_of_bodies() {
  static constexpr int all[] = {__CUDA_ARCH_LIST__}; // nvcc defines the list: 900 stands for sm_90a
  return all;
}

} // namespace mc
