// expect-error: MEGA-P017
// expect-text: scores(rms_norm@
//
// A user's op without an adjoint: what lies behind it would train without the gradient that goes
// through it. What is meant to be a constant says so.
#include "one_layer.hpp"

using namespace mc;

constexpr void scores_rule(inference& c) {
  c.floats({0});
  c.declare(c.in(0));
  place_output(c, 0, algebra::nonlinear, {0});
}
#ifdef MEGACPP_EXPECT_ERROR
inline constexpr op_info scores_op{.name = "scores", .rule = &scores_rule};
#else
inline constexpr op_info scores_op{
    .name = "scores", .rule = &scores_rule, .outputs_without_gradient = 1u};
#endif
constexpr var scores(var x, source_line line = here()) {
  return {x.b, x.b->emit(scores_op, {x.id}, line)};
}

struct scored : gpt {
  constexpr var block(context& c, int /*kind*/, var x) const {
    const var gain = weight(c, "gain", "weight", {hidden_extent()}, {}, ones());
    const var h = rms_norm(x, gain, eps);
    return x + h + scores(h); // expect-line
  }
};

struct run {
  static constexpr fault_record wrong =
      derived_graph(forward_graph(scored{small()}, {.batch = {2, 16}}, part_kind::block, 0)).wrong;
};
static_assert(reported<run, run>);
