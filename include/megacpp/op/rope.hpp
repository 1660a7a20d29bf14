// The rotary position embedding, half-rotate form (Su et al. 2021; as in Hugging Face's models).
//
//   x (..., D), position p of the row, i < D/2, angle a_i = p w_i:
//   y[i] = x[i] cos a_i - s x[i+D/2] sin a_i,   y[i+D/2] = x[i+D/2] cos a_i + s x[i] sin a_i
//
// s = +1 forward, -1 in the adjoint (the inverse rotation). Saved: positions only. The kernel has a
// table with a row for each position below the bound of the positions.
//
// The inverse frequencies are w_i = v_i (k_i + (1 - k_i) / factor) with v_i = base^(-2i/D). The
// part k_i that pair i keeps of its frequency lies on a ramp that is 0 at `slow` and 1 at `fast`,
// as a function of v_i or of i; without a ramp it is 0. Factor 1 is the original RoPE.
// Placement: linear in x; positions are placed as the rows; D is needed whole.
#pragma once

#include <megacpp/graph/adjoint.hpp>
#include <megacpp/num/elementary.hpp>

namespace mc {
namespace op {

struct rope_in : input_names<rope_in> {
  static constexpr name<0> x{};
  static constexpr name<1, element::i32> positions{};
};
struct rope_out : output_names<rope_out> {
  static constexpr name<0> y{};
};

/// The variable of the ramp that says how much of its frequency a pair keeps.
enum class rope_ramp : std::uint8_t { none, frequency, pair };

// [attributes]
struct rope_attributes {
  double base;
  std::int64_t direction = 1; ///< 1: the rotation; -1: its inverse
  double factor = 1;          ///< divisor of the frequencies
  rope_ramp along = rope_ramp::none;
  double slow = 0, fast = 1; ///< where a pair keeps nothing, and where it keeps all
};

[[gnu::cold]] constexpr void rope_rule(inference& c) {
  using in = rope_in;
  using out = rope_out;
  // The operands are x (..., D), and positions, whose dims are the first ones of x without D.
  const value &x = c.in(in::x), &positions = c.in(in::positions);
  const auto [base, direction, factor, along, slow, fast] = c.n.attr.as<rope_attributes>();
  c.floats({in::x}), c.indexes(in::positions, integer_kind::positions, 0, in::x),
      c.leads(in::positions, in::x);
  c.require(positions.rank < x.rank, fault::S003, in::x, in::positions);
  const auto width = static_cast<double>(x.back().n);
  c.in_range(x.back().n % 2 == 0, "the width of a head", width, "even");
  c.in_range(base > 0 && base < 1e30, "base", base, "above 0 and below 1e30");
  c.in_range(factor > 1e-30 && factor < 1e30, "factor", factor, "above 1e-30 and below 1e30");
  c.in_range(slow > -1e30 && slow < 1e30, "slow", slow, "between -1e30 and 1e30");
  c.in_range(fast > -1e30 && fast < 1e30 && fast != slow, "fast", fast, "another than slow");
  c.require(direction == 1 || direction == -1, fault::C001, in::x);
  c.require(along <= rope_ramp::pair, fault::C001, in::x);
  c.declare(x);
  place_output(c, out::y, algebra::product, {in::x, in::positions}, {x.back().d});
}
// [/attributes]
[[gnu::cold]] constexpr void rope_adjoint(backward& d, const node& n) {
  using in = rope_in;
  using out = rope_out;
  const value_id dy = d.of(n.out[out::y]);
  if (dy < 0 || !d.wants(n.in[in::x])) return;
  auto inverse = n.attr.as<rope_attributes>();
  inverse.direction = -inverse.direction;
  d.give(n.in[in::x], d.b.emit(*n.op, {dy, n.in[in::positions]}, n.line, inverse), n.line);
}

/// Returns the inverse frequency w_i of pair i < half.
constexpr double inverse_frequency(const rope_attributes& a, std::int64_t i, std::int64_t half) {
  const double turned = static_cast<double>(i) / static_cast<double>(half) * natural_log(a.base),
               v = exponential(-turned);
  if (a.along == rope_ramp::none) return v / a.factor;
  const double at = a.along == rope_ramp::pair ? static_cast<double>(i) : v;
  const double ramp = (at - a.slow) / (a.fast - a.slow);
  const double kept = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
  return v * (kept + (1 - kept) / a.factor);
}

inline constexpr op_info rope{.name = "rope",
                              .rule = &rope_rule,
                              .adjoint = &rope_adjoint,
                              .in_place = rope_in::x,
                              .cheap = true,
                              .attributes = attributes_of<rope_attributes>,
                              .operands = named<rope_in, rope_out>};

} // namespace op

/// Returns x (..., D) rotated by positions, i32, whose dims are the first ones of x: (B, S) for (B,
/// S, heads, D).
constexpr var rope(var x, var positions, const op::rope_attributes& angles,
                   source_line line = here()) {
  return {x.b, x.b->emit(op::rope, {x.id, positions.id}, line, angles)};
}
constexpr var rope(var x, var positions, double theta, source_line line = here()) {
  return rope(x, positions, op::rope_attributes{theta}, line);
}

} // namespace mc
