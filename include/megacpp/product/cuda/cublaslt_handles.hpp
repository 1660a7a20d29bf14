// The handles of cuBLASLt as values that own them, and its status codes as errors.
#pragma once

#include <megacpp/io/error.hpp>
#include <megacpp/num/dtype.hpp>

#include <cublasLt.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

namespace mc {

/// Throws mc::error with the `call` and cuBLASLt's message unless the call succeeded.
inline void require_cublaslt(cublasStatus_t status, const std::string& call) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw error(exit_code::internal, call + ": " + cublasLtGetStatusString(status));
}

namespace detail {

template <class Handle, cublasStatus_t (*Destroy)(Handle)> struct cublaslt_destroyed {
  using pointer = Handle;
  void operator()(Handle h) const { (void)Destroy(h); }
};
template <class Handle, cublasStatus_t (*Destroy)(Handle)> using cublaslt_owned =
    std::unique_ptr<std::remove_pointer_t<Handle>, cublaslt_destroyed<Handle, Destroy>>;

constexpr cudaDataType_t cuda_type_of(dtype t) {
  return t == dtype::f64 ? CUDA_R_64F : t == dtype::f32 ? CUDA_R_32F : CUDA_R_16BF;
}

} // namespace detail

using cublaslt_handle = detail::cublaslt_owned<cublasLtHandle_t, cublasLtDestroy>;
using cublaslt_description =
    detail::cublaslt_owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using cublaslt_layout = detail::cublaslt_owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using cublaslt_preference =
    detail::cublaslt_owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

/// Makes the layout of a matrix that is stored by columns, with `stride` elements from a column to
/// the next.
inline cublaslt_layout make_cublaslt_layout(cudaDataType_t type, std::int64_t rows,
                                            std::int64_t columns, std::int64_t stride) {
  cublasLtMatrixLayout_t l = nullptr;
  require_cublaslt(cublasLtMatrixLayoutCreate(&l, type, static_cast<std::uint64_t>(rows),
                                              static_cast<std::uint64_t>(columns), stride),
                   "cublasLtMatrixLayoutCreate");
  return cublaslt_layout(l);
}
/// The three functions set an attribute of a product, of a matrix layout, or of a preference.
/// `name` is the name of the attribute, for errors.
template <class V> void set_cublaslt(const cublaslt_description& d,
                                     cublasLtMatmulDescAttributes_t what, const V& v,
                                     const char* name) {
  require_cublaslt(cublasLtMatmulDescSetAttribute(d.get(), what, &v, sizeof v), name);
}
template <class V> void set_cublaslt(const cublaslt_layout& l, cublasLtMatrixLayoutAttribute_t what,
                                     const V& v, const char* name) {
  require_cublaslt(cublasLtMatrixLayoutSetAttribute(l.get(), what, &v, sizeof v), name);
}
template <class V> void set_cublaslt(const cublaslt_preference& p,
                                     cublasLtMatmulPreferenceAttributes_t what, const V& v,
                                     const char* name) {
  require_cublaslt(cublasLtMatmulPreferenceSetAttribute(p.get(), what, &v, sizeof v), name);
}

/// The alignment in bytes of the operands and the result, by the library's names.
struct cublaslt_alignment {
  std::uint32_t a, b, d;
};
/// Makes the preference for ways with at most so much workspace, operands that are so aligned, and
/// a result that is added to in its place.
inline cublaslt_preference make_cublaslt_preference(std::int64_t workspace,
                                                    const cublaslt_alignment& aligned) {
  cublasLtMatmulPreference_t made = nullptr;
  require_cublaslt(cublasLtMatmulPreferenceCreate(&made), "cublasLtMatmulPreferenceCreate");
  cublaslt_preference p(made);
  set_cublaslt(p, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::size_t>(workspace),
               "CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES");
  // Partial sums have the type of the product's sums, so that the product is rounded once.
  const std::uint32_t schemes =
      CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  set_cublaslt(p, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, schemes,
               "CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK");
  const char* const name = "CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT";
  set_cublaslt(p, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, aligned.a, name);
  set_cublaslt(p, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, aligned.b, name);
  set_cublaslt(p, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, aligned.d, name);
  set_cublaslt(p, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, aligned.d, name);
  return p;
}
/// Returns at most `most` ways in which the library proposes to compute a product, best guess
/// first.
inline std::vector<cublasLtMatmulHeuristicResult_t> cublaslt_proposals(
    cublasLtHandle_t handle, const cublaslt_description& description, const cublaslt_layout& a,
    const cublaslt_layout& b, const cublaslt_layout& d, const cublaslt_preference& wish, int most) {
  std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<std::size_t>(most));
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle, description.get(), a.get(), b.get(), d.get(), d.get(),
                                     wish.get(), most, found.data(), &count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return {};
  require_cublaslt(status, "cublasLtMatmulAlgoGetHeuristic");
  found.resize(static_cast<std::size_t>(count));
  std::erase_if(found, [](const auto& one) { return one.state != CUBLAS_STATUS_SUCCESS; });
  return found;
}

} // namespace mc
