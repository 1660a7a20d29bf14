// expect-error: MEGA-M002
// expect-text: +(linear@
//
// A memory plan in which a value is written over before its last use.
#include <megacpp/nn/linear.hpp>
#include <megacpp/op/elementwise.hpp>
#include <megacpp/pass/verify_memory.hpp>
#include <megacpp/run/report.hpp>

using namespace mc;

constexpr graph built() {
  builder b{mesh(layout{})};
  const extent rows{dim::rows, 8}, hidden{dim::hidden, 16};
  const var x = b.input(feed::stream, "x", dtype::f32, {rows, hidden}, {});
  const var w = b.parameter("up", "weight", dtype::f32, {{dim::ffn, 16}, hidden}, {}, {});
  const var y = linear(x, w), z = linear(x, w);
  b.g.outputs[0] = (y + z).id; // expect-line
  return b.g;
}

constexpr memory_plan planned(const graph& g) {
  memory_plan p = place_memory(g);
#ifdef MEGACPP_EXPECT_ERROR
  for (int i = 0; i < g.node_count; ++i)
    if (address& a = p.at[static_cast<unsigned>(g.at_node(i).out[0])]; a.in == space::working)
      a.offset = 0;
#endif
  return p;
}

struct step {
  static constexpr graph g = built();
  static constexpr fault_record wrong = verify_memory(g, planned(g));
};
static_assert(reported<step, step>);
