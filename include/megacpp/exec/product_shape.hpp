// The description of a matrix product: kind, extents, strides and element types. This header
// includes no library, so kernels can name products without paying for Eigen or oneDNN.
#pragma once

#include <megacpp/num/dtype.hpp>
#include <megacpp/recipe/numerics.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace mc {

/// The three products of a linear layer. Legend: M rows (tokens), N output width, K input width.
///   forward:          Y(M,N)  = X(M,K) W(N,K)^T + bias(N)
///   input_gradient:   dX(M,K) = dY(M,N) W(N,K)
///   weight_gradient:  dW(N,K) += dY(M,N)^T X(M,K)
enum class product_kind : std::uint8_t { forward, input_gradient, weight_gradient };

constexpr const char* name_of(product_kind k) {
  switch (k) {
  case product_kind::forward: return "forward";
  case product_kind::input_gradient: return "input_gradient";
  case product_kind::weight_gradient: return "weight_gradient";
  }
  return "?";
}

/// The arithmetic of bf16 operands: the processor's bf16 products, or widening to fp32 and products
/// in fp32 (faster where bf16 products run at half rate). Both accumulate in fp32 and round the
/// output once, to nearest even. `automatic` measures both and keeps the faster.
enum class product_type : std::uint8_t { automatic, bf16, widened };

/// The rows of a forward product are computed together, in tiles (the fastest), or apart, so that
/// the bits of a row do not depend on the other rows. So a token's logits are the same in prefill
/// and decode, in any batch.
enum class product_rows : std::uint8_t { together, apart };

/// The function of a finished sum, its bias included, that is applied before the sum is rounded and
/// written: none, or
///   gelu_kept:      the same, and Z is written, too
///   gelu_gradient:  dX = (the sum) gelu'(Z), Z is read
/// gelu is in its tanh form. Z has the type and the rows of Y (dX).
enum class product_end : std::uint8_t { sum, gelu, gelu_kept, gelu_gradient };

constexpr const char* name_of(product_end e) {
  switch (e) {
  case product_end::sum: return "sum";
  case product_end::gelu: return "gelu";
  case product_end::gelu_kept: return "gelu_kept";
  case product_end::gelu_gradient: return "gelu_gradient";
  }
  return "?";
}

/// One product, which is prepared once and executed many times. W and dW are contiguous and
/// row-major; X, dX, Y and dY are row-major with a stride between rows, so that a slice of a packed
/// tensor can be used.
struct product_shape {
  product_kind kind = product_kind::forward;
  std::int64_t M = 0, N = 0, K = 0;
  std::int64_t x_stride = 0; // elements from a row of X or dX to the next; 0: K
  std::int64_t y_stride = 0; // elements from a row of Y or dY to the next; 0: N
  dtype a = dtype::f32;      // type of X or dY, the first operand
  dtype b = dtype::f32;      // type of W, or of a weight gradient's X; and of the bias
  dtype out = dtype::f32;    // type of Y, dX or dW
  bool scaled = false; // the sum is multiplied by one fp32 number of each operand (product_scales)
  bool bias = false;   // forward only; the bias is added to the scaled sum
  // The end is a wish: a source that does not compute it prepares the product without it, and then
  // the prepared shape says `sum` and a kernel computes the rest. gelu and gelu_kept end a forward
  // product, gelu_gradient one of input_gradient.
  product_end ends_in = product_end::sum;
  bool accumulate = false;   // input_gradient: dX += ...; a weight gradient always accumulates
  bool dynamic_rows = false; // M is a maximum; the rows of a call are given at execute
  // The number of matrices W (dW), one behind the other, for execute_groups. A product with 1 or
  // more fits a branch of its lane, and may run beside others; 0: one matrix, on a lane without
  // branches.
  std::int64_t groups = 0;
  // The average number of rows of a group, by which libraries choose an algorithm; 0: it is not
  // known.
  std::int64_t group_rows = 0;
  // The rows of a segment, which divide M (0: M is one segment). Every segment has the bits of a
  // product of its own: tiles, copies and library calls follow from a segment's shape and end at
  // its borders, and a weight gradient adds up its segments in order. So the bits of a sequence do
  // not depend on the number of sequences that are computed with it.
  std::int64_t segment = 0;
  // The numerics of sums. numerics::fast: the copies of operands, and the tiles and sum blocks of a
  // weight gradient, are those that measure fastest for M rows. The shape fixes them, but M decides
  // bits.
  numerics sums = numerics::batch_invariant;
  // Canonical panels, for numerics that do not depend on the layout (0: the library's choice):
  // the output is computed in blocks of `canonical_rows` by `panel`, and each sum in blocks of
  // `sum_block` terms, first to last, accumulated in fp32. Cutting rows or columns at these
  // borders leaves every bit, since the same library calls are made; oneDNN on AVX-512 allows
  // rows to be cut anywhere.
  std::int64_t sum_block = 0;
  std::int64_t panel = 0;
  static constexpr std::int64_t canonical_rows = 64;

