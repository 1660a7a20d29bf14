// Elementwise ops.
//
//   add      y = a + b
//            da = db = dy
//   scale    y = factor x
//            dx = factor dy
//   gelu     y = x Phi(x), or with tanh x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
//            dx = dy gelu'(x)
//   swiglu   y = silu(gate) up,  silu(z) = z sigmoid(z)
//            dgate = dy up silu'(gate),  dup = dy silu(gate)
//
// (GELU: Hendrycks, Gimpel 2016; SwiGLU: Shazeer 2020.) All operands have the dims (..., F) of the
// result. Saved: the inputs of gelu and swiglu. Placement: add takes operands placed alike, and add
// and scale take pending sums; gelu and swiglu are not linear and take no pending sums. FLOPs are
// not counted: memory bandwidth bounds these ops, which read and write each operand once.
#pragma once

#include <megacpp/graph/adjoint.hpp>

namespace mc {

enum class gelu_form : std::uint8_t { tanh, exact };

namespace op {

struct scale_in : input_names<scale_in> {
  static constexpr name<0> x{};
};
struct scale_out : output_names<scale_out> {
  static constexpr name<0> y{};
};
struct gelu_in : input_names<gelu_in> {
  static constexpr name<0> x{};
};
struct gelu_out : output_names<gelu_out> {
  static constexpr name<0> y{};
};
struct gelu_grad_in : input_names<gelu_grad_in> {
  static constexpr name<0> dy{};
  static constexpr name<1> x{};
};
struct gelu_grad_out : output_names<gelu_grad_out> {
  static constexpr name<0> dx{};
};
struct swiglu_in : input_names<swiglu_in> {
  static constexpr name<0> gate{};
  static constexpr name<1> up{};
};
struct swiglu_out : output_names<swiglu_out> {
  static constexpr name<0> y{};
};
struct swiglu_grad_in : input_names<swiglu_grad_in> {
  static constexpr name<0> dy{};
  static constexpr name<1> gate{};
  static constexpr name<2> up{};
};
struct swiglu_grad_out : output_names<swiglu_grad_out> {
  static constexpr name<0> dgate{};
  static constexpr name<1> dup{};
};

[[gnu::cold]] constexpr void add_rule(inference& c) {
  using in = sum_in;
  using out = sum_out;
  c.floats({in::a, in::b}), c.alike(in::b, in::a);
  c.declare(c.in(in::a));
  place_output(c, out::y, algebra::sum, {in::a, in::b});
}
[[gnu::cold]] constexpr void add_adjoint(backward& d, const node& n) {
  using in = sum_in;
  using out = sum_out;
  const value_id dy = d.of(n.out[out::y]);
  if (dy < 0) return;
  d.give(n.in[in::a], dy, n.line);
  d.give(n.in[in::b], dy, n.line);
}
inline constexpr op_info add{.name = "+",
                             .rule = &add_rule,
                             .adjoint = &add_adjoint,
                             .in_place = sum_in::b,
                             .commutes = true,
                             .operands = named<sum_in, sum_out>};

struct scale_attributes {
  double factor;
};
[[gnu::cold]] constexpr void scale_rule(inference& c) {
  const double factor = c.n.attr.as<scale_attributes>().factor;
  c.floats({scale_in::x});
  c.in_range(factor > -1e30 && factor < 1e30, "factor", factor, "above -1e30 and below 1e30");
  c.declare(c.in(scale_in::x));
  place_output(c, scale_out::y, algebra::sum, {scale_in::x});
}
[[gnu::cold]] constexpr void scale_adjoint(backward& d, const node& n);
inline constexpr op_info scale{.name = "scale",
                               .rule = &scale_rule,
                               .adjoint = &scale_adjoint,
                               .in_place = scale_in::x,
                               .cheap = true,
                               .linear = true,
                               .attributes = attributes_of<scale_attributes>,
                               .operands = named<scale_in, scale_out>};
constexpr void scale_adjoint(backward& d, const node& n) {
  const value_id dy = d.of(n.out[scale_out::y]), x = n.in[scale_in::x];
  if (dy >= 0 && d.wants(x)) d.give(x, d.b.emit(scale, {dy}, n.line, n.attr), n.line);
}

struct gelu_attributes {
  gelu_form form;
};
[[gnu::cold]] constexpr void gelu_rule(inference& c) {
  using in = gelu_in;
  using out = gelu_out;
  c.floats({in::x});
  c.declare(c.in(in::x));
  place_output(c, out::y, algebra::nonlinear, {in::x});
}
[[gnu::cold]] constexpr void gelu_grad_rule(inference& c) {
  using in = gelu_grad_in;
  using out = gelu_grad_out;
  c.floats({in::dy, in::x}), c.alike(in::x, in::dy);
  c.declare(c.in(in::dy));
  place_output(c, out::dx, algebra::product, {in::dy, in::x});
}
inline constexpr op_info gelu_grad{.name = "gelu_grad",
                                   .rule = &gelu_grad_rule,
                                   .in_place = gelu_grad_in::dy,
                                   .attributes = attributes_of<gelu_attributes>,
                                   .operands = named<gelu_grad_in, gelu_grad_out>};
[[gnu::cold]] constexpr void gelu_adjoint(backward& d, const node& n) {
  using in = gelu_in;
  using out = gelu_out;
  const value_id dy = d.of(n.out[out::y]);
  if (dy < 0 || !d.wants(n.in[in::x])) return;
  d.give(n.in[in::x], d.b.emit(gelu_grad, {dy, n.in[in::x]}, n.line, n.attr), n.line);
}
inline constexpr op_info gelu{.name = "gelu",
                              .rule = &gelu_rule,
                              .adjoint = &gelu_adjoint,
                              .in_place = gelu_in::x,
                              .cheap = true,
                              .attributes = attributes_of<gelu_attributes>,
                              .operands = named<gelu_in, gelu_out>};

[[gnu::cold]] constexpr void swiglu_rule(inference& c) {
  using in = swiglu_in;
  using out = swiglu_out;
  c.floats({in::gate, in::up}), c.alike(in::up, in::gate);
  c.declare(c.in(in::gate));
  place_output(c, out::y, algebra::nonlinear, {in::gate, in::up});
}
[[gnu::cold]] constexpr void swiglu_grad_rule(inference& c) {
  using in = swiglu_grad_in;
  using out = swiglu_grad_out;
  c.floats({in::dy, in::gate, in::up}), c.alike(in::gate, in::dy), c.alike(in::up, in::dy);
  for (int k = out::dgate; k <= out::dup; ++k) {
    c.declare(c.in(in::dy));
    place_output(c, k, algebra::product, {in::dy, in::gate, in::up});
  }
}
inline constexpr op_info swiglu_grad{.name = "swiglu_grad",
                                     .rule = &swiglu_grad_rule,
                                     .in_place = swiglu_grad_in::dy,
                                     .operands = named<swiglu_grad_in, swiglu_grad_out>};
[[gnu::cold]] constexpr void swiglu_adjoint(backward& d, const node& n) {
  using in = swiglu_in;
  using out = swiglu_out;
  const value_id dy = d.of(n.out[out::y]);
  if (dy < 0) return;
  const value_id dgate = d.b.emit(swiglu_grad, {dy, n.in[in::gate], n.in[in::up]}, n.line);
  const value_id dup = d.b.g.at_node(d.b.g.at(dgate).producer).out[swiglu_grad_out::dup];
  d.give(n.in[in::gate], dgate, n.line);
  d.give(n.in[in::up], dup, n.line);
}
inline constexpr op_info swiglu{.name = "swiglu",
                                .rule = &swiglu_rule,
                                .adjoint = &swiglu_adjoint,
                                .in_place = swiglu_in::gate,
                                .cheap = true,
                                .operands = named<swiglu_in, swiglu_out>};

} // namespace op

/// Returns a + b, elementwise.
constexpr var operator+(var a, located b) {
  return {a.b, a.b->emit(op::add, {a.id, b.x.id}, b.line)};
}
constexpr var& operator+=(var& a, located b) { return a = a + b; }

/// Records MEGA-S013: a graph has no operators but a sum of two values.
namespace detail {
constexpr var no_such_operator(const char* op, located a, value_id b = -1) {
  a.x.b->fail(fault::S013, a.line, op, a.x.id, b);
  return a.x;
}
} // namespace detail
constexpr var operator*(located a, var b) { return detail::no_such_operator("*", a, b.id); }
constexpr var operator/(located a, var b) { return detail::no_such_operator("/", a, b.id); }
constexpr var operator-(located a, var b) { return detail::no_such_operator("-", a, b.id); }
constexpr var operator*(located a, double /*b*/) { return detail::no_such_operator("*", a); }
constexpr var operator/(located a, double /*b*/) { return detail::no_such_operator("/", a); }
constexpr var operator+(located a, double /*b*/) { return detail::no_such_operator("+", a); }
constexpr var operator-(located a, double /*b*/) { return detail::no_such_operator("-", a); }
constexpr var operator*(double /*a*/, located b) { return detail::no_such_operator("*", b); }
constexpr var operator/(double /*a*/, located b) { return detail::no_such_operator("/", b); }
constexpr var operator+(double /*a*/, located b) { return detail::no_such_operator("+", b); }
constexpr var operator-(double /*a*/, located b) { return detail::no_such_operator("-", b); }
constexpr var operator-(located a) { return detail::no_such_operator("-", a); }

/// Returns factor x, for x of any dims.
constexpr var scale(var x, double factor, source_line line = here()) {
  return {x.b, x.b->emit(op::scale, {x.id}, line, op::scale_attributes{factor})};
}
/// Returns x Phi(x), exact or by the tanh approximation, for x of any dims.
constexpr var gelu(var x, gelu_form form = gelu_form::tanh, source_line line = here()) {
  return {x.b, x.b->emit(op::gelu, {x.id}, line, op::gelu_attributes{form})};
}

/// Returns silu(gate) up, (..., F), for gate and up (..., F).
constexpr var swiglu(var gate, var up, source_line line = here()) {
  return {gate.b, gate.b->emit(op::swiglu, {gate.id, up.id}, line)};
}

} // namespace mc
