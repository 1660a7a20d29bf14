// expect-error: MEGA-P019
//
// The first and the last stage of a pipeline share a table, and the end of a step does not add up
// the gradients of the two: their copies drift apart (uw-syfi/piper#13: a tied weight on two stages
// whose gradients were never summed, https://github.com/uw-syfi/piper/pull/13). A logical parameter
// used on two stages is one parameter, whose gradient pends over pp.
#include "one_layer.hpp"

using namespace mc;

constexpr layout ranks{.pp = 2};

template <part_kind Part> struct trained {
  static constexpr graph g = [] {
    setup s;
    s.ranks = ranks, s.batch = small_run::batch;
    return after_passes(forward_graph(small(), s, Part, 0), {.backward = true});
  }();
};

struct update {
  static constexpr registry stores = make_registry(
      std::array<const graph*, 2>{&trained<part_kind::stem>::g, &trained<part_kind::loss>::g},
      std::array{1, 1});
  static constexpr fault_record wrong = [] {
    graph g = update_graph(stores, mesh(ranks), dtype::f32);
#ifdef MEGACPP_EXPECT_ERROR
    for (int i = 0; i < g.node_count; ++i)
      if (node& n = g.at_node(i); n.op == &op::reduce_gradient)
        n.attr = op::exchange_attributes{
            n.attr.as<op::exchange_attributes>().over.without(axis::pp), dtype::f32};
#endif
    verify_update(g, stores, mesh(ranks), dtype::f32);
    return g.wrong;
  }();
};
static_assert(reported<update, update>);
