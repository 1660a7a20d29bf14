// Norms over the last dim (N), for every row m.
//
//   rms_norm    r = (mean_n x^2 + eps)^-1/2,         h = x r,         y = h gain
//   layer_norm  mu = mean_n x
//               r = (mean_n (x - mu)^2 + eps)^-1/2,  h = (x - mu) r,  y = h gain + bias
//
//   adjoint, with e = dy gain:
//   dx = r (e - h mean_n(e h)), for layer_norm r (e - mean_n e - h mean_n(e h))
//   dgain += sum_m dy h,   dbias += sum_m dy
//
// (Zhang, Sennrich 2019; Ba, Kiros, Hinton 2016.)
// Saved: x and the row statistics, in the accumulator type.
// Placement: rows may be sharded in any way; the normalised dim is needed whole; no pending sums.
// A gain beside sharded rows is replicated, so its gradient is a pending sum.
#pragma once

#include <megacpp/op/elementwise.hpp>
#include <megacpp/op/linear.hpp>

namespace mc {
namespace op {

struct rms_norm_in : input_names<rms_norm_in> {
  static constexpr name<0> x{};
  static constexpr name<1> gain{};
};
struct rms_norm_out : output_names<rms_norm_out> {
  static constexpr name<0> y{};
  static constexpr name<1, element::sum> rstd{};
};
struct rms_norm_grad_in : input_names<rms_norm_grad_in> {
  static constexpr name<0> dy{};
  static constexpr name<1> x{};
  static constexpr name<2> gain{};
  static constexpr name<3, element::sum> rstd{};
  static constexpr name<4> d{};
};
struct rms_norm_grad_out : output_names<rms_norm_grad_out> {
  static constexpr name<0> dx{};
};
struct rms_norm_gain_grad_in : input_names<rms_norm_gain_grad_in> {
  static constexpr name<0> dy{};
  static constexpr name<1> x{};
  static constexpr name<2, element::sum> rstd{};
};
struct rms_norm_gain_grad_out : output_names<rms_norm_gain_grad_out> {
  static constexpr name<0, element::sum> dgain{};
};
struct layer_norm_in : input_names<layer_norm_in> {
  static constexpr name<0> x{};
  static constexpr name<1> gain{};
  static constexpr name<2> bias{};
};
struct layer_norm_out : output_names<layer_norm_out> {
  static constexpr name<0> y{};
  static constexpr name<1, element::sum> mean{};
  static constexpr name<2, element::sum> rstd{};
};
struct layer_norm_grad_in : input_names<layer_norm_grad_in> {
  static constexpr name<0> dy{};
  static constexpr name<1> x{};
  static constexpr name<2> gain{};
  static constexpr name<3, element::sum> mean{};
  static constexpr name<4, element::sum> rstd{};
  static constexpr name<5> d{};
};
struct layer_norm_grad_out : output_names<layer_norm_grad_out> {
  static constexpr name<0> dx{};
};
struct layer_norm_gain_grad_in : input_names<layer_norm_gain_grad_in> {
  static constexpr name<0> dy{};
  static constexpr name<1> x{};
  static constexpr name<2, element::sum> mean{};
  static constexpr name<3, element::sum> rstd{};
};
struct layer_norm_gain_grad_out : output_names<layer_norm_gain_grad_out> {
  static constexpr name<0, element::sum> dgain{};
};
struct add_rms_norm_in : input_names<add_rms_norm_in> {
  static constexpr name<0> x{};
  static constexpr name<1> a{};
  static constexpr name<2> gain{};
};
struct add_rms_norm_out : output_names<add_rms_norm_out> {
  static constexpr name<0> s{};
  static constexpr name<1> y{};
  static constexpr name<2, element::sum> rstd{};
};
struct add_layer_norm_in : input_names<add_layer_norm_in> {
  static constexpr name<0> x{};
  static constexpr name<1> a{};
  static constexpr name<2> gain{};
  static constexpr name<3> bias{};
};
struct add_layer_norm_out : output_names<add_layer_norm_out> {
  static constexpr name<0> s{};
  static constexpr name<1> y{};
  static constexpr name<2, element::sum> mean{};
  static constexpr name<3, element::sum> rstd{};
};

/// Declares a row statistic of x: the dims of x without the last, in the accumulator type.
[[gnu::cold]] constexpr void declare_statistic(inference& c, const value& x) {
  value& s = c.declare(x);
  s.type = accumulator_of(x.type);
  if (s.rank > 0) --s.rank;
  s.dims[s.rank] = extent{};
}

/// Checks that operand k, a gain or a bias, has the last dim of operand x.
[[gnu::cold]] constexpr void of_last_dim(inference& c, int k, int x) {
  c.rank(k, 1), c.trails(k, x);
}
struct norm_attributes {
  double eps;
};
[[gnu::cold]] constexpr void eps_of_norm(inference& c) {
  const double eps = c.n.attr.as<norm_attributes>().eps;
  c.in_range(eps > 1e-30 && eps < 1e30, "eps", eps, "above 1e-30 and below 1e30");
}

// The rules below serve both norms. Their lists of operands differ: those of layer_norm have a mean
// before rstd, and a bias.

template <class List> inline constexpr bool has_mean = requires { List::mean; };

/// Checks operand k, the bias, which may be absent. Only a norm that subtracts the mean may have
/// one.
[[gnu::cold]] constexpr void bias_of_norm(inference& c, int k, int x, bool mean) {
  if (!c.has(k)) return;
  c.require(mean, fault::S003, x, k);
  c.typed({k}, c.in(x).type), of_last_dim(c, k, x);
}

template <class Out> [[gnu::cold]] constexpr void norm_rule(inference& c) { // x, gain, [bias]
  using in = layer_norm_in;
  const value& x = c.in(in::x);
  const dim last = x.back().d;
  c.floats({in::x, in::gain}), of_last_dim(c, in::gain, in::x);
  bias_of_norm(c, in::bias, in::x, has_mean<Out>);
  eps_of_norm(c);
  c.declare(x);
  place_output(c, Out::y, algebra::nonlinear, {in::x, in::gain, in::bias}, {last});
  for (int k = Out::y + 1; k <= Out::rstd; ++k) {
    declare_statistic(c, x);
    place_output(c, k, algebra::nonlinear, {in::x, in::gain, in::bias}, {last});
  }
}

/// Checks operands `first` ... `last`, the statistics of the rows of operand x.
[[gnu::cold]] constexpr void row_statistics(inference& c, int first, int last, int x) {
  for (int k = first; k <= last; ++k) c.sums({k}, x), c.leads(k, x, 1);
}
template <class In, class Out>
[[gnu::cold]] constexpr void norm_grad_rule(inference& c) { // operands: dy, x, gain, statistics
  const value& dy = c.in(In::dy);
  c.floats({In::dy, In::x, In::gain}), c.alike(In::x, In::dy), of_last_dim(c, In::gain, In::dy),
      row_statistics(c, In::gain + 1, In::rstd, In::dy);
  c.declare(dy);
  if constexpr (has_mean<In>)
    place_output(c, Out::dx, algebra::product, {In::dy, In::x, In::gain, In::mean, In::rstd},
                 {dy.back().d});
  else
    place_output(c, Out::dx, algebra::product, {In::dy, In::x, In::gain, In::rstd}, {dy.back().d});
}
template <class In, class Out>
constexpr void norm_gain_grad_rule(inference& c) { // operands: dy, x, statistics
  const value& dy = c.in(In::dy);
  c.floats({In::dy, In::x}), c.alike(In::x, In::dy), row_statistics(c, In::x + 1, In::rstd, In::dy);
  c.declare(accumulator_of(dy.type), {dy.back()});
  if constexpr (has_mean<In>)
    place_output(c, Out::dgain, algebra::product, {In::dy, In::x, In::mean, In::rstd},
                 {dy.back().d});
  else place_output(c, Out::dgain, algebra::product, {In::dy, In::x, In::rstd}, {dy.back().d});
}

extern const op_info rms_norm_grad_add, layer_norm_grad_add;
inline constexpr op_info rms_norm_grad{.name = "rms_norm_grad",
                                       .rule = &norm_grad_rule<rms_norm_grad_in, rms_norm_grad_out>,
                                       .operands = named<rms_norm_grad_in, rms_norm_grad_out>,
                                       .fuses = {&rms_norm_grad_add}};
inline constexpr op_info rms_norm_grad_add =
    sums_into<rms_norm_grad, rms_norm_grad_in::d>("rms_norm_grad_add", -1);
inline constexpr op_info rms_norm_gain_grad{
    .name = "rms_norm_gain_grad",
    .rule = &norm_gain_grad_rule<rms_norm_gain_grad_in, rms_norm_gain_grad_out>,
    .accumulates = true,
    .operands = named<rms_norm_gain_grad_in, rms_norm_gain_grad_out>};
inline constexpr op_info layer_norm_grad{
    .name = "layer_norm_grad",
    .rule = &norm_grad_rule<layer_norm_grad_in, layer_norm_grad_out>,
    .operands = named<layer_norm_grad_in, layer_norm_grad_out>,
    .fuses = {&layer_norm_grad_add}};
inline constexpr op_info layer_norm_grad_add =
    sums_into<layer_norm_grad, layer_norm_grad_in::d>("layer_norm_grad_add", -1);
inline constexpr op_info layer_norm_gain_grad{
    .name = "layer_norm_gain_grad",
    .rule = &norm_gain_grad_rule<layer_norm_gain_grad_in, layer_norm_gain_grad_out>,
    .accumulates = true,
    .operands = named<layer_norm_gain_grad_in, layer_norm_gain_grad_out>};

[[gnu::cold]] constexpr void rms_norm_adjoint(backward& d, const node& n) {
  using in = rms_norm_in;
  using out = rms_norm_out;
  const value_id dy = d.of(n.out[out::y]), x = n.in[in::x], gain = n.in[in::gain],
                 r = n.out[out::rstd];
  if (dy < 0) return;
  if (d.wants(x)) d.give(x, d.b.emit(rms_norm_grad, {dy, x, gain, r}, n.line), n.line);
  if (d.wants(gain)) d.give(gain, d.b.emit(rms_norm_gain_grad, {dy, x, r}, n.line), n.line);
}
[[gnu::cold]] constexpr void layer_norm_adjoint(backward& d, const node& n) {
  using in = layer_norm_in;
  using out = layer_norm_out;
  const value_id dy = d.of(n.out[out::y]), x = n.in[in::x], gain = n.in[in::gain],
                 bias = n.in[in::bias];
  const value_id mu = n.out[out::mean], r = n.out[out::rstd];
  if (dy < 0) return;
  if (d.wants(x)) d.give(x, d.b.emit(layer_norm_grad, {dy, x, gain, mu, r}, n.line), n.line);
  if (d.wants(gain)) d.give(gain, d.b.emit(layer_norm_gain_grad, {dy, x, mu, r}, n.line), n.line);
  if (d.wants(bias)) d.give(bias, d.b.emit(bias_grad, {dy}, n.line, bias_attributes{1}), n.line);
}
extern const op_info add_rms_norm, add_layer_norm;
inline constexpr op_info rms_norm{.name = "rms_norm",
                                  .rule = &norm_rule<rms_norm_out>,
                                  .adjoint = &rms_norm_adjoint,
                                  .cheap = true,
                                  .attributes = attributes_of<norm_attributes>,
                                  .operands = named<rms_norm_in, rms_norm_out>,
                                  .fuses = {&add_rms_norm}};
inline constexpr op_info layer_norm{.name = "layer_norm",
                                    .rule = &norm_rule<layer_norm_out>,
                                    .adjoint = &layer_norm_adjoint,
                                    .cheap = true,
                                    .attributes = attributes_of<norm_attributes>,
                                    .operands = named<layer_norm_in, layer_norm_out>,
                                    .fuses = {&add_layer_norm}};

/// Infers the fused op of s = x + a, y = norm(s): (x, a, gain[, bias]) -> s, y, statistics. It
/// rounds where add and norm would.
template <class Out> constexpr void add_norm_rule(inference& c) { // x, a, gain, [bias]
  using in = add_layer_norm_in;
  const value& x = c.in(in::x);
  c.floats({in::x, in::a, in::gain}), c.alike(in::a, in::x), of_last_dim(c, in::gain, in::x);
  bias_of_norm(c, in::bias, in::x, has_mean<Out>);
  eps_of_norm(c);
  c.declare(x);
  place_output(c, Out::s, algebra::sum, {in::x, in::a});
  for (int k = Out::y; k <= Out::rstd; ++k) {
    if (k == Out::y) c.declare(x);
    else declare_statistic(c, x);
    place_output(c, k, algebra::nonlinear, {in::x, in::a, in::gain, in::bias}, {x.back().d});
  }
}
// [form]
template <const op_info& Norm, class In, class Out> constexpr op_info add_before(const char* name) {
  using in = add_layer_norm_in; // rms_norm has no bias, and no mean
  using out = layer_norm_out;
  return {.name = name,
          .rule = &add_norm_rule<Out>,
          .attributes = Norm.attributes,
          .operands = named<In, Out>,
          .form = {
              .ops = {{&add, {in::x, in::a}}, {&Norm, {out_of(0), in::gain, in::bias}}},
              .outputs = {out_of(0), out_of(1, out::y), out_of(1, out::mean), out_of(1, out::rstd)},
              .main = 1}};
}
inline constexpr op_info add_rms_norm =
    add_before<rms_norm, add_rms_norm_in, add_rms_norm_out>("add_rms_norm");
inline constexpr op_info add_layer_norm =
    add_before<layer_norm, add_layer_norm_in, add_layer_norm_out>("add_layer_norm");
// [/form]

} // namespace op

/// Returns rms_norm of the rows of x (..., N) with gain (N).
constexpr var rms_norm(var x, var gain, double eps, source_line line = here()) {
  return {x.b, x.b->emit(op::rms_norm, {x.id, gain.id}, line, op::norm_attributes{eps})};
}
/// Returns layer_norm of the rows of x (..., N) with gain (N) and bias (N), or without bias (a var
/// without builder).
constexpr var layer_norm(var x, var gain, var bias, double eps, source_line line = here()) {
  return {x.b, x.b->emit(op::layer_norm, {x.id, gain.id, bias.id}, line, op::norm_attributes{eps})};
}

} // namespace mc
