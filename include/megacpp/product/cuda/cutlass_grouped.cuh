// Grouped products by CUTLASS 4: kernels for Hopper that take arrays of extents and addresses from
// memory of the device. Only nvcc compiles this header, and without assertions (NDEBUG): where a
// kernel of CUTLASS may call a function that reports one, ptxas 13.0 makes its products wait for
// each other.
//
// The GPU's own engine (TMA) copies tiles; their addresses and strides must be multiples of 16
// bytes. They are, for any number of rows: rows are contiguous in memory, so that the stride of a
// matrix is the width of a row, also in a weight gradient, which sums over rows. Elements of a tile
// beyond the matrix are read as 0 and not written.
//
// The tiles of a forward product and of an input gradient are 128 x 256, computed by two groups of
// warps together, which reads the least memory. The tiles of a weight gradient are 128 x 128,
// computed by two groups of warps in turn, so that one group reads and writes its fp32 while the
// other multiplies. Two blocks share what they read of B. No GPU has measured other sizes.
#pragma once

#include <megacpp/product/cuda/grouped.hpp>

#include <cutlass/cutlass.h>

#include <cutlass/gemm/device/gemm_universal_adapter.h>
#include <cute/tensor.hpp>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/epilogue/fusion/operations.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/dispatch_policy.hpp>
#include <cutlass/gemm/group_array_problem_shape.hpp>
#include <cutlass/gemm/kernel/gemm_universal.hpp>

#include <type_traits>

namespace mc {

namespace detail {

/// A kernel of CUTLASS. A and B have the given layouts; D of type Out is row-major and, where Adds
/// is true, added to.
template <class LayoutA, class LayoutB, class Out, bool Adds, bool InTurn> struct cutlass_kernel {
  using element = cutlass::bfloat16_t;
  using tile =
      cute::Shape<cute::_128, std::conditional_t<InTurn, cute::_128, cute::_256>, cute::_64>;
  using cluster = cute::Shape<cute::_2, cute::_1, cute::_1>;
  using source = std::conditional_t<Adds, Out, void>;
  using layout_d = cutlass::layout::RowMajor;
  static constexpr int aligned = 16 / sizeof(element), aligned_d = 16 / sizeof(Out);
  using extents = cutlass::gemm::GroupProblemShape<cute::Shape<int, int, int>>;
  using ends = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, tile, cluster,
      cutlass::epilogue::collective::EpilogueTileAuto, float, float, source, layout_d*, aligned_d,
      Out, layout_d*, aligned_d,
      std::conditional_t<InTurn, cutlass::epilogue::PtrArrayTmaWarpSpecializedPingpong,
                         cutlass::epilogue::PtrArrayTmaWarpSpecializedCooperative>,
      cutlass::epilogue::fusion::LinearCombination<Out, float, source>>::CollectiveOp;
  using sums = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, element, LayoutA*, aligned, element,
      LayoutB*, aligned, float, tile, cluster,
      cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(
          sizeof(typename ends::SharedStorage))>,
      std::conditional_t<InTurn, cutlass::gemm::KernelPtrArrayTmaWarpSpecializedPingpong,
                         cutlass::gemm::KernelPtrArrayTmaWarpSpecializedCooperative>>::CollectiveOp;
  using kernel = cutlass::gemm::kernel::GemmUniversal<extents, sums, ends>;
  using device = cutlass::gemm::device::GemmUniversalAdapter<kernel>;

  static int start(CUstream_st* on, const grouped_product_call& c, std::int64_t* needed) {
    using shape = typename extents::UnderlyingProblemShape;
    using stride_a = typename kernel::InternalStrideA;
    using stride_b = typename kernel::InternalStrideB;
    using stride_d = typename kernel::InternalStrideD;
    // CUTLASS reads the arrays as they are, so its types must have the arrays' layout.
    constexpr auto in_order = __builtin_bit_cast(grouped_arrays::sizes, shape{1, 2, 3});
    static_assert(in_order.m == 1 && in_order.n == 2 && in_order.k == 3);
    static_assert(sizeof(stride_a) == sizeof(std::int64_t) &&
                  sizeof(stride_b) == sizeof(std::int64_t) &&
                  sizeof(stride_d) == sizeof(std::int64_t));
    int of = 0, multiprocessors = 0;
    if (const cudaError_t e = cudaGetDevice(&of); e != cudaSuccess) return e;
    if (const cudaError_t e =
            cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, of);
        e != cudaSuccess)
      return e;
    const grouped_arrays& to = c.arrays;
    typename device::Arguments how{
        cutlass::gemm::GemmUniversalMode::kGrouped,
        {static_cast<int>(c.segments), reinterpret_cast<shape*>(to.extents), nullptr},
        {reinterpret_cast<const element**>(to.a), reinterpret_cast<stride_a*>(to.a_stride),
         reinterpret_cast<const element**>(to.b), reinterpret_cast<stride_b*>(to.b_stride)},
        {{},
         nullptr,
         nullptr,
         reinterpret_cast<Out**>(to.d),
         reinterpret_cast<stride_d*>(to.d_stride)},
        {of, multiprocessors}};
    how.epilogue.thread.alpha = 1, how.epilogue.thread.beta = Adds ? 1 : 0;
    if constexpr (Adds) {
      how.epilogue.ptr_C = const_cast<const Out**>(reinterpret_cast<Out**>(to.d));
      how.epilogue.dC = reinterpret_cast<stride_d*>(to.d_stride);
    }
    *needed = static_cast<std::int64_t>(device::get_workspace_size(how));
    if (*needed > c.bytes) return cudaSuccess; // the caller reports it
    device of_segments;
    using cutlass::Status;
    const bool started = of_segments.can_implement(how) == Status::kSuccess &&
                         of_segments.initialize(how, c.workspace, on) == Status::kSuccess &&
                         of_segments.run(on) == Status::kSuccess;
    const cudaError_t e = cudaGetLastError();
    return e != cudaSuccess || started ? e : cudaErrorNotSupported;
  }
};

} // namespace detail

} // namespace mc
