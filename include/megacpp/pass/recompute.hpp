// recompute: saves memory by computing values again (Chen et al. 2016; Korthikanti et al. 2022).
// Forward nodes are emitted again in the backward pass, right before the first backward node that
// reads them, and their first results are not saved.
//
//   none       every value that the backward pass reads is saved; of a gathered value, only the
//              rank's own shard, which is gathered again (Korthikanti et al. 2022, 4.2.2)
//   selective  nodes bound by memory bandwidth (norms, GELU, SwiGLU, RoPE, dropout) and gathers run
//              again; nodes that decode parameters do under every policy (op_info::decodes)
//   full       all forward nodes run again; only the incoming stream is saved
//
// Values that the host reads, too, are saved: the host would have to wait for them again
// (op_info::seen).
//
// A node that is emitted again has no effects: dropout masks are functions of counters, statistics
// are values.
#pragma once

#include <megacpp/graph/graph.hpp>
#include <megacpp/op/redistribute.hpp>
#include <megacpp/recipe/recompute.hpp>

namespace mc {

namespace detail {

/// Returns whether a forward node gathers the shards of a value from several ranks, for each to
/// use. Integers are not counted: they are small and stay saved.
constexpr bool gathers(const graph& g, const node& n) {
  if (n.when != phase::forward || !n.op->redistributes) return false;
  const auto t = n.attr.as<op::transition>();
  return t.by() == collective::all_gather && t.to.s == state::replicate &&
         g.at(n.in[op::redistribute_in::x]).differentiable();
}

/// Returns whether v is the result of an op that decodes, or a conversion of it without data
/// movement.
constexpr bool decoded(const graph& g, value_id v) {
  while (v >= 0 && g.at(v).producer >= 0) {
    const node& n = g.at_node(g.at(v).producer);
    if (n.op->decodes) return true;
    if (!n.op->redistributes || n.attr.as<op::transition>().by() != collective::none) return false;
    v = n.in[op::redistribute_in::x];
  }
  return false;
}

struct rewriter {
  graph out{};
  value_id twins[max_values]{}; ///< emitted again: the copy of a forward value, or -1
  bool kept[max_nodes]{};       ///< the node makes a value that the host reads
  const graph& g;
  recompute policy;

  constexpr rewriter(const graph& graph, recompute p) : g(graph), policy(p) {
    out = graph;
    out.node_count = 0;
    for (value_id& v : twins) v = -1;
    const seen_values seen(g);
    for (int i = 0; i < g.value_count; ++i)
      if (seen.has[i] && g.values[i].producer >= 0) kept[g.values[i].producer] = true;
  }
  /// Returns the node that makes v again. By default it is the node that made v. Under `selective`
  /// it may be one op of a fused node's form (fused_form::again), if that op reads only operands or
  /// results of the fused node.
  constexpr node maker(value_id v) const {
    const node& n = g.at_node(g.at(v).producer);
    const fused_form& form = n.op->form;
    if (policy != recompute::selective || form.rerun < 0 || !form.holds_for(n)) return n;
    node part;
    part.op = form.ops[form.rerun].op, part.line = n.line, part.region = n.region;
    part.attr = form.attributes_of_op(n.attr, form.rerun), part.when = n.when;
    const auto given = [&](form_operand p) {
      for (int k = 0; k < max_outputs; ++k)
        if (n.out[k] >= 0 && form.outputs[k].at == p.at) return n.out[k];
      return value_id{-1};
    };
    for (int k = 0; k < max_outputs; ++k) part.out[k] = given(out_of(form.rerun, k));
    for (int k = 0; k < max_inputs; ++k) {
      const form_operand p = form.ops[form.rerun].in[k];
      if (p.absent()) continue;
      part.in[k] = p.outer() ? n.in[p.at] : given(p);
      if (part.in[k] < 0) return n; // the fused node does not give an operand of this op
    }
    for (value_id made : part.out)
      if (made == v) return part;
    return n;
  }
  constexpr bool replayed(value_id v) const {
    const node_id p = g.at(v).producer;
    if (p < 0) return false;
    const node n = maker(v);
    if (kept[p]) return false;
    if (decoded(g, v)) return n.when == phase::forward;
    if (n.op->accumulates) return false; // running it again would add to its gradients twice
    if (policy != recompute::none && n.op->cheap) return n.when == phase::forward;
    return gathers(g, n) || (n.when == phase::forward && policy == recompute::full);
  }
  constexpr value_id twin(value_id v) {
    if (v < 0 || !replayed(v)) return v;
    if (twins[v] >= 0) return twins[v];
    node n = maker(v);
    for (value_id& x : n.in) x = twin(x);
    n.when = phase::input_gradient;
    n.derived = true;
    for (value_id& x : n.out) {
      if (x < 0) continue;
      value copy = g.at(x);
      copy.producer = static_cast<node_id>(out.node_count);
      if (out.value_count == max_values) {
        out.wrong.code = fault::S004;
        return v;
      }
      twins[x] = static_cast<value_id>(out.value_count);
      out.at(static_cast<value_id>(out.value_count++)) = copy;
      x = twins[x];
    }
    push(n);
    return twins[v];
  }
  constexpr void push(const node& n) {
    if (out.node_count == max_nodes) {
      out.wrong.code = fault::S004;
      return;
    }
    for (value_id v : n.out)
      if (v >= 0) out.at(v).producer = static_cast<node_id>(out.node_count);
    out.at_node(out.node_count++) = n;
  }
};

} // namespace detail

/// Returns whether the pass changes a graph.
constexpr bool recomputes(const graph& g, recompute policy) {
  for (int i = 0; policy == recompute::none && i < g.node_count; ++i)
    if (detail::gathers(g, g.at_node(i)) || g.at_node(i).op->decodes) return true;
  return policy != recompute::none;
}

constexpr graph recomputed(const graph& g, recompute policy) {
  if (g.wrong.code != fault::none || !recomputes(g, policy)) return g;
  detail::rewriter w(g, policy);
  for (int i = 0; i < g.node_count; ++i) {
    node n = g.at_node(i);
    if (backward_pass.holds(n.when))
      for (value_id& v : n.in) v = w.twin(v);
    w.push(n);
  }
  return w.out;
}

} // namespace mc
