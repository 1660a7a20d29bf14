// Grouped products: the interface between the unit of nvcc that computes them and the units of g++
// that describe their segments. It includes no header of a library.
#pragma once

#include <megacpp/exec/product_shape.hpp>

#include <cstddef>
#include <cstdint>

struct CUstream_st; // cudaStream_t is a pointer to this type

namespace mc {

/// The arrays that describe the segments of a grouped product. Segment g is D (m, n) = A (m, k) B
/// (k, n), or D += A B. A row-major matrix, or a transposed one that is stored by columns, has
/// `stride` elements from a row, or column, to the next. Extents are stored twice: CUTLASS reads m,
/// n and k of a segment together, and cuBLASLt reads all m, all n and all k from an array each.
struct grouped_arrays {
  struct sizes {
    std::int32_t m, n, k;
  };
  const void **a = nullptr, **b = nullptr;
  void** d = nullptr;
  std::int64_t *a_stride = nullptr, *b_stride = nullptr, *d_stride = nullptr;
  sizes* extents = nullptr;
  std::int32_t *m = nullptr, *n = nullptr, *k = nullptr;

  static constexpr std::int64_t bytes(std::int64_t segments) {
    return room(segments) * std::int64_t{6 * sizeof(std::int64_t) + 2 * sizeof(sizes)};
  }
  /// Returns the arrays of so many segments in memory from `first` on, one behind the other. Each
  /// begins at a multiple of 16, as `first` does: CUTLASS takes the address of an array for that of
  /// a matrix before it reads the array.
  static grouped_arrays at(std::byte* first, std::int64_t segments) {
    const auto next = [&first, segments]<class T>(T*& array) {
      array = reinterpret_cast<T*>(first), first += room(segments) * std::int64_t{sizeof(T)};
    };
    grouped_arrays all;
    next(all.a), next(all.b), next(all.d);
    next(all.a_stride), next(all.b_stride), next(all.d_stride);
    next(all.extents), next(all.m), next(all.n), next(all.k);
    return all;
  }

private:
  static constexpr std::int64_t room(std::int64_t segments) { return (segments + 3) / 4 * 4; }
};
static_assert(sizeof(void*) == sizeof(std::int64_t));

/// A grouped product of bf16 operands, whose sums are fp32.
///   forward:          D = A B, of bf16; A row-major, B (k, n) transposed
///   input_gradient:   D = A B, of bf16; A and B row-major
///   weight_gradient:  D += A B, of fp32; A (m, k) transposed, B row-major
struct grouped_product_call {
  product_kind kind = product_kind::forward;
  std::int64_t segments = 0;      ///< number of segments, at least one; none has an extent of 0
  grouped_arrays arrays{};        ///< arrays in memory of the device when the stream comes to them
  std::byte* workspace = nullptr; ///< memory that begins at a multiple of 256 bytes
  std::int64_t bytes = 0;         ///< bytes of the workspace
};
/// Starts a grouped product on a stream by CUTLASS's kernels (product/cuda/cutlass_grouped.cuh),
/// where the program has them. Returns the cudaError_t, and sets `needed` to the bytes of workspace
/// that the product needs; where the workspace has fewer, nothing is started. The kernels run only
/// on GPUs of compute capability 9.0. Addresses of matrices and strides must be multiples of 16
/// bytes; extents may be any.
[[nodiscard]] int cutlass_grouped(CUstream_st* on, const grouped_product_call& c,
                                  std::int64_t* needed);

} // namespace mc
