// Kernels of op/router.hpp.
#pragma once

#include <megacpp/kernel/kernel.hpp>
#include <megacpp/kernel/rows/router.hpp>
#include <megacpp/op/router.hpp>

namespace mc {

template <> struct kernel_of<&op::route> { // l, [b] -> w, experts
  template <class T, class Call> static void run(Call& c) {
    const auto [choices, normalise] = c.template attr<op::route_attributes>();
    for_rows(
        c.device(), c.in_rows(0),
        rows::route_row<T>{c.template in_span<0, -1, 0>(), static_cast<int>(choices), normalise,
                           c.template in<T>(0), c.template in<T>(1),
                           c.template out<accumulator_t<T>>(0), c.template out<std::int32_t>(1)});
  }
};

template <> struct kernel_of<&op::route_grad> { // dw, l, experts
  template <class T, class Call> static void run(Call& c) {
    const auto [choices, normalise] = c.template attr<op::route_attributes>();
    for_rows(
        c.device(), c.in_rows(1),
        rows::route_grad_row<T>{c.template in_span<1, -1, 0>(), static_cast<int>(choices),
                                normalise, c.template in<accumulator_t<T>>(0), c.template in<T>(1),
                                c.template in<std::int32_t>(2), c.template out<T>(0)});
  }
};

template <> struct kernel_of<&op::expert_load> { // experts, b -> count - share, added
  template <class T, class Call> static void run(Call& c) {
    using G = accumulator_t<T>;
    const std::int64_t choices = c.in_size(0), experts = c.in_size(1);
    for_rows(c.device(), experts,
             rows::expert_load<G>{experts, choices,
                                  rows_at_once(c.sums(), c.ranks(), c.value_in(0), choices),
                                  c.template in<std::int32_t>(0), c.template out<G>(0)});
  }
};

template <> struct kernel_of<&op::router_statistics> { // l, experts -> s, c, z
  template <class T> using block = rows::router_statistics_block<T>;

  template <class T, class Call> static block<T> shape(const Call& c) {
    const std::int64_t experts = c.template in_span<0, -1, 0>();
    const std::int64_t groups = local_size(c.ranks(), c.value_out(0)).n / experts;
    const std::int64_t tokens = c.in_rows(0) / groups;
    return {experts,
            tokens,
            (tokens + block<T>::tokens_of_block - 1) / block<T>::tokens_of_block,
            static_cast<int>(c.in_size(1) / c.in_rows(0)),
            nullptr,
            nullptr,
            nullptr};
  }
  template <class T, class Call> static std::int64_t scratch_bytes(const Call& c) {
    const block<T> b = shape<T>(c);
    return c.in_rows(0) / b.tokens * b.blocks * (2 * b.experts + 1) *
           std::int64_t{sizeof(accumulator_t<T>)};
  }
  template <class T, class Call> static void run(Call& c) {
    using G = accumulator_t<T>;
    block<T> b = shape<T>(c);
    const std::int64_t groups = c.in_rows(0) / b.tokens, width = 2 * b.experts + 1;
    b.logits = c.template in<T>(0), b.chosen = c.template in<std::int32_t>(1);
    b.parts = reinterpret_cast<G*>(c.scratch());
    for_rows(c.device(), groups * b.blocks, b);
    for_rows(c.device(), groups,
             rows::router_sums<G>{b.experts, b.blocks, b.parts, c.template out<G>(0),
                                  c.template out<G>(1)});
    for_one(c.device(), rows::router_square_sum<G>{width, groups * b.blocks, b.blocks, b.parts,
                                                   c.template out<G>(2)});
  }
};

template <> struct kernel_of<&op::router_statistics_grad> { // ds, dz, l
  template <class T, class Call> static void run(Call& c) {
    using G = accumulator_t<T>;
    const std::int64_t experts = c.template in_span<2, -1, 0>();
    for_rows(c.device(), c.in_rows(2),
             rows::router_statistics_grad_row<T>{experts, c.in_rows(2) / (c.in_size(0) / experts),
                                                 c.template in<G>(0), c.template in<G>(1),
                                                 c.template in<T>(2), c.template out<T>(0)});
  }
};

template <> struct kernel_of<&op::router_loss> { // s, c, z
  template <class G, class Call> static void run(Call& c) {
    const std::int64_t experts = c.template in_span<1, -1, 0>();
    const auto [balance, z] = c.template attr<op::router_loss_attributes>();
    for_one(c.device(),
            rows::router_loss<G>{experts, c.in_size(1) / experts, balance, z, c.template in<G>(0),
                                 c.template in<G>(1), c.template in<G>(2), c.template out<G>(0)});
  }
};

template <> struct kernel_of<&op::router_loss_grad> { // dL, c -> ds, dz
  template <class G, class Call> static void run(Call& c) {
    const std::int64_t experts = c.template in_span<1, -1, 0>();
    const auto [balance, z] = c.template attr<op::router_loss_attributes>();
    for_rows(
        c.device(), c.in_size(1) / experts,
        rows::router_loss_grad<G>{experts, balance, z, c.template in<G>(0), c.template in<G>(1),
                                  c.template out<G>(0), c.template out<G>(1)});
  }
};

} // namespace mc
