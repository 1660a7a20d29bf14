// expect-error: MEGA-P006
// expect-text: cotangent(x, gelu_grad@35) over tp
//
// The adjoint of a user's op reduces the cotangent itself, "to be safe"; the conversion in front of
// the op does so too, and the sum is taken twice. Placements of cotangents follow from those of
// values and are checked for every op (pytorch/pytorch#172932: a pending sum comes back under
// another label, https://github.com/pytorch/pytorch/issues/172932; NVIDIA-NeMo/RL#3660: reduced at
// each chunk and again).
#include "one_layer.hpp"

using namespace mc;

constexpr void square_rule(inference& c) {
  c.declare(c.in(0));
  place_output(c, 0, algebra::nonlinear, {0});
}
constexpr void square_adjoint(backward& d, const node& n) {
  const value_id dy = d.of(n.out[0]);
  if (dy < 0 || !d.wants(n.in[0])) return;
  var dx{&d.b,
         d.b.emit(op::gelu_grad, {dy, n.in[0]}, n.line, op::gelu_attributes{gelu_form::tanh})};
#ifdef MEGACPP_EXPECT_ERROR
  if (dx.at(axis::tp).s == state::partial) dx = to(dx, axis::tp, I, n.line);
#endif
  d.give(n.in[0], dx.id, n.line);
}
inline constexpr op_info square_op{
    .name = "square", .rule = &square_rule, .adjoint = &square_adjoint};
constexpr var square(var x, source_line line = here()) {
  return {x.b, x.b->emit(square_op, {x.id}, line)};
}

struct squared : gpt {
  constexpr var block(context& c, int /*kind*/, var x) const {
    const var h = square(to(x, axis::tp, R)); // expect-line
    const var y = column_parallel(c, "up", h, {{dim::ffn, ffn}}, bias, std);
    return x + row_parallel(c, "down", y, 1, hidden_extent(), bias, std);
  }
};

struct run : small_run {
  static constexpr squared model{small()};
  static constexpr mc::layout layout = tensor_parallel(2);
};
static_assert(program<run>::ok);
