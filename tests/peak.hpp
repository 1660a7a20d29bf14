// A graph with a pending maximum: rows are divided by the largest element of all ranks.
#pragma once

#include <megacpp/graph/letters.hpp>
#include <megacpp/nn/linear.hpp>
#include <megacpp/pass/differentiate.hpp>
#include <megacpp/pass/verify.hpp>

namespace mc_test {

struct peak_attributes {
  mc::dtype type; ///< type of the output
};
/// x -> the largest of this rank's elements, in a type.
constexpr void peak_rule(mc::inference& c) {
  mc::value& m = c.declare(c.n.attr.as<peak_attributes>().type, {});
  for (int a = 0; a < mc::axes; ++a) {
    const mc::place p = c.in(0).at.at[a];
    m.at.at[a] = p.s == mc::state::shard ? mc::partial_maximum : p;
  }
}
inline constexpr mc::op_info peak{.name = "peak",
                                  .rule = &peak_rule,
                                  .outputs_without_gradient = 0b1,
                                  .attributes = mc::attributes_of<peak_attributes>};
inline constexpr mc::op_info trained_peak{
    .name = "peak", .rule = &peak_rule, .attributes = mc::attributes_of<peak_attributes>};

/// x, m -> x / m.
constexpr void divided_rule(mc::inference& c) {
  c.rank(1, 0), c.declare(c.in(0));
  mc::place_output(c, 0, mc::algebra::product, {0, 1});
}
/// dy, x -> dm
constexpr void divisor_grad_rule(mc::inference& c) {
  c.declare(mc::dtype::f32, {});
  mc::place_output(c, 0, mc::algebra::product, {0, 1});
}
inline constexpr mc::op_info divisor_grad{.name = "divisor_grad", .rule = &divisor_grad_rule};
constexpr void divided_adjoint(mc::backward& d, const mc::node& n) {
  const mc::value_id dy = d.of(n.out[0]), x = n.in[0], m = n.in[1];
  if (dy < 0) return;
  if (d.wants(x)) d.give(x, d.b.emit(*n.op, {dy, m}, n.line), n.line);
  if (d.wants(m)) d.give(m, d.b.emit(divisor_grad, {dy, x}, n.line), n.line);
}
inline constexpr mc::op_info divided{
    .name = "divided", .rule = &divided_rule, .adjoint = &divided_adjoint};

/// Returns the derived graph of linear(x, w) divided by its largest element, which `reduced`
/// completes over ranks.
template <class Reduced>
constexpr mc::graph graph_with_peak(const mc::op_info& peak_op, mc::dtype t, Reduced reduced) {
  using namespace mc;
  builder b{mesh(layout{2})};
  const extent rows{dim::sequence, 8}, hidden{dim::hidden, 16}, ffn{dim::ffn, 32};
  const var x = b.input(feed::stream, "x", dtype::f32, {rows, hidden}, {});
  const var w = b.parameter("up", "weight", dtype::f32, {ffn, hidden}, on(axis::tp, S(dim::ffn)),
                            normal_weights(1));
  const var h = linear(to(x, axis::tp, R), w);
  const var m = reduced(var{&b, b.emit(peak_op, {h.id}, 0, peak_attributes{t})});
  b.g.outputs[0] = b.emit(divided, {h.id, m.id}, 0);
  if (b.g.wrong.code == fault::none) differentiate(b);
  return b.g;
}

} // namespace mc_test
