// cuBLASLt's own grouped products: it reads the extents, strides and addresses of their matrices
// from arrays in the device's memory.
//
// For bf16 on an H100 or H200, NVIDIA's documents, which call grouped products experimental, ask
// for operands and columns that begin at multiples of 16 bytes, sums in fp32, results of bf16 or
// fp32, one factor for all matrices, and no epilogue. The library computes them from version 13.4
// on, and this program asks it from 13.7 on; docs/design-gpu.md says why. A program may have been
// compiled with the header of an older version and find a newer library where it runs, so the
// enumerators that it needs are here, from cublasLt.h of 13.10; tests/slow/cublaslt.sh compares
// them with that header.
//
// As in product/cuda/cublaslt_product.hpp, the library counts by columns: its D^T (n, m) is B^T
// A^T.
#pragma once

#include <megacpp/product/cuda/cublaslt_handles.hpp>
#include <megacpp/product/cuda/device_check.hpp>
#include <megacpp/product/cuda/grouped_product.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace mc {

namespace cublaslt_13 {
constexpr std::size_t first_asked = 130700; ///< least cublasLtGetVersion() that is asked
constexpr std::uint32_t batch_mode_grouped = 2;
constexpr std::int32_t integers_of_64_bits = 1;
constexpr auto batch_mode = static_cast<cublasLtMatrixLayoutAttribute_t>(8),
               rows_array = static_cast<cublasLtMatrixLayoutAttribute_t>(9),
               columns_array = static_cast<cublasLtMatrixLayoutAttribute_t>(10),
               stride_array = static_cast<cublasLtMatrixLayoutAttribute_t>(11),
               stride_integers = static_cast<cublasLtMatrixLayoutAttribute_t>(13);
constexpr auto average_sum = static_cast<cublasLtMatmulPreferenceAttributes_t>(13),
               average_rows = static_cast<cublasLtMatmulPreferenceAttributes_t>(14),
               average_columns = static_cast<cublasLtMatmulPreferenceAttributes_t>(15);
} // namespace cublaslt_13

/// Makes the layout of several matrices that are stored by columns. Arrays in the device's memory
/// have the rows and columns of each, and the elements from one column to the next.
inline cublaslt_layout make_grouped_cublaslt_layout(cudaDataType_t type, std::int64_t segments,
                                                    const std::int32_t* rows,
                                                    const std::int32_t* columns,
                                                    const std::int64_t* strides) {
  using namespace cublaslt_13;
  cublaslt_layout all = make_cublaslt_layout(type, 0, 0, 0);
  set_cublaslt(all, batch_mode, batch_mode_grouped, "CUBLASLT_MATRIX_LAYOUT_BATCH_MODE");
  set_cublaslt(all, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<std::int32_t>(segments),
               "CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT");
  set_cublaslt(all, rows_array, rows, "CUBLASLT_GROUPED_MATRIX_LAYOUT_ROWS_ARRAY");
  set_cublaslt(all, columns_array, columns, "CUBLASLT_GROUPED_MATRIX_LAYOUT_COLS_ARRAY");
  set_cublaslt(all, stride_array, strides, "CUBLASLT_GROUPED_MATRIX_LAYOUT_LD_ARRAY");
  set_cublaslt(all, stride_integers, integers_of_64_bits,
               "CUBLASLT_GROUPED_MATRIX_LAYOUT_LD_ARRAY_INTEGER_WIDTH");
  return all;
}

