// expect-error: MEGA-P004
// expect-text: grouped_linear(experts.weight, dispatch@34) over edp
//
// Replicas of an expert see tokens of their own, and the expert's gradient is to be the sum over all
// of them, as of tokens that one rank had (NVIDIA/Megatron-LM#5956, deepspeedai/DeepSpeed#6546,
// databricks/megablocks#20: gradients of experts reduced over one set of ranks and divided by the
// size of another, ep times too large, https://github.com/NVIDIA/Megatron-LM/pull/5956). Which ranks
// are summed over follows from where the tokens are; nothing is divided by a number of ranks.
#include "one_layer.hpp"

#include <megacpp/nn/experts.hpp>

using namespace mc;

constexpr graph built() {
  layout ranks;
  ranks.ep = 2, ranks.etp = 1, ranks.tp = 2;
  builder b{mesh(ranks)};
  const extent B{dim::batch, 2}, Sq{dim::sequence, 8}, H{dim::hidden, 16}, E{dim::expert, 8},
      F{dim::ffn, 32};
  const placement tokens = stream_placement(S(dim::sequence));
  const var x = b.input(feed::stream, "x", dtype::f32, {B, Sq, H}, tokens);
  const var experts = b.integers(feed::tokens, integer_kind::experts, "experts",
                                 {B, Sq, {dim::choices, 2}}, tokens, E.n);
  const expert_assignment p = expert_rows(experts, 64, E.n, 0);
  placement stored;
  stored[axis::ep] = S(dim::expert);
  const var w = b.parameter("experts", "weight", dtype::f32, {E, F, H}, stored, normal_weights(1));
#ifdef MEGACPP_EXPECT_ERROR
  const var of_replicas = w;
#else
  const var of_replicas = to(w, axis::edp, R);
#endif
  const var rows = dispatch(x, p);
  b.g.outputs[0] = combine(grouped_linear(rows, of_replicas, p), p).id; // expect-line
  return b.g;
}

struct experts {
  static constexpr fault_record wrong = built().wrong;
};
static_assert(reported<experts, experts>);
