// The table of all ops in plain loops and double; fused ops are computed by the others.
#pragma once

#include "plain_attention.hpp"
#include "plain_experts.hpp"
#include "plain_loss.hpp"
#include "plain_nf4.hpp"

#include <megacpp/op/norm.hpp>

namespace mc::laws::plain {

// --- fused ops: their forms in op/, by the plain ops
// ----------------------------------

/// Makes a node of another op on the same rank, with operands and outputs of `t`.
inline node_task renamed(node_task& t, const node& n) {
  node_task u{t.w, t.g, n, t.rank};
  for (unsigned k = 0; k < max_inputs; ++k)
    for (unsigned j = 0; j < max_inputs && n.in[k] >= 0; ++j)
      if (t.n.in[j] == n.in[k]) u.inputs[k] = t.inputs[j];
  for (unsigned k = 0; k < max_outputs; ++k)
    if (n.out[k] >= 0 && t.g.at(n.out[k]).is != role::scratch)
      u.outputs[k].assign(at(u.out_block(static_cast<int>(k)).size()), 0.0);
  return u;
}
inline void add_norm(node_task& t, bool centred) { // x, a, gain, [bias] -> s, y, [mu,] r
  add(t);
  node n = t.n;
  set(n.in, {t.n.in[0], t.n.in[2], t.n.in[3]});
  set(n.out, {t.n.out[1], t.n.out[2], centred ? t.n.out[3] : value_id{-1}});
  node_task u = renamed(t, n);
  u.inputs[0] = &t.out(0);
  norm(u, centred);
  for (int k = 0; k < (centred ? 3 : 2); ++k) t.out(1 + k) = u.out(k);
}
inline void add_rms_norm(node_task& t) { add_norm(t, false); }
inline void add_layer_norm(node_task& t) { add_norm(t, true); }
inline void add_operand(node_task& t, int k) {
  need(t.in(k).size() == t.out(0).size(), "a fused sum");
  for (std::size_t i = 0; i < t.out(0).size(); ++i) t.out(0)[i] += t.in(k)[i];
}
inline void rms_norm_grad_add(node_task& t) { norm_grad(t, false), add_operand(t, 4); }
inline void layer_norm_grad_add(node_task& t) { norm_grad(t, true), add_operand(t, 5); }
inline void linear_input_grad_add(node_task& t) { linear_input_grad(t), add_operand(t, 2); }
/// Returns f of values that the task computes itself, with GELU's attributes in place of the
/// product's.
inline void gelu_behind(node_task& t, void (*f)(node_task&), array z, const array* second,
                        int out) {
  node n = t.n;
  n.attr = op::gelu_attributes{gelu_form::tanh};
  node_task u{t.w, t.g, n, t.rank};
  u.inputs[0] = &z, u.inputs[1] = second;
  u.outputs[0].assign(z.size(), 0.0);
  f(u);
  t.out(out) = u.out(0);
}
inline void linear_gelu(node_task& t) { // x, w, [bias] -> y
  linear(t), gelu_behind(t, &gelu, t.out(0), nullptr, 0);
}
inline void linear_gelu_kept(node_task& t) { // x, w, [bias] -> z, y
  linear(t), gelu_behind(t, &gelu, t.out(0), nullptr, 1);
}
inline void linear_input_grad_gelu(node_task& t) { // dy, w, z -> dx
  linear_input_grad(t), gelu_behind(t, &gelu_grad, t.out(0), &t.in(2), 0);
}
inline void vocabulary_loss(node_task& t) { // x, w, labels, dloss -> loss, count, dx, [dw]
  const block x = t.in_block(0), w = t.in_block(1);
  const int64_t h = w.local[1];
  const auto a = t.attr<op::vocabulary_loss_attributes>();
  need(w.local[0] == w.whole[0] && length(t.in(2)) == x.rows(), "vocabulary_loss");
  for (int64_t m = 0; m < x.rows(); ++m) {
    if (t.in(2)[at(m)] < 0) continue;
    const array l = logits_of(t, 0, 1, a.vocabulary, m);
    const double lse = total_lse(l, 0, length(l)), d = t.in(3)[0];
    const int64_t label = whole_number(t.in(2)[at(m)]);
    t.out(0)[0] += lse - l[at(label)] + a.z * lse * lse;
    t.out(1)[0] += 1;
    for (int64_t v = 0; v < length(l); ++v) {
      if (!std::isfinite(l[at(v)])) continue;
      const double dl = d * (1 + 2 * a.z * lse) * std::exp(l[at(v)] - lse) - (v == label ? d : 0);
      for (int64_t k = 0; k < h; ++k) {
        t.out(2)[at(m * h + k)] += dl * t.in(1)[at(v * h + k)];
        if (a.weights) t.out(3)[at(v * h + k)] += dl * t.in(0)[at(m * h + k)];
      }
    }
  }
}

/// The ops that random graphs draw (laws/soundness).
inline const implementations& dense() {
  static const implementations table{{&op::add, &add},
                                     {&op::sum, &add},
                                     {&op::accumulate, &accumulate},
                                     {&op::cast, &cast},
                                     {&op::scale, &scale},
                                     {&op::gelu, &gelu},
                                     {&op::gelu_grad, &gelu_grad},
                                     {&op::swiglu, &swiglu},
                                     {&op::swiglu_grad, &swiglu_grad},
                                     {&op::linear, &linear},
                                     {&op::linear_input_grad, &linear_input_grad},
                                     {&op::linear_weight_grad, &linear_weight_grad},
                                     {&op::bias_grad, &bias_grad},
                                     {&op::add_bias, &add_bias},
                                     {&op::rms_norm, &rms_norm},
                                     {&op::rms_norm_grad, &rms_norm_grad},
                                     {&op::rms_norm_gain_grad, &rms_norm_gain_grad},
                                     {&op::layer_norm, &layer_norm},
                                     {&op::layer_norm_grad, &layer_norm_grad},
                                     {&op::layer_norm_gain_grad, &layer_norm_gain_grad},
                                     {&op::embedding, &embedding},
                                     {&op::embedding_grad, &embedding_grad},
                                     {&op::select, &select},
                                     {&op::repeat, &repeat},
                                     {&op::repeat_grad, &repeat_grad},
                                     {&op::rope, &rope},
                                     {&op::dropout, &dropout},
                                     {&op::attention, &attention},
                                     {&op::attention_grad, &attention_grad},
                                     {&op::cached_attention, &cached_attention},
                                     {&op::vocabulary_partial, &vocabulary_partial},
                                     {&op::vocabulary_partial_grad, &vocabulary_partial_grad},
                                     {&op::cross_entropy, &cross_entropy},
                                     {&op::cross_entropy_grad, &cross_entropy_grad},
                                     {&op::sum_of_squares, &sum_of_squares},
                                     {&op::clip_factor, &clip_factor},
                                     {&op::adamw, &adamw},
                                     {&op::add_rms_norm, &add_rms_norm},
                                     {&op::add_layer_norm, &add_layer_norm},
                                     {&op::rms_norm_grad_add, &rms_norm_grad_add},
                                     {&op::layer_norm_grad_add, &layer_norm_grad_add},
                                     {&op::linear_input_grad_add, &linear_input_grad_add},
                                     {&op::linear_gelu, &linear_gelu},
                                     {&op::linear_gelu_kept, &linear_gelu_kept},
                                     {&op::linear_input_grad_gelu, &linear_input_grad_gelu},
                                     {&op::vocabulary_loss, &vocabulary_loss},
                                     {&op::redistribute, nullptr}};
  return table;
}
/// The ops that random mixtures of experts draw (laws/experts).
inline const implementations& of_experts() {
  static const implementations table{{&op::route, &route},
                                     {&op::route_grad, &route_grad},
                                     {&op::expert_load, &expert_load},
                                     {&op::router_statistics, &router_statistics},
                                     {&op::router_statistics_grad, &router_statistics_grad},
                                     {&op::router_loss, &router_loss},
                                     {&op::router_loss_grad, &router_loss_grad},
                                     {&op::balance_step, &balance_step},
                                     {&op::grouped_linear, &grouped_linear},
                                     {&op::grouped_input_grad, &grouped_input_grad},
                                     {&op::grouped_weight_grad, &grouped_weight_grad},
                                     {&op::scale_rows, &scale_rows},
                                     {&op::scale_rows_weight_grad, &scale_rows_weight_grad}};
  return table;
}
inline const implementations& all() {
  static const implementations table = [] {
    implementations both = dense();
    both.insert(of_experts().begin(), of_experts().end());
    both.insert({&op::nf4_decode, &nf4_decode}); // of adapted models (laws/adapters)
    return both;
  }();
  return table;
}

} // namespace mc::laws::plain
