// expect-error: MEGA-P004
// expect-text: linear(x, up.weight) over tp
//
// Tokens are gathered for a product that each rank does a part of. Gathered as one value that all
// ranks use alike, they would take back a slice of one rank's gradient; the ranks' gradients differ,
// and belong added up (pytorch/xla#5784: an all-gather whose backward pass sliced,
// https://github.com/pytorch/xla/issues/5784; ByteDance-Seed/VeOmni#681: one that multiplied).
#include <megacpp/graph/letters.hpp>
#include <megacpp/nn/linear.hpp>
#include <megacpp/pass/differentiate.hpp>
#include <megacpp/pass/verify.hpp>
#include <megacpp/run/report.hpp>

using namespace mc;

constexpr graph built() {
  builder b{mesh(layout{2})};
  const extent rows{dim::sequence, 8}, hidden{dim::hidden, 16}, ffn{dim::ffn, 32};
  const var x =
      b.input(feed::stream, "x", dtype::f32, {rows, hidden}, on(axis::tp, S(dim::sequence)));
  const var w = b.parameter("up", "weight", dtype::f32, {ffn, hidden}, on(axis::tp, S(dim::ffn)),
                            normal_weights(1));
#ifdef MEGACPP_EXPECT_ERROR
  const var all = to(x, axis::tp, I);
#else
  const var all = to(x, axis::tp, R);
#endif
  b.g.outputs[0] = linear(all, w).id; // expect-line
  return b.g;
}

struct product {
  static constexpr graph forward = built();
  static constexpr fault_record wrong = forward.wrong;
};
static_assert(reported<product, product>);
