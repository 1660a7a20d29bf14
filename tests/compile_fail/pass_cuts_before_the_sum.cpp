// expect-error: MEGA-P014
// expect-text: to(linear@
//
// A pass finds that only a slice of a sum is read, and slices before it adds: each rank then has a
// slice of its own part alone (openxla/xla#42481: a vocabulary sliced before gradients of its rows
// were added up over ranks, https://github.com/openxla/xla/issues/42481).
#include <megacpp/graph/letters.hpp>
#include <megacpp/nn/linear.hpp>
#include <megacpp/pass/verify.hpp>
#include <megacpp/run/report.hpp>

using namespace mc;

constexpr graph built() {
  builder b{mesh(layout{2})};
  const extent rows{dim::rows, 8}, hidden{dim::hidden, 16}, ffn{dim::ffn, 32};
  const var h = b.input(feed::stream, "h", dtype::f32, {rows, ffn}, on(axis::tp, S(dim::ffn)));
  const var w = b.parameter("down", "weight", dtype::f32, {hidden, ffn}, on(axis::tp, S(dim::ffn)),
                            normal_weights(1));
  const var sum = to(linear(h, w), axis::tp, I);
  b.g.outputs[0] = to(sum, axis::tp, S(dim::rows)).id; // expect-line
  return b.g;
}

constexpr graph shortened(graph g) {
#ifdef MEGACPP_EXPECT_ERROR
  node& slice = g.at_node(g.node_count - 1);
  slice.in[0] = g.at_node(g.at(slice.in[0]).producer).in[0];
#endif
  if (g.wrong.code == fault::none) g.wrong = verify_nodes(g);
  return g;
}

struct own_passes {
  static constexpr fault_record wrong = shortened(built()).wrong;
};
static_assert(reported<own_passes, own_passes>);
