// rounds: the nodes between dispatch and combine run once a round of rows, so that memory is
// bounded however tokens choose their experts (docs/experts.md). In a stage (forward, backward)
// they stand together; this pass checks that, takes in what a pass has put between them, and marks
// the forward nodes that the backward pass needs again: when there are several rounds, what they
// saved is of the last one, so each backward round computes it anew.
#pragma once

#include <megacpp/graph/builder.hpp>

namespace mc {

constexpr bool in_backward(phase p) {
  return p == phase::input_gradient || p == phase::weight_gradient;
}

/// Looped nodes of the forward or the backward pass: those of the stage in [first, last).
struct rounds_span {
  int first = 0, last = 0;
  constexpr bool empty() const { return first >= last; }
};

constexpr rounds_span span_of_rounds(const graph& g, bool backward) {
  rounds_span s;
  for (int i = 0; i < g.node_count; ++i) {
    const node& n = g.at_node(i);
    if (!n.looped || in_backward(n.when) != backward) continue;
    if (s.empty()) s.first = i;
    s.last = i + 1;
  }
  return s;
}

/// f(index of a node) in the order in which nodes run, looped ones `rounds` times.
template <class F> constexpr void in_running_order(const graph& g, int rounds, F f) {
  const auto all_of = [&](auto in_stage, int from, int to) {
    for (int i = from; i < to; ++i)
      if (in_stage(g.at_node(i).when)) f(i);
  };
  all_of([](phase p) { return p == phase::prologue; }, 0, g.node_count);
  for (const bool backward : {false, true}) {
    const auto in_stage = [backward](phase p) {
      return in_backward(p) == backward && p != phase::prologue && p != phase::epilogue;
    };
    const rounds_span s = span_of_rounds(g, backward);
    all_of(in_stage, 0, s.first);
    for (int r = 0; r < (s.empty() ? 0 : rounds); ++r) {
      for (int i = 0; backward && rounds > 1 && i < g.node_count; ++i)
        if (g.at_node(i).again) f(i);
      all_of(in_stage, s.first, s.last);
    }
    all_of(in_stage, s.last, g.node_count);
  }
  all_of([](phase p) { return p == phase::epilogue; }, 0, g.node_count);
}

namespace detail {

constexpr void close_span(graph& g, bool backward) {
  const rounds_span s = span_of_rounds(g, backward);
  for (int i = s.first; i < s.last; ++i) {
    node& n = g.at_node(i);
    if (in_backward(n.when) != backward || n.when == phase::prologue || n.when == phase::epilogue)
      continue;
    if (!n.looped && n.op->accumulates) record(g, fault::P016, n.line, n.op->name, n.in[0]);
    n.looped = true;
    for (value_id v : n.in) { // a sum over rounds is finished after the last of them
      const node_id p = v < 0 ? node_id{-1} : g.at(v).producer;
      if (p >= s.first && p < s.last && g.at_node(p).op->accumulates)
        record(g, fault::P016, n.line, n.op->name, v);
    }
  }
}

/// The forward node of a round that produces a value, or -1.
constexpr node_id looped_producer(const graph& g, value_id v) {
  const node_id p = v < 0 ? node_id{-1} : g.at(v).producer;
  if (p < 0) return -1;
  const node& n = g.at_node(p);
  return n.looped && !in_backward(n.when) && !n.op->accumulates ? p : node_id{-1};
}

} // namespace detail

constexpr graph in_rounds(const graph& whole) {
  graph g = whole;
  if (g.rounds < 0 || g.wrong.code != fault::none) return g;
  for (const bool backward : {false, true}) detail::close_span(g, backward);
  for (int i = g.node_count - 1; i >= 0; --i) {
    const node& n = g.at_node(i);
    if (!(in_backward(n.when) ? n.looped : n.again)) continue;
    for (value_id v : n.in)
      if (const node_id p = detail::looped_producer(g, v); p >= 0) g.at_node(p).again = true;
  }
  return g;
}

} // namespace mc
