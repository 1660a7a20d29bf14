// Kernels that no run shapes: the same for all runs of an element type. The units of a run include
// this header and leave them to kernels.cpp, which an edit of the run does not compile again.
#pragma once

#if !defined(MEGACPP_KERNELS)
#define MEGACPP_KERNELS extern
#endif

#include <megacpp/exec/cpu.hpp>
#include <megacpp/kernel/kernels.hpp>

namespace mc {

MEGACPP_KERNELS template struct host_threads<>;

#define MEGACPP_KERNELS_OF(T)                                                                   \
  MEGACPP_KERNELS template void attention_forward<T>(                                           \
      const tiled::shape&, const attention_visibility&, head_rows<const T>, head_rows<const T>, \
      head_rows<const T>, head_rows<T>, accumulator_t<T>*, attention_scratch);                  \
  MEGACPP_KERNELS template void attention_backward<T>(                                          \
      const tiled::shape&, const attention_visibility&, head_rows<const T>, head_rows<const T>, \
      head_rows<const T>, head_rows<const T>, head_rows<const T>, const accumulator_t<T>*,      \
      head_rows<T>, head_rows<T>, head_rows<T>, attention_scratch);
MEGACPP_KERNELS_OF(float)
MEGACPP_KERNELS_OF(bf16)
MEGACPP_KERNELS_OF(double)
#undef MEGACPP_KERNELS_OF

MEGACPP_KERNELS template void build_rope_table(std::int64_t, std::span<const double>,
                                               const std::int32_t*, float*, float*);
MEGACPP_KERNELS template void build_rope_table(std::int64_t, std::span<const double>,
                                               const std::int32_t*, double*, double*);

#define MEGACPP_BODY(...) \
  MEGACPP_KERNELS template void cores::for_rows(std::int64_t, __VA_ARGS__) const;
#define MEGACPP_SMALL_BODY(...) // a run compiles it
#define MEGACPP_SHAPED_BODY(...)
#define MEGACPP_ELEMENT float
#include <megacpp/kernel/rows/bodies.inc>
#undef MEGACPP_ELEMENT
#define MEGACPP_ELEMENT bf16
#include <megacpp/kernel/rows/bodies.inc>
#undef MEGACPP_ELEMENT
#define MEGACPP_ELEMENT double
#include <megacpp/kernel/rows/bodies.inc>
#undef MEGACPP_ELEMENT
#define MEGACPP_SUM float
#include <megacpp/kernel/rows/bodies.inc>
#undef MEGACPP_SUM
#define MEGACPP_SUM double
#include <megacpp/kernel/rows/bodies.inc>
#undef MEGACPP_SUM
#include <megacpp/kernel/rows/bodies.inc>
#undef MEGACPP_SHAPED_BODY
#undef MEGACPP_SMALL_BODY
#undef MEGACPP_BODY

} // namespace mc
