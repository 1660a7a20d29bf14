// Every row body on a block of threads: compiled for CUDA, not run.
//   nvcc -std=c++20 --expt-relaxed-constexpr -fmad=false -arch=sm_90a -I include -c
#include <megacpp/kernel/rows/adamw.hpp>
#include <megacpp/kernel/rows/cross_entropy.hpp>
#include <megacpp/kernel/rows/dropout.hpp>
#include <megacpp/kernel/rows/elementwise.hpp>
#include <megacpp/kernel/rows/embedding.hpp>
#include <megacpp/kernel/rows/experts.hpp>
#include <megacpp/kernel/rows/layer_norm.hpp>
#include <megacpp/kernel/rows/redistribute.hpp>
#include <megacpp/kernel/rows/rope.hpp>
#include <megacpp/kernel/rows/router.hpp>
#include <megacpp/kernel/rows/sum_squares.hpp>
#include <megacpp/kernel/rows/swiglu.hpp>
#include <megacpp/num/extent.hpp>

namespace mc::rows {

template <int Threads, class Body> __global__ void __launch_bounds__(Threads) over_rows(Body body) {
  body(block_team<Threads>{}, static_cast<std::int64_t>(blockIdx.x));
}

// Taking a kernel's address instantiates it.
template <class Body> bool one() {
  return reinterpret_cast<const void*>(&over_rows<128, Body>) != nullptr;
}

template <class F, class T> bool of_activation() {
  return one<activation_block<F, T>>() && one<activation_dx_block<F, T>>();
}

template <class T, class Extent> bool of_extent() {
  return one<rms_norm_row<T, Extent>>() && one<add_rms_norm_row<T, Extent>>() &&
         one<rms_norm_dx_row<T, Extent, false>>() && one<rms_norm_dx_row<T, Extent, true>>() &&
         one<layer_norm_row<T, Extent>>() && one<add_layer_norm_row<T, Extent>>() &&
         one<layer_norm_dx_row<T, Extent, false>>() && one<layer_norm_dx_row<T, Extent, true>>() &&
         one<bias_add_row<T, Extent>>() && one<swiglu_row<T, Extent>>() &&
         one<swiglu_backward_row<T, Extent>>() && one<rope_row<T, Extent>>() &&
         one<embedding_row<T, Extent>>() && one<dropout_row<T, Extent>>() &&
         one<dispatch_token<T, Extent>>() && one<combine_token<T, Extent>>() &&
         one<scale_row<T, Extent>>() && one<scale_weight_grad_row<T, Extent>>();
}

template <class T> bool of_type() {
  return of_extent<T, std::int64_t>() && one<rms_norm_row<T, fixed<768>>>() &&
         one<layer_norm_dx_row<T, fixed<768>, true>>() && one<rope_row<T, fixed<32>>>() &&
         one<dropout_row<T, fixed<768>>>() && one<add_block<T>>() && one<scale_block<T>>() &&
         one<fill_block<T>>() && one<piece_block<T>>() && one<cast_block<T, float>>() &&
         one<cast_block<T, bf16>>() && one<rms_norm_gain_slab<T>>() &&
         one<layer_norm_gain_slab<T>>() && one<bias_gradient_slab<T>>() &&
         one<embedding_gradient_slab<T>>() && one<adamw_block<T>>() &&
         one<sum_squares_block<T>>() && one<route_row<T>>() && one<route_grad_row<T>>() &&
         one<router_statistics_block<T>>() && one<router_statistics_grad_row<T>>() &&
         one<logits_row<accumulator_t<T>>>() && one<logits_grad_row<T>>() && one<loss_row<T>>() &&
         of_activation<gelu_tanh, T>() && of_activation<gelu_exact, T>() &&
         of_activation<silu, T>();
}

} // namespace mc::rows

bool rows_on_cuda() { return mc::rows::of_type<float>() && mc::rows::of_type<mc::bf16>(); }
