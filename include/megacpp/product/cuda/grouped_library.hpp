// Libraries that compute a grouped product (product/cuda/grouped.hpp) by one kernel, as units of
// g++ see them.
#pragma once

#include <megacpp/exec/cuda/device.hpp>
#include <megacpp/exec/product_shape.hpp>
#include <megacpp/product/cuda/grouped.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace mc {

/// A library's kernel for the grouped products of one shape. Several threads may start it.
class grouped_kernel {
public:
  virtual ~grouped_kernel() = default;
  /// Starts a grouped product on a stream of a lane. Returns the bytes of workspace that the
  /// product needs; where the call has fewer, nothing is started. Throws mc::error where the
  /// library or CUDA refuses it.
  virtual std::int64_t start(const cuda_lane& lane, cudaStream_t on,
                             const grouped_product_call& c) const = 0;
};

/// A library of grouped products: its name and version, for people, and a function that returns its
/// kernel for a shape that grouped_product::computes(), or nullptr where it has none. Without a
/// function there is no library.
struct grouped_library {
  std::string name;
  std::function<std::shared_ptr<const grouped_kernel>(const product_shape&)> kernel_for;
};

/// Returns true if the GPU is an H100 or H200: the kernels of grouped products are compiled for its
/// compute capability.
inline bool is_hopper(const cuda& on) {
  cudaDeviceProp facts{};
  require_cuda(cudaGetDeviceProperties(&facts, on.ordinal()), "cudaGetDeviceProperties");
  return facts.major == 9 && facts.minor == 0;
}

/// Returns CUTLASS's kernels, which are compiled for each kind of product and prepare nothing.
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
