// expect-error: MEGA-P003
// expect-text: to(
//
// The adjoint of a sum over ranks adds the gradients of the sum up over ranks, as if each rank had
// lost something of its own to it (jax-ml/jax#3970: gradients of a psum came out as many times too
// large as there were ranks, https://github.com/jax-ml/jax/issues/3970). A gradient that is the same
// on all ranks is no pending sum, and nothing makes it one.
#include "one_layer.hpp"

using namespace mc;

constexpr void square_rule(inference& c) {
  c.declare(c.in(0));
  place_output(c, 0, algebra::nonlinear, {0});
}
constexpr void square_adjoint(backward& d, const node& n) {
  const value_id dy = d.of(n.out[0]);
  if (dy < 0 || !d.wants(n.in[0])) return;
  var mine{&d.b, dy};
#ifdef MEGACPP_EXPECT_ERROR
  mine = to(to(mine, axis::tp, P, n.line), axis::tp, I, n.line);
#endif
  d.give(n.in[0],
         d.b.emit(op::gelu_grad, {mine.id, n.in[0]}, n.line, op::gelu_attributes{gelu_form::tanh}),
         n.line);
}
inline constexpr op_info square_op{
    .name = "square", .rule = &square_rule, .adjoint = &square_adjoint};

struct squared : gpt {
  constexpr var block(context& c, int /*kind*/, var x) const {
    const var h = column_parallel(c, "up", to(x, axis::tp, R), {{dim::ffn, ffn}}, bias, std);
    const var y = to(linear(gelu(h), down(c)), axis::tp, I);
    return x + var{y.b, y.b->emit(square_op, {y.id}, here())}; // expect-line
  }
  constexpr var down(context& c) const {
    return weight(c, "down", "weight", {hidden_extent(), {dim::ffn, ffn}},
                  on(axis::tp, S(dim::ffn)), normal_weights(std));
  }
};

struct block {
  static constexpr fault_record wrong = [] {
    setup s;
    s.ranks = tensor_parallel(2), s.batch = small_run::batch;
    return derived_graph(forward_graph(squared{small()}, s, part_kind::block, 0)).wrong;
  }();
};
static_assert(reported<block, block>);