  constexpr std::int64_t x_row() const { return x_stride ? x_stride : K; }
  constexpr std::int64_t y_row() const { return y_stride ? y_stride : N; }
  constexpr std::int64_t segments() const { return segment ? M / segment : 1; }
  constexpr double flops() const {
    return 2.0 * static_cast<double>(M) * static_cast<double>(N) * static_cast<double>(K);
  }
  friend constexpr bool operator==(const product_shape&, const product_shape&) = default;
};

/// Returns a shape with the usual types: all operands of `type`, a weight gradient in its
/// accumulator type.
constexpr product_shape make_product_shape(product_kind kind, dtype type, std::int64_t M,
                                           std::int64_t N, std::int64_t K) {
  product_shape s;
  s.kind = kind;
  s.M = M;
  s.N = N;
  s.K = K;
  s.a = s.b = type;
  s.out = kind == product_kind::weight_gradient ? accumulator_of(type) : type;
  s.accumulate = kind == product_kind::weight_gradient;
  return s;
}

/// The products of a node's kernel, in the order of their numbers.
struct product_list {
  static constexpr int most = 3;
  product_shape all[most]{};
  int count = 0;

  constexpr product_list() = default;
  constexpr product_list(const product_shape& one) { add(one); }
  constexpr void add(const product_shape& s) { all[count++] = s; }
  constexpr const product_shape* begin() const { return all; }
  constexpr const product_shape* end() const { return all + count; }
};

/// One tile of a product, which one thread computes in one call of a library: C(m,n) (+)= op(A)
/// op(B). A is (m,k), or stored as (k,m) when transposed; B is (k,n), or stored as (n,k) when
/// transposed.
struct product_cell_shape {
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t lda = 0, ldb = 0, ldc = 0; // elements from a stored row to the next
  bool a_transposed = false, b_transposed = false;
  dtype type = dtype::f32, output = dtype::f32;
  int operand_bits = 0; // significant bits that are left of operands; 0: all bits of the type
  bool bias = false;    // a bias (n) of `type` is added to each row
  product_end ends_in = product_end::sum;
  bool accumulate = false; // C is read and added to

  friend constexpr bool operator==(const product_cell_shape&, const product_cell_shape&) = default;
};

/// The outcome of computing a tile; the library may lack memory for it.
enum class product_status { done, no_memory, failed };

/// A prepared tile. `thread` is the number of the calling thread: two threads never use one at a
/// time.
class product_cell {
public:
  virtual ~product_cell() = default;
  virtual std::size_t scratch_bytes() const { return 0; }
  virtual product_status execute(int thread, const void* a, const void* b, const void* bias,
                                 void* c, void* scratch) const = 0;
};

/// A library that computes tiles of matrix products.
class product_library {
public:
  virtual ~product_library() = default;
  virtual std::string name() const = 0;
  /// Returns true if the library may be asked for tiles of this shape.
  virtual bool serves(const product_cell_shape& /*s*/) const { return true; }
  /// Prepares a tile. Returns null for types that the library does not have on this processor.
  virtual std::unique_ptr<product_cell> make(const product_cell_shape& s) const = 0;
};

} // namespace mc
