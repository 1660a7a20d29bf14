// Products as kernels see them: prepared once by shape, executed many times. This header names no
// library, so that the unit with a run's kernels does not pay for Eigen and oneDNN.
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

/// One number of fp32 for each operand of a scaled product, in the memory of the device. An element
/// of the operand stands for itself times that number.
struct product_scales {
  const float *a = nullptr, *b = nullptr;
};

/// A call of a matrix product: the lane that it runs on, and its operands.
struct product_call {
  lane& on; ///< no other product uses this lane's workspace meanwhile
  const void *a = nullptr, *b = nullptr, *bias = nullptr;
  void* out = nullptr;
  std::int64_t rows = -1;  ///< M for a shape with dynamic rows (0 ... shape().M), otherwise absent
  product_scales scales{}; ///< scales of a scaled shape
  void* kept = nullptr;    ///< product_end::gelu_kept writes Z there
  const void* slopes_at = nullptr; ///< product_end::gelu_gradient reads Z there
};

/// A prepared matrix product.
class prepared_product {
public:
  virtual ~prepared_product() = default;

  const product_shape& shape() const { return shape_; }
  /// forward:         a = X, b = W, bias = bias or null, out = Y
  /// input_gradient:  a = dY, b = W, out = dX
  /// weight_gradient: a = dY, b = X, out = dW (accumulated into)
  virtual void execute(const product_call& c) const = 0;
  /// Executes consecutive segments of rows[0], rows[1], ... rows (0 ... shape().M each) of a shape
  /// with dynamic rows, without bias and scales. Every segment has the bits of an execute of its
  /// own.
  virtual void execute_segments(const product_call& c,
                                std::span<const std::int32_t> rows) const = 0;
  /// Executes products with several matrices, for a shape with groups. `rows` has the segments of
  /// the first group, then as many of the next group, and so on; segments follow each other. Group
  /// g multiplies by matrix g of b, or is added to matrix g of out. Every segment has the bits that
  /// it has alone, except under numerics::fast.
  virtual void execute_groups(const product_call& c, std::span<const std::int32_t> rows) const {
    for_groups(c, rows, [this](const product_call& of, std::span<const std::int32_t> segments) {
      execute_segments(of, segments);
    });
  }

protected:
  /// Calls f(call, rows of its segments) for each group that has rows.
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
    const std::size_t segments = rows.size() / static_cast<std::size_t>(s.groups);
    for (std::int64_t g = 0; g < s.groups; ++g) {
      const auto here = rows.subspan(static_cast<std::size_t>(g) * segments, segments);
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
  /// Throws mc::error unless the shape has groups, each with as many segments, of 0 to M rows.
  void require_groups(std::span<const std::int32_t> rows) const {
    const product_shape& s = shape_;
    const auto refuse = [&s](const std::string& what) {
      throw error(exit_code::internal, "A matrix product prepared for " + std::to_string(s.groups) +
                                           " groups of " + std::to_string(s.M) +
                                           " rows at most was given " + what + ".");
    };
    if (s.groups <= 0 || std::ssize(rows) % s.groups != 0)
      refuse(std::to_string(rows.size()) + " segments");
    for (const std::int32_t n : rows)
      if (n < 0 || n > s.M) refuse("a segment of " + std::to_string(n));
  }

  product_shape shape_;
};

/// The checks (exec/product_check.hpp) that a source has made of the products that its libraries
/// prepared.
struct product_checks {
  int checked = 0;            ///< number of preparations that were checked
  double seconds = 0;         ///< seconds of the checks without the time in the libraries
  double library_seconds = 0; ///< seconds in the libraries, with what the first check prepares
  std::vector<std::string>
      refused; ///< a sentence for each preparation that was left to another library or algorithm
};

/// The source that a device takes products from.
class product_source {
public:
  virtual ~product_source() = default;

  /// Finds or prepares the product of a shape. Where the libraries do not compute its end, the
  /// product is prepared without it, and its shape() says so. Throws mc::error when the libraries
  /// cannot compute the shape.
  virtual const prepared_product& prepare(const product_shape& s) = 0;
  /// Lends device memory, with nothing in it yet, to the checks of products that are prepared from
  /// now on. Without it, or where it is too small, a check reserves memory of its own and releases
  /// it at once.
  virtual void lend(std::byte* memory, std::int64_t bytes) = 0;
  /// Takes the lent memory back. Returns how many bytes from its beginning the checks have written.
  virtual std::int64_t take_back() = 0;
  virtual const product_checks& checks() const = 0;
  /// Returns the bytes of memory, other than the host's, that the check of a product takes, lent or
  /// not. A source that only counts sizes returns them, too.
  virtual std::int64_t check_bytes(const product_shape& /*s*/) const { return 0; }
  /// Returns the shapes of the products that are prepared so far, in order, as their shape() says.
  virtual std::vector<product_shape> shapes() const = 0;
  /// Returns the bytes of workspace that a lane needs for the matrix products prepared so far.
  virtual std::int64_t workspace_bytes() const = 0;
  /// Returns how bf16 operands are multiplied; `automatic` is measured at the first call.
  virtual product_type type() = 0;
  /// Returns, for people, the library, its version and, for bf16 storage, how bf16 is multiplied.
  virtual std::string describe(dtype storage = dtype::f32) = 0;
};

} // namespace mc
