// Totals: numbers that a step sums in double over parts and micro-batches. The host reads them at
// the end of the step.
//
//   add_total   t = t + x
//
// Placement: a total is placed as the value x that is added to it; besides, it may be a pending sum
// over pp, since each stage adds the values of its own parts. Adjoint: none, for no cotangent comes
// back.
#pragma once

#include <megacpp/graph/adjoint.hpp>

namespace mc {

/// The totals of a step. The first three are pending sums over all ranks of dp, cp and pp. At the
/// end of a step their sums over these ranks become the next three. These and the last two are the
/// same on every rank.
enum class step_total : std::uint8_t {
  loss,
  tokens, ///< tokens that have a loss
  side_loss,
  whole_loss,
  whole_tokens,
  whole_side_loss,
  norm,  ///< norm of the mean gradient
  broken ///< blocks of weights or moments that the update left infinite or not a number
};
inline constexpr int step_totals = 8, pending_totals = 3;
/// The bytes of all totals, as the host reads them.
inline constexpr std::int64_t bytes_of_totals = step_totals * size_of(dtype::f64);
constexpr const char* name_of(step_total t) {
  constexpr const char* names[] = {"loss",         "tokens",          "side_loss", "whole_loss",
                                   "whole_tokens", "whole_side_loss", "norm",      "broken"};
  return names[static_cast<int>(t)];
}
/// Returns the total that holds the whole sum of a pending total.
constexpr step_total reduced(step_total t) {
  return static_cast<step_total>(static_cast<int>(t) + pending_totals);
}

namespace op {

struct add_total_in : input_names<add_total_in> {
  static constexpr name<0, element::f64> total{};
  static constexpr name<1> x{};
};

[[gnu::cold]] constexpr void add_total_rule(inference& c) {
  using in = add_total_in;
  c.typed({in::total}, dtype::f64), c.floats({in::x}), c.sums({in::x}, in::x), c.rank(in::total, 0),
      c.rank(in::x, 0);
  for (c.looking = 0; c.looking < axes; ++c.looking) {
    const auto a = static_cast<axis>(c.looking);
    const place t = c.in(in::total).at[a], x = c.in(in::x).at[a];
    if (t != x && (a != axis::pp || t != partial)) c.fail(fault::P005, in::total, in::x);
  }
  c.looking = -1;
}
inline constexpr op_info add_total{.name = "add_total",
                                   .rule = &add_total_rule,
                                   .typed_by = add_total_in::x,
                                   .writes_operands = mask_of(add_total_in::total),
                                   .operands = named<add_total_in>};

} // namespace op

/// Returns a total as an input of a graph.
constexpr var total_input(builder& b, step_total t) {
  placement at{};
  if (static_cast<int>(t) < pending_totals) at[axis::dp] = at[axis::cp] = at[axis::pp] = partial;
  return b.input(feed::total, name_of(t), dtype::f64, {}, at, 0, static_cast<int>(t));
}
/// Adds x to a total: t = t + x.
constexpr void add_to(step_total t, var x) {
  x.b->emit(op::add_total, {total_input(*x.b, t).id, x.id}, 0);
}

} // namespace mc
