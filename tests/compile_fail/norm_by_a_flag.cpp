// expect-error: MEGA-P019
//
// The end of a step takes shards of tp for copies, as a flag beside the tensor says that nobody set:
// their norms are not summed, and each rank clips by another one (NVIDIA/Megatron-LM#7530: a
// parameter cut by heads without the flag counted on the first rank alone,
// https://github.com/NVIDIA/Megatron-LM/pull/7530; ROCm/TransformerEngine#715: whole weights with
// it counted on every rank). The norm reads the placement in which parameters are stored.
#include "one_layer.hpp"

using namespace mc;

constexpr layout ranks = tensor_parallel(2);

struct block {
  static constexpr graph g = [] {
    setup s;
    s.ranks = ranks, s.batch = small_run::batch;
    return forward_graph(small(), s, part_kind::block, 0);
  }();
  static constexpr registry stores =
      make_registry(std::array<const graph*, 1>{&g}, std::array{small().layers});
};

struct update {
  static constexpr fault_record wrong = [] {
    registry flagged = block::stores;
#ifdef MEGACPP_EXPECT_ERROR
    for (registry::bucket& group : flagged.buckets)
      if (group.at[axis::tp].s == state::shard) group.at[axis::tp] = I;
#endif
    graph g = update_graph(flagged, mesh(ranks), dtype::f32);
    verify_update(g, block::stores, mesh(ranks), dtype::f32);
    return g.wrong;
  }();
};
static_assert(reported<update, update>);
