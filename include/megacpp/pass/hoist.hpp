// hoist: what depends on parameters alone is computed once a step. Marks such nodes as the
// prologue; their transposes then become the epilogue, so that the gradient of a weight is summed
// over micro-batches first and over ranks once.
#pragma once

#include <megacpp/graph/builder.hpp>

namespace mc {

[[gnu::cold]] constexpr void hoist(graph& g) {
  for (int i = 0; i < g.node_count; ++i) {
    node& n = g.at_node(i);
    bool constant = n.region < 0; // what each trip has anew is none
    for (value_id v : n.in) {
      if (v < 0) continue;
      const value& x = g.at(v);
      constant = constant && (x.is == role::parameter ||
                              (x.producer >= 0 && g.at_node(x.producer).when == phase::prologue));
    }
    if (constant) n.when = phase::prologue;
  }
}

} // namespace mc
