// Dropout (Srivastava et al. 2014) with a counter-based mask.
//
//   y = x keep / (1 - p)
//   keep = [philox(key(seed, step, layer, salt), counter(token, column)) >= p]
//   seed, step () i64: numbers of the step (op/numbers.hpp)
//
// The counter is the element's global position: the index of its token in the global batch
// (token_keys, which are placed as the tokens are) and its column in the whole tensor. So the mask
// is sharded where x is sharded and equal where x is equal, and it does not depend on the layout or
// the micro-batch.
// Adjoint: the same map of dy. Saved: nothing but the keys. Placement: linear in x.
#pragma once

#include <megacpp/graph/adjoint.hpp>
#include <megacpp/op/numbers.hpp>

namespace mc {
namespace op {

struct dropout_in : input_names<dropout_in> {
  static constexpr name<0> x{};
  static constexpr name<1, element::i32> token_keys{};
  static constexpr name<2, element::i64> seed{};
  static constexpr name<3, element::i64> step{};
};
struct dropout_out : output_names<dropout_out> {
  static constexpr name<0> y{};
};

/// The number of salts: a salt has eight bits of the key (kernel/dropout.hpp).
inline constexpr std::int64_t salts = 256;

struct dropout_attributes {
  double probability;
  std::int64_t salt;
};

// The operands are x, token_keys (all dims of x but the last one or two), seed, step.
[[gnu::cold]] constexpr void dropout_rule(inference& c) {
  using in = dropout_in;
  using out = dropout_out;
  const auto [p, salt] = c.n.attr.as<dropout_attributes>();
  c.typed({in::seed, in::step}, dtype::i64), c.rank(in::seed, 0), c.rank(in::step, 0);
  c.floats({in::x}), c.holds(in::token_keys, integer_kind::token_keys, in::x),
      c.leads(in::token_keys, in::x);
  c.require(c.in(in::x).rank - c.in(in::token_keys).rank == 1 ||
                c.in(in::x).rank - c.in(in::token_keys).rank == 2,
            fault::S003, in::x, in::token_keys);
  c.in_range(p >= 0 && p < 1, "probability", p, "at least 0 and below 1");
  c.in_range(salt >= 0 && salt < salts, "salt", static_cast<double>(salt), "in 0 ... 255");
  c.declare(c.in(in::x));
  place_output(c, out::y, algebra::product, {in::x, in::token_keys});
}
[[gnu::cold]] constexpr void dropout_adjoint(backward& d, const node& n) {
  using in = dropout_in;
  using out = dropout_out;
  const value_id dy = d.of(n.out[out::y]);
  if (dy < 0 || !d.wants(n.in[in::x])) return;
  d.give(
      n.in[in::x],
      d.b.emit(*n.op, {dy, n.in[in::token_keys], n.in[in::seed], n.in[in::step]}, n.line, n.attr),
      n.line);
}
inline constexpr op_info dropout{.name = "dropout",
                                 .rule = &dropout_rule,
                                 .adjoint = &dropout_adjoint,
                                 .in_place = dropout_in::x,
                                 .cheap = true,
                                 .attributes = attributes_of<dropout_attributes>,
                                 .operands = named<dropout_in, dropout_out>};

} // namespace op

/// Returns dropout of x, which is (B, S, N) or (B, S, A, D); token_keys are (B, S) i32. Each
/// dropout of a graph has another `salt`, so that their masks differ. With p = 0, x is returned.
constexpr var dropout(var x, var token_keys, double p, std::int64_t salt,
                      source_line line = here()) {
  if (p == 0) return x;
  const var seed = number_input(*x.b, feed::seed), step = number_input(*x.b, feed::step);
  return {x.b, x.b->emit(op::dropout, {x.id, token_keys.id, seed.id, step.id}, line,
                         op::dropout_attributes{p, salt})};
}

} // namespace mc
