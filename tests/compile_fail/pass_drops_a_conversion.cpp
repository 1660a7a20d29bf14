// expect-error: MEGA-P004
// expect-text: linear(x, up.weight) over tp
//
// A pass takes a conversion away because it moves no bytes forward. The verifier runs again after
// every pass and infers every node anew (openxla/xla#40034: a pending sum resharded without its
// all-reduce, https://github.com/openxla/xla/issues/40034).
#include <megacpp/graph/letters.hpp>
#include <megacpp/nn/linear.hpp>
#include <megacpp/pass/verify.hpp>
#include <megacpp/run/report.hpp>

using namespace mc;

constexpr graph built() {
  builder b{mesh(layout{2})};
  const extent rows{dim::rows, 8}, hidden{dim::hidden, 16}, ffn{dim::ffn, 32};
  const var x = b.input(feed::stream, "x", dtype::f32, {rows, hidden}, {});
  const var w = b.parameter("up", "weight", dtype::f32, {ffn, hidden}, on(axis::tp, S(dim::ffn)),
                            normal_weights(1));
  b.g.outputs[0] = linear(to(x, axis::tp, R), w).id; // expect-line
  return b.g;
}

constexpr graph shortened(graph g) {
#ifdef MEGACPP_EXPECT_ERROR
  for (int i = 0; i < g.node_count; ++i)
    for (value_id& v : g.at_node(i).in)
      if (v >= 0 && g.at(v).producer >= 0 && g.at_node(g.at(v).producer).op == &op::redistribute)
        v = g.at_node(g.at(v).producer).in[0];
#endif
  if (g.wrong.code == fault::none) g.wrong = verify_nodes(g);
  return g;
}

struct own_passes {
  static constexpr fault_record wrong = shortened(built()).wrong;
};
static_assert(reported<own_passes, own_passes>);
