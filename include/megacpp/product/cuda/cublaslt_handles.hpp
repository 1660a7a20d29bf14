// The handles that cuBLASLt makes and takes back are values here, and its answers are errors.
#pragma once

#include <megacpp/io/error.hpp>

#include <cublasLt.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>

namespace mc {

/// Throws mc::error that names the `call` and what cuBLASLt says of it, unless it succeeded.
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

} // namespace detail

using cublaslt_handle = detail::cublaslt_owned<cublasLtHandle_t, cublasLtDestroy>;
using cublaslt_description =
    detail::cublaslt_owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using cublaslt_layout = detail::cublaslt_owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using cublaslt_preference =
    detail::cublaslt_owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

/// A matrix that lies by columns, `stride` elements from one to the next.
inline cublaslt_layout make_cublaslt_layout(cudaDataType_t type, std::int64_t rows,
                                            std::int64_t columns, std::int64_t stride) {
  cublasLtMatrixLayout_t l = nullptr;
  require_cublaslt(cublasLtMatrixLayoutCreate(&l, type, static_cast<std::uint64_t>(rows),
                                              static_cast<std::uint64_t>(columns), stride),
                   "cublasLtMatrixLayoutCreate");
  return cublaslt_layout(l);
}
/// Sets an attribute of a product; `name`: of the attribute, for errors.
template <class V> void set_cublaslt(const cublaslt_description& d,
                                     cublasLtMatmulDescAttributes_t what, const V& v,
                                     const char* name) {
  require_cublaslt(cublasLtMatmulDescSetAttribute(d.get(), what, &v, sizeof v), name);
}

} // namespace mc
