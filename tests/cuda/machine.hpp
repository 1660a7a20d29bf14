// A machine whose first device a program runs on, with products of cuBLASLt: all of the stand-in.
#pragma once

#include <cuda/stand_in.hpp>

#include <megacpp/product/cuda/cublaslt.hpp>

#include <memory>
#include <optional>

namespace test {

class machine_with_device {
public:
  explicit machine_with_device(mc::product_rows rows = mc::product_rows::together,
                               bool tf32 = false) {
    stand_in::begin({});
    device_.emplace(0, 1, [=](mc::cuda& on) {
      return std::make_unique<mc::cublaslt_products>(on, rows, nullptr, tf32);
    });
  }
  mc::cuda& device() { return *device_; }

private:
  std::optional<mc::cuda> device_;
};

} // namespace test
