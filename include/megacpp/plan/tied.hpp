// Checks of parameters that several parts use (tied parameters). All uses collect one main
// gradient, or each its own (plan/registry.hpp); the end of a step adds these up and reduces the
// sum once, for the part that declares the parameter. So each use must collect its gradient with
// the placement in which the parameter is stored, and a use that is gathered or cut before the
// forward pass is refused. A value that an op computes from the parameter before the forward pass
// collects its gradient apart, and the epilogue brings that back only after the uses are added up,
// so such a use is refused, too.
#pragma once

#include <megacpp/op/redistribute.hpp>
#include <megacpp/plan/registry.hpp>

namespace mc {

namespace detail {

/// Returns the parameter of which v is another state, or -1.
constexpr value_id parameter_behind(const graph& g, value_id v) {
  while (v >= 0 && g.at(v).producer >= 0) v = g.at_node(g.at(v).producer).in[0];
  return v >= 0 && g.at(v).is == role::parameter ? v : value_id{-1};
}

/// Returns the first axis on which a use's gradient is not sharded as the parameter is stored; -1:
/// none.
constexpr int axis_apart(const placement& grad, const placement& stored) {
  for (int a = 0; a < axes; ++a) {
    const place p = grad.at[a];
    const place s = stored.at[a];
    if ((p.s == state::shard || s.s == state::shard) && p != s) return a;
  }
  return -1;
}

/// Returns the node of the prologue that computes on the parameter of this name, or null.
constexpr const node* computing_on(const graph& g, const value& name) {
  for (int i = 0; i < g.node_count; ++i) {
    const node& n = g.at_node(i);
    if (n.when != phase::prologue || n.op->redistributes) continue;
    for (value_id v : n.in)
      if (const value_id p = parameter_behind(g, v); p >= 0 && same_name(g.at(p), name)) return &n;
  }
  return nullptr;
}

} // namespace detail

/// Returns MEGA-C007 for the first tied parameter on which a part computes before it is used.
/// `parts` are the forward graphs of all parts.
constexpr fault_record fault_of_computed_ties(std::span<const graph* const> parts) {
  fault_record wrong;
  for (const graph* g : parts)
    if (g->wrong.code != fault::none) return wrong; // the graph's fault is told first
  for (const graph* use : parts)
    for (int i = 0; i < use->parameter_count; ++i) {
      const parameter_info& info = use->parameters[i];
      if (!info.tied || info.frozen) continue;
      for (const graph* g : parts)
        if (const node* n = detail::computing_on(*g, use->at(info.v)))
          record(wrong, *use, fault::C007, n->line, n->op->name, info.v);
    }
  return wrong;
}

/// Returns the fault of the first tied parameter of which a use collects its gradient with another
/// placement. `parts` are the derived graphs of all parts.
constexpr fault_record fault_of_ties(std::span<const graph* const> parts) {
  registry r;
  for (const graph* head : parts)
    for (int i = 0; i < head->parameter_count; ++i) {
      const parameter_info& info = head->parameters[i];
      if (!info.tied || info.frozen || info.gradient < 0) continue;
      const value& v = head->at(info.v);
      for (const graph* g : parts)
        for (int k = 0; k < g->value_count; ++k) {
          const value& grad = g->at(static_cast<value_id>(k));
          if (grad.is != role::gradient) continue;
          const value_id p = detail::parameter_behind(*g, grad.grad_of);
          if (p < 0 || !same_name(g->at(p), v)) continue;
          const int a = detail::axis_apart(grad.at, v.at);
          if (a >= 0) detail::refuse(r, fault::P002, v, info, a);
        }
    }
  return r.wrong;
}

} // namespace mc
