// Libraries that compute the parts of a grouped product (product/cuda/grouped.hpp) at once, as
// g++'s units know them.
#pragma once

#include <megacpp/exec/cuda/device.hpp>
#include <megacpp/exec/product_shape.hpp>
#include <megacpp/product/cuda/grouped.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace mc {

/// A kernel of one library for grouped products of one shape. Several threads may start it.
class grouped_kernel {
public:
  virtual ~grouped_kernel() = default;
  /// Starts a grouped product on a stream of a lane. Returns the bytes of workspace that it needs;
  /// where they are more than the call has, nothing is started. Throws mc::error where the library
  /// or CUDA does not take it.
  virtual std::int64_t start(const cuda_lane& lane, cudaStream_t on,
                             const grouped_product_call& c) const = 0;
};

/// What a program knows of such a library: its name and version, for people, and its kernel for a
/// shape that grouped_product::computes(), or nullptr where it has none. No library: no function.
struct grouped_library {
  std::string name;
  std::function<std::shared_ptr<const grouped_kernel>(const product_shape&)> kernel_for;
};

/// Whether a GPU is an H100 or H200, for whose compute capability kernels of grouped products are.
inline bool runs_kernels_of_hopper(const cuda& on) {
  cudaDeviceProp facts{};
  require_cuda(cudaGetDeviceProperties(&facts, on.ordinal()), "cudaGetDeviceProperties");
  return facts.major == 9 && facts.minor == 0;
}

/// CUTLASS's kernels, which are compiled for each kind of product and have nothing to plan.
inline grouped_library cutlass_library(const std::string& version) {
  class kernel final : public grouped_kernel {
    std::int64_t start(const cuda_lane& lane, cudaStream_t on,
                       const grouped_product_call& c) const override {
      std::int64_t needed = 0;
      const int status = cutlass_grouped(on, c, &needed);
      if (status != cudaSuccess)
        require_cuda(static_cast<cudaError_t>(status),
                     lane.behind("the start of a grouped product"));
      return needed;
    }
  };
  return {"CUTLASS " + version,
          [](const product_shape& /*s*/) { return std::make_shared<const kernel>(); }};
}

} // namespace mc
