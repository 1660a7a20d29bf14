// CUTLASS's kernels of grouped products, for GPUs of compute capability 9.0. nvcc takes long for them, and
// much memory, so that they are a unit of their own.
#include <megacpp/product/cuda/cutlass_grouped.cuh>

namespace mc {

int cutlass_grouped(CUstream_st* on, const grouped_product_call& c, std::int64_t* needed) {
  using rows = cutlass::layout::RowMajor;
  using columns = cutlass::layout::ColumnMajor;
  using detail::cutlass_kernel;
  using narrow = cutlass::bfloat16_t;
  switch (c.kind) {
  case product_kind::forward:
    return cutlass_kernel<rows, columns, narrow, false, false>::start(on, c, needed);
  case product_kind::input_gradient:
    return cutlass_kernel<rows, rows, narrow, false, false>::start(on, c, needed);
  case product_kind::weight_gradient: break;
  }
  return cutlass_kernel<columns, rows, float, true, true>::start(on, c, needed);
}

} // namespace mc
