// split: divides the backward pass into two halves. Nodes on which the cotangent of the incoming
// stream depends are the half of input gradients (B); the rest is the half of weight gradients (W),
// which a zero-bubble schedule may run later (Qi et al. 2024).
#pragma once

#include <megacpp/graph/graph.hpp>

namespace mc {

constexpr graph halved(const graph& whole) {
  graph g = whole;
  bool needed[max_values]{};
  if (g.d_stream >= 0) needed[g.d_stream] = true;
  for (int i = g.node_count - 1; i >= 0; --i) {
    node& n = g.at_node(i);
    if (n.when != phase::input_gradient && n.when != phase::weight_gradient) continue;
    bool reaches = false;
    for (value_id v : n.out) reaches = reaches || (v >= 0 && needed[v]);
    n.when = reaches ? phase::input_gradient : phase::weight_gradient;
    if (!reaches) continue;
    for (value_id v : n.in)
      if (v >= 0) needed[v] = true;
  }
  return g;
}

} // namespace mc
