// The router of a mixture of experts, and the losses and the bias that keep the experts' load even.
//
// route: p = softmax(l) over all E experts, in the accumulator type
//   experts = the k greatest p + b, the lower index first among equals
//   w_j = p[experts_j], divided by their sum where `normalise`
//   adjoint: with s = normalise ? sum_j p[experts_j] : 1,
//            q_j = (dw_j - normalise sum_i dw_i w_i) / s,
//            dl_e = p_e ([e chosen] q_e - sum_j p[experts_j] q_j)
//   b only decides which experts are chosen (Wang et al. 2024, "auxiliary-loss-free load
//   balancing"; DeepSeek-V3). In place of its gradient the load count_e - T k / E is collected, and
//   once a step update_rule::balance changes b by a fixed step against the sign of that.
// router_statistics: over the tokens of a scope (a micro-batch, one sequence, or the micro-batches
// of all replicas)
//   s_e = sum_t p_te,  c_e = how many choices fell on e;  over all z = sum_t logsumexp(l_t)^2
//   adjoint: dl_te = p_te (ds_e - sum_f p_tf ds_f) + 2 dz logsumexp(l_t) p_te;  c is a count
// router_loss: L = a sum_scopes E sum_e s_e c_e / sum_e c_e + b z
//   The c_e of a scope add up to k T, T its tokens. So this is T times the load-balancing loss
//   a E sum_e (c_e / T k) (s_e / T) of Switch Transformers and Megatron; divided by the tokens of
//   the batch, it is that loss's mean. b is the coefficient of the z-loss (Zoph et al. 2022).
//   adjoint: ds = a dL E c / sum_e c_e,  dz = b dL
//
// l (B, S, E), w (B, S, k), experts (B, S, k) i32, s and c (scopes, E). Saved: l, experts, c.
// Placement: the router needs all experts of a token; statistics over shards of the tokens are
// pending sums, and counts must be finished (replicated) where they meet pending probabilities.
// Over an axis of unknown size (dp) a micro-batch is a scope of its own, unless the scope is that
// of all replicas, whose counts are a pending sum over dp, too. Memory bandwidth bounds these ops.
#pragma once

#include <megacpp/graph/adjoint.hpp>

