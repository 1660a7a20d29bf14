// A machine whose first device a program runs on, with products of cuBLASLt and attention of cuDNN:
// all of the stand-in.
#pragma once

#include <cuda/blocks.hpp>
#include <cuda/stand_in.hpp>

#include <megacpp/comm/communicator.hpp>
#include <megacpp/kernel/cuda/cudnn_attention.hpp>
#include <megacpp/product/cuda/cublaslt.hpp>
#include <megacpp/product/cuda/grouped_library.hpp>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace test {

inline mc::cuda_libraries libraries_of(mc::cuda& on,
                                       mc::product_rows rows = mc::product_rows::together,
                                       bool tf32 = false, void (*tell)(std::string_view) = nullptr,
                                       const mc::grouped_library& grouped = {}) {
  return {std::make_unique<mc::cublaslt_products>(on, rows, tell, tf32,
                                                  std::vector<mc::tuned_product>{}, grouped),
          std::make_unique<mc::cudnn_attention>(on)};
}

/// What each rank of laws/outcome.hpp computes on: a device of the stand-in, which has begun.
struct on_gpu {
  using device = mc::cuda;
  static std::unique_ptr<device> make_device() {
    return std::make_unique<device>(0, 1, [](mc::cuda& on) { return libraries_of(on); });
  }
  static std::unique_ptr<mc::communicator> make_ranks(mc::communicator& hosts, device& on) {
    return hosts.make_ranks(on);
  }
};

/// CUTLASS's kernels of grouped products, of the stand-in.
inline const mc::grouped_library cutlass = mc::cutlass_library("4.2.0");
/// A machine whose cuBLASLt has grouped products.
inline const stand_in::machine with_grouped_cublaslt{.cublaslt = 131000};

class machine_with_device {
public:
  explicit machine_with_device(mc::product_rows rows = mc::product_rows::together,
                               bool tf32 = false, void (*tell)(std::string_view) = nullptr,
                               const mc::grouped_library& grouped = {},
                               stand_in::machine has = {}) {
    has.seed = blocks().streams;
    stand_in::begin(has);
    device_.emplace(0, 1,
                    [=](mc::cuda& on) { return libraries_of(on, rows, tf32, tell, grouped); });
  }
  mc::cuda& device() { return *device_; }

private:
  std::optional<mc::cuda> device_;
};

/// The sentence with which f refuses something.
inline std::string refused(const std::function<void()>& f) {
  try {
    f();
  } catch (const mc::error& e) {
    return e.what();
  }
  return "nothing was refused";
}

} // namespace test
