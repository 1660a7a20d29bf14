// expect-error: MEGA-P014
//
// A pass computes a layer's router again in the backward pass, and adds its counts of tokens to the
// experts' load once more (pytorch/torchtitan#1593: counts added in the forward pass, and again when
// activations were recomputed, https://github.com/pytorch/torchtitan/pull/1593). Counts are values of
// the graph, collected by one node.
#include "one_layer.hpp"

#include <megacpp/model/qwen3_moe.hpp>

using namespace mc;

constexpr graph derived() {
  qwen3_moe m;
  m.layers = 1, m.hidden = 16, m.heads = 2, m.kv_heads = 2, m.head_dim = 4, m.expert_ffn = 8;
  m.experts = 4, m.experts_per_token = 2, m.vocabulary = 32, m.positions = 32, m.bias_rate = 1e-3;
  setup s;
  s.batch = small_run::batch;
  return derived_graph(forward_graph(m, s, part_kind::block, 0));
}

constexpr graph recounted(graph g) {
#ifdef MEGACPP_EXPECT_ERROR
  for (int i = 0; i < g.node_count; ++i)
    if (g.at_node(i).op == &op::expert_load) {
      const node again = g.at_node(i);
      g.at_node(g.node_count++) = again;
      break;
    }
#endif
  return g;
}

struct own_passes {
  static constexpr graph before = derived();
  static constexpr fault_record wrong = verified(recounted(before), meaning_of(before)).wrong;
};
static_assert(reported<own_passes, own_passes>);
