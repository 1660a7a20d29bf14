// The kernels of grouped products that a program was built with. One unit of a program includes
// this, for which alone the macro is defined.
#pragma once

#include <megacpp/product/cuda/grouped_library.hpp>

namespace mc {

#if defined(MEGACPP_WITH_CUTLASS)
/// CUTLASS's kernels, on a GPU that runs them. The macro is its version.
inline grouped_library grouped_kernels(const cuda& on) {
  return runs_kernels_of_hopper(on) ? cutlass_library(MEGACPP_WITH_CUTLASS) : grouped_library{};
}
#else
/// A program that was built without CUTLASS has none of its kernels.
inline grouped_library grouped_kernels(const cuda& /*on*/) { return {}; }
#endif

} // namespace mc
