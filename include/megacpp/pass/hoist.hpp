// hoist: moves nodes that depend on parameters alone to the prologue, which runs once a step. Their
// transposes then become the epilogue, so that the gradient of a weight is summed over
// micro-batches first and over ranks once. Nodes of the prologue that compute the same value become
// one: a weight that is converted at each of its uses is converted once, and collects one gradient.
#pragma once

#include <megacpp/op/redistribute.hpp>

namespace mc {

namespace detail {

/// Returns the parameter that v is in another state without data movement, or -1.
constexpr value_id renamed_parameter(const graph& g, value_id v) {
  while (v >= 0 && g.at(v).producer >= 0) {
    const node& n = g.at_node(g.at(v).producer);
    if (!n.op->redistributes || n.attr.as<op::transition>().by() != collective::none) return -1;
    v = n.in[op::redistribute_in::x];
  }
  return v >= 0 && g.at(v).is == role::parameter ? v : value_id{-1};
}
/// Returns whether two nodes of the prologue give the same value: they have one op with the same
/// operands, or convert one parameter to the same placement.
constexpr bool same_work(const graph& g, const node& n, const node& o) {
  if (n.op != o.op) return false;
  bool same = n.attr == o.attr && n.op->writes_operands == 0;
  for (int k = 0; same && k < max_inputs; ++k) same = n.in[k] == o.in[k];
  if (same || !n.op->redistributes) return same;
  const value_id y = n.out[op::redistribute_out::y], other = o.out[op::redistribute_out::y];
  const value_id p = renamed_parameter(g, y);
  return p >= 0 && p == renamed_parameter(g, other) && g.at(y).at == g.at(other).at;
}

/// Returns an operand that two nodes of the prologue share if they give the same value: the
/// parameter that they convert, or the first operand.
constexpr value_id common_operand(const graph& g, const node& n) {
  const value_id p =
      n.op->redistributes ? renamed_parameter(g, n.out[op::redistribute_out::y]) : value_id{-1};
  return p >= 0 ? p : n.in[0];
}

/// Removes each node of the prologue that gives the same as an earlier one. Its readers then read
/// the earlier node's outputs.
[[gnu::cold]] constexpr void merge_prologue(graph& g) {
  value_id first[max_values]{}; // value that replaces this one
  node_id latest[max_values]{},
      before[max_nodes]{}; // lists of the nodes that share an operand; 0: the end
  for (int i = 0; i < g.value_count; ++i) first[i] = static_cast<value_id>(i);
  const auto replace = [&](value_id& v) {
    if (v >= 0) v = first[v];
  };
  int kept = 0;
  for (int i = 0; i < g.node_count; ++i) {
    node n = g.at_node(i);
    for (value_id& v : n.in) replace(v);
    g.at_node(i) = n; // same_work() and common_operand() read the new operands
    int same = -1;
    if (n.when == phase::prologue) {
      const value_id on = common_operand(g, n);
      for (int k = on < 0 ? 0 : latest[on]; k > 0 && same < 0; k = before[k - 1])
        if (same_work(g, n, g.at_node(k - 1))) same = k - 1;
      if (on >= 0 && same < 0) {
        before[kept] = latest[on];
        latest[on] = static_cast<node_id>(kept + 1);
      }
    }
    for (int k = 0; k < max_outputs; ++k) {
      const value_id v = n.out[k];
      if (v < 0) continue;
      g.at(v).producer = static_cast<node_id>(same >= 0 ? -1 : kept);
      if (same >= 0) first[v] = g.at_node(same).out[k];
    }
    if (same < 0) g.at_node(kept++) = n;
  }
  for (int i = kept; i < g.node_count; ++i) g.at_node(i) = node{};
  g.node_count = kept;
  for (value_id& v : g.outputs) replace(v);
  replace(g.side_loss);
  for (int r = 0; r < g.region_count; ++r) replace(g.regions[r].trips);
}

} // namespace detail

[[gnu::cold]] constexpr void hoist(graph& g) {
  bool any = false;
  const seen_values seen(g); // values with a mirror on the host, which are made once a micro-batch
  for (int i = 0; i < g.node_count; ++i) {
    node& n = g.at_node(i);
    bool constant = n.region < 0 && !n.op->decodes; // a region makes its values anew in each trip
    for (value_id v : n.out) constant = constant && (v < 0 || !seen.has[v]);
    for (value_id v : n.in) {
      if (v < 0) continue;
      const value& x = g.at(v);
      constant = constant && (x.is == role::parameter ||
                              (x.producer >= 0 && g.at_node(x.producer).when == phase::prologue));
    }
    if (constant) n.when = phase::prologue, any = true;
  }
  if (any && g.wrong.code == fault::none) detail::merge_prologue(g);
}

} // namespace mc
