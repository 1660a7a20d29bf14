// fuse: neighbours that read what the other has just written become one node.
//
//   add, norm                     -> add_norm: the row stays in registers through residual and norm
//   norm_grad, sum                -> norm_grad_add
//   linear_input_grad, sum        -> linear_input_grad_add: the product accumulates
//   linear, add_bias              -> linear with bias
//   vocabulary_partial, cross_entropy and their gradients -> vocabulary_loss
//
// A fused node stands where the last of its parts stood. Every value another node reads stays.
#pragma once

#include <megacpp/op/fused.hpp>
#include <megacpp/op/redistribute.hpp>

namespace mc {

namespace detail {

struct fuser {
  graph g;
  bool dead[max_nodes]{};
  std::int16_t uses[max_values]{};

  constexpr explicit fuser(const graph& whole) : g(whole) {
    for (int i = 0; i < g.node_count; ++i)
      for (value_id v : g.at_node(i).in)
        if (v >= 0) ++uses[v];
    for (value_id v : g.outputs)
      if (v >= 0) ++uses[v];
    for (value_id v : {g.d_stream, g.side_loss})
      if (v >= 0) ++uses[v];
    for (int r = 0; r < g.region_count; ++r) ++uses[g.regions[r].trips];
  }

  constexpr bool once(value_id v) const { return v >= 0 && uses[v] == 1; }
  /// The live node that produces v, if its op is `op`; else -1.
  constexpr int producer(value_id v, const op_info* op) const {
    if (v < 0) return -1;
    const int p = g.at(v).producer;
    return p >= 0 && !dead[p] && g.at_node(p).op == op ? p : -1;
  }
  constexpr bool read_between(value_id v, int after, int before) const {
    for (int i = after + 1; i < before; ++i)
      if (!dead[i])
        for (value_id x : g.at_node(i).in)
          if (x == v) return true;
    return false;
  }
  constexpr void kill(int i) { dead[i] = true; }
  /// Node i becomes n; its outputs come from it.
  constexpr void put(int i, node n) {
    g.at_node(i) = n;
    for (value_id v : n.out)
      if (v >= 0) g.at(v).producer = static_cast<node_id>(i);
  }
  constexpr value_id scratch(std::int64_t bytes) {
    value v;
    v.type = dtype::u8, v.is = role::scratch, v.rank = 1, v.dims[0] = {dim::elements, bytes};
    if (g.value_count == max_values) {
      g.wrong.code = fault::S004;
      return -1;
    }
    g.at(static_cast<value_id>(g.value_count)) = v;
    return static_cast<value_id>(g.value_count++);
  }

