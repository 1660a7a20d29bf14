// verify: run after every pass. Every node's outputs are still what its op's rule says of its
// inputs; every input is produced before it is read, in the order in which phases and rounds run;
// what the graph owes (pass/meaning.hpp) is what it owed before; every trainable parameter's
// gradient reaches the optimizer with the parameter's own placement, so that no reduction is
// missing and none is done twice; no pending sum leaves the graph unless it is the loss.
#pragma once

#include <megacpp/pass/differentiate.hpp>
#include <megacpp/pass/meaning.hpp>

namespace mc {

namespace detail {

/// An input that a step has once, as the end of the step does; others come with a micro-batch.
constexpr bool once_a_step(feed f) { return f >= feed::declared_gradient; }

/// True if a node that runs in phase `when` finds v: what one phase leaves, later ones of the same
/// micro-batch read, or of the same step. `step`: the graph runs once a step. The seed of a loss is
/// a constant, so that a fused loss may take it in the forward pass.
constexpr bool finds(const graph& g, phase when, const value& v, bool step) {
  using enum phase;
  if (v.is == role::parameter) return true;
  if (v.is == role::gradient) return when == epilogue;
  if (v.is == role::input) {
    if (once_a_step(v.from)) return true;
    if (v.from == feed::d_output && (v.rank > 0 || v.slot > 0) && when == forward) return false;
    return when != prologue && when != epilogue;
  }
  const phase made = g.at_node(v.producer).when;
  return made == prologue || (made <= when && (when != epilogue || made == epilogue || step));
}

/// True if v, an output of node n, is what the op's rule says it is.
constexpr bool is_output(const value& v, const value& inferred, const node& n) {
  const bool collected = v.is == role::gradient && n.op->accumulates;
  return v.same_dims(inferred) && v.at == inferred.at && v.type == inferred.type &&
         v.holds == inferred.holds && v.below == inferred.below &&
         (collected || v.is == inferred.is);
}

} // namespace detail

/// Re-infers every node.
[[gnu::cold]] constexpr void verify_nodes(graph& g) {
  std::array<bool, max_values> known{};
  bool step = true;
  for (int i = 0; i < g.value_count; ++i) {
    const value& v = g.at(static_cast<value_id>(i));
    known[static_cast<unsigned>(i)] = v.is == role::input || v.is == role::parameter;
    step = step && (v.is != role::input || detail::once_a_step(v.from));
  }
  for (int i = 0; i < g.node_count; ++i) {
    const node& n = g.at_node(i);
    bool rounds = !n.op->accumulates || !n.looped; // a sum over rounds adds what each round has
    for (value_id v : n.in) {
      if (v < 0) continue;
      if (!known[static_cast<unsigned>(v)] || !detail::finds(g, n.when, g.at(v), step))
        record(g, fault::P014, n.line, n.op->name, v);
      const bool anew = of_a_round(g, g.at(v));
      if (anew && !n.looped) record(g, fault::P016, n.line, n.op->name, v);
      rounds = rounds || anew;
    }
    if (!rounds) record(g, fault::P016, n.line, n.op->name, n.in[0]);
    inference c{g, n};
    infer(c);
    if (c.wrong != fault::none)
      record(g, c.wrong, n.line, n.op->name,
             c.first < 0 ? value_id{-1} : n.in[static_cast<unsigned>(c.first)],
             c.second < 0 ? value_id{-1} : n.in[static_cast<unsigned>(c.second)], c.over);
    for (int k = 0; k < c.outs; ++k) {
      const value_id v = n.out[static_cast<unsigned>(k)];
      const value& inferred = c.out[static_cast<unsigned>(k)];
      if (v < 0 || g.at(v).producer != i || !detail::is_output(g.at(v), inferred, n))
        record(g, fault::P014, n.line, n.op->name, v);
    }
    for (value_id v : n.out)
      if (v >= 0) known[static_cast<unsigned>(v)] = true;
  }
  // what comes after the forward pass does not wait for the backward pass, and the stage before
  // waits for the cotangent of the stream alone; a step's outputs are read at its end
  for (int k = 0; k < owed_values; ++k) {
    const auto what = static_cast<owed>(k);
    const value_id v = owed_value(g, what);
    const node_id made = v < 0 ? node_id{-1} : g.at(v).producer;
    const phase last = what == owed::d_stream ? phase::input_gradient
                       : step                 ? phase::epilogue
                                              : phase::forward;
    if (made >= 0 && g.at_node(made).when > last)
      record(g, fault::P014, g.at_node(made).line, g.at_node(made).op->name, v);
    if (made >= 0 && of_a_round(g, g.at(v))) // of the last one alone
      record(g, fault::P016, g.at_node(made).line, g.at_node(made).op->name, v);
  }
}

constexpr graph verified(graph g) {
  if (g.wrong.code == fault::none) verify_nodes(g);
  return g;
}
/// A pass's result, examined: its nodes, and that it owes what the graph before the pass did.
constexpr graph verified(graph g, const meaning& before) {
  if (g.wrong.code == fault::none) verify_nodes(g);
  if (g.wrong.code == fault::none) verify_meaning(g, before);
  return g;
}

/// The line of the model on which a value is made; of what enters the graph, none.
constexpr source_line line_of(const graph& g, value_id v) {
  return v >= 0 && g.at(v).producer >= 0 ? g.at_node(g.at(v).producer).line : source_line{};
}

/// An output has the type of `wanted` and lies as that does: what comes after the part reads it so.
[[gnu::cold]] constexpr void verify_output(builder& b, value_id out, const value& wanted,
                                           const char* part) {
  if (out < 0) return b.fail(fault::S008, 0, part, -1, "it gives no value");
  const value& v = b.g.at(out);
  const source_line line = line_of(b.g, out);
  if (v.is == role::input) b.fail(fault::S009, line, part, out);
  if (v.type != wanted.type) b.fail(fault::S007, line, part, out);
  if (!v.same_dims(wanted)) b.fail(fault::S003, line, part, out);
  for (int a = 0; a < axes; ++a) {
    const place have = v.at.at[static_cast<unsigned>(a)],
                want = wanted.at.at[static_cast<unsigned>(a)];
    if (have != want)
      b.fail(have.s == state::partial ? fault::P005 : fault::P002, line, part, out, -1, a);
  }
}

namespace detail {

/// What is read behind each node, starting from values that the graph owes.
struct reached {
  bool needed[max_values]{};

