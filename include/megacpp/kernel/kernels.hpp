// Every kernel of the library.
#pragma once

#include <megacpp/kernel/attention.hpp>
#include <megacpp/kernel/cached_attention.hpp>
#include <megacpp/kernel/dropout.hpp>
#include <megacpp/kernel/elementwise.hpp>
#include <megacpp/kernel/embedding.hpp>
#include <megacpp/kernel/experts.hpp>
#include <megacpp/kernel/linear.hpp>
#include <megacpp/kernel/loss.hpp>
#include <megacpp/kernel/nf4.hpp>
#include <megacpp/kernel/norm.hpp>
#include <megacpp/kernel/optimizer.hpp>
#include <megacpp/kernel/redistribute.hpp>
#include <megacpp/kernel/rope.hpp>
#include <megacpp/kernel/router.hpp>
#include <megacpp/kernel/select.hpp>
#include <megacpp/kernel/totals.hpp>

namespace mc {

/// The list of all kernels, by their ops.
using kernel_list =
    op_list<&op::redistribute, &op::linear, &op::linear_input_grad, &op::linear_weight_grad,
            &op::add_bias, &op::bias_grad, &op::add, &op::sum, &op::accumulate, &op::scale,
            &op::gelu, &op::gelu_grad, &op::swiglu, &op::swiglu_grad, &op::rms_norm,
            &op::rms_norm_grad, &op::rms_norm_gain_grad, &op::layer_norm, &op::layer_norm_grad,
            &op::layer_norm_gain_grad, &op::rope, &op::attention, &op::attention_grad,
            &op::cached_attention, &op::embedding, &op::embedding_grad, &op::dropout, &op::select,
            &op::repeat, &op::repeat_grad, &op::vocabulary_partial, &op::vocabulary_partial_grad,
            &op::adamw, &op::add_rms_norm, &op::add_layer_norm, &op::rms_norm_grad_add,
            &op::layer_norm_grad_add, &op::linear_input_grad_add, &op::vocabulary_loss, &op::cast,
            &op::route, &op::route_grad, &op::expert_load, &op::router_statistics,
            &op::router_statistics_grad, &op::dispatch, &op::combine, &op::grouped_linear,
            &op::grouped_input_grad, &op::grouped_weight_grad, &op::scale_rows,
            &op::scale_rows_weight_grad, &op::balance_step, &op::gather_weight, &op::cross_entropy,
            &op::cross_entropy_grad, &op::linear_gelu, &op::linear_gelu_kept,
            &op::linear_input_grad_gelu, &op::add_gradient, &op::reduce_gradient,
            &op::scatter_gradient, &op::sum_of_squares, &op::add_total, &op::clip_factor,
            &op::expert_rows, &op::router_loss, &op::router_loss_grad, &op::nf4_decode>;

} // namespace mc
