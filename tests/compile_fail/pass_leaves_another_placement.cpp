// expect-error: MEGA-P014
// expect-text: linear(linear@20)
//
// A pass writes down a placement that does not follow from the operands: here that a pending sum is
// finished (PaddlePaddle/Paddle#73236: 'partial' kept on a gradient that was none any more,
// https://github.com/PaddlePaddle/Paddle/pull/73236).
#include <megacpp/graph/letters.hpp>
#include <megacpp/nn/linear.hpp>
#include <megacpp/pass/verify.hpp>
#include <megacpp/run/report.hpp>

using namespace mc;

constexpr graph built() {
  builder b{mesh(layout{2})};
  const extent rows{dim::rows, 8}, hidden{dim::hidden, 16}, ffn{dim::ffn, 32};
  const placement cut = on(axis::tp, S(dim::ffn));
  const var h = b.input(feed::stream, "h", dtype::f32, {rows, ffn}, cut);
  const var w = b.parameter("down", "weight", dtype::f32, {hidden, ffn}, cut, normal_weights(1));
  b.g.outputs[0] = linear(h, w).id; // expect-line
  return b.g;
}

constexpr graph rewritten(graph g) {
#ifdef MEGACPP_EXPECT_ERROR
  g.at(g.outputs[0]).at[axis::tp] = I;
#endif
  if (g.wrong.code == fault::none) g.wrong = verify_nodes(g);
  return g;
}

struct own_passes {
  static constexpr fault_record wrong = rewritten(built()).wrong;
};
static_assert(reported<own_passes, own_passes>);
