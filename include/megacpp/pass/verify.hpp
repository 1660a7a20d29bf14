// verify: checks a graph after every pass. Every node's outputs are what its op's rule infers from
// its inputs. Every input is produced before it is read, in the order in which phases and regions
// run. The graph has the meaning (pass/meaning.hpp) that it had before. The gradient of every
// trainable parameter reaches the optimizer with the parameter's own placement, so no reduction is
// missing and none is done twice. No pending sum leaves the graph unless it is the loss or a total.
#pragma once

#include <megacpp/op/redistribute.hpp>
#include <megacpp/pass/differentiate.hpp>
#include <megacpp/pass/meaning.hpp>

namespace mc {

namespace detail {

/// Returns whether an input is fed once a step, for the end of the step. Others are fed for each
/// micro-batch.
constexpr bool once_a_step(feed f) { return f >= feed::declared_gradient; }

/// Returns whether a node of phase `when` can read v. Values of one phase are there in later phases
/// of the same micro-batch; with `step`, the graph runs once a step, and they are there until its
/// end. The seed of a loss is a constant, so a fused loss may read it in the forward pass.
constexpr bool finds(const graph& g, phase when, const value& v, bool step) {
  using enum phase;
  if (v.is == role::parameter) return true;
  if (v.is == role::gradient) return when == epilogue;
  if (v.is == role::input) {
    if (once_a_step(v.from)) return true;
    if (v.from == feed::d_output && (v.rank > 0 || v.feed_index > 0) && when == forward)
      return false;
    return when != prologue && when != epilogue;
  }
  const phase made = g.at_node(v.producer).when;
  return made == prologue || (made <= when && (when != epilogue || made == epilogue || step));
}

/// Returns whether v, an output of node n, is as the op's rule infers it.
constexpr bool is_output(const value& v, const value& inferred, const node& n) {
  const bool collected = v.is == role::gradient && n.op->accumulates;
  return v.same_dims(inferred) && v.at == inferred.at && v.type == inferred.type &&
         v.holds == inferred.holds && v.below == inferred.below && v.counts == inferred.counts &&
         (collected || v.is == inferred.is);
}

/// Returns the first axis over which a node of a region communicates though its ranks may have
/// different numbers of trips; -1: there is none. The ranks of a dense axis may lie anywhere on the
/// expert mesh, so they agree only if all of that mesh does.
constexpr int unagreed_axis(const graph& g, const node& n) {
  if (n.region < 0 || n.op->wire == nullptr || n.attr.type != n.op->attributes) return -1;
  const placement& trips = g.at(g.regions[n.region].trips).at;
  const auto agreed = [&](axis a) {
    return g.ranks.trivial(a) || (trips[a] == invariant && (a >= axis::edp || spread(trips) == 0));
  };
  mesh ranks = g.ranks;
  for (int& size : ranks.size)
    if (size == 0) size = 2; // known only at start, so there may be several ranks
  const transfers calls = n.op->wire(g, n, ranks);
  for (int k = 0; k < calls.count; ++k)
    for (int a = 0; a < axes; ++a)
      if (calls.at[k].over.has(static_cast<axis>(a)) && !agreed(static_cast<axis>(a))) return a;
  return -1;
}

} // namespace detail

/// Returns a fault for the first node whose outputs are not as its op's rule infers them, that runs
/// before a value that it reads, or that communicates in trips which not all ranks have.
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
    if (n.region >= 0) { // its number of trips must be known by then
      const value_id trips = n.region < g.region_count ? g.regions[n.region].trips : value_id{-1};
      if (trips < 0 || !known[trips]) return refuse(fault::P014, n, n.in[0]), wrong;
    }
    bool summed = !n.op->accumulates || n.region < 0; // a sum over trips adds a value of each trip
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
             c.second < 0 ? value_id{-1} : n.in[c.second], c.blamed_axis);
    for (int k = 0; k < c.outs; ++k) {
      const value_id v = n.out[k];
      if (v < 0 || g.values[v].producer != i || !detail::is_output(g.values[v], c.out[k], n) ||
          (n.when == phase::stream_gradient && g.values[v].is == role::gradient))
        refuse(fault::P014, n, v);
    }
    for (value_id v : n.out)
      if (v >= 0) known[v] = true;
  }
  // A value that is read after the forward pass must not be made in the backward pass. The stage
  // before waits for the cotangent of the stream alone. Outputs of a step are read at its end.
  for (int k = 0; k < owed_values; ++k) {
    const auto what = static_cast<owed>(k);
    const value_id v = owed_value(g, what);
    const node_id made = v < 0 ? node_id{-1} : g.at(v).producer;
    const phase last = what == owed::d_stream ? phase::stream_gradient
                       : step                 ? phase::epilogue
                                              : phase::forward;
    const phase when = made < 0 ? phase::prologue : g.at_node(made).when;
    if (when > last || (what == owed::d_stream && when == phase::weight_gradient))
      refuse(fault::P014, g.at_node(made), v);
    if (made >= 0 && region_of(g, g.at(v)) >= 0) // only the last trip's value would be read
      refuse(fault::P016, g.at_node(made), v);
  }
  for (int r = 0; r < g.region_count; ++r) { // known before the first trip, and constant
    const value_id v = g.regions[r].trips;
    if (v < 0 || g.at(v).producer < 0) continue;
    const node& by = g.at_node(g.at(v).producer);
    if (by.when > phase::forward) refuse(fault::P014, by, v);
    if (by.region >= 0) refuse(fault::P016, by, v);
  }
  return wrong;
}

