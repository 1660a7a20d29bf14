// The row of each sequence from which the next token is drawn, and each row of the first dim r
// times (key/value heads that several tensor-parallel ranks share).
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

[[gnu::cold]] constexpr void select_rule(inference& c) { // x (B, S, H), index (B)
  const value& x = c.in(0);
  c.floats({0}), c.rank(0, 3), c.indexes(1, integer_kind::indices, x.dims[1].n, 0);
  c.leads(1, 0, 2);
  c.declare(x.type, {x.dims[0], x.dims[2]});
  place_output(c, 0, algebra::product, {0, 1}, {x.dims[1].d});
}
[[gnu::cold]] constexpr work select_cost(const graph& g, const node& n) {
  const std::int64_t bytes = local_bytes(g.ranks, g.at(n.out[0]));
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

[[gnu::cold]] constexpr void repeat_rule(inference& c) { // x (N, ...)
  const std::int64_t times = c.n.attr.as<repeat_attributes>().times;
  c.floats({0}), c.require(c.in(0).rank > 0, fault::S003, 0);
  c.require(times > 0 && times <= most_repeats, fault::C001, 0);
  value& y = c.declare(c.in(0));
  y.dims[0].n *= times;
  place_output(c, 0, algebra::product, {0}, {y.dims[0].d});
}
[[gnu::cold]] constexpr void repeat_grad_rule(inference& c) { // dy (N r, ...)
  const std::int64_t wanted = c.n.attr.as<repeat_attributes>().times;
  const std::int64_t times = wanted > 0 ? wanted : 1;
  c.floats({0}), c.require(c.in(0).rank > 0, fault::S003, 0);
  c.require(times == wanted && times <= most_repeats, fault::C001, 0);
  value& x = c.declare(c.in(0));
  c.require(x.dims[0].n % times == 0, fault::S002, 0);
  x.dims[0].n /= times;
  place_output(c, 0, algebra::product, {0}, {x.dims[0].d});
}
inline constexpr op_info repeat_grad{.name = "repeat_grad",
                                     .rule = &repeat_grad_rule,
                                     .attributes = attributes_of<repeat_attributes>,
                                     .operands = named<repeat_grad_in, repeat_grad_out>};
[[gnu::cold]] constexpr void repeat_adjoint(backward& d, const node& n) {
  const value_id dy = d.of(n.out[0]);
  if (dy < 0 || !d.wants(n.in[0])) return;
  d.give(n.in[0], d.b.emit(repeat_grad, {dy}, n.line, n.attr), n.line);
}
inline constexpr op_info repeat{.name = "repeat",
                                .rule = &repeat_rule,
                                .adjoint = &repeat_adjoint,
                                .linear = true,
                                .attributes = attributes_of<repeat_attributes>,
                                .operands = named<repeat_in, repeat_out>};

} // namespace op

/// x (B, S, H), index (B) i32: (B, H).
constexpr var select(var x, var index, source_line line = here()) {
  return {x.b, x.b->emit(op::select, {x.id, index.id}, line)};
}

/// x (N, ...): (N r, ...), each row r times in a row. With r = 1, x.
constexpr var repeat(var x, std::int64_t times, source_line line = here()) {
  if (times == 1) return x;
  return {x.b, x.b->emit(op::repeat, {x.id}, line, op::repeat_attributes{times})};
}

} // namespace mc