  constexpr void need(value_id v) {
    if (v >= 0) needed[v] = true;
  }
  /// The last of the nodes `first`, first + 1, ... that writes no operand and of which nothing
  /// reaches what is needed, or -1: what it computes was lost.
  constexpr int lost(const graph& g, int first) {
    for (int i = g.node_count - 1; i >= first; --i) {
      const node& n = g.at_node(i);
      bool any = n.op->changes != 0;
      for (value_id v : n.out) any = any || (v >= 0 && needed[v]);
      if (!any) return i;
      for (value_id v : n.in) need(v);
    }
    return -1;
  }
};

/// The last node of the backward pass of which nothing reaches a gradient or the cotangent of the
/// stream, or -1: what it computes is a part of one that was lost.
constexpr int lost_in_backward(const graph& g, const gradients& d) {
  reached r;
  for (int i = 0; i < g.value_count; ++i) {
    const value& v = g.at(static_cast<value_id>(i));
    if (v.is == role::gradient) r.need(static_cast<value_id>(i));
    if (v.is == role::parameter || v.is == role::input) r.need(d.of[static_cast<unsigned>(i)]);
  }
  int first = 0; // what differentiation wrote stands behind the model's own
  while (first < g.node_count && !g.at_node(first).derived) ++first;
  return r.lost(g, first);
}

} // namespace detail

/// Each trainable parameter: a finished gradient whose placement is the parameter's, in the element
/// type of its store. A tied one is finished where it is declared first; here its contribution must
/// be the dual of the value used. Nothing that the backward pass computes is lost.
constexpr void verify_gradients(builder& b, const gradients& d) {
  const graph& g = b.g;
  for (int i = 0; i < g.parameter_count; ++i) {
    const parameter_info& p = g.parameters[static_cast<unsigned>(i)];
    if (p.frozen) continue;
    const value& v = g.at(p.v);
    const value_id id = d.of[static_cast<unsigned>(p.v)];
    if (id < 0 || id != p.gradient || !g.at(id).same_dims(v)) {
      b.fail(fault::P010, p.line, "gradient", p.v);
      continue;
    }
    const value& grad = g.at(id);
    if (grad.type != accumulator_of(v.type)) b.fail(fault::P020, p.line, "gradient", p.v);
    const placement want = p.tied ? cotangent(g.at(grad.grad_of).at) : v.at;
    for (int a = 0; a < axes; ++a)
      if (grad.at.at[static_cast<unsigned>(a)] != want.at[static_cast<unsigned>(a)])
        b.fail(fault::P010, p.line, "gradient", p.v, -1, a);
  }
  if (const int i = detail::lost_in_backward(g, d); i >= 0)
    b.fail(fault::P010, g.at_node(i).line, g.at_node(i).op->name, g.at_node(i).in[0]);
}

} // namespace mc