/// Returns the line of the model that made a value; none for inputs and parameters.
constexpr source_line line_of(const graph& g, value_id v) {
  return v >= 0 && g.at(v).producer >= 0 ? g.at_node(g.at(v).producer).line : source_line{};
}

/// Checks that an output of a part has the type, dims and placement of `wanted`, as the next part
/// reads it.
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

/// The values on which the results of a graph depend.
struct reached {
  bool needed[max_values]{};

  constexpr void need(value_id v) {
    if (v >= 0) needed[v] = true;
  }
  /// Returns the last node, from `first` on, that writes no operand and on whose outputs no result
  /// depends, or -1. What it computes was lost.
  constexpr int lost(const graph& g, int first) {
    for (int i = g.node_count - 1; i >= first; --i) {
      const node& n = g.at_node(i);
      bool any = n.op->writes_operands != 0;
      for (value_id v : n.out) any = any || (v >= 0 && needed[v]);
      if (!any) return i;
      for (value_id v : n.in) need(v);
    }
    return -1;
  }
};

/// Returns the last node of the backward pass on which no gradient and no cotangent of the stream
/// depends, or -1. It computes a part of one that was lost.
constexpr int lost_in_backward(const graph& g, const gradients* of_inputs) {
  reached r;
  for (int i = 0; i < g.value_count; ++i) {
    if (g.values[i].is == role::gradient) r.need(static_cast<value_id>(i));
    if (g.values[i].is == role::input && of_inputs != nullptr) r.need(of_inputs->of[i]);
  }
  for (int i = 0; i < g.parameter_count; ++i) r.need(g.parameters[i].gradient);
  for (const value_id v : {g.d_stream, g.outputs[0], g.outputs[1], g.side_loss}) r.need(v);
  for (int i = 0; i < g.region_count; ++i) r.need(g.regions[i].trips);
  int first = 0; // derived nodes stand behind the nodes of the model
  while (first < g.node_count && !g.nodes[first].derived) ++first;
  return r.lost(g, first);
}

} // namespace detail

/// Checks that each trainable parameter has a finished gradient with the placement of the
/// parameter, but for sums that it declares pending, and with the element type of its store. A tied
/// parameter is finished in the graph that declares it; here its gradient must have the dual
/// placement of the value used. Nothing that the backward pass computes is lost. `of_inputs` has
/// the cotangents of inputs other than a part's stream.
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
/// Checks the gradients of a part, and that the cotangent of its stream is there for the part
/// before.
constexpr fault_record verify_training(const graph& g) {
  fault_record wrong = verify_gradients(g);
  for (int i = 0; i < g.value_count; ++i)
    if (const value& v = g.values[i];
        v.is == role::input && v.from == feed::stream && g.d_stream < 0)
      record(wrong, g, fault::P010, 0, "cotangent", static_cast<value_id>(i));
  return wrong;
}

} // namespace mc
