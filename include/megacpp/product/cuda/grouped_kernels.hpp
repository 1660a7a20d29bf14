// The kernels of grouped products that a program was built with. One unit of a program includes
// this, for which alone the macro is defined.
#pragma once

#include <megacpp/product/cuda/grouped_product.hpp>

namespace mc {

#if defined(MEGACPP_WITH_CUTLASS)
/// CUTLASS's kernels, on a GPU that runs them. The macro is its version.
inline grouped_library grouped_kernels(const cuda& on) {
  cudaDeviceProp facts{};
  require_cuda(cudaGetDeviceProperties(&facts, on.ordinal()), "cudaGetDeviceProperties");
  if (facts.major != 9 || facts.minor != 0) return {};
  return {"CUTLASS " MEGACPP_WITH_CUTLASS, &cutlass_grouped};
}
#else
/// A program that was built without CUTLASS has no kernels of grouped products.
inline grouped_library grouped_kernels(const cuda& /*on*/) { return {}; }
#endif

} // namespace mc
