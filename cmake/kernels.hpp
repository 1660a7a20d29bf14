// Kernels that no run shapes: the same for all runs of an element type. The units of a run include
// this header and leave them to kernels.cpp, which an edit of the run does not compile again.
#pragma once

#if !defined(MEGACPP_KERNELS)
#define MEGACPP_KERNELS extern
#endif

#include <megacpp/exec/cpu.hpp>
#include <megacpp/kernel/kernels.hpp>

namespace mc {

#define MEGACPP_KERNELS_OF(T)                                                                      \
  MEGACPP_KERNELS template void attention_forward<T>(                                              \
      const tiled::shape&, const attention_visibility&, head_rows<const T>, head_rows<const T>,    \
      head_rows<const T>, head_rows<T>, accumulator_t<T>*, attention_scratch);                     \
  MEGACPP_KERNELS template void attention_backward<T>(                                             \
      const tiled::shape&, const attention_visibility&, head_rows<const T>, head_rows<const T>,    \
      head_rows<const T>, head_rows<const T>, head_rows<const T>, const accumulator_t<T>*,         \
      head_rows<T>, head_rows<T>, head_rows<T>, attention_scratch);                                \
  MEGACPP_KERNELS template void cores::for_rows(std::int64_t, rows::loss_row<T>) const;            \
  MEGACPP_KERNELS template void cores::for_rows(std::int64_t, rows::logits_grad_row<T>) const;     \
  MEGACPP_KERNELS template void cores::for_rows(std::int64_t, rows::add_block<T>) const;           \
  MEGACPP_KERNELS template void cores::for_rows(std::int64_t, rows::bias_gradient_slab<T>) const;  \
  MEGACPP_KERNELS template void cores::for_rows(std::int64_t, rows::rms_norm_gain_slab<T>) const;  \
  MEGACPP_KERNELS template void cores::for_rows(std::int64_t, rows::layer_norm_gain_slab<T>)       \
      const;                                                                                       \
  MEGACPP_KERNELS template void cores::for_rows(std::int64_t, rows::embedding_gradient_slab<T>)    \
      const;                                                                                       \
  MEGACPP_KERNELS template void cores::for_rows(std::int64_t,                                      \
                                                rows::activation_block<rows::gelu_tanh, T>) const; \
  MEGACPP_KERNELS template void cores::for_rows(                                                   \
      std::int64_t, rows::activation_dx_block<rows::gelu_tanh, T>) const;                          \
  MEGACPP_KERNELS template void cores::for_rows(                                                   \
      std::int64_t, rows::activation_block<rows::gelu_exact, T>) const;                            \
  MEGACPP_KERNELS template void cores::for_rows(                                                   \
      std::int64_t, rows::activation_dx_block<rows::gelu_exact, T>) const;                         \
  MEGACPP_KERNELS template void cores::for_rows(std::int64_t, rows::adamw_block<T>) const;         \
  MEGACPP_KERNELS template void cores::for_rows(std::int64_t, rows::route_row<T>) const;           \
  MEGACPP_KERNELS template void cores::for_rows(std::int64_t, rows::route_grad_row<T>) const;      \
  MEGACPP_KERNELS template void cores::for_rows(std::int64_t, rows::router_statistics_block<T>)    \
      const;                                                                                       \
  MEGACPP_KERNELS template void cores::for_rows(std::int64_t, rows::router_statistics_grad_row<T>) \
      const;
MEGACPP_KERNELS_OF(float)
MEGACPP_KERNELS_OF(bf16)
MEGACPP_KERNELS_OF(double)
#undef MEGACPP_KERNELS_OF

#define MEGACPP_KERNELS_OF(G)                                                                    \
  MEGACPP_KERNELS template void cores::for_rows(std::int64_t, rows::logits_row<G>) const;        \
  MEGACPP_KERNELS template void cores::for_rows(std::int64_t, rows::sum_squares_block<G>) const; \
  MEGACPP_KERNELS template void build_rope_table(std::int64_t, std::span<const double>,          \
                                                 const std::int32_t*, G*, G*);
MEGACPP_KERNELS_OF(float)
MEGACPP_KERNELS_OF(double)
#undef MEGACPP_KERNELS_OF

} // namespace mc
