// pending: leaves gradients of parameters as sums that are pending over ranks. differentiate()
// reduces each gradient last; this pass removes these reductions, and the end of the step reduces
// whole ranges of the store at once instead (plan/update.hpp). Each parameter says over which axes
// its gradient is pending, so the graph keeps its meaning (pass/meaning.hpp). The pass removes
// reductions only where a gradient needs nothing else to be finished.
#pragma once

#include <megacpp/op/redistribute.hpp>

namespace mc {

/// A gradient before its last reductions, and the axes of these. The gradient of a tied use has
/// none, since it is reduced with the gradient of the declaration.
struct pending_gradient {
  value_id v = -1;
  axis_set over{};
};
constexpr pending_gradient pending_gradient_of(const graph& g, const parameter_info& p) {
  pending_gradient r{p.gradient, p.pending};
  while (r.v >= 0 && !p.tied && g.at(r.v).producer >= 0) {
    const node& n = g.at_node(g.at(r.v).producer);
    if (n.when != phase::epilogue || !n.op->redistributes) break;
    const auto t = n.attr.as<op::transition>();
    if (t.from != partial || t.to != invariant || r.over.has(t.over)) break;
    r.v = n.in[op::redistribute_in::x], r.over = r.over.with(t.over);
  }
  return r;
}

/// Returns whether a gradient in the store is that of parameter p, as it is or in a state to which
/// it was converted without data movement. The gradient of a value that is computed from several
/// parameters is not.
constexpr bool collects_for(const graph& g, value_id gradient, const parameter_info& p) {
  value_id of = g.at(gradient).grad_of;
  while (of >= 0 && of != p.v && g.at(of).producer >= 0) {
    const node& n = g.at_node(g.at(of).producer);
    if (!n.op->redistributes || n.attr.as<op::transition>().by() != collective::none) return false;
    of = n.in[op::redistribute_in::x];
  }
  return of == p.v;
}

[[gnu::cold]] constexpr graph left_pending(const graph& whole) {
  graph g = whole;
  std::int16_t reads[max_values]{};
  for (int i = 0; i < g.node_count; ++i)
    for (value_id v : g.at_node(i).in)
      if (v >= 0) ++reads[v];
  bool dead[max_nodes]{};
  for (int i = 0; i < g.parameter_count; ++i) {
    parameter_info& p = g.parameters[i];
    if (p.frozen || p.tied || p.gradient < 0) continue;
    const pending_gradient left = pending_gradient_of(g, p);
    const auto before = [&](value_id v) {
      return g.at_node(g.at(v).producer).in[op::redistribute_in::x];
    };
    bool alone = left.v == p.gradient || reads[left.v] == 1;
    alone = alone && (g.at(left.v).is != role::gradient || collects_for(g, left.v, p));
    for (value_id v = p.gradient; v != left.v; v = before(v))
      alone = alone && reads[v] == (v == p.gradient ? 0 : 1);
    if (!alone) continue;
    for (value_id v = p.gradient; v != left.v; v = before(v)) dead[g.at(v).producer] = true;
    p.gradient = left.v, p.pending = left.over;
  }
  int kept = 0;
  for (int i = 0; i < g.node_count; ++i) {
    const node n = g.at_node(i);
    for (value_id v : n.out)
      if (v >= 0) g.at(v).producer = static_cast<node_id>(dead[i] ? -1 : kept);
    if (!dead[i]) g.at_node(kept++) = n;
  }
  for (int i = kept; i < g.node_count; ++i) g.at_node(i) = node{};
  g.node_count = kept;
  return g;
}

} // namespace mc
