// verify_hoist: checks the result of hoist() a second time. Every node is there once, and reads and
// gives the same values as before, or values whose terms (graph/terms.hpp) are the same expressions
// of parameters. Conversions of a parameter without data movement count by their result alone. A
// node that is gone has another one that gives its values. This check uses no code of the pass, so
// that it sees its mistakes.
#pragma once

#include <megacpp/graph/builder.hpp>
#include <megacpp/graph/terms.hpp>
#include <megacpp/op/redistribute.hpp>

namespace mc {

namespace detail {

/// The terms of values that depend on parameters alone; 0 for other values.
struct parameter_terms {
  met_ops ops;
  terms t;
  value_id renamed[max_values]{}; ///< parameter that a value is in another state, or -1

  constexpr explicit parameter_terms(const graph& g) : t(g, ops) {
    for (value_id& v : renamed) v = -1;
    for (int i = 0; i < g.parameter_count; ++i) {
      const value_id v = g.parameters[i].v;
      t.of[v] = mixed(static_cast<term>(v) + 1, "parameter"), renamed[v] = v;
      const parameter_info& p = g.parameters[i];
      for (int k = 0; p.encoding != nullptr && k < p.encoding->count; ++k)
        t.of[p.arrays[k]] = mixed(static_cast<term>(p.arrays[k]) + 1, "parameter");
    }
    for (int i = 0; i < g.node_count; ++i)
      if (const node& n = g.at_node(i); is_of_parameters(n)) read(g, n);
  }
  constexpr bool is_of_parameters(const node& n) const {
    bool all = n.region < 0 && n.op->writes_operands == 0 && !n.op->decodes;
    for (value_id v : n.in) all = all && (v < 0 || t.of[v] != 0);
    return all;
  }
  constexpr bool same(value_id v, value_id o) const {
    return v == o || (v >= 0 && o >= 0 && t.of[v] != 0 && t.of[v] == t.of[o]);
  }

private:
  constexpr void read(const graph& g, const node& n) {
    t.read(n);
    const bool moves = !n.op->redistributes || n.attr.as<op::transition>().by() != collective::none;
    if (moves) return;
    const value_id x = n.in[op::redistribute_in::x], y = n.out[op::redistribute_out::y];
    if (renamed[x] < 0) return;
    renamed[y] = renamed[x];
    t.of[y] = mixed(t.of[renamed[x]], g.at(y));
  }
};

} // namespace detail

/// Returns MEGA-P019 for the first node of `before` that the hoisted graph g lacks or changes, or
/// for an output or number of trips that differs.
[[gnu::cold]] constexpr fault_record verify_hoist(const graph& g, const graph& before) {
  fault_record wrong;
  const detail::parameter_terms is(before);
  int k = 0; // index of the next node of g
  for (int i = 0; i < before.node_count; ++i) {
    const node& was = before.at_node(i);
    bool same = k < g.node_count && g.at_node(k).out[0] == was.out[0];
    if (!same && is.is_of_parameters(was)) continue; // its readers read another node
    const node& n = same ? g.at_node(k++) : was;
    same = same && n.op == was.op && n.attr == was.attr && n.region == was.region;
    for (int j = 0; same && j < max_outputs; ++j) same = n.out[j] == was.out[j];
    for (int j = 0; same && j < max_inputs; ++j) same = is.same(n.in[j], was.in[j]);
    if (!same) record(wrong, g, fault::P019, n.line, n.op->name, was.in[0]);
  }
  if (k < g.node_count) record(wrong, g, fault::P019, g.at_node(k).line, g.at_node(k).op->name);
  bool same = g.region_count == before.region_count && is.same(g.side_loss, before.side_loss);
  for (unsigned j = 0; j < g.outputs.size(); ++j)
    same = same && is.same(g.outputs[j], before.outputs[j]);
  for (int r = 0; same && r < g.region_count; ++r)
    same = is.same(g.regions[r].trips, before.regions[r].trips);
  if (!same) record(wrong, g, fault::P019, 0, "output", g.outputs[0]);
  return wrong;
}

} // namespace mc
