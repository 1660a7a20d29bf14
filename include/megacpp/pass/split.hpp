// split: divides the backward pass into three parts. The cotangent of the incoming stream and
// gradients of parameters depend on nodes of the first (input_gradient), gradients alone on nodes
// of the second (weight_gradient), and that cotangent alone on nodes of the third
// (stream_gradient). A zero-bubble schedule may run the second later (Qi et al. 2024). Where
// nothing is trained below a graph, the third does not run (plan/step.hpp).
#pragma once

#include <megacpp/graph/graph.hpp>

namespace mc {

constexpr graph split_graph(const graph& whole) {
  graph g = whole;
  bool stream[max_values]{}, gradient[max_values]{}; // values that each of them needs
  if (g.d_stream >= 0) stream[g.d_stream] = true;
  for (int i = g.node_count - 1; i >= 0; --i) {
    node& n = g.at_node(i);
    bool to_stream = false, to_gradient = n.when == phase::epilogue;
    if (!to_gradient && !backward_pass.holds(n.when)) continue;
    for (value_id v : n.out) {
      if (v < 0) continue;
      to_stream = to_stream || stream[v];
      to_gradient = to_gradient || gradient[v] || g.at(v).is == role::gradient;
    }
    if (n.when != phase::epilogue)
      n.when = !to_stream    ? phase::weight_gradient
               : to_gradient ? phase::input_gradient
                             : phase::stream_gradient;
    for (value_id v : n.in) {
      if (v < 0) continue;
      stream[v] = stream[v] || to_stream;
      gradient[v] = gradient[v] || to_gradient;
    }
  }
  return g;
}

} // namespace mc
