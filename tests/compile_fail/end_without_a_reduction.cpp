// expect-error: MEGA-P019
//
// The end of a step updates replicas by gradients that nobody has reduced: the reduction hung on a
// callback of another object (NVIDIA-NeMo/RL#3789: a finaliser set on a copy of the configuration,
// so that none ran, https://github.com/NVIDIA-NeMo/RL/pull/3789; NVIDIA/Megatron-LM#1685: an
// example's own loop without it). Reductions are nodes of the program, which owes one to every group
// of parameters.
#include "one_layer.hpp"

using namespace mc;

struct stem {
  static constexpr graph g = [] {
    setup s;
    s.batch = small_run::batch;
    return after_passes(forward_graph(small(), s, part_kind::stem, 0), {.backward = true});
  }();
  static constexpr registry stores = make_registry(std::array<const graph*, 1>{&g}, std::array{1});
};

struct update {
  static constexpr fault_record wrong = [] {
    graph g = update_graph(stem::stores, mesh(layout{}), dtype::f32);
#ifdef MEGACPP_EXPECT_ERROR
    int kept = 0;
    for (int i = 0; i < g.node_count; ++i)
      if (g.at_node(i).op != &op::reduce_gradient) g.at_node(kept++) = g.at_node(i);
    for (int i = 0; i < kept; ++i)
      for (const value_id v : g.at_node(i).out)
        if (v >= 0) g.at(v).producer = static_cast<node_id>(i);
    g.node_count = kept;
#endif
    verify_update(g, stem::stores, mesh(layout{}), dtype::f32);
    return g.wrong;
  }();
};
static_assert(reported<update, update>);
