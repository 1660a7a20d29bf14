// Rotary position embedding, half-rotate form (Su et al. 2021; as Hugging Face's Qwen3 has it).
//
//   x (..., D), position p of the row, i < D/2, angle a_i = p theta^(-2i/D):
//   y[i] = x[i] cos a_i - s x[i+D/2] sin a_i,   y[i+D/2] = x[i+D/2] cos a_i + s x[i] sin a_i
//
// s = +1 forward, -1 in the adjoint (the inverse rotation). Saved: positions only. The
// kernel's table has as many rows as positions are below.
// Placement: linear in x; positions lie as the rows do; D is needed whole.
#pragma once

#include <megacpp/graph/adjoint.hpp>

namespace mc {
namespace op {

// [attributes]
struct rope_attributes {
  double base;
  std::int64_t direction = 1; ///< -1: turned back
};

[[gnu::cold]] constexpr void rope_rule(
    inference& c) { // x (..., D), positions: the first dims of x, not D
  const value &x = c.in(0), &positions = c.in(1);
  const auto [base, direction] = c.n.attr.as<rope_attributes>();
  c.floats({0}), c.indexes(1, integer_kind::positions, 0, 0), c.leads(1, 0);
  c.require(positions.rank < x.rank, fault::S003, 0, 1);
  const auto width = static_cast<double>(x.back().n);
  c.in_range(x.back().n % 2 == 0, "the width of a head", width, "even");
  c.in_range(base > 0 && base < 1e30, "base", base, "above 0 and below 1e30");
  c.require(direction == 1 || direction == -1, fault::C001, 0);
  c.declare(x);
  place_output(c, 0, algebra::product, {0, 1}, {x.back().d});
}
// [/attributes]
[[gnu::cold]] constexpr void rope_adjoint(backward& d, const node& n) {
  const value_id dy = d.of(n.out[0]);
  if (dy < 0 || !d.wants(n.in[0])) return;
  auto inverse = n.attr.as<rope_attributes>();
  inverse.direction = -inverse.direction;
  d.give(n.in[0], d.b.emit(*n.op, {dy, n.in[1]}, n.line, inverse), n.line);
}
inline constexpr op_info rope{.name = "rope",
                              .rule = &rope_rule,
                              .adjoint = &rope_adjoint,
                              .in_place = 0,
                              .cheap = true,
                              .attributes = attributes_of<rope_attributes>};

} // namespace op

/// x (..., D), positions i32 with the first dims of x, as (B, S) of (B, S, heads, D): rotated x.
constexpr var rope(var x, var positions, double theta, source_line line = here()) {
  return {x.b, x.b->emit(op::rope, {x.id, positions.id}, line, op::rope_attributes{theta})};
}

} // namespace mc
