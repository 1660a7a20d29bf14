// Tiles of matrix products by Eigen: always for double, and for float where oneDNN is absent.
#pragma once

#include <megacpp/exec/product_shape.hpp>

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

/// C(m,n) (+)= A(m,k) B(k,n) + bias, all in T. Eigen's own threads stay out: tiles already run in
/// parallel, and a split of one tile by thread count would change its bits. Operands are plain, so
/// that one instantiation serves all kinds of product (each costs a second of compile time).
template <class T> class eigen_cell final : public product_cell {
  using matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  using source = Eigen::Map<const matrix, 0, Eigen::OuterStride<>>;
  using target = Eigen::Map<matrix, 0, Eigen::OuterStride<>>;
  using row = Eigen::Map<const Eigen::Matrix<T, 1, Eigen::Dynamic>>;

public:
  explicit eigen_cell(const product_cell_shape& s) : s_(s) {}

  product_status run(int, const void* a, const void* b, const void* bias, void* c,
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

/// Tiles of f32 and f64 products of plain operands; null for others.
class eigen_products {
public:
  explicit eigen_products(int /*slots*/) {}
  std::unique_ptr<product_cell> make(const product_cell_shape& s) const {
    if (s.type != s.output || s.a_transposed || s.b_transposed) return nullptr;
    if (s.type == dtype::f64) return std::make_unique<eigen_cell<double>>(s);
    if (s.type == dtype::f32) return std::make_unique<eigen_cell<float>>(s);
    return nullptr;
  }
  static std::string name() {
    return "Eigen " + std::to_string(EIGEN_WORLD_VERSION) + "." +
           std::to_string(EIGEN_MAJOR_VERSION) + "." + std::to_string(EIGEN_MINOR_VERSION);
  }
};

} // namespace mc
