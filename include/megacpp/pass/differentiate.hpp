// differentiate: derives the backward pass. It goes over the nodes once, in reverse; each op's
// adjoint gives cotangents to its inputs. Cotangents of one value are summed, those of parameters
// in the store of main gradients. The collectives of the backward pass are the adjoints of the
// collectives that the model names; nobody writes them.
#pragma once

#include <megacpp/graph/adjoint.hpp>

namespace mc {

/// The cotangents that differentiate() found: of each value, or -1. Of a parameter it is the
/// finished gradient; of a tied parameter, what this graph adds to the gradient.
struct gradients {
  value_id of[max_values]{};

  /// Returns the result for a graph without a backward pass.
  static constexpr gradients none() {
    gradients g;
    for (value_id& v : g.of) v = -1;
    return g;
  }
};

/// Appends to b.g the backward pass of its scalar or stream output. The seed, an input, is the
/// cotangent of outputs[0] and has the dual placement. Trainable parameters and inputs fed by the
/// stream get gradients.
constexpr gradients differentiate(builder& b) {
  graph& g = b.g;
  backward d(b);
  const int forward = g.node_count;
  for (int i = 0; i < g.value_count; ++i) {
    const value& v = g.at(static_cast<value_id>(i));
    const parameter_info* p =
        v.is == role::parameter ? g.parameter_of(static_cast<value_id>(i)) : nullptr;
    d.wanted[i] = (p != nullptr && !p->frozen) || (v.is == role::input && v.from == feed::stream);
  }
  for (int i = 0; i < forward; ++i) {
    const node& n = g.at_node(i);
    bool any = false;
    for (value_id v : n.in) any = any || d.wants(v);
    for (unsigned k = 0; any && k < max_outputs; ++k)
      if (const value_id v = n.out[k]; v >= 0)
        d.wanted[v] = g.at(v).differentiable() && g.at(v).is != role::scratch &&
                      (n.op->outputs_without_gradient >> k & 1u) == 0;
  }
  value seed = cotangent(g.at(g.outputs[0]), g.outputs[0]);
  seed.is = role::input;
  seed.from = feed::d_output;
  seed.name = "d_output";
  d.ct[g.outputs[0]] = b.add(seed, 0);
  if (g.side_loss >= 0) {
    seed = cotangent(g.at(g.side_loss), g.side_loss);
    seed.is = role::input, seed.from = feed::d_output, seed.feed_index = 1,
    seed.name = "d_side_loss";
    d.ct[g.side_loss] = b.add(seed, 0);
  }
  b.derived = true;
  b.when = phase::input_gradient;
  // Another graph, which declares a tied parameter, reduces its gradient. This graph only collects
  // the gradient, in the states in which its nodes use the parameter. Afterwards each state is
  // reduced and added to the gradient of the declaration.
  bool skipped[max_nodes]{};
  value_id finished[max_values]{}; // value whose cotangent is the parameter's gradient
  int readers[max_values]{};
  for (int i = 0; i < forward; ++i)
    for (value_id v : g.at_node(i).in)
      if (v >= 0) ++readers[v];
  for (int i = 0; i < g.value_count; ++i) finished[i] = static_cast<value_id>(i);
  for (int i = 0; i < g.parameter_count; ++i) d.collects[g.parameters[i].v] = g.parameters[i].tied;
  for (int i = 0; i < forward; ++i) {
    const node& n = g.at_node(i);
    if (n.when != phase::prologue || !n.op->linear || !d.collects[n.in[0]] || readers[n.in[0]] > 1)
      continue;
    skipped[i] = true;
    d.collects[n.in[0]] = false, d.collects[n.out[0]] = true;
    for (value_id& v : finished)
      if (v == n.in[0]) v = n.out[0];
  }
  for (int pass = 0; pass < 2; ++pass) {
    for (int i = forward - 1; i >= 0; --i) {
      const node n = g.at_node(i);
      if ((n.when == phase::prologue) != (pass == 1)) continue;
      bool any = false;
      for (value_id v : n.in) any = any || d.wants(v);
      if (!any || skipped[i]) continue;
      if (pass == 1 && !n.op->linear)
        for (value_id v : n.out)
          if (v >= 0 && d.ct[v] >= 0) {
            value_id& ct = d.ct[v];
            ct = d.typed(ct, g.at(v).type, n.line);
          }
      d.apply_adjoint(i, n);
    }
    if (pass == 0) d.own_stream();
    else d.own_gradients();
    b.when = phase::epilogue;
  }
  b.when = phase::forward;
  b.derived = false;
  for (int i = 0; i < g.value_count; ++i)
    if (g.at(static_cast<value_id>(i)).is == role::input &&
        g.at(static_cast<value_id>(i)).from == feed::stream)
      g.d_stream = d.ct[i];
  for (int i = 0; i < g.parameter_count; ++i)
    g.parameters[i].gradient = d.of(finished[g.parameters[i].v]);
  gradients r;
  set(r.of, d.ct);
  for (int i = 0; i < g.parameter_count; ++i) {
    const parameter_info& p = g.parameters[i];
    r.of[p.v] = p.gradient;
  }
  return r;
}

/// Returns a forward graph with its backward pass.
constexpr graph differentiated(const graph& forward) {
  builder b{forward.ranks};
  b.g = forward;
  differentiate(b);
  return b.g;
}

} // namespace mc
