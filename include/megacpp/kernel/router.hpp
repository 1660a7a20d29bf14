// Kernels of op/router.hpp.
#pragma once

#include <megacpp/kernel/kernel.hpp>
#include <megacpp/kernel/rows/columns.hpp>
#include <megacpp/kernel/rows/router.hpp>
#include <megacpp/op/router.hpp>

namespace mc {

template <> struct kernel_of<&op::route> { // l, [b] -> w, experts
  using in = op::route_in;
  using out = op::route_out;
  template <class T, class Call> static void run(Call& c) {
    const auto [choices, normalise] = c.attr(of_type<op::route_attributes>);
    for_rows(c.lane(), c.rows(in::logits),
             rows::route_row<T>{c.span(in::logits, dims<-1>), static_cast<int>(choices), normalise,
                                c.in(in::logits), c.in(in::bias), c.out(out::weights),
                                c.out(out::experts)});
  }
};

template <> struct kernel_of<&op::route_grad> { // dw, l, experts
  using in = op::route_grad_in;
  using out = op::route_grad_out;
  template <class T, class Call> static void run(Call& c) {
    const auto [choices, normalise] = c.attr(of_type<op::route_attributes>);
    for_rows(c.lane(), c.rows(in::logits),
             rows::route_grad_row<T>{c.span(in::logits, dims<-1>), static_cast<int>(choices),
                                     normalise, c.in(in::dweights), c.in(in::logits),
                                     c.in(in::experts), c.out(out::dlogits)});
  }
};

template <> struct kernel_of<&op::expert_load> { // experts, b -> count - share, added
  using in = op::expert_load_in;
  using out = op::expert_load_out;
  template <class T, class Call> static void run(Call& c) {
    using G = accumulator_t<T>;
    const std::int64_t choices = c.size(in::experts), experts = c.size(in::bias);
    for_rows(
        c.lane(), experts,
        rows::expert_load<G>{experts, choices,
                             rows_at_once(c.sums(), c.ranks(), c.value_of(in::experts), choices),
                             c.in(in::experts), c.out(out::load)});
  }
};

template <> struct kernel_of<&op::router_statistics> { // l, experts -> s, c, z
  using in = op::router_statistics_in;
  using out = op::router_statistics_out;
  template <class T> using block = rows::router_statistics_block<T>;
  /// logsumexps_in_scratch: blocks of threads run the body and read a token's logsumexp from
  /// scratch.
  template <class Call>
  static constexpr bool logsumexps_in_scratch = rows::detail::sums_by_partials<lane_of<Call>>();

  template <class T, class Call> static constexpr block<T> shape(const Call& c) {
    const std::int64_t experts = c.span(in::logits, dims<-1>);
    const std::int64_t scopes = local_size(c.ranks(), c.value_of(out::probabilities)).n / experts;
    const std::int64_t tokens = c.rows(in::logits) / scopes;
    return {experts,
            tokens,
            (tokens + block<T>::tokens_of_block - 1) / block<T>::tokens_of_block,
            static_cast<int>(c.size(in::experts) / c.rows(in::logits)),
            nullptr,
            nullptr,
            nullptr,
            nullptr};
  }
  template <class T, class Call> static constexpr std::int64_t scratch_bytes(const Call& c) {
    const block<T> b = shape<T>(c);
    const std::int64_t tokens = c.rows(in::logits),
                       partials = tokens / b.tokens * b.blocks * (2 * b.experts + 1);
    return (partials + (logsumexps_in_scratch<Call> ? tokens : 0)) *
           std::int64_t{sizeof(accumulator_t<T>)};
  }
  template <class T, class Call> static void run(Call& c) {
    using G = accumulator_t<T>;
    block<T> b = shape<T>(c);
    const std::int64_t scopes = c.rows(in::logits) / b.tokens, width = 2 * b.experts + 1;
    b.logits = c.in(in::logits), b.chosen = c.in(in::experts);
    b.partials = reinterpret_cast<G*>(c.scratch());
    if constexpr (logsumexps_in_scratch<Call>) {
      G* const lse = b.partials + scopes * b.blocks * width;
      for_rows(c.lane(), c.rows(in::logits), rows::router_lse_row<T>{b.experts, b.logits, lse});
      b.lse = lse;
    }
    for_rows(c.lane(), scopes * b.blocks, b);
    for_rows(c.lane(), scopes,
             rows::router_sums<G>{b.experts, b.blocks, b.partials, c.out(out::probabilities),
                                  c.out(out::choices)});
    for_one(c.lane(), rows::router_square_sum<G>{width, scopes * b.blocks, b.blocks, b.partials,
                                                 c.out(out::squares)});
  }
};

template <> struct kernel_of<&op::router_statistics_grad> { // ds, dz, l
  using in = op::router_statistics_grad_in;
  using out = op::router_statistics_grad_out;
  template <class T, class Call> static void run(Call& c) {
    const std::int64_t experts = c.span(in::logits, dims<-1>);
    for_rows(
        c.lane(), c.rows(in::logits),
        rows::router_statistics_grad_row<T>{
            experts, c.rows(in::logits) / (c.size(in::dprobabilities) / experts),
            c.in(in::dprobabilities), c.in(in::dsquares), c.in(in::logits), c.out(out::dlogits)});
  }
};

template <> struct kernel_of<&op::router_loss> { // s, c, z
  using elements = accumulators;
  using in = op::router_loss_in;
  using out = op::router_loss_out;
  template <class G, class Call> static void run(Call& c) {
    const std::int64_t experts = c.span(in::choices, dims<-1>);
    const auto [balance, z] = c.attr(of_type<op::router_loss_attributes>);
    for_one(c.lane(), rows::router_loss<G>{experts, c.size(in::choices) / experts, balance, z,
                                           c.in(in::probabilities), c.in(in::choices),
                                           c.in(in::squares), c.out(out::loss)});
  }
};

template <> struct kernel_of<&op::router_loss_grad> { // dL, c -> ds, dz
  using elements = accumulators;
  using in = op::router_loss_grad_in;
  using out = op::router_loss_grad_out;
  template <class G, class Call> static void run(Call& c) {
    const std::int64_t experts = c.span(in::choices, dims<-1>);
    const auto [balance, z] = c.attr(of_type<op::router_loss_attributes>);
    for_rows(c.lane(), c.size(in::choices) / experts,
             rows::router_loss_grad<G>{experts, balance, z, c.in(in::dloss), c.in(in::choices),
                                       c.out(out::dprobabilities), c.out(out::dsquares)});
  }
};

} // namespace mc
