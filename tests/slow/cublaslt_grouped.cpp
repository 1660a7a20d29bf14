// What product/cuda/cublaslt_grouped.hpp tells cuBLASLt of products of experts, said to the library itself
// on a machine without a GPU. Where this is compiled with a header that has the library's names for it, the
// numbers of ours are theirs.
//
//   cublaslt_grouped VERSION    the version that must be loaded, as cublasLtGetVersion has it
#include <megacpp/product/cuda/cublaslt_grouped.hpp>

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <utility>
#include <vector>

// Compiled by nvcc, and named by lanes; nothing here starts one.
int mc::reduce_on_cuda(CUstream_st*, mc::reduction, mc::dtype, std::span<const void* const>, void*,
                       std::int64_t) {
  return cudaErrorNotSupported;
}

namespace {

using namespace mc;

#if CUBLAS_VERSION >= 130700
static_assert(cublaslt_13::batch_mode_grouped == CUBLASLT_BATCH_MODE_GROUPED);
static_assert(cublaslt_13::integers_of_64_bits == CUBLASLT_INTEGER_WIDTH_64);
static_assert(cublaslt_13::batch_mode == CUBLASLT_MATRIX_LAYOUT_BATCH_MODE);
static_assert(cublaslt_13::rows_array == CUBLASLT_GROUPED_MATRIX_LAYOUT_ROWS_ARRAY);
static_assert(cublaslt_13::columns_array == CUBLASLT_GROUPED_MATRIX_LAYOUT_COLS_ARRAY);
static_assert(cublaslt_13::stride_array == CUBLASLT_GROUPED_MATRIX_LAYOUT_LD_ARRAY);
static_assert(cublaslt_13::stride_integers ==
              CUBLASLT_GROUPED_MATRIX_LAYOUT_LD_ARRAY_INTEGER_WIDTH);
static_assert(cublaslt_13::average_sum == CUBLASLT_MATMUL_PREF_GROUPED_AVERAGE_REDUCTION_DIM);
static_assert(cublaslt_13::average_rows == CUBLASLT_MATMUL_PREF_GROUPED_DESC_D_AVERAGE_ROWS);
static_assert(cublaslt_13::average_columns == CUBLASLT_MATMUL_PREF_GROUPED_DESC_D_AVERAGE_COLS);
#endif

int wrong = 0;
void expect(bool right, const std::string& what) {
  if (right) return;
  std::printf("%s\n", what.c_str());
  ++wrong;
}
template <class V> V attribute(const cublaslt_layout& l, int which) {
  V v{};
  std::size_t bytes = 0;
  const cublasStatus_t status = cublasLtMatrixLayoutGetAttribute(
      l.get(), static_cast<cublasLtMatrixLayoutAttribute_t>(which), &v, sizeof v, &bytes);
  expect(status == CUBLAS_STATUS_SUCCESS && bytes == sizeof v,
         "attribute " + std::to_string(which) + " cannot be read");
  return v;
}

/// The layouts that attributes make are those that the library's own function makes, which older
/// headers lack.
using make_layouts = cublasStatus_t (*)(cublasLtMatrixLayout_t*, cudaDataType, int, const void*,
                                        const void*, const void*);
void layouts_are_the_librarys(make_layouts made_by) {
  std::vector<std::byte> memory(static_cast<std::size_t>(grouped_arrays::bytes(128)) + 16);
  const grouped_arrays of = grouped_arrays::at(memory.data(), 128);
  const cublaslt_layout ours =
      make_grouped_cublaslt_layout(CUDA_R_16BF, 128, of.m, of.k, of.a_stride);
  cublasLtMatrixLayout_t made = nullptr;
  require_cublaslt(made_by(&made, CUDA_R_16BF, 128, of.m, of.k, of.a_stride),
                   "cublasLtGroupedMatrixLayoutCreate");
  const cublaslt_layout theirs(made);
  // Type, order, batch count, batch mode, and the width of extents.
  for (const int which : {0, 1, 5, 8, 12})
    expect(attribute<std::int32_t>(ours, which) == attribute<std::int32_t>(theirs, which),
           "attribute " + std::to_string(which) + " is another than the library's function makes");
  for (const auto which :
       {cublaslt_13::rows_array, cublaslt_13::columns_array, cublaslt_13::stride_array})
    expect(attribute<const void*>(ours, which) == attribute<const void*>(theirs, which),
           "array " + std::to_string(which) + " is another than the library's function takes");
  expect(attribute<std::int32_t>(ours, cublaslt_13::stride_integers) ==
             cublaslt_13::integers_of_64_bits,
         "strides have no 64 bits");
}

/// What a plan says before the library is asked for a way is taken. That needs a GPU.
void plans_are_taken() {
  const auto refusal = [](product_kind kind, std::int64_t n, std::int64_t k) {
    product_shape s = make_product_shape(kind, dtype::bf16, 16384, n, k);
    s.dynamic_rows = true, s.groups = 128, s.group_rows = 1024, s.sums = numerics::fast;
    expect(grouped_product::computes(s), "a shape of Qwen3-30B-A3B is not asked for");
    std::vector<std::byte> memory(static_cast<std::size_t>(grouped_arrays::bytes(128)) + 16);
    try {
      const cublaslt_grouped planned(nullptr, s, grouped_arrays::at(memory.data(), 128));
      return std::string("a plan without a GPU");
    } catch (const error& e) {
      return std::string(e.what());
    }
  };
  for (const auto& [n, k] : {std::pair(1536, 2048), std::pair(2048, 768)})
    for (const product_kind kind :
         {product_kind::forward, product_kind::input_gradient, product_kind::weight_gradient}) {
      const std::string says = refusal(kind, n, k);
      expect(says.starts_with("cublasLtMatmulAlgoGetHeuristic: "), says);
    }
}

} // namespace

int main(int argc, char** argv) {
  const std::size_t version = cublasLtGetVersion();
  expect(argc == 2 && version == std::strtoull(argv[1], nullptr, 10),
         "cuBLASLt " + dotted_version(version) + " is loaded");
  const auto made_by =
      reinterpret_cast<make_layouts>(::dlsym(RTLD_DEFAULT, "cublasLtGroupedMatrixLayoutCreate"));
  const bool asked = version >= cublaslt_13::first_asked;
  if (made_by != nullptr) {
    layouts_are_the_librarys(made_by);
    if (asked) plans_are_taken();
  } else {
    expect(!asked, "the library has no cublasLtGroupedMatrixLayoutCreate");
    try {
      (void)make_grouped_cublaslt_layout(CUDA_R_16BF, 1, nullptr, nullptr, nullptr);
      expect(false, "an older version takes grouped layouts");
    } catch (const error& e) {
      expect(std::string(e.what()).starts_with("CUBLASLT_GROUPED_MATRIX_LAYOUT_ROWS_ARRAY: "),
             e.what());
    }
  }
  cublasLtHandle_t handle = nullptr;
  std::printf("compiled with cuBLASLt %s, run with %s: %d wrong; a handle: %s\n",
              dotted_version(CUBLAS_VERSION).c_str(), dotted_version(version).c_str(), wrong,
              cublasLtGetStatusString(cublasLtCreate(&handle)));
  return wrong == 0 ? 0 : 1;
}
