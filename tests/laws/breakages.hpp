// Rules, adjoints and passes that are broken on purpose. A breakage is a mutated copy of one or
// several ops that replaces the real ones while graphs are drawn and derived, or a change of the
// derived graph. The library knows nothing about it.
#pragma once

#include <megacpp/graph/letters.hpp>

#include "comparison.hpp"

namespace mc::laws {

struct breakage {
  const char* name;
  substitution swaps;
  implementations extra; ///< implementations of ops that broken adjoints emit
  std::function<bool(drawing&, gradients&)>
      mutate;                       ///< changes the derived graph; false: no place for it
  const op_info* squares = nullptr; ///< in place of sum_of_squares at the end of a step
};

namespace broken {

constexpr op_info with(op_info o, rule_function rule) {
  o.rule = rule;
  return o;
}
constexpr op_info with(op_info o, adjoint_function adjoint) {
  o.adjoint = adjoint;
  return o;
}

/// The op's rule without one of its refusals.
template <const op_info& Op, fault Forgiven> void forgiving(inference& c) {
  Op.rule(c);
  if (c.wrong == Forgiven) c.wrong = fault::none;
}
/// The op's rule with one state of output K replaced by another.
template <const op_info& Op, int K, state From, state To> void relabelling(inference& c) {
  Op.rule(c);
  for (place& p : c.out[static_cast<unsigned>(K)].at.at)
    if (p.s == From) p = {To};
}
/// The op's rule without levels.
template <const op_info& Op> void level_blind(inference& c) {
  static graph g; // static, since a recursion's stack is too small for it
  g = c.g;
  for (value_id v : c.n.in)
    if (v >= 0)
      for (place& p : g.at(v).at.at) p.level = 0;
  inference blind{g, c.n};
  Op.rule(blind);
  std::copy(std::begin(blind.out), std::end(blind.out), c.out), c.outs = blind.outs;
  if (blind.wrong != fault::none) c.fail(blind.wrong, blind.first, blind.second);
  for (int k = 0; k < c.outs; ++k)
    if (c.out[static_cast<unsigned>(k)].same_dims(c.in(0)))
      c.out[static_cast<unsigned>(k)].at = c.in(0).at;
}

template <const op_info& Op, fault F>
inline constexpr op_info forgives = with(Op, &forgiving<Op, F>);
template <const op_info& Op, int K, state From, state To>
inline constexpr op_info relabels = with(Op, &relabelling<Op, K, From, To>);
template <const op_info& Op> inline constexpr op_info blind = with(Op, &level_blind<Op>);
template <const op_info& Op, adjoint_function A> inline constexpr op_info transposes = with(Op, A);
template <const op_info& Op> inline constexpr op_info copy = Op;

// --- redistributions with a wrong transpose of the right type ------------------------------------

inline void relabel_rule(inference& c) {
  value& y = c.declare(c.in(0));
  y.at = c.in(0).at;
  const auto t = c.n.attr.as<op::transition>();
  y.at[t.over] = t.to;
}
/// An op that gives a value's state another name and moves nothing. With it a wrong transpose
/// passes the check of types.
inline constexpr op_info relabel{.name = "relabel",
                                 .rule = &relabel_rule,
                                 .redistributes = true,
                                 .attributes = attributes_of<op::transition>};

inline value_id called(builder& b, value_id x, const node& n, place p) {
  const axis over = n.attr.as<op::transition>().over;
  if (b.g.at(x).at[over].s == p.s) return x;
  return b.emit(relabel, {x}, n.line, op::transition{over, b.g.at(x).at[over], p});
}
/// A wrong transpose of From -> To: dy is called As, goes to Then, and is called the right state.
/// If As == Then, nothing is moved.
template <state From, state To, state As, state Then>
void wrong_transpose(backward& d, const node& n) {
  const auto t = n.attr.as<op::transition>();
  if (t.from.s != From || t.to.s != To) return op::redistribute_adjoint(d, n);
  const value_id dy = d.of(n.out[0]);
  if (dy < 0 || !d.wants(n.in[0])) return;
  const auto place_of = [&](state s) {
    return s == state::shard ? (From == state::shard ? t.from : t.to) : place{s};
  };
  value_id x = called(d.b, dy, n, place_of(As));
  if (As != Then)
    x = op::emit_redistribution(d.b, op::redistribute, x, t.over, place_of(Then), n.line);
  d.give(n.in[0], called(d.b, x, n, cotangent(t.from)), n.line);
}
template <state From, state To, state As, state Then>
inline constexpr op_info misled = with(op::redistribute, &wrong_transpose<From, To, As, Then>);

/// A wrong transpose of S(i) -> S(j), which keeps only the rank's own shard, beside zeros.
inline void wrong_all_to_all(backward& d, const node& n) {
  const auto t = n.attr.as<op::transition>();
  if (t.from.s != state::shard || t.to.s != state::shard) return op::redistribute_adjoint(d, n);
  const value_id dy = d.of(n.out[0]);
  if (dy < 0 || !d.wants(n.in[0])) return;
  value_id x = op::emit_redistribution(d.b, op::redistribute, dy, t.over, P, n.line);
  x = called(d.b, x, n, R);
  d.give(n.in[0], op::emit_redistribution(d.b, op::redistribute, x, t.over, t.from, n.line),
         n.line);
}

// --- adjoints
// --------------------------------------------------------------------------------------

inline void add_first_only(backward& d, const node& n) {
  if (d.of(n.out[0]) >= 0) d.give(n.in[0], d.of(n.out[0]), n.line);
}
inline void rope_not_inverted(backward& d, const node& n) {
  const value_id dy = d.of(n.out[0]);
  if (dy >= 0 && d.wants(n.in[0]))
    d.give(n.in[0], d.b.emit(*n.op, {dy, n.in[1]}, n.line, n.attr), n.line);
}
inline void swiglu_exchanged(backward& d, const node& n) {
  const value_id dy = d.of(n.out[0]);
  if (dy < 0) return;
  const value_id first = d.b.emit(op::swiglu_grad, {dy, n.in[0], n.in[1]}, n.line);
  const value_id second = d.b.g.at_node(d.b.g.at(first).producer).out[1];
  d.give(n.in[0], second, n.line);
  d.give(n.in[1], first, n.line);
}
inline void dropout_other_mask(backward& d, const node& n) {
  const value_id dy = d.of(n.out[0]);
  auto other = n.attr.as<op::dropout_attributes>();
  ++other.salt;
  if (dy >= 0 && d.wants(n.in[0]))
    d.give(n.in[0], d.b.emit(*n.op, {dy, n.in[1], n.in[2], n.in[3]}, n.line, other), n.line);
}
/// Adjoints that emit a gradient op with a broken rule.
template <const op_info& Grad> void embedding_by(backward& d, const node& n) {
  const value_id dy = d.of(n.out[0]);
  if (dy >= 0 && d.wants(n.in[1]))
    d.give(n.in[1], d.b.emit(Grad, {dy, n.in[0], n.in[1]}, n.line), n.line);
}
template <const op_info& Grad> void attention_by(backward& d, const node& n) {
  const value_id dy = d.of(n.out[0]);
  if (dy < 0) return;
  const value_id dq = d.b.emit(
      Grad, {dy, n.in[0], n.in[1], n.in[2], n.out[0], n.out[1], n.in[3], n.in[4], n.in[5], n.in[6]},
      n.line, n.attr);
  const node made = d.b.g.at_node(d.b.g.at(dq).producer);
  for (unsigned k = 0; k < 3; ++k) d.give(n.in[k], made.out[k], n.line);
}
template <const op_info& Grad> void rms_gain_by(backward& d, const node& n) {
  const value_id dy = d.of(n.out[0]);
  if (dy < 0) return;
  if (d.wants(n.in[0]))
    d.give(n.in[0], d.b.emit(op::rms_norm_grad, {dy, n.in[0], n.in[1], n.out[1]}, n.line), n.line);
  if (d.wants(n.in[1])) d.give(n.in[1], d.b.emit(Grad, {dy, n.in[0], n.out[1]}, n.line), n.line);
}
template <const op_info& Input, const op_info& Bias> void linear_by(backward& d, const node& n) {
  const value_id dy = d.of(n.out[0]), x = n.in[0], w = n.in[1], bias = n.in[2];
  if (dy < 0) return;
  if (d.wants(x)) d.give(x, d.b.emit(Input, {dy, w}, n.line, n.attr), n.line);
  if (d.wants(w)) d.give(w, d.b.emit(op::linear_weight_grad, {dy, x}, n.line, n.attr), n.line);
  if (d.wants(bias))
    d.give(bias, d.b.emit(Bias, {dy}, n.line, op::bias_attributes{d.b.g.at(bias).rank}), n.line);
}
template <const op_info& Grad> void cross_entropy_by(backward& d, const node& n) {
  const value_id dloss = d.of(n.out[0]);
  if (dloss < 0) return;
  const value_id dlse = d.b.emit(Grad, {dloss, n.in[0], n.in[1], n.in[2]}, n.line, n.attr);
  const value_id dtarget = d.b.g.at_node(d.b.g.at(dlse).producer).out[1];
  d.give(n.in[0], dlse, n.line);
  d.give(n.in[1], dtarget, n.line);
}

// --- implementations
// ---------------------------------------------------------------------------------

/// Averages the loss over the rows of one rank.
inline void cross_entropy_mean_of_rank(node_task& t) {
  plain::cross_entropy_grad(t);
  for (int k = 0; k < 2; ++k)
    for (double& x : t.out(k)) x /= static_cast<double>(t.in(2).size());
}
/// Counts the columns of dropout from the rank's own first column.
inline void dropout_local_column(node_task& t) {
  const world alone;
  const mesh none = mesh::one_rank();
  graph local = t.g;
  local.ranks = none;
  const block b = t.in_block(0);
  value& x = local.at(t.n.in[0]);
  x.at = {};
  for (int i = 0; i < x.rank; ++i)
    x.dims[static_cast<unsigned>(i)].n = b.local[static_cast<unsigned>(i)];
  node_task u{alone, local, t.n, 0, t.inputs, t.outputs};
  plain::dropout(u);
  t.outputs = u.outputs;
}
/// Keys tokens by their row on the rank.
inline void dropout_local_key(node_task& t) {
  array rows(t.in(1).size());
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<double>(i);
  node_task u{t.w, t.g, t.n, t.rank, t.inputs, t.outputs};
  u.inputs[1] = &rows;
  plain::dropout(u);
  t.outputs = u.outputs;
}
inline void repeat_grad_of_first(node_task& t) {
  const block x = t.out_block(0);
  const std::int64_t inner = x.count(1, x.rank);
  for (std::int64_t i = 0; i < x.size(); ++i)
    t.out(0)[plain::at(i)] =
        t.in(0)[plain::at(i / inner * t.attr<op::repeat_attributes>().times * inner + i % inner)];
}

inline constexpr op_info mean_grad = op::cross_entropy_grad;
inline constexpr op_info first_copy_grad = op::repeat_grad;
inline void repeat_by_first(backward& d, const node& n) {
  const value_id dy = d.of(n.out[0]);
  if (dy >= 0 && d.wants(n.in[0]))
    d.give(n.in[0], d.b.emit(first_copy_grad, {dy}, n.line, n.attr), n.line);
}
inline constexpr op_info local_column = op::dropout, local_key = op::dropout;

// --- changes of the derived graph
// --------------------------------------------------------------------

/// Lets all readers of `from` read `to` instead.
inline void rewire(graph& g, gradients& d, value_id from, value_id to) {
  for (int i = 0; i < g.node_count; ++i)
    for (value_id& v : g.at_node(i).in)
      if (v == from) v = to;
  for (value_id& v : d.of)
    if (v == from) v = to;
}
template <class Found> bool last_node(graph& g, Found found, int& at) {
  for (at = g.node_count - 1; at >= 0; --at)
    if (found(g.at_node(at))) return true;
  return false;
}
inline bool sum_dropped(drawing& d, gradients& found) {
  int i;
  if (!last_node(
          d.b.g, [](const node& n) { return n.op == &op::sum; }, i))
    return false;
  rewire(d.b.g, found, d.b.g.at_node(i).out[0], d.b.g.at_node(i).in[0]);
  return true;
}
inline bool adds_parts(const node& n) {
  return n.op == &op::redistribute && n.attr.as<op::transition>().from.s == state::partial;
}
inline bool reduction_dropped(drawing& d, gradients& found) {
  int i;
  const auto reduces = [](const node& n) { return n.when == phase::epilogue && adds_parts(n); };
  if (!last_node(d.b.g, reduces, i)) return false;
  rewire(d.b.g, found, d.b.g.at_node(i).out[0], d.b.g.at_node(i).in[0]);
  return true;
}
inline bool other_axis(drawing& d, gradients&) {
  int i;
  const auto reduces = [](const node& n) {
    return n.derived && adds_parts(n) && n.attr.as<op::transition>().over != axis::dp;
  };
  if (!last_node(d.b.g, reduces, i)) return false;
  auto t = d.b.g.at_node(i).attr.as<op::transition>();
  t.over = t.over == axis::tp ? axis::cp : axis::tp;
  d.b.g.at_node(i).attr = t;
  return true;
}
inline bool gradient_overwritten(drawing& d, gradients&) {
  graph& g = d.b.g;
  for (int i = 0; i < g.value_count; ++i) {
    value& v = g.at(static_cast<value_id>(i));
    if (v.is != role::gradient || g.at(v.grad_of).is != role::parameter) continue;
    v.is = role::intermediate;
    g.at_node(v.producer).when = phase::epilogue; // the epilogue sees one micro-batch only
    return true;
  }
  return false;
}
inline bool hoisted_too_far(drawing& d, gradients&) {
  int i;
  graph& g = d.b.g;
  const auto reads_input = [&](const node& n) {
    if (n.when != phase::forward) return false;
    for (value_id v : n.in)
      if (v >= 0 && g.at(v).producer >= 0 && g.at_node(g.at(v).producer).when != phase::prologue)
        return false;
    return true;
  };
  if (!last_node(g, reads_input, i)) return false;
  g.at_node(i).when = phase::prologue;
  return true;
}

} // namespace broken

/// Returns the listed breakages.
const std::vector<breakage>& breakages();
/// Returns a breakage that replaces every op by a faithful copy: the law must find no fault with
/// it.
breakage nothing_broken();

} // namespace mc::laws
