// Terms: hashes that say which expression a value of a graph is. Two values with equal terms are
// the same expression of the same inputs and parameters (but for a chance of 2^-64), whatever nodes
// compute them. So a pass may rename, move, repeat and fuse nodes, and a check can compare what it
// must not change. A fused op has the terms of the ops that it replaces (op_info::form). An op's
// term is made from its name; a different op of the same name has another term.
#pragma once

#include <megacpp/graph/op.hpp>

#include <iterator>

namespace mc {

using term = std::uint64_t;

constexpr term mixed(term h, term x) {
  h = (h ^ x) * 0x9e3779b97f4a7c15u;
  return h ^ (h >> 32);
}
constexpr term mixed(term h, const char* s) {
  for (; *s != 0; ++s) h = (h ^ static_cast<unsigned char>(*s)) * 0x100000001b3u;
  return h ^ (h >> 32);
}
constexpr term mixed(term h, const value& v) { // the type, integers, dims and placement of v
  h = mixed(mixed(h, static_cast<term>(v.type) << 9 | term(v.holds) << 1 | term(v.counts)),
            static_cast<term>(v.below));
  for (int i = 0; i < v.rank; ++i) {
    const extent& e = v.dims[i];
    h = mixed(mixed(h, static_cast<term>(e.n)), static_cast<term>(e.d) << 8 | term(e.o));
  }
  for (const place& p : v.at.at)
    h = mixed(h, static_cast<term>(p.by) << 24 | static_cast<term>(p.s) << 16 |
                     static_cast<term>(p.d) << 8 | term(p.level));
  return h;
}

/// The ops that were met, with the hashes of their names. A constant evaluation can compare two
/// addresses but not hash one, so ops of one name are numbered in the order in which they are met.
struct met_ops {
  struct met_op {
    const op_info* op;
    term name;
  } at[2 * max_nodes]{};

  /// Returns how many other ops of this name were met before this one.
  constexpr term others(const op_info& op, term name) {
    term n = 0;
    for (term k = name, end = name + std::size(at); k != end; ++k) {
      met_op& e = at[k % std::size(at)];
      if (e.op == nullptr) e = {&op, name};
      if (e.op == &op) break;
      n += e.name == name;
    }
    return n;
  }
};

struct terms {
  static constexpr int outputs_of_form = max_form_ops * max_outputs, nested = 3;

  const graph& g;
  met_ops& met; // shared by all graphs whose terms are compared
  // Each value's term, and behind these, the outputs of ops of forms. A plain array costs an
  // evaluation fewer calls.
  term of[max_values + nested * outputs_of_form]{};
  term written = 0; // sum of the terms of all operands that ops wrote, which has no order
  int inside = 0;   // depth of the fused op that is being read: one in another

  constexpr terms(const graph& graph, met_ops& ops) : g(graph), met(ops) {}

  constexpr term at(value_id v) const { return v < 0 ? 0 : of[v]; }
  constexpr void out(const node& n, int k, term t) {
    if (const value_id v = n.out[k]; v >= 0) of[v] = t;
  }

  constexpr term head(const op_info& op, const attributes& a) {
    term h = mixed(0x1234u, op.name);
    h += met.others(op, h);
    for (int k = 0, n = a.count(); k < n; ++k) h = mixed(h, static_cast<term>(a.bits[k]));
    return h;
  }
  static constexpr term output(term h, int k) { return mixed(h, static_cast<term>(k) + 1); }

  /// Computes the terms of a node's outputs from the terms of its inputs.
  constexpr void read(const node& n) {
    if (inside < nested && n.op->form.holds_for(n)) return read_form(n);
    term h = head(*n.op, n.attr), k = 1;
    const value_id* v = n.in;
    if (n.op->commutes) h = mixed(h, mixed(1, at(v[0])) + mixed(1, at(v[1]))), v += 2, k = 3;
    for (; k <= max_inputs; ++k, ++v)
      if (*v >= 0) h = mixed(h, of[*v] + k);
    if (n.op->changes_mesh) h = mixed(h, n.region < 0 ? 0 : at(g.regions[n.region].trips) + 1);
    for (int i = 0; i < max_outputs; ++i) out(n, i, output(h, i));
    if (n.op->writes_operands == 0) return;
    for (int i = 0; i < max_inputs; ++i)
      if ((n.op->writes_operands >> i & 1) != 0 && n.in[i] >= 0)
        written += of[n.in[i]] = output(h, 64 + i);
  }
  /// Computes the terms of a fused node's outputs as the ops that it replaces would give them.
  constexpr void read_form(const node& n) {
    const fused_form& form = n.op->form;
    const int room = max_values + outputs_of_form * inside++;
    const auto id_of = [&](form_operand p) {
      return p.absent()  ? value_id{-1}
             : p.outer() ? n.in[p.at]
                         : static_cast<value_id>(room + p.at - max_inputs);
    };
    for (int i = 0; i < max_form_ops && form.ops[i].op != nullptr; ++i) {
      node part;
      part.op = form.ops[i].op, part.attr = form.attributes_of_op(n.attr, i);
      part.region = n.region;
      for (int k = 0; k < max_inputs; ++k) part.in[k] = id_of(form.ops[i].in[k]);
      for (int k = 0; k < max_outputs; ++k) part.out[k] = id_of(out_of(i, k));
      read(part);
    }
    for (int k = 0; k < max_outputs; ++k) { // an output of no op of the form is the fused op's own
      const form_operand p = form.outputs[k];
      out(n, k, p.absent() ? output(head(*n.op, n.attr), k) : at(id_of(p)));
    }
    --inside;
  }
};

} // namespace mc
