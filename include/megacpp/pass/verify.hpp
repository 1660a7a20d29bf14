// verify: run after every pass. Every node's outputs are still what its op's rule says of its
// inputs; every input is produced before it is read, in the order in which phases and regions run;
// what the graph owes (pass/meaning.hpp) is what it owed before; every trainable parameter's
// gradient reaches the optimizer with the parameter's own placement, so that no reduction is
// missing and none is done twice; no pending sum leaves the graph unless it is the loss or a total.
#pragma once

#include <megacpp/op/redistribute.hpp>
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
         v.holds == inferred.holds && v.below == inferred.below && v.counts == inferred.counts &&
         (collected || v.is == inferred.is);
}

/// The first axis over which a node of a region communicates though its ranks may have other
/// numbers of trips; -1: none. Ranks of a dense axis lie anywhere on the expert mesh: they agree if
/// all of that does.
constexpr int unagreed_axis(const graph& g, const node& n) {
  if (n.region < 0 || n.op->wire == nullptr || n.attr.type != n.op->attributes) return -1;
  const placement& trips = g.at(g.regions[n.region].trips).at;
  const auto agreed = [&](axis a) {
    return g.ranks.trivial(a) || (trips[a] == invariant && (a >= axis::edp || spread(trips) == 0));
  };
  mesh ranks = g.ranks;
  for (int& size : ranks.size)
    if (size == 0) size = 2; // known only at start: there may be others
  const transfers calls = n.op->wire(g, n, ranks);
  for (int k = 0; k < calls.count; ++k)
    for (int a = 0; a < axes; ++a)
      if (calls.at[k].over.has(static_cast<axis>(a)) && !agreed(static_cast<axis>(a))) return a;
  return -1;
}

} // namespace detail

/// The first node whose outputs are not what its op's rule infers of its inputs, that runs before
/// what it reads, or that communicates in trips which not all ranks have.
[[gnu::cold]] constexpr fault_record verify_nodes(const graph& g) {
  fault_record wrong;
  const auto refuse = [&](fault f, const node& n, value_id a, value_id b = -1, int over = -1) {
    record(wrong, g, f, n.line, n.op->name, a, b, over);
  };
  bool known[max_values]{};
  bool step = true;
  for (int i = 0; i < g.value_count; ++i) {
    const value& v = g.values[i];
    known[i] = v.is == role::input || v.is == role::parameter;
    step = step && (v.is != role::input || detail::once_a_step(v.from));
    if (v.is == role::input && v.counts != counts_tokens(v.from))
      record(wrong, g, fault::S010, 0, "input", static_cast<value_id>(i));
  }
  for (int i = 0; i < g.node_count && wrong.code == fault::none; ++i) {
    const node& n = g.nodes[i];
    if (n.region >= 0) { // of which it is known by then how often it runs
      const value_id trips = n.region < g.region_count ? g.regions[n.region].trips : value_id{-1};
      if (trips < 0 || !known[trips]) return refuse(fault::P014, n, n.in[0]), wrong;
    }
    bool summed = !n.op->accumulates || n.region < 0; // a sum over trips adds what each has
    for (value_id v : n.in) {
      if (v < 0) continue;
      if (!known[v] || !detail::finds(g, n.when, g.values[v], step)) refuse(fault::P014, n, v);
      const region_id anew = region_of(g, g.values[v]);
      if (anew >= 0 && anew != n.region) refuse(fault::P016, n, v);
      summed = summed || anew >= 0;
    }
    if (!summed) refuse(fault::P016, n, n.in[0]);
    if (const int a = detail::unagreed_axis(g, n); a >= 0) refuse(fault::P021, n, n.in[0], -1, a);
    inference c{g, n};
    infer(c);
    if (c.wrong != fault::none)
      refuse(c.wrong, n, c.first < 0 ? value_id{-1} : n.in[c.first],
             c.second < 0 ? value_id{-1} : n.in[c.second], c.over);
    for (int k = 0; k < c.outs; ++k) {
      const value_id v = n.out[k];
      if (v < 0 || g.values[v].producer != i || !detail::is_output(g.values[v], c.out[k], n))
        refuse(fault::P014, n, v);
    }
    for (value_id v : n.out)
      if (v >= 0) known[v] = true;
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
    if (made >= 0 && g.at_node(made).when > last) refuse(fault::P014, g.at_node(made), v);
    if (made >= 0 && region_of(g, g.at(v)) >= 0) // of the last trip alone
      refuse(fault::P016, g.at_node(made), v);
  }
  for (int r = 0; r < g.region_count; ++r) { // known when the first trip begins, and the last
    const value_id v = g.regions[r].trips;
    if (v < 0 || g.at(v).producer < 0) continue;
    const node& by = g.at_node(g.at(v).producer);
    if (by.when > phase::forward) refuse(fault::P014, by, v);
    if (by.region >= 0) refuse(fault::P016, by, v);
  }
  return wrong;
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
    const place have = v.at.at[a], want = wanted.at.at[a];
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
constexpr int lost_in_backward(const graph& g, const gradients* of_inputs) {
  reached r;
  for (int i = 0; i < g.value_count; ++i) {
    if (g.values[i].is == role::gradient) r.need(static_cast<value_id>(i));
    if (g.values[i].is == role::input && of_inputs != nullptr) r.need(of_inputs->of[i]);
  }
  for (int i = 0; i < g.parameter_count; ++i) r.need(g.parameters[i].gradient);
  for (const value_id v : {g.d_stream, g.outputs[0], g.outputs[1], g.side_loss}) r.need(v);
  for (int i = 0; i < g.region_count; ++i) r.need(g.regions[i].trips);
  int first = 0; // what differentiation wrote stands behind the model's own
  while (first < g.node_count && !g.nodes[first].derived) ++first;
  return r.lost(g, first);
}

} // namespace detail

