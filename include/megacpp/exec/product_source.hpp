// Products as kernels see them: prepared once by shape, executed many times. No library behind them
// is named here, so that the unit with a run's kernels does not pay for Eigen and oneDNN.
#pragma once

#include <megacpp/exec/product_shape.hpp>
#include <megacpp/io/error.hpp>

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
  /// Products with several matrices, of a shape with groups. `rows` has the parts of the first
  /// group, then as many of the next one, and so on; parts follow each other. Group g multiplies by
  /// matrix g of b, or is added to matrix g of out. Every part has the bits that it has alone, but
  /// under numerics::fast.
  virtual void execute_groups(const product_call& c, std::span<const std::int32_t> rows) const {
    for_groups(c, rows, [this](const product_call& of, std::span<const std::int32_t> parts) {
      execute_parts(of, parts);
    });
  }

protected:
  /// f(call, rows of its parts) for each group that has rows.
  template <class F>
  void for_groups(product_call c, std::span<const std::int32_t> rows, F f) const {
    const product_shape& s = shape_;
    require_groups(rows);
    const bool forward = s.kind == product_kind::forward,
               summed = s.kind == product_kind::weight_gradient;
    const std::int64_t of_x = s.x_row() * size_of(forward  ? s.a
                                                  : summed ? s.b
                                                           : s.out),
                       of_y = s.y_row() * size_of(forward ? s.out : s.a),
                       matrix = s.N * s.K * size_of(summed ? s.out : s.b);
    const auto of_a = forward ? of_x : of_y;
    const std::size_t parts = rows.size() / static_cast<std::size_t>(s.groups);
    for (std::int64_t g = 0; g < s.groups; ++g) {
      const auto here = rows.subspan(static_cast<std::size_t>(g) * parts, parts);
      std::int64_t n = 0;
      for (const std::int32_t k : here) n += k;
      if (n > 0) f(static_cast<const product_call&>(c), here);
      const auto on = [](const void* p, std::int64_t bytes) {
        return static_cast<const std::byte*>(p) + bytes;
      };
      c.a = on(c.a, n * of_a), c.b = on(c.b, summed ? n * of_x : matrix);
      c.out = static_cast<std::byte*>(c.out) + (summed ? matrix : n * (forward ? of_y : of_x));
    }
  }
  /// Throws mc::error unless the shape has groups, and each as many parts, of rows that there may
  /// be.
  void require_groups(std::span<const std::int32_t> rows) const {
    const product_shape& s = shape_;
    const auto refuse = [&s](const std::string& what) {
      throw error(exit_code::internal, "A matrix product prepared for " + std::to_string(s.groups) +
                                           " groups of " + std::to_string(s.M) +
                                           " rows at most was given " + what + ".");
    };
    if (s.groups <= 0 || std::ssize(rows) % s.groups != 0)
      refuse(std::to_string(rows.size()) + " parts");
    for (const std::int32_t n : rows)
      if (n < 0 || n > s.M) refuse("a part of " + std::to_string(n));
  }

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
  /// The check of a product takes so many bytes of memory that the host does not see, lent or not.
  /// A source that counts sizes alone tells it, for plans.
  virtual std::int64_t check_bytes(const product_shape& /*s*/) const { return 0; }
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
