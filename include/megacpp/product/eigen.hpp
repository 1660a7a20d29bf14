// Tiles of matrix products by Eigen: always for double, and for other types where oneDNN is absent
// or computes a tile wrong.
#pragma once

#include <megacpp/exec/product_shape.hpp>
#include <megacpp/product/pack.hpp>

// GCC 12 takes the deliberately undefined operands of its own AVX-512 intrinsics for mistakes.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <Eigen/Core>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#include <memory>
#include <new>
#include <string>

namespace mc {

/// A tile C(m,n) (+)= A(m,k) B(k,n) + bias, all in T. Eigen's own threads are off: tiles already
/// run in parallel, and a split of one tile by thread count would change its bits. Operands are
/// plain, so that one instantiation serves all kinds of product (each costs a second of compile
/// time).
template <class T> class eigen_cell final : public product_cell {
  using matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  using source = Eigen::Map<const matrix, 0, Eigen::OuterStride<>>;
  using target = Eigen::Map<matrix, 0, Eigen::OuterStride<>>;
  using row = Eigen::Map<const Eigen::Matrix<T, 1, Eigen::Dynamic>>;

public:
  explicit eigen_cell(const product_cell_shape& s) : s_(s) {}

  product_status execute(int, const void* a, const void* b, const void* bias, void* c,
                         void*) const override try {
    const source A(static_cast<const T*>(a), s_.m, s_.k, Eigen::OuterStride<>(s_.lda));
    const source B(static_cast<const T*>(b), s_.k, s_.n, Eigen::OuterStride<>(s_.ldb));
    target C(static_cast<T*>(c), s_.m, s_.n, Eigen::OuterStride<>(s_.ldc));
    if (!s_.accumulate) C.setZero();
    C.noalias() += A * B;
    if (s_.bias) C.rowwise() += row(static_cast<const T*>(bias), s_.n);
    return product_status::done;
  } catch (const std::bad_alloc&) {
    return product_status::no_memory;
  }

private:
  product_cell_shape s_;
};

/// A tile that Eigen does not compute as it is: operands that are transposed or bf16 are copied
/// plain and in f32 first, and a bf16 result is rounded afterwards.
class eigen_packed_cell final : public product_cell {
public:
  explicit eigen_packed_cell(const product_cell_shape& s) : s_(s), plain_(plain(s)) {}

  std::size_t scratch_bytes() const override {
    const std::int64_t floats = (copies_a() ? s_.m * s_.k : 0) + (copies_b() ? s_.k * s_.n : 0) +
                                (widens() && s_.bias ? s_.n : 0) + (rounds() ? s_.m * s_.n : 0);
    return static_cast<std::size_t>(floats) * sizeof(float);
  }
  product_status execute(int thread, const void* a, const void* b, const void* bias, void* c,
                         void* scratch) const override {
    auto* free = static_cast<float*>(scratch);
    const auto take = [&](std::int64_t n) { return std::exchange(free, free + n); };
    if (copies_a()) a = copy(a, s_.lda, s_.a_transposed, s_.m, s_.k, take(s_.m * s_.k));
    if (copies_b()) b = copy(b, s_.ldb, s_.b_transposed, s_.k, s_.n, take(s_.k * s_.n));
    if (widens() && s_.bias) bias = copy(bias, s_.n, false, 1, s_.n, take(s_.n));
    if (!rounds()) return plain_.execute(thread, a, b, bias, c, nullptr);
    float* const tile = take(s_.m * s_.n);
    const product_status status = plain_.execute(thread, a, b, bias, tile, nullptr);
    if (status == product_status::done)
      detail::round_tile<float, bf16, float>(tile, s_.n, static_cast<bf16*>(c), s_.ldc, s_.m, s_.n,
                                             s_.accumulate);
    return status;
  }

private:
  bool widens() const { return s_.type == dtype::bf16; }
  bool rounds() const { return s_.output == dtype::bf16; }
  bool copies_a() const { return widens() || s_.a_transposed; }
  bool copies_b() const { return widens() || s_.b_transposed; }
  static product_cell_shape plain(product_cell_shape s) {
    const bool widens = s.type == dtype::bf16;
    if (widens || s.a_transposed) s.lda = s.k;
    if (widens || s.b_transposed) s.ldb = s.n;
    if (s.output == dtype::bf16) s.ldc = s.n, s.accumulate = false;
    s.a_transposed = s.b_transposed = false;
    s.type = s.output = dtype::f32;
    return s;
  }
  /// Copies an operand of (rows, columns) to its plain copy, and returns that.
  const float* copy(const void* from, std::int64_t stride, bool transposed, std::int64_t rows,
                    std::int64_t columns, float* to) const {
    const auto run = [&](const auto* in) {
      if (transposed) detail::transpose(in, stride, to, columns, columns, rows, 0, 1);
      else detail::copy_rows(in, stride, to, columns, rows, columns, 0, 1);
    };
    if (widens()) run(static_cast<const bf16*>(from));
    else run(static_cast<const float*>(from));
    return to;
  }

  product_cell_shape s_;
  eigen_cell<float> plain_;
};

/// Tiles of f32 and bf16 products, and of f64 products with plain operands; make returns null for
/// others.
class eigen_products final : public product_library {
public:
  std::unique_ptr<product_cell> make(const product_cell_shape& s) const override {
    const bool plain = s.type == s.output && !s.a_transposed && !s.b_transposed;
    if (s.type == dtype::f64) return plain ? std::make_unique<eigen_cell<double>>(s) : nullptr;
    if (plain && s.type == dtype::f32) return std::make_unique<eigen_cell<float>>(s);
    return std::make_unique<eigen_packed_cell>(s);
  }
  std::string name() const override {
    return "Eigen " + std::to_string(EIGEN_WORLD_VERSION) + "." +
           std::to_string(EIGEN_MAJOR_VERSION) + "." + std::to_string(EIGEN_MINOR_VERSION);
  }
};

} // namespace mc
