// Tied parameters over parts. All uses collect one main grad, or each its own (plan/registry.hpp),
// which the step's end adds up before they are reduced, once, where the parameter is declared
// first. So each must collect in the stored form: a use gathered or cut before the forward pass
// would collect elsewhere. What an op computes of the
// parameter before the forward pass collects apart, and the epilogue brings it back when the ties
// have joined: such uses are refused.
#pragma once

#include <megacpp/op/redistribute.hpp>
#include <megacpp/plan/registry.hpp>

namespace mc {

namespace detail {

/// The parameter of which a value is another state, or -1.
constexpr value_id parameter_behind(const graph& g, value_id v) {
  while (v >= 0 && g.at(v).producer >= 0) v = g.at_node(g.at(v).producer).in[0];
  return v >= 0 && g.at(v).is == role::parameter ? v : value_id{-1};
}

/// The first axis on which a use's gradient is not stored as the parameter is.
constexpr int axis_apart(const placement& grad, const placement& stored) {
  for (int a = 0; a < axes; ++a) {
    const place p = grad.at[a];
    const place s = stored.at[a];
    if ((p.s == state::shard || s.s == state::shard) && p != s) return a;
  }
  return -1;
}

/// The node of the prologue that computes on the parameter of this name, or null.
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

/// MEGA-C007 for the first tied parameter that a part computes on before it is used. `parts` are
/// the forward graphs of all parts.
constexpr fault_record fault_of_computed_ties(std::span<const graph* const> parts) {
  fault_record wrong;
  for (const graph* g : parts)
    if (g->wrong.code != fault::none) return wrong; // is told first
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

/// The fault of the first tied parameter of which a use collects in another form. `parts` are the
/// derived graphs of all parts.
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
