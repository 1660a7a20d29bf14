// A small model, and edits of its graphs, for tests that break graphs on purpose.
#pragma once

#include <megacpp/model/gpt.hpp>
#include <megacpp/plan/parts.hpp>

#include <string>

namespace mc_test {

using namespace mc;

constexpr gpt dense() {
  gpt m;
  m.layers = 2, m.hidden = 16, m.heads = 4, m.ffn = 16, m.vocabulary = 64, m.positions = 32;
  m.dropout = 0;
  return m;
}
constexpr setup two_ranks() {
  setup s;
  s.ranks.tp = 2;
  s.batch = {2, 16};
  return s;
}

constexpr value_id find_output(const graph& g, const op_info& op, int which = 0, int out = 0) {
  for (int i = 0; i < g.node_count; ++i)
    if (g.at_node(i).op == &op && which-- == 0) return g.at_node(i).out[static_cast<unsigned>(out)];
  return -1;
}
constexpr node* find_node(graph& g, const op_info& op, int which = 0) {
  for (int i = 0; i < g.node_count; ++i)
    if (g.at_node(i).op == &op && which-- == 0) return &g.at_node(i);
  return nullptr;
}
/// Changes a node's attributes by f(A&).
template <class A, class F> constexpr void change(node& n, F f) {
  A a = n.attr.as<A>();
  f(a);
  n.attr = a;
}
constexpr value_id input_of(const graph& g, feed f) {
  for (int i = 0; i < g.value_count; ++i)
    if (const value& v = g.at(static_cast<value_id>(i)); v.is == role::input && v.from == f)
      return static_cast<value_id>(i);
  return -1;
}
constexpr int parameter_named(const graph& g, const char* scope, const char* name) {
  value v;
  v.scope = scope, v.name = name;
  for (int i = 0; i < g.parameter_count; ++i)
    if (same_name(g.at(g.parameters[static_cast<unsigned>(i)].v), v)) return i;
  return -1;
}
constexpr parameter_info& parameter(graph& g, const char* scope, const char* name) {
  return g.parameters[static_cast<unsigned>(parameter_named(g, scope, name))];
}

/// Lets all readers of one value read another.
constexpr void rewire(graph& g, value_id from, value_id to) {
  for (int i = 0; i < g.node_count; ++i)
    for (value_id& v : g.at_node(i).in)
      if (v == from) v = to;
  for (value_id& v : g.outputs)
    if (v == from) v = to;
  for (int i = 0; i < g.parameter_count; ++i)
    if (g.parameters[static_cast<unsigned>(i)].gradient == from)
      g.parameters[static_cast<unsigned>(i)].gradient = to;
  if (g.d_stream == from) g.d_stream = to;
}
constexpr void erase(graph& g, const node* n) {
  const auto at = static_cast<int>(n - g.nodes);
  for (int i = at; i + 1 < g.node_count; ++i) g.at_node(i) = g.at_node(i + 1);
  --g.node_count;
  for (int i = 0; i < g.value_count; ++i)
    if (value& v = g.at(static_cast<value_id>(i)); v.producer > at) --v.producer;
}
/// Inserts a node at an index among the others.
constexpr void insert(graph& g, int at, const node& n) {
  for (int i = g.node_count++; i > at; --i) g.at_node(i) = g.at_node(i - 1);
  for (int i = 0; i < g.value_count; ++i)
    if (value& v = g.at(static_cast<value_id>(i)); v.producer >= at) ++v.producer;
  g.at_node(at) = n;
  for (const value_id v : n.out)
    if (v >= 0) g.at(v).producer = static_cast<node_id>(at);
}
/// Adds a value like another one.
constexpr value_id another(graph& g, const value& like) {
  g.at(static_cast<value_id>(g.value_count)) = like;
  return static_cast<value_id>(g.value_count++);
}
constexpr node make_node(const op_info& op, phase when, std::initializer_list<value_id> in) {
  node n;
  n.op = &op, n.when = when;
  unsigned k = 0;
  for (const value_id v : in) n.in[k++] = v;
  return n;
}

inline std::string said(const fault_record& f) {
  return std::string(code_of(f.code)) + " " + f.what.c_str();
}

} // namespace mc_test
