// Products as kernels see them: prepared once by shape, executed many times. No library behind them
// is named here, so that the unit with a run's kernels does not pay for Eigen and oneDNN.
#pragma once

#include <megacpp/exec/product_shape.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace mc {

class lane;

/// One number of fp32 for each operand of a scaled product, in the memory of the device: an
/// operand's elements stand for themselves times its number.
struct product_scales {
  const float *a = nullptr, *b = nullptr;
};

/// A call of a product: the lane that it runs on, and its operands.
struct product_call {
  lane& on; ///< on whose workspace no other product works meanwhile
  const void *a = nullptr, *b = nullptr, *bias = nullptr;
  void* out = nullptr;
  std::int64_t rows = -1;  ///< M for a shape with dynamic rows (0 ... shape().M), otherwise absent
  product_scales scales{}; ///< of a scaled shape
  void* kept = nullptr;    ///< of product_end::gelu_kept: where Z is written
  const void* slopes_at = nullptr; ///< of product_end::gelu_gradient: Z
};

/// A prepared product.
class prepared_product {
public:
  virtual ~prepared_product() = default;

  const product_shape& shape() const { return shape_; }
  /// forward:         a = X, b = W, bias = bias or null, out = Y
  /// input_gradient:  a = dY, b = W, out = dX
  /// weight_gradient: a = dY, b = X, out = dW (accumulated into)
  virtual void execute(const product_call& c) const = 0;
  /// Consecutive parts of rows[0], rows[1], ... rows (0 ... shape().M each) of a shape with dynamic
  /// rows, without bias and scales: the bits of one execute for every part.
  virtual void execute_parts(const product_call& c, std::span<const std::int32_t> rows) const = 0;

protected:
  product_shape shape_;
};

/// The checks (exec/product_check.hpp) that a source has made of what its libraries prepared.
struct product_checks {
  int plans = 0;
  double seconds = 0;         ///< without those in the libraries
  double library_seconds = 0; ///< at the first one also what they make for all their products
  std::vector<std::string>
      refused; ///< a sentence for each plan that was left to another library or way
};

/// Where products come from.
class product_source {
public:
  virtual ~product_source() = default;

  /// The product of a shape: found, or prepared. Where the libraries do not compute what it ends
  /// in, the same without that: its shape() says so. Throws mc::error when the shape is not one
  /// that the libraries can compute.
  virtual const prepared_product& prepare(const product_shape& s) = 0;
  /// Memory of the device, with nothing in it yet, in which products that are prepared from now on
  /// may be checked. Where it is too small, and without it, a check has memory of its own, which it
  /// gives back at once.
  virtual void lend(std::byte* memory, std::int64_t bytes) = 0;
  /// Ends that. Returns how much of the memory's beginning the checks have written.
  virtual std::int64_t take_back() = 0;
  virtual const product_checks& checks() const = 0;
  /// The shapes of the products that are prepared so far, in order, as their shape() says.
  virtual std::vector<product_shape> shapes() const = 0;
  /// Bytes of workspace that a lane needs for the products prepared so far.
  virtual std::int64_t workspace_bytes() const = 0;
  /// How bf16 operands are multiplied; measured at the first call when it is to be chosen.
  virtual product_type type() = 0;
  /// For people: library, version and, for bf16 storage, how it is multiplied.
  virtual std::string describe(dtype storage = dtype::f32) = 0;
};

} // namespace mc
