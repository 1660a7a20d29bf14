// expect-error: MEGA-P021
// expect-text: dispatch(x) over ep
//
// Each rank takes as many rounds as its own experts have tokens for: one whose experts nobody chose
// takes none, and those that send to it wait without end (deepspeedai/DeepSpeed#5008: a collective
// only on ranks whose expert was chosen, https://github.com/deepspeedai/DeepSpeed/pull/5008;
// PaddlePaddle/PaddleFormers#3010: a rank without tokens left its all-to-all out). Ranks that share
// experts agree on their rounds, of which there is at least one.
#include "one_layer.hpp"

#include <megacpp/nn/experts.hpp>

using namespace mc;

constexpr void counted_alone_rule(inference& c) {
  op::expert_rows_rule(c);
  value& rounds = c.out[2];
  rounds.dims[0].n = 2, rounds.at[axis::ep] = S(dim::replicas);
}
inline constexpr op_info counted_alone{.name = "counted_alone",
                                       .rule = &counted_alone_rule,
                                       .changes_mesh = true,
                                       .attributes = attributes_of<op::expert_rows_attributes>};

constexpr graph built() {
  layout ranks;
  ranks.ep = 2, ranks.etp = 1, ranks.tp = 2;
  builder b{mesh(ranks)};
  const extent B{dim::batch, 2}, Sq{dim::sequence, 8}, H{dim::hidden, 16}, E{dim::expert, 8};
  const placement tokens = stream_placement(S(dim::sequence));
  const var x = b.input(feed::stream, "x", dtype::f32, {B, Sq, H}, tokens);
  const var experts = b.integers(feed::tokens, integer_kind::experts, "experts",
                                 {B, Sq, {dim::choices, 2}}, tokens, E.n);
  const expert_assignment p = expert_rows(experts, 64, E.n, 0);
  b.g.outputs[0] = combine(dispatch(x, p), p).id; // expect-line
  return b.g;
}

constexpr graph counted(graph g) {
#ifdef MEGACPP_EXPECT_ERROR
  for (int i = 0; i < g.node_count; ++i)
    if (node& n = g.at_node(i); n.op == &op::expert_rows) {
      n.op = &counted_alone;
      value& rounds = g.at(n.out[2]);
      rounds.dims[0].n = 2, rounds.at[axis::ep] = S(dim::replicas);
    }
#endif
  if (g.wrong.code == fault::none) g.wrong = verify_nodes(g);
  return g;
}

struct experts {
  static constexpr fault_record wrong = counted(built()).wrong;
};
static_assert(reported<experts, experts>);