/// cuBLASLt's way to compute grouped products of a shape, for any sizes of their segments.
class cublaslt_grouped final : public grouped_kernel {
public:
  /// Asks the library for a way. `arrays` has the places of arrays for as many segments as the
  /// shape has groups. Throws mc::error where the library refuses a descriptor.
  cublaslt_grouped(cublasLtHandle_t handle, const product_shape& s, const grouped_arrays& arrays)
      : handle_(handle), out_(detail::cuda_type_of(s.out)) {
    cublasLtMatmulDesc_t made = nullptr;
    require_cublaslt(cublasLtMatmulDescCreate(&made, CUBLAS_COMPUTE_32F, CUDA_R_32F),
                     "cublasLtMatmulDescCreate");
    description_.reset(made);
    if (s.kind == product_kind::forward)
      set_cublaslt(description_, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T,
                   "CUBLASLT_MATMUL_DESC_TRANSA");
    if (s.kind == product_kind::weight_gradient)
      set_cublaslt(description_, CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_T,
                   "CUBLASLT_MATMUL_DESC_TRANSB");
    const std::int64_t room =
        cuda::product_workspace -
        grouped_product::before_workspace(std::max(s.groups, grouped_product::least_checked));
    const cublaslt_preference wish = make_cublaslt_preference(room, {16, 16, 16});
    // The library guesses a way by these averages. Each has 64 bits, although the library's header
    // says 32.
    const product_cell_shape usual = detail::checked_cell(s, s.group_rows > 0 ? s.group_rows : s.M);
    set_cublaslt(wish, cublaslt_13::average_sum, usual.k,
                 "CUBLASLT_MATMUL_PREF_GROUPED_AVERAGE_REDUCTION_DIM");
    set_cublaslt(wish, cublaslt_13::average_rows, usual.n,
                 "CUBLASLT_MATMUL_PREF_GROUPED_DESC_D_AVERAGE_ROWS");
    set_cublaslt(wish, cublaslt_13::average_columns, usual.m,
                 "CUBLASLT_MATMUL_PREF_GROUPED_DESC_D_AVERAGE_COLS");
    const matrices of = matrices_of({.kind = s.kind, .segments = s.groups, .arrays = arrays});
    for (const auto& one : cublaslt_proposals(handle, description_, of.a, of.b, of.d, wish, 1))
      way_ = one.algo, workspace_ = static_cast<std::int64_t>(one.workspaceSize), found_ = true;
  }
  /// Returns true if cuBLASLt has a way to compute the grouped product.
  bool found() const { return found_; }

  std::int64_t start(const cuda_lane& lane, cudaStream_t on,
                     const grouped_product_call& c) const override {
    if (workspace_ > c.bytes) return workspace_;
    const matrices of = matrices_of(c);
    const float one = 1, factor = c.kind == product_kind::weight_gradient ? 1 : 0;
    const cublasStatus_t status =
        cublasLtMatmul(handle_, description_.get(), &one, c.arrays.b, of.a.get(), c.arrays.a,
                       of.b.get(), &factor, c.arrays.d, of.d.get(), c.arrays.d, of.d.get(), &way_,
                       c.workspace, static_cast<std::size_t>(c.bytes), on);
    if (status != CUBLAS_STATUS_SUCCESS) require_cublaslt(status, lane.behind("cublasLtMatmul"));
    return workspace_;
  }

private:
  struct matrices {
    cublaslt_layout a, b, d; ///< matrices by the library's names
  };
  matrices matrices_of(const grouped_product_call& c) const {
    const grouped_arrays& of = c.arrays;
    const bool b_transposed = c.kind == product_kind::forward,
               a_transposed = c.kind == product_kind::weight_gradient;
    const auto by_columns = [&](cudaDataType_t type, const std::int32_t* rows,
                                const std::int32_t* columns, const std::int64_t* strides) {
      return make_grouped_cublaslt_layout(type, c.segments, rows, columns, strides);
    };
    return {by_columns(CUDA_R_16BF, b_transposed ? of.k : of.n, b_transposed ? of.n : of.k,
                       of.b_stride),
            by_columns(CUDA_R_16BF, a_transposed ? of.m : of.k, a_transposed ? of.k : of.m,
                       of.a_stride),
            by_columns(out_, of.n, of.m, of.d_stride)};
  }

  cublasLtHandle_t handle_;
  cudaDataType_t out_;
  cublaslt_description description_;
  cublasLtMatmulAlgo_t way_{};
  std::int64_t workspace_ = 0; ///< bytes of workspace that the way needs
  bool found_ = false;
};

/// Returns true if this program asks the loaded cuBLASLt for grouped products on this GPU.
inline bool has_grouped_cublaslt(const cuda& on) {
  return cublasLtGetVersion() >= cublaslt_13::first_asked && is_hopper(on);
}
/// Returns cuBLASLt as a library of grouped products. NVIDIA does not promise that a segment has
/// the bits that it has alone: the library is asked only under numerics::fast, and not for rows
/// that are computed apart.
inline grouped_library cublaslt_grouped_library(cuda& on, cublasLtHandle_t handle,
                                                product_rows rows) {
  if (!has_grouped_cublaslt(on)) return {};
  return {"cuBLASLt " + dotted_version(cublasLtGetVersion()),
          [&on, handle, rows](const product_shape& s) -> std::shared_ptr<const grouped_kernel> {
            if (s.sums != numerics::fast ||
                (rows == product_rows::apart && s.kind == product_kind::forward))
              return nullptr;
            on.make_current();
            auto& lane = static_cast<cuda_lane&>(on.main_lane());
            lane.reserve({.workspace = cuda::product_workspace});
            auto kernel = std::make_shared<const cublaslt_grouped>(
                handle, s, grouped_arrays::at(lane.workspace(), s.groups));
            return kernel->found() ? kernel : nullptr;
          }};
}

} // namespace mc
