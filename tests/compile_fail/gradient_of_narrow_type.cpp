// expect-error: MEGA-P020
// expect-text: gradient(gain.weight, gain_grad@
//
// A user's op whose gradient rule declares the type of values where sums are kept. In f32 the two
// are one type; in bf16 the kernel would add halves of other numbers to the main grads.
#include "one_layer.hpp"

using namespace mc;

constexpr void gain_rule(inference& c) { // x (..., H), g (H)
  c.floats({0, 1}), c.rank(1, 1), c.trails(1, 0);
  c.declare(c.in(0));
  place_output(c, 0, algebra::product, {0, 1});
}
constexpr void gain_grad_rule(inference& c) { // dy, x
  c.floats({0, 1}), c.alike(1, 0);
#ifdef MEGACPP_EXPECT_ERROR
  const dtype sums = c.in(0).type;
#else
  const dtype sums = accumulator_of(c.in(0).type);
#endif
  c.declare(sums, {c.in(0).back()});
  place_output(c, 0, algebra::product, {0, 1});
}
inline constexpr op_info gain_grad{
    .name = "gain_grad", .rule = &gain_grad_rule, .accumulates = true};
constexpr void gain_adjoint(backward& d, const node& n) {
  const value_id dy = d.of(n.out[0]), x = n.in[0], g = n.in[1];
  if (dy < 0) return;
  if (d.wants(x)) d.give(x, d.b.emit(*n.op, {dy, g}, n.line), n.line);
  if (d.wants(g)) d.give(g, d.b.emit(gain_grad, {dy, x}, n.line), n.line);
}
inline constexpr op_info gain_op{.name = "gain", .rule = &gain_rule, .adjoint = &gain_adjoint};
constexpr var gain(var x, var g, source_line line = here()) {
  return {x.b, x.b->emit(gain_op, {x.id, g.id}, line)};
}

struct scaled : gpt {
  constexpr var block(context& c, int /*kind*/, var x) const {
    const var g = weight(c, "gain", "weight", {hidden_extent()}, {}, ones());
    return x + gain(x, g); // expect-line
  }
};

struct run {
  static constexpr fault_record wrong =
      derived_graph(forward_graph(scaled{small()}, {.batch = {2, 16}, .precision = dtype::bf16},
                                  part_kind::block, 0))
          .wrong;
};
static_assert(reported<run, run>);
