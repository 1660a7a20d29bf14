// select takes from each sequence the row from which the next token is drawn. repeat repeats each
// row of the first dim r times (for key/value heads that several tensor-parallel ranks share).
//
//   select   y[b, :] = x[b, index[b], :]
//   repeat   y[c r + j, ...] = x[c, ...] for j < r,   adjoint: dx[c, ...] = sum_j dy[c r + j, ...]
//
// Placement: select needs the sequence whole and carries no gradient; repeat is linear and needs
// its first dim whole. Saved: nothing.
#pragma once

#include <megacpp/graph/adjoint.hpp>

namespace mc {
namespace op {

struct select_in : input_names<select_in> {
  static constexpr name<0> x{};
  static constexpr name<1, element::i32> index{};
};
struct select_out : output_names<select_out> {
  static constexpr name<0> y{};
};
struct repeat_in : input_names<repeat_in> {
  static constexpr name<0> x{};
};
struct repeat_out : output_names<repeat_out> {
  static constexpr name<0> y{};
};
struct repeat_grad_in : input_names<repeat_grad_in> {
  static constexpr name<0> dy{};
};
struct repeat_grad_out : output_names<repeat_grad_out> {
  static constexpr name<0> dx{};
};

[[gnu::cold]] constexpr void select_rule(inference& c) {
  using in = select_in;
  using out = select_out;
  // The operands are x (B, S, H), index (B).
  const value& x = c.in(in::x);
  c.floats({in::x}), c.rank(in::x, 3),
      c.indexes(in::index, integer_kind::indices, x.dims[1].n, in::x);
  c.leads(in::index, in::x, 2);
  c.declare(x.type, {x.dims[0], x.dims[2]});
  place_output(c, out::y, algebra::product, {in::x, in::index}, {x.dims[1].d});
}
[[gnu::cold]] constexpr work select_cost(const graph& g, const node& n) {
  using out = select_out;
  const std::int64_t bytes = local_bytes(g.ranks, g.at(n.out[out::y]));
  return {0, bytes, bytes};
}
inline constexpr op_info select{.name = "select",
                                .rule = &select_rule,
                                .cost = &select_cost,
                                .operands = named<select_in, select_out>};

inline constexpr std::int64_t most_repeats = 1 << 20;

struct repeat_attributes {
  std::int64_t times;
};

[[gnu::cold]] constexpr void repeat_rule(inference& c) {
  using in = repeat_in;
  using out = repeat_out;
  // The operand is x (N, ...).
  const std::int64_t times = c.n.attr.as<repeat_attributes>().times;
  c.floats({in::x}), c.require(c.in(in::x).rank > 0, fault::S003, in::x);
  c.require(times > 0 && times <= most_repeats, fault::C001, in::x);
  value& y = c.declare(c.in(in::x));
  y.dims[0].n *= times;
  place_output(c, out::y, algebra::product, {in::x}, {y.dims[0].d});
}
[[gnu::cold]] constexpr void repeat_grad_rule(inference& c) {
  using in = repeat_grad_in;
  using out = repeat_grad_out;
  // The operand is dy (N r, ...).
  const std::int64_t wanted = c.n.attr.as<repeat_attributes>().times;
  const std::int64_t times = wanted > 0 ? wanted : 1;
  c.floats({in::dy}), c.require(c.in(in::dy).rank > 0, fault::S003, in::dy);
  c.require(times == wanted && times <= most_repeats, fault::C001, in::dy);
  value& x = c.declare(c.in(in::dy));
  c.require(x.dims[0].n % times == 0, fault::S002, in::dy);
  x.dims[0].n /= times;
  place_output(c, out::dx, algebra::product, {in::dy}, {x.dims[0].d});
}
inline constexpr op_info repeat_grad{.name = "repeat_grad",
                                     .rule = &repeat_grad_rule,
                                     .attributes = attributes_of<repeat_attributes>,
                                     .operands = named<repeat_grad_in, repeat_grad_out>};
[[gnu::cold]] constexpr void repeat_adjoint(backward& d, const node& n) {
  using in = repeat_in;
  using out = repeat_out;
  const value_id dy = d.of(n.out[out::y]);
  if (dy < 0 || !d.wants(n.in[in::x])) return;
  d.give(n.in[in::x], d.b.emit(repeat_grad, {dy}, n.line, n.attr), n.line);
}
inline constexpr op_info repeat{.name = "repeat",
                                .rule = &repeat_rule,
                                .adjoint = &repeat_adjoint,
                                .linear = true,
                                .attributes = attributes_of<repeat_attributes>,
                                .operands = named<repeat_in, repeat_out>};

} // namespace op

/// Returns (B, H), a row of each sequence of x (B, S, H), with index (B) i32.
constexpr var select(var x, var index, source_line line = here()) {
  return {x.b, x.b->emit(op::select, {x.id, index.id}, line)};
}

/// Returns (N r, ...): each row of x (N, ...) r times, one after another. With r = 1, x is
/// returned.
constexpr var repeat(var x, std::int64_t times, source_line line = here()) {
  if (times == 1) return x;
  return {x.b, x.b->emit(op::repeat, {x.id}, line, op::repeat_attributes{times})};
}

} // namespace mc