  constexpr void add_and_norm(int i) {
    node n = g.at_node(i);
    const bool rms = n.op == &op::rms_norm;
    if (!rms && n.op != &op::layer_norm) return;
    const int a = producer(n.in[0], &op::add);
    if (a < 0 || g.at_node(a).when != n.when || read_between(n.in[0], a, i)) return;
    const node& add = g.at_node(a);
    node f = n;
    f.op = rms ? &op::add_rms_norm : &op::add_layer_norm;
    set(f.in, {add.in[0], add.in[1], n.in[1], n.in[2]});
    set(f.out, {add.out[0], n.out[0], n.out[1], n.out[2]});
    kill(a);
    put(i, f);
  }
  constexpr void norm_grad_and_sum(int i) {
    const node sum = g.at_node(i);
    if (sum.op != &op::sum) return;
    for (int k = 0; k < 2; ++k) {
      const value_id d = sum.in[k], other = sum.in[1 - k];
      int p = producer(d, &op::rms_norm_grad);
      const bool rms = p >= 0;
      if (!rms) p = producer(d, &op::layer_norm_grad);
      if (p < 0 || !once(d)) continue;
      node f = g.at_node(p);
      f.op = rms ? &op::rms_norm_grad_add : &op::layer_norm_grad_add;
      f.in[rms ? 4u : 5u] = other;
      set(f.out, sum.out);
      kill(p);
      put(i, f);
      return;
    }
  }
  constexpr void input_grad_and_sum(int i) {
    const node sum = g.at_node(i);
    if (sum.op != &op::sum) return;
    for (int k = 0; k < 2; ++k) {
      const value_id d = sum.in[k], other = sum.in[1 - k];
      const int p = producer(d, &op::linear_input_grad);
      if (p < 0 || !once(d)) continue;
      node f = g.at_node(p);
      f.op = &op::linear_input_grad_add;
      f.in[2] = other;
      set(f.out, sum.out);
      kill(p);
      put(i, f);
      return;
    }
  }
  constexpr void linear_and_bias(int i) {
    const node bias = g.at_node(i);
    if (bias.op != &op::add_bias) return;
    const int p = producer(bias.in[0], &op::linear);
    if (p < 0 || !once(bias.in[0]) || g.at_node(p).in[2] >= 0 || g.at_node(p).when != bias.when)
      return;
    node f = g.at_node(p);
    if (g.at(bias.in[1]).rank != g.at(f.in[1]).rank - static_cast<int>(f.attr.i[0])) return;
    f.in[2] = bias.in[1];
    set(f.out, bias.out);
    kill(p);
    put(i, f);
  }
  constexpr void loss(int i) {
    const node grad = g.at_node(i); // dlse, dtarget, x, w, labels, lse_part
    if (grad.op != &op::vocabulary_partial_grad) return;
    const int entropy_grad = producer(grad.in[0], &op::cross_entropy_grad),
              partial = producer(grad.in[5], &op::vocabulary_partial);
    if (entropy_grad < 0 || partial < 0) return;
    int entropy = -1;
    for (int k = partial + 1; k < entropy_grad; ++k)
      if (g.at_node(k).op == &op::cross_entropy && g.at_node(k).in[0] == grad.in[5]) entropy = k;
    const node ce_grad = g.at_node(entropy_grad); // dloss, lse_part, target, labels
    if (entropy < 0 || ce_grad.in[1] != grad.in[5] || g.outputs[0] != g.at_node(entropy).out[0])
      return;
    // what disappears is read by these four alone, and the cotangent of the loss is there from the
    // start
    const value_id target = g.at_node(partial).out[1], labels = grad.in[4];
    if (g.at_node(partial).in[2] != labels || g.at_node(entropy).in[2] != labels ||
        ce_grad.in[3] != labels)
      return;
    if (g.at_node(entropy).in[1] != target || ce_grad.in[2] != target ||
        grad.in[1] != ce_grad.out[1] || g.at(ce_grad.in[0]).producer >= 0 ||
        uses[grad.in[5]] != 3 || uses[target] != 2 || !once(grad.in[0]) || !once(grad.in[1]))
      return;
    for (const place& p : g.at(grad.in[3]).at.at)
      if (p.s == state::shard) return;
    node f = g.at_node(entropy);
    f.op = &op::vocabulary_loss;
    set(f.in, {grad.in[2], grad.in[3], grad.in[4], ce_grad.in[0]});
    f.attr.f = g.at_node(entropy).attr.f;
    f.attr.i = grad.attr.i;
    const bool weights = grad.attr.i[1] != 0;
    const value_id room = scratch(op::loss_scratch_bytes(g.ranks, g.at(f.in[0]), g.at(f.in[1])));
    set(f.out, {f.out[0], f.out[1], grad.out[0], weights ? grad.out[1] : room,
                weights ? room : value_id{-1}});
    kill(partial), kill(entropy_grad), kill(i);
    put(entropy, f);
  }

  constexpr graph compact() {
    int kept = 0;
    for (int i = 0; i < g.node_count; ++i) {
      if (dead[i]) {
        for (value_id v : g.at_node(i).out)
          if (v >= 0 && g.at(v).producer == i) g.at(v).producer = -1;
        continue;
      }
      if (kept != i) {
        put(kept, g.at_node(i));
      }
      ++kept;
    }
    for (int i = kept; i < g.node_count; ++i) g.at_node(i) = node{};
    g.node_count = kept;
    return g;
  }
};

} // namespace detail

constexpr graph fused(const graph& whole) {
  if (whole.wrong.code != fault::none) return whole;
  detail::fuser f(whole);
  for (int i = 0; i < f.g.node_count; ++i) {
    if (f.dead[i]) continue;
    f.linear_and_bias(i);
    f.add_and_norm(i);
    f.norm_grad_and_sum(i);
    f.input_grad_and_sum(i);
    f.loss(i);
  }
  return f.compact();
}

} // namespace mc
