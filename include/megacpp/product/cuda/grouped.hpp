// Products of many parts at once: what a unit of nvcc, which computes them, and g++'s units, which
// say what the parts are, know of each other. No header of a library is here.
#pragma once

#include <megacpp/exec/product_shape.hpp>

#include <cstddef>
#include <cstdint>

struct CUstream_st; // cudaStream_t is a pointer to it

namespace mc {

/// The arrays that say what the parts of a grouped product are, each of one word, or three numbers,
/// a part. Part g is D (m, n) = A (m, k) B (k, n), or D += A B. A row-major matrix, or a transposed
/// one that lies by columns, has `stride` elements from a row, or column, to the next.
struct grouped_arrays {
  struct sizes {
    std::int32_t m, n, k;
  };
  const void **a = nullptr, **b = nullptr;
  void** d = nullptr;
  std::int64_t *a_stride = nullptr, *b_stride = nullptr, *d_stride = nullptr;
  sizes* extents = nullptr;

  static constexpr std::int64_t bytes(std::int64_t parts) {
    return words(parts) * std::int64_t{6 * sizeof(std::int64_t) + sizeof(sizes)};
  }
  /// The arrays of so many parts, one behind the other, each from a multiple of 16 on, as `first`
  /// is: CUTLASS takes the address of an array for that of a matrix before it reads the array.
  static grouped_arrays at(std::byte* first, std::int64_t parts) {
    const auto place = [first, parts](int k) {
      return first + k * words(parts) * std::int64_t{sizeof(std::int64_t)};
    };
    return {reinterpret_cast<const void**>(place(0)),  reinterpret_cast<const void**>(place(1)),
            reinterpret_cast<void**>(place(2)),        reinterpret_cast<std::int64_t*>(place(3)),
            reinterpret_cast<std::int64_t*>(place(4)), reinterpret_cast<std::int64_t*>(place(5)),
            reinterpret_cast<sizes*>(place(6))};
  }

private:
  static constexpr std::int64_t words(std::int64_t parts) { return parts + parts % 2; }
};
static_assert(sizeof(void*) == sizeof(std::int64_t));

/// A grouped product of bf16 operands, whose sums are fp32.
///   forward:          D = A B, of bf16; A row-major, B (k, n) transposed
///   input_gradient:   D = A B, of bf16; A and B row-major
///   weight_gradient:  D += A B, of fp32; A (m, k) transposed, B row-major
struct grouped_product_call {
  product_kind kind = product_kind::forward;
  std::int64_t parts = 0;         ///< at least one; none has an extent of 0
  grouped_arrays arrays{};        ///< in memory of the device, there when the stream comes to it
  std::byte* workspace = nullptr; ///< begins at a multiple of 256 bytes
  std::int64_t bytes = 0;         ///< of the workspace
};
/// Starts a grouped product on a stream by CUTLASS's kernels (product/cuda/cutlass_grouped.cuh),
/// where the program has them. Returns the cudaError_t, and sets `needed` to the bytes of workspace
/// that it needs; where they are more than it has, nothing is started. The kernels run on GPUs of
/// compute capability 9.0 alone. Addresses of matrices and strides must be multiples of 16 bytes;
/// extents may be any.
[[nodiscard]] int cutlass_grouped(CUstream_st* on, const grouped_product_call& c,
                                  std::int64_t* needed);

} // namespace mc
