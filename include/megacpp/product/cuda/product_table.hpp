// A table of the fastest ways in which cuBLASLt computes products, as measured by
// product/cuda/tune.hpp; the library can only guess them. A program reads a table from a file
// (product/cuda/product_table_file.hpp), since its ways hold for one GPU and one version of the
// library. A way of a table is checked like any other way.
#pragma once

#include <megacpp/exec/cuda/device.hpp>
#include <megacpp/exec/product_shape.hpp>

#include <cublasLt.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace mc {

/// The fastest way for a product, among the library's proposals that pass their check.
struct tuned_product {
  product_shape call; ///< the product as the library is asked for it (call_of)
  bool tf32 = false;  ///< fp32 operands are rounded to TF32
  cublasLtMatmulAlgo_t way{};
  double seconds = 0;       ///< median seconds of that way
  double first_seconds = 0; ///< median seconds of the way that is taken without a table
};

/// Returns the call of the library that computes so many rows of a shape. Fields that the library
/// is not told are cleared and strides are spelled out, so that shapes with the same call are
/// equal.
constexpr product_shape call_of(const product_shape& s, std::int64_t rows) {
  product_shape c = s;
  c.M = rows, c.x_stride = s.x_row(), c.y_stride = s.y_row();
  c.accumulate = s.accumulate || s.kind == product_kind::weight_gradient;
  c.groups = s.groups > 0 ? 1 : 0; // one group is computed in a fraction of a lane's workspace
  c.dynamic_rows = false, c.group_rows = c.segment = 0, c.sums = product_shape{}.sums;
  return c;
}
/// Returns the call of a product with as many rows as its shape, or as a segment of it, has.
constexpr product_shape call_of(const product_shape& s) {
  return call_of(s, s.segment != 0 ? s.segment : s.M);
}

/// The machine for which the ways of a table hold.
struct tuned_machine {
  std::string gpu;
  std::string capability;   ///< compute capability of the GPU's machine code, such as 9.0
  std::size_t cublaslt = 0; ///< cublasLtGetVersion()

  std::string text() const { return gpu + " and cuBLASLt " + dotted_version(cublaslt); }
  friend bool operator==(const tuned_machine&, const tuned_machine&) = default;
};
inline std::string capability_text(int major, int minor) {
  return std::to_string(major) + "." + std::to_string(minor);
}
inline tuned_machine machine_of(const cuda& on) {
  cudaDeviceProp facts{};
  require_cuda(cudaGetDeviceProperties(&facts, on.ordinal()), "cudaGetDeviceProperties");
  return {facts.name, capability_text(facts.major, facts.minor), cublasLtGetVersion()};
}

/// Returns the tuned product of a call among others; nullptr if there is none.
inline const tuned_product* find_tuned(std::span<const tuned_product> among,
                                       const product_shape& call, bool tf32) {
  const auto at = std::ranges::find_if(
      among, [&](const tuned_product& t) { return t.call == call && t.tf32 == tf32; });
  return at == among.end() ? nullptr : &*at;
}

/// Tuned products of several machines.
struct product_table {
  struct of_machine {
    tuned_machine machine;
    std::vector<tuned_product> products; ///< products with different calls
  };
  std::vector<of_machine> machines; ///< different machines

  /// Returns the products of a machine; nullptr if the table has no such machine.
  const std::vector<tuned_product>* find(const tuned_machine& m) const {
    const auto at = std::ranges::find(machines, m, &of_machine::machine);
    return at == machines.end() ? nullptr : &at->products;
  }
  /// Puts a product into the table in the place of the product with the same call.
  void put(const tuned_machine& m, const tuned_product& t) {
    auto at = std::ranges::find(machines, m, &of_machine::machine);
    if (at == machines.end()) at = machines.insert(at, {m, {}});
    std::erase_if(at->products, [&](const tuned_product& old) {
      return old.call == t.call && old.tf32 == t.tf32;
    });
    at->products.push_back(t);
  }
};

} // namespace mc
