// The kernels of grouped products that a program was built with. One unit of a program includes
// this header; the macro is defined for that unit alone.
#pragma once

#include <megacpp/product/cuda/grouped_library.hpp>

namespace mc {

#if defined(MEGACPP_WITH_CUTLASS)
/// Returns CUTLASS's kernels, on a GPU that runs them. The macro is the version of CUTLASS.
inline grouped_library grouped_kernels(const cuda& on) {
  return is_hopper(on) ? cutlass_library(MEGACPP_WITH_CUTLASS) : grouped_library{};
}
#else
/// Returns a library without kernels: the program was built without CUTLASS.
inline grouped_library grouped_kernels(const cuda& /*on*/) { return {}; }
#endif

} // namespace mc
