// Ops that the fuse pass writes in place of two or more; a model never names them.
//
//   add_rms_norm, add_layer_norm             s = x + a,  y = norm(s)
//     (x, a, gain[, bias]) -> s, y, statistics
//   rms_norm_grad_add, layer_norm_grad_add   dx = norm_grad(dy, x, gain, statistics) + d
//     (dy, x, gain, statistics..., d) -> dx
//   linear_input_grad_add                    dx = d + dy w
//     (dy, w, d) -> dx, in place of d
//   vocabulary_loss                          the loss and its dx and dw in one visit
//     (x, w, labels, dloss) -> loss, count, dx[, dw]
//
// The first four round where the separate ops would and give their bits. vocabulary_loss visits
// each chunk of logits once for forward and backward, which saves one of four products; it stands
// where the vocabulary is whole on a rank and the loss is the last value of the graph.
#pragma once

#include <megacpp/op/elementwise.hpp>
#include <megacpp/op/loss.hpp>
#include <megacpp/op/norm.hpp>

namespace mc {
namespace op {

constexpr void add_norm_rule(inference& c, int statistics) { // x, a, gain, [bias]
  c.floats({0, 1, 2}), c.alike(1, 0), of_last_dim(c, 2);
  bias_of_norm(c, 3, statistics);
  eps_of_norm(c);
  c.declare(c.in(0));
  place_output(c, 0, algebra::sum, {0, 1});
  c.declare(c.in(0));
  place_output(c, 1, algebra::nonlinear, {0, 1, 2, 3}, {c.in(0).back().d});
  for (int k = 0; k < statistics; ++k) {
    declare_statistic(c, c.in(0));
    place_output(c, 2 + k, algebra::nonlinear, {0, 1, 2, 3}, {c.in(0).back().d});
  }
}
constexpr void add_rms_norm_rule(inference& c) { add_norm_rule(c, 1); }
constexpr void add_layer_norm_rule(inference& c) { add_norm_rule(c, 2); }
template <const op_info& Norm> constexpr void add_norm_terms(terms& t, const node& n) {
  const term s = terms::sum(t.in(n, 0), t.in(n, 1));
  t.out(n, 0, s);
  const term norm = t.applied(Norm, {s, t.in(n, 2), t.in(n, 3)}, n.attr);
  for (int k = 1; k < max_outputs; ++k) t.out(n, k, terms::output(norm, k - 1));
}
inline constexpr op_info add_rms_norm{
    .name = "add_rms_norm", .rule = &add_rms_norm_rule, .stands_for = &add_norm_terms<rms_norm>};
inline constexpr op_info add_layer_norm{.name = "add_layer_norm",
                                        .rule = &add_layer_norm_rule,
                                        .stands_for = &add_norm_terms<layer_norm>};

template <int Statistics>
constexpr void norm_grad_add_rule(inference& c) { // dy, x, gain, statistics..., d
  constexpr int d = 3 + Statistics;
  c.floats({0, 1, 2, d}), c.alike(1, 0), of_last_dim(c, 2), row_statistics(c, 3, Statistics);
  c.alike(d, 0);
  c.declare(c.in(0));
  if (d == 5) place_output(c, 0, algebra::product, {0, 1, 2, 3, 4}, {c.in(0).back().d});
  else place_output(c, 0, algebra::product, {0, 1, 2, 3}, {c.in(0).back().d});
  if (c.out[0].at != c.in(d).at) c.fail(fault::P002, 0, d);
}
constexpr void rms_norm_grad_add_terms(terms& t, const node& n) {
  const term dx = t.one(rms_norm_grad, {t.in(n, 0), t.in(n, 1), t.in(n, 2), t.in(n, 3)}, n.attr);
  t.out(n, 0, terms::sum(dx, t.in(n, 4)));
}
constexpr void layer_norm_grad_add_terms(terms& t, const node& n) {
  const term dx =
      t.one(layer_norm_grad, {t.in(n, 0), t.in(n, 1), t.in(n, 2), t.in(n, 3), t.in(n, 4)}, n.attr);
  t.out(n, 0, terms::sum(dx, t.in(n, 5)));
}
inline constexpr op_info rms_norm_grad_add{.name = "rms_norm_grad_add",
                                           .rule = &norm_grad_add_rule<1>,
                                           .stands_for = &rms_norm_grad_add_terms};
inline constexpr op_info layer_norm_grad_add{.name = "layer_norm_grad_add",
                                             .rule = &norm_grad_add_rule<2>,
                                             .stands_for = &layer_norm_grad_add_terms};

constexpr void linear_input_grad_add_rule(inference& c) { // dy, w, d
  linear_input_grad_rule(c);
  c.typed({2}, c.in(0).type);
  if (!c.out[0].same_dims(c.in(2)) || c.out[0].at != c.in(2).at) c.fail(fault::P002, 0, 2);
}
constexpr work linear_input_grad_add_cost(const graph& g, const node& n) {
  work w = linear_input_grad_cost(g, n);
  w.read += local_bytes(g.ranks, g.at(n.in[2]));
  return w;
}
constexpr void linear_input_grad_add_terms(terms& t, const node& n) {
  const term dx = t.one(linear_input_grad, {t.in(n, 0), t.in(n, 1)}, n.attr);
  t.out(n, 0, terms::sum(dx, t.in(n, 2)));
}
inline constexpr op_info linear_input_grad_add{.name = "linear_input_grad_add",
                                               .rule = &linear_input_grad_add_rule,
                                               .cost = &linear_input_grad_add_cost,
                                               .in_place = 2,
                                               .stands_for = &linear_input_grad_add_terms};

constexpr std::int64_t loss_scratch_bytes(const mesh& r, const value& x, const value& w) {
  return chunk_bytes(r, x, w) + local_rows(r, x) * std::int64_t{sizeof(double)};
}
constexpr void vocabulary_loss_rule(
    inference& c) { // x, w, labels, dloss -> loss, count, dx, [dw], scratch
  const value &x = c.in(0), &w = c.in(1);
  vocabulary_operands(c, 0, 1, 2);
  c.sums({3}, 0), c.rank(3, 0);
  z_of_loss(c);
  for (int i = 0; i < axes; ++i)
    if (w.at.at[i].s == state::shard) c.fail(fault::P007, 1);
  const dtype main = accumulator_of(x.type);
  for (int k = 0; k < 2; ++k) {
    c.declare(main, {});
    place_output(c, k, algebra::reduction, {0, 1, 2}, {x.back().d});
  }
  const bool weights = c.n.attr.i[1] != 0;
  c.declare(x);
  place_output(c, 2, algebra::product, {3, 0, 1}, {x.back().d});
  if (weights) {
    c.declare(w).type = main;
    place_output(c, 3, algebra::product, {3, 0}, {x.back().d});
  }
  c.declare_scratch(loss_scratch_bytes(c.g.ranks, x, w));
}
constexpr work vocabulary_loss_cost(const graph& g, const node& n) {
  return vocabulary_work(g, n, g.at(n.in[0]), g.at(n.in[1]), n.attr.i[1] != 0 ? 3 : 2);
}
constexpr void vocabulary_loss_terms(terms& t, const node& n) {
  const term x = t.in(n, 0), w = t.in(n, 1), labels = t.in(n, 2), dloss = t.in(n, 3);
  const attributes entropy{n.attr.f, {}}, partial{{}, {n.attr.i[0], 0, n.attr.i[2]}},
      grad{{}, n.attr.i};
  const term parts = t.applied(vocabulary_partial, {x, w, labels}, partial);
  const term lse = terms::output(parts, 0), target = terms::output(parts, 1);
  const term loss = t.applied(cross_entropy, {lse, target, labels}, entropy);
  const term d = t.applied(cross_entropy_grad, {dloss, lse, target, labels}, entropy);
  const term dx = t.applied(vocabulary_partial_grad,
                            {terms::output(d, 0), terms::output(d, 1), x, w, labels, lse}, grad);
  for (int k = 0; k < 2; ++k) t.out(n, k, terms::output(loss, k));
  for (int k = 2; k < max_outputs; ++k) t.out(n, k, terms::output(dx, k - 2));
}
inline constexpr op_info vocabulary_loss{.name = "vocabulary_loss",
                                         .rule = &vocabulary_loss_rule,
                                         .cost = &vocabulary_loss_cost,
                                         .accumulates = true,
                                         .stands_for = &vocabulary_loss_terms};

} // namespace op
} // namespace mc
