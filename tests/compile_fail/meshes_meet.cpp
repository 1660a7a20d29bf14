// expect-error: MEGA-P013
// expect-text: to(x) over ep
//
// Tokens of the dense mesh go into experts without a dispatch.
#include <megacpp/graph/letters.hpp>
#include <megacpp/nn/linear.hpp>
#include <megacpp/run/report.hpp>

using namespace mc;

constexpr graph built() {
  layout ranks;
  ranks.ep = 2;
  builder b{mesh(ranks)};
  const extent rows{dim::rows, 8}, hidden{dim::hidden, 16}, ffn{dim::ffn, 32};
#ifdef MEGACPP_EXPECT_ERROR
  const axis tokens_over = axis::dp;
#else
  const axis tokens_over = axis::edp;
#endif
  const var x =
      b.input(feed::stream, "x", dtype::f32, {rows, hidden}, on(tokens_over, S(dim::rows)));
  const var w = b.parameter("experts", "weight", dtype::f32, {ffn, hidden},
                            on(axis::ep, S(dim::ffn)), normal_weights(1));
  b.g.outputs[0] = linear(to(x, axis::ep, R), to(w, axis::edp, R)).id; // expect-line
  return b.g;
}

struct experts {
  static constexpr fault_record wrong = built().wrong;
};
static_assert(reported<experts, experts>);