/// Each trainable parameter: a finished gradient whose placement is the parameter's, but for sums
/// that it says are pending, in the element type of its store. A tied parameter is finished where
/// it is declared first; here its contribution must be the dual of the value used. Nothing that the
/// backward pass computes is lost. A graph with other inputs than a part's stream says which
/// cotangents they have.
constexpr fault_record verify_gradients(const graph& g, const gradients* of_inputs = nullptr) {
  fault_record wrong;
  for (int i = 0; i < g.parameter_count; ++i) {
    const parameter_info& p = g.parameters[i];
    if (p.frozen) continue;
    const auto refuse = [&](fault f, int over = -1) {
      record(wrong, g, f, p.line, "gradient", p.v, -1, over);
    };
    const value& v = g.at(p.v);
    const value_id id = p.gradient;
    if (id < 0 || !g.at(id).same_dims(v)) {
      refuse(fault::P010);
      continue;
    }
    const value& grad = g.at(id);
    if (grad.type != accumulator_of(v.type)) refuse(fault::P020);
    const placement want = p.tied ? cotangent(g.at(grad.grad_of).at) : v.at;
    for (int a = 0; a < axes; ++a) {
      const bool pending = p.pending.has(static_cast<axis>(a));
      if (grad.at.at[a] != (pending ? partial : want.at[a])) refuse(fault::P010, a);
    }
  }
  if (const int i = detail::lost_in_backward(g, of_inputs); i >= 0)
    record(wrong, g, fault::P010, g.at_node(i).line, g.at_node(i).op->name, g.at_node(i).in[0]);
  return wrong;
}
/// The same of a part, of whose stream the part before takes the cotangent.
constexpr fault_record verify_training(const graph& g) {
  fault_record wrong = verify_gradients(g);
  for (int i = 0; i < g.value_count; ++i)
    if (const value& v = g.values[i];
        v.is == role::input && v.from == feed::stream && g.d_stream < 0)
      record(wrong, g, fault::P010, 0, "cotangent", static_cast<value_id>(i));
  return wrong;
}

} // namespace mc
