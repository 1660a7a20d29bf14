// A mixture of experts: router, dispatch, one SwiGLU MLP for each expert, combine.
//
//   y_t = sum_{j < k} w_tj down_e(silu(gate_e x_t) * up_e x_t),  e = experts_tj
//
// The weights w are applied before the down projection, which is linear, so their gradient needs no
// output of an expert. Tokens are brought to one rank each (over tp, by sequence), go to the ranks
// of their experts, and come back. Experts have a tensor-parallel degree of their own, etp.
// docs/experts.md has the equations and the bounds of the memory.
#pragma once

#include <megacpp/nn/linear.hpp>
#include <megacpp/op/experts.hpp>
#include <megacpp/op/router.hpp>

namespace mc {

struct expert_sizes {
  extent experts;        ///< number of experts E
  extent ffn;            ///< width F inside one expert
  int per_token = 1;     ///< number k of experts that a token goes to
  bool normalise = true; ///< the k weights of a token add up to 1
  double balance = 0;    ///< coefficient of the load-balancing loss
  double z_loss = 0;     ///< coefficient of the router's z-loss
  balance_scope balanced_over = balance_scope::micro_batch; ///< tokens of that loss's sums
  double bias_rate = 0; ///< step of the bias that balances the load without a loss; 0: no bias
  double capacity = 0;  ///< most rows of an expert, in averages of a micro-batch; 0: no limit
};

/// The scopes of the parameters of a mixture of experts.
struct expert_scopes {
  const char *router, *gate, *up, *down;
};

/// Returns the matrices of experts (E, N, K): the experts are sharded over ep, their ffn over etp.
/// The gradient is a pending sum over edp, since its ranks see different tokens.
constexpr var expert_weight(context& c, const char* scope, std::initializer_list<extent> dims,
                            double std, source_line line = here()) {
  placement stored;
  stored[axis::ep] = shard(dim::expert);
  stored[axis::etp] = shard(dim::ffn);
  const var w =
      c.b->parameter(scope, "weight", c.precision.weight, dims, stored, normal_weights(std), line);
  return to(w, axis::edp, replicate, line);
}

namespace detail {

/// Returns ceil(x) for x >= 0.
constexpr std::int64_t ceiling(double x) {
  const auto n = static_cast<std::int64_t>(x);
  return n + (static_cast<double>(n) < x);
}

/// Returns how many of a micro-batch's choices one expert takes; 0: all.
constexpr std::int64_t expert_capacity(const expert_sizes& s, std::int64_t choices) {
  const auto experts = static_cast<double>(s.experts.n);
  return ceiling(static_cast<double>(choices) * (s.capacity < experts ? s.capacity : experts) /
                 experts);
}

/// Returns how many micro-batches send tokens to one group of ranks that share experts. A
/// micro-batch lies on tp x cp ranks that follow each other, and the group has ep x etp ranks that
/// do.
constexpr std::int64_t micro_batches_of_group(const mesh& m) {
  const std::int64_t group = m.of(axis::ep) * m.of(axis::etp),
                     one = m.of(axis::tp) * m.of(axis::cp);
  if (one % group == 0) return 1;
  return group % one == 0 ? group / one : (group + one - 2) / one + 1;
}

/// Returns the number of rows that one rank's experts compute at once, when each rank has
/// `choices`. By default it is 1.25 times the average; it is never more than there can be.
constexpr std::int64_t rows_of_round(const context& c, const expert_sizes& s, std::int64_t choices,
                                     std::int64_t capacity) {
  const std::int64_t ep = c.ranks().of(axis::ep), etp = c.ranks().of(axis::etp);
  const std::int64_t senders = ep * etp, experts = s.experts.n / ep;
  const std::int64_t tokens = choices / s.per_token;
  const std::int64_t each = s.per_token < experts ? s.per_token : experts;
  std::int64_t most = senders * tokens * each;
  if (capacity > 0) {
    const std::int64_t taken = experts * capacity * micro_batches_of_group(c.ranks());
    return most < taken ? most : taken;
  }
  const std::int64_t average = choices * etp, budget = average + (average + 3) / 4;
  std::int64_t rows = c.expert_rows > 0 ? c.expert_rows : budget;
  return rows < most ? rows : most;
}

/// Returns the losses of the router, summed over the tokens.
constexpr var router_losses(var logits, var experts, const expert_sizes& s, source_line line) {
  const router_statistics_of r = router_statistics(logits, experts, s.balanced_over, line);
  const bool of_replicas = s.balanced_over == balance_scope::replicas;
  const var own = of_replicas ? to(r.counts, axis::dp, replicate, line) : r.counts;
  const var counts =
      to(to(own, axis::tp, beside(logits.at(axis::tp)), line), axis::cp, replicate, line);
  return to(router_loss({r.probabilities, counts, r.z}, s.balance, s.z_loss, line), axis::tp,
            invariant, line);
}

} // namespace detail

/// Returns y on the residual stream for x (B, S, H). Generation has no losses and no capacity, so
/// that the result of a token does not depend on its batch. Evaluation keeps the capacity, so that
/// its loss is that of training.
constexpr var mixture_of_experts(context& c, const expert_scopes& names, var x, expert_sizes s,
                                 double std, source_line line = here()) {
  if (c.generating) s.balance = s.z_loss = s.capacity = 0;
  if (!c.b->in_range(s.capacity >= 0 && s.capacity < 1e30, line, "mixture_of_experts", x.id,
                     "capacity", s.capacity, "at least 0 (none) and below 1e30"))
    s.capacity = 0;
  const extent H = x.type().back(), E = s.experts, F = s.ffn;
  const var t = to(x, axis::tp, shard(dim::sequence), line);
  const place beside_tokens = beside(t.at(axis::tp));
  const auto whole = [&](const char* name, std::initializer_list<extent> dims,
                         const parameter_info& info) {
    return to(weight(c, names.router, name, dims, {}, info, line), axis::tp, beside_tokens, line);
  };
  const var logits = linear(t, whole("weight", {E, H}, normal_weights(std)), line);
  var bias;
  if (s.bias_rate != 0) {
    parameter_info info = zeros();
    info.update = update_rule::balance, info.rate = s.bias_rate;
    bias = whole("e_score_correction_bias", {E}, info);
  }
  const routing r = route(logits, bias, s.per_token, s.normalise, line);
  s.experts = logits.type().back(); // the sizes, made legal after faults were recorded
  s.per_token = static_cast<int>(r.experts.type().back().n);
  if (s.balance != 0 || s.z_loss != 0)
    c.add_side_loss(detail::router_losses(logits, r.experts, s, line));

  const var gate = expert_weight(c, names.gate, {E, F, H}, std, line);
  const var up = expert_weight(c, names.up, {E, F, H}, std, line);
  const var down = expert_weight(c, names.down, {E, H, F}, std, line);
  const value& chosen = r.experts.type();
  const std::int64_t choices = op::local_choices(c.ranks(), chosen),
                     capacity = detail::expert_capacity(s, global_size(chosen).n);
  const expert_assignment p =
      expert_rows(r.experts, static_cast<int>(detail::rows_of_round(c, s, choices, capacity)), E.n,
                  capacity, line);
  const var rows = dispatch(t, p, line), w = dispatch(r.weights, p, line);
  // Each call is a statement of its own: compilers choose the order of arguments, and not the same
  // order at compile time and at run time. This order needs less memory.
  const var u = grouped_linear(rows, up, p, line), g = grouped_linear(rows, gate, p, line);
  const var h = swiglu(g, u, line);
  const var y = combine(grouped_linear(scale_rows(h, w, line), down, p, line), p, line);
  return to(y, axis::tp, c.stream, line);
}

} // namespace mc
