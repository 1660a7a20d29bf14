// expect-error: MEGA-P007
// expect-text: grouped_linear(experts.weight) over etp
//
// The ranks of etp share the experts of a rank of ep and compute a part of each. Cut by expert over
// etp, too, a rank would have fewer experts than its rows are counted for; frozen weights have no
// gradient that would show it.
#include "one_layer.hpp"

#include <megacpp/nn/experts.hpp>

using namespace mc;

constexpr graph built() {
  layout ranks;
  ranks.ep = 2, ranks.etp = 2, ranks.tp = 4;
  builder b{mesh(ranks)};
  context c;
  c.b = &b;
  const extent B{dim::batch, 2}, Sq{dim::sequence, 8}, H{dim::hidden, 16}, E{dim::expert, 8},
      F{dim::ffn, 32};
  const placement tokens = [] {
    placement p = stream_placement(S(dim::sequence));
    return p;
  }();
  const var x = b.input(feed::stream, "x", dtype::f32, {B, Sq, H}, tokens);
  const var experts = b.integers(feed::tokens, integer_kind::experts, "experts",
                                 {B, Sq, {dim::choices, 2}}, tokens, E.n);
  const expert_assignment p = expert_rows(experts, 64, E.n, 0);
  placement stored;
  stored[axis::ep] = S(dim::expert);
#ifdef MEGACPP_EXPECT_ERROR
  stored[axis::etp] = S(dim::expert);
#else
  stored[axis::etp] = S(dim::ffn);
#endif
  parameter_info frozen = normal_weights(1);
  frozen.frozen = true;
  const var w = b.parameter("experts", "weight", dtype::f32, {E, F, H}, stored, frozen);
  b.g.outputs[0] = grouped_linear(dispatch(x, p), to(w, axis::edp, R), p).id; // expect-line
  return b.g;
}

struct experts {
  static constexpr fault_record wrong = built().wrong;
};
static_assert(reported<experts, experts>);