namespace mc {

/// The tokens over which a router's load is balanced: those of a micro-batch, of each sequence, or
/// of the micro-batches that all replicas have at the same time.
enum class balance_scope : std::uint8_t { micro_batch, sequence, replicas };

namespace op {

struct route_in : input_names<route_in> {
  static constexpr name<0> logits{};
  static constexpr name<1> bias{};
};
struct route_out : output_names<route_out> {
  static constexpr name<0, element::sum> weights{};
  static constexpr name<1, element::i32> experts{};
};
struct route_grad_in : input_names<route_grad_in> {
  static constexpr name<0, element::sum> dweights{};
  static constexpr name<1> logits{};
  static constexpr name<2, element::i32> experts{};
};
struct route_grad_out : output_names<route_grad_out> {
  static constexpr name<0> dlogits{};
};
struct expert_load_in : input_names<expert_load_in> {
  static constexpr name<0, element::i32> experts{};
  static constexpr name<1> bias{};
};
struct expert_load_out : output_names<expert_load_out> {
  static constexpr name<0, element::sum> load{};
};
struct router_statistics_in : input_names<router_statistics_in> {
  static constexpr name<0> logits{};
  static constexpr name<1, element::i32> experts{};
};
struct router_statistics_out : output_names<router_statistics_out> {
  static constexpr name<0, element::sum> probabilities{};
  static constexpr name<1, element::sum> choices{};
  static constexpr name<2, element::sum> squares{};
};
struct router_statistics_grad_in : input_names<router_statistics_grad_in> {
  static constexpr name<0, element::sum> dprobabilities{};
  static constexpr name<1, element::sum> dsquares{};
  static constexpr name<2> logits{};
};
struct router_statistics_grad_out : output_names<router_statistics_grad_out> {
  static constexpr name<0> dlogits{};
};
struct router_loss_in : input_names<router_loss_in> {
  static constexpr name<0> probabilities{};
  static constexpr name<1> choices{};
  static constexpr name<2> squares{};
};
struct router_loss_out : output_names<router_loss_out> {
  static constexpr name<0> loss{};
};
struct router_loss_grad_in : input_names<router_loss_grad_in> {
  static constexpr name<0> dloss{};
  static constexpr name<1> choices{};
};
struct router_loss_grad_out : output_names<router_loss_grad_out> {
  static constexpr name<0> dprobabilities{};
  static constexpr name<1> dsquares{};
};

/// The most experts, since kernels compare their numbers as f32.
inline constexpr std::int64_t most_experts = 1 << 24;

/// Checks operand k, the logits (..., E).
[[gnu::cold]] constexpr void logits_of_router(inference& c, int k) {
  c.floats({k});
  c.require(c.in(k).rank > 0 && c.in(k).back().d == dim::expert, fault::S003, k);
  c.require(c.in(k).back().n <= most_experts, fault::C001, k);
}
/// Checks operand k, the chosen experts (..., k) i32 for the logits in operand l.
[[gnu::cold]] constexpr void choices_of_router(inference& c, int k, int l) {
  const value &v = c.in(k), &of = c.in(l);
  c.indexes(k, integer_kind::experts, of.back().n, l);
  c.require(v.rank == of.rank && v.back().d == dim::choices, fault::S003, l, k);
  for (int i = 0; i + 1 < v.rank && v.rank == of.rank; ++i) c.agree(of.dims[i], v.dims[i], l, k);
}

struct route_attributes {
  std::int64_t choices;   ///< number of experts for each token
  bool normalise = false; ///< the weights of a token's experts are divided by their sum
};
struct statistics_attributes {
  balance_scope over;
};
struct router_loss_attributes {
  double balance, z; ///< coefficients of the balancing loss and of the z-loss
};

[[gnu::cold]] constexpr void route_rule(inference& c) {
  using in = route_in;
  using out = route_out;
  // The operands are l (..., E), [b] (E).
  const value& l = c.in(in::logits);
  const std::int64_t k = c.n.attr.as<route_attributes>().choices;
  logits_of_router(c, in::logits);
  constexpr auto bias = route_in::bias;
  if (c.has(bias)) c.typed({bias}, l.type), c.rank(bias, 1), c.trails(bias, route_in::logits);
  c.in_range(k >= 1 && k <= l.back().n, "the number of experts a token", static_cast<double>(k),
             "positive and within the experts");
  value& w = c.declare(l);
  w.type = accumulator_of(l.type);
  if (w.rank > 0) w.dims[w.rank - 1] = {dim::choices, k > 0 ? k : 1};
  c.distinct(out::weights, in::logits, in::logits);
  place_output(c, out::weights, algebra::nonlinear, {in::logits, in::bias}, {dim::expert});
  value& experts = c.declare(w);
  experts.type = dtype::i32, experts.holds = integer_kind::experts, experts.below = l.back().n;
  experts.at = w.at;
}
[[gnu::cold]] constexpr void route_grad_rule(inference& c) {
  using in = route_grad_in;
  using out = route_grad_out;
  // The operands are dw (..., k), l (..., E), experts (..., k).
  logits_of_router(c, in::logits), choices_of_router(c, in::experts, in::logits);
  c.sums({in::dweights}, in::logits), c.alike(in::dweights, in::experts);
  c.require(c.in(in::experts).back().n == c.n.attr.as<route_attributes>().choices, fault::S002,
            in::logits, in::experts);
  c.declare(c.in(in::logits));
  place_output(c, out::dlogits, algebra::product, {in::dweights, in::logits, in::experts},
               {dim::expert, dim::choices});
}
[[gnu::cold]] constexpr void expert_load_rule(inference& c) {
  using in = expert_load_in;
  using out = expert_load_out;
  // The operands are experts (..., k), b (E).
  c.floats({in::bias}), c.dims(in::bias, {dim::expert}),
      c.indexes(in::experts, integer_kind::experts, c.in(in::bias).back().n, in::bias);
  c.require(c.in(in::experts).rank > 0 && c.in(in::experts).back().d == dim::choices, fault::S003,
            in::experts, in::bias);
  c.declare(c.in(in::bias)).type = accumulator_of(c.in(in::bias).type);
  place_output(c, out::load, algebra::reduction, {in::experts}, {dim::choices});
}
inline constexpr op_info route_grad{.name = "route_grad",
                                    .rule = &route_grad_rule,
                                    .typed_by = route_grad_in::logits,
                                    .attributes = attributes_of<route_attributes>,
                                    .operands = named<route_grad_in, route_grad_out>};
inline constexpr op_info expert_load{.name = "expert_load",
                                     .rule = &expert_load_rule,
                                     .typed_by = expert_load_in::bias,
                                     .accumulates = true,
                                     .operands = named<expert_load_in, expert_load_out>};
[[gnu::cold]] constexpr void route_adjoint(backward& d, const node& n) {
  using in = route_in;
  using out = route_out;
  const value_id dw = d.of(n.out[out::weights]), l = n.in[in::logits], b = n.in[in::bias];
  if (dw >= 0 && d.wants(l))
    d.give(l, d.b.emit(route_grad, {dw, l, n.out[out::experts]}, n.line, n.attr), n.line);
  if (d.wants(b)) d.give(b, d.b.emit(expert_load, {n.out[out::experts], b}, n.line), n.line);
}
inline constexpr op_info route{.name = "route",
                               .rule = &route_rule,
                               .adjoint = &route_adjoint,
                               .attributes = attributes_of<route_attributes>,
                               .operands = named<route_in, route_out>};

/// Returns the place of a sum over the tokens of a scope: pending where ranks shard a scope's
/// tokens.
constexpr place place_in_scope(const inference& c, axis a, place tokens, balance_scope over) {
  if (tokens.s != state::shard) return tokens;
  if (tokens.d != dim::batch) return partial;
  if (over == balance_scope::sequence) return tokens;
  return over == balance_scope::replicas || c.g.ranks.sized(a) ? partial : shard(dim::replicas);
}
[[gnu::cold]] constexpr void router_statistics_rule(inference& c) {
  using in = router_statistics_in;
  using out = router_statistics_out;
  const value& l = c.in(in::logits);
  const auto over = c.n.attr.as<statistics_attributes>().over;
  logits_of_router(c, in::logits), choices_of_router(c, in::experts, in::logits);
  c.dims(in::logits, {dim::batch, dim::sequence, dim::expert});
  const extent scope = over == balance_scope::sequence ? l.dims[0] : extent{dim::replicas, 1};
  for (int k = out::probabilities; k <= out::choices; ++k)
    c.declare(accumulator_of(l.type), {scope, l.back()});
  c.declare(accumulator_of(l.type), {});
  for (c.looking = 0; c.looking < axes; ++c.looking) {
    const auto a = static_cast<axis>(c.looking);
    if (c.g.ranks.trivial(a)) continue;
    const place at = l.at[a];
    if (at.s == state::partial) c.fail(fault::P005, in::logits);
    if (at.is_shard(dim::expert)) c.fail(fault::P007, in::logits);
    if (c.in(in::experts).at[a] != at) c.fail(fault::P002, in::logits, in::experts);
    c.out[out::probabilities].at[a] = c.out[out::choices].at[a] = place_in_scope(c, a, at, over);
    c.out[out::squares].at[a] = at.s == state::shard ? partial : at;
  }
  c.looking = -1;
}
[[gnu::cold]] constexpr void router_statistics_grad_rule(inference& c) {
  using in = router_statistics_grad_in;
  using out = router_statistics_grad_out;
  // The operands are ds (scopes, E), dz (), l (B, S, E).
  const value &ds = c.in(in::dprobabilities), &l = c.in(in::logits);
  const auto over = c.n.attr.as<statistics_attributes>().over;
  const bool per_sequence = over == balance_scope::sequence;
  logits_of_router(c, in::logits), c.sums({in::dprobabilities, in::dsquares}, in::logits);
  c.dims(in::dprobabilities, {per_sequence ? dim::batch : dim::replicas, dim::expert}),
      c.rank(in::dsquares, 0);
  c.dims(in::logits, {dim::batch, dim::sequence, dim::expert});
  c.require(ds.dims[0].n == (per_sequence ? l.dims[0].n : 1) && ds.dims[1].n == l.dims[2].n,
            fault::S002, in::dprobabilities, in::logits);
  c.declare(l);
  for (c.looking = 0; c.looking < axes; ++c.looking) {
    const auto a = static_cast<axis>(c.looking);
    if (c.g.ranks.trivial(a)) continue;
    const place of_scope = cotangent(place_in_scope(c, a, l.at[a], over));
    if (c.in(in::dprobabilities).at[a].s != of_scope.s)
      c.fail(fault::P002, in::dprobabilities, in::logits);
    if (l.at[a].s == state::shard && c.in(in::dsquares).at[a].s != state::replicate)
      c.fail(fault::P002, in::dsquares, in::logits);
    c.out[out::dlogits].at[a] = cotangent(l.at[a]);
  }
  c.looking = -1;
}
inline constexpr op_info router_statistics_grad{
    .name = "router_statistics_grad",
    .rule = &router_statistics_grad_rule,
    .typed_by = router_statistics_grad_in::logits,
    .attributes = attributes_of<statistics_attributes>,
    .operands = named<router_statistics_grad_in, router_statistics_grad_out>};
[[gnu::cold]] constexpr void router_statistics_adjoint(backward& d, const node& n) {
  using in = router_statistics_in;
  using out = router_statistics_out;
  const value_id ds = d.of(n.out[out::probabilities]), dz = d.of(n.out[out::squares]);
  if (ds < 0 || dz < 0 || !d.wants(n.in[in::logits])) return;
  d.give(n.in[in::logits],
         d.b.emit(router_statistics_grad, {ds, dz, n.in[in::logits]}, n.line, n.attr), n.line);
}
inline constexpr op_info router_statistics{
    .name = "router_statistics",
    .rule = &router_statistics_rule,
    .adjoint = &router_statistics_adjoint,
    .outputs_without_gradient = mask_of(router_statistics_out::choices), // counts have no gradient
    .attributes = attributes_of<statistics_attributes>,
    .operands = named<router_statistics_in, router_statistics_out>};

[[gnu::cold]] constexpr void coefficients_of_router(inference& c) {
  const auto [balance, z] = c.n.attr.as<router_loss_attributes>();
  constexpr const char* range = "at least 0 and below 1e30";
  c.in_range(balance >= 0 && balance < 1e30, "the coefficient of balance", balance, range);
  c.in_range(z >= 0 && z < 1e30, "the coefficient of z", z, range);
}
[[gnu::cold]] constexpr void router_loss_rule(inference& c) {
  using in = router_loss_in;
  using out = router_loss_out;
  // The operands are s (scopes, E), c (scopes, E), z ().
  c.floats({in::probabilities, in::choices, in::squares}),
      c.sums({in::probabilities}, in::probabilities), c.alike(in::choices, in::probabilities),
      c.rank(in::squares, 0);
  coefficients_of_router(c);
  c.declare(c.in(in::probabilities).type, {});
  place_output(c, out::loss, algebra::product, {in::probabilities, in::choices});
  for (int a = 0; a < axes; ++a)
    if (c.in(in::squares).at.at[a] != c.out[out::loss].at.at[a])
      c.fail(fault::P002, in::probabilities, in::squares);
}
[[gnu::cold]] constexpr void router_loss_grad_rule(inference& c) {
  using in = router_loss_grad_in;
  using out = router_loss_grad_out;
  // The operands are dL (), c (scopes, E).
  c.floats({in::dloss, in::choices}), c.sums({in::dloss}, in::dloss), c.rank(in::dloss, 0);
  coefficients_of_router(c);
  c.declare(c.in(in::choices));
  place_output(c, out::dprobabilities, algebra::product, {in::dloss, in::choices});
  c.declare(c.in(in::dloss)).at = c.in(in::dloss).at;
}
inline constexpr op_info router_loss_grad{
    .name = "router_loss_grad",
    .rule = &router_loss_grad_rule,
    .typed_by = router_loss_grad_in::choices,
    .attributes = attributes_of<router_loss_attributes>,
    .operands = named<router_loss_grad_in, router_loss_grad_out>};
[[gnu::cold]] constexpr void router_loss_adjoint(backward& d, const node& n) {
  using in = router_loss_in;
  using out = router_loss_out;
  const value_id dL = d.of(n.out[out::loss]);
  if (dL < 0) return;
  const value_id ds = d.b.emit(router_loss_grad, {dL, n.in[in::choices]}, n.line, n.attr);
  const value_id dz = d.b.g.at_node(d.b.g.at(ds).producer).out[router_loss_grad_out::dsquares];
  d.give(n.in[in::probabilities], ds, n.line);
  d.give(n.in[in::squares], dz, n.line);
}
inline constexpr op_info router_loss{.name = "router_loss",
                                     .rule = &router_loss_rule,
                                     .adjoint = &router_loss_adjoint,
                                     .attributes = attributes_of<router_loss_attributes>,
                                     .operands = named<router_loss_in, router_loss_out>};

} // namespace op

struct routing {
  var weights; ///< weights of the chosen experts, (B, S, k) of the accumulator type
  var experts; ///< chosen experts, (B, S, k) i32
};

/// Returns the k experts of each token and their weights, from logits (B, S, E). `bias` (E) may be
/// absent.
constexpr routing route(var logits, var bias, int k, bool normalise, source_line line = here()) {
  builder& b = *logits.b;
  const value_id w =
      b.emit(op::route, {logits.id, bias.id}, line, op::route_attributes{k, normalise});
  return {{&b, w}, {&b, b.g.at_node(b.g.at(w).producer).out[op::route_out::experts]}};
}

struct router_statistics_of {
  var probabilities; ///< sums of probabilities, (scopes, E)
  var counts;        ///< numbers of choices, (scopes, E)
  var z;             ///< sum of the squares of logsumexp, ()
};
/// Returns the sums that the losses of a router need.
constexpr router_statistics_of router_statistics(var logits, var experts, balance_scope over,
                                                 source_line line = here()) {
  using out = op::router_statistics_out;
  builder& b = *logits.b;
  const value_id s =
      b.emit(op::router_statistics, {logits.id, experts.id}, line, op::statistics_attributes{over});
  const node& n = b.g.at_node(b.g.at(s).producer);
  return {{&b, n.out[out::probabilities]}, {&b, n.out[out::choices]}, {&b, n.out[out::squares]}};
}

/// Returns balance E sum s c / sum c + z_loss z, a summed loss.
constexpr var router_loss(router_statistics_of s, double balance, double z_loss,
                          source_line line = here()) {
  builder& b = *s.z.b;
  return {&b, b.emit(op::router_loss, {s.probabilities.id, s.counts.id, s.z.id}, line,
                     op::router_loss_attributes{balance, z_loss})};
}

} // namespace mc
