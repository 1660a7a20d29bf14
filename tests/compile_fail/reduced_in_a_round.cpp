// expect-error: MEGA-P021
// expect-text: to(sum_of_squares@34) over edp
//
// Something of the rows of a round is summed over the replicas of the experts. Each replica has as
// many rounds as its own tokens need, so that one with a round more waits for the others until a
// time-out.
#include "one_layer.hpp"

#include <megacpp/nn/experts.hpp>
#include <megacpp/op/optimizer.hpp>

using namespace mc;

constexpr graph built() {
  layout ranks;
  ranks.ep = 2, ranks.etp = 1, ranks.tp = 2;
  builder b{mesh(ranks)};
  context c;
  c.b = &b;
  const extent B{dim::batch, 2}, Sq{dim::sequence, 8}, H{dim::hidden, 16}, E{dim::expert, 8},
      F{dim::ffn, 32};
  const placement tokens = stream_placement(S(dim::sequence));
  const var x = b.input(feed::stream, "x", dtype::f32, {B, Sq, H}, tokens);
  const var experts = b.integers(feed::tokens, integer_kind::experts, "experts",
                                 {B, Sq, {dim::choices, 2}}, tokens, E.n);
  const expert_assignment p = expert_rows(experts, 64, E.n, 0);
  placement stored;
  stored[axis::ep] = S(dim::expert);
  parameter_info frozen = normal_weights(1);
  frozen.frozen = true;
  const var w = b.parameter("experts", "weight", dtype::f32, {E, F, H}, stored, frozen);
  const var rows = grouped_linear(dispatch(x, p), to(w, axis::edp, R), p);
  b.g.outputs[0] = combine(rows, p).id;
  const var squares{&b, b.emit(op::sum_of_squares, {rows.id}, here(), op::share_attributes{})};
  [[maybe_unused]] const var of_ep = to(squares, axis::ep, I);
#ifdef MEGACPP_EXPECT_ERROR
  to(of_ep, axis::edp, I); // expect-line
#endif
  b.g.wrong = b.g.wrong.code == fault::none ? verify_nodes(b.g) : b.g.wrong;
  return b.g;
}

struct experts {
  static constexpr fault_record wrong = built().wrong;
};
static_assert(reported<experts, experts>);
