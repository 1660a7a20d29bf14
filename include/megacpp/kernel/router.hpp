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
        c.in_rows(0),
        rows::route_row<T>{c.template in_span<0, -1, 0>(), static_cast<int>(choices), normalise,
                           c.template in<T>(0), c.template in<T>(1),
                           c.template out<accumulator_t<T>>(0), c.template out<std::int32_t>(1)});
  }
};

template <> struct kernel_of<&op::route_grad> { // dw, l, experts
  template <class T, class Call> static void run(Call& c) {
    const auto [choices, normalise] = c.template attr<op::route_attributes>();
    for_rows(c.in_rows(1), rows::route_grad_row<T>{
                               c.template in_span<1, -1, 0>(), static_cast<int>(choices), normalise,
                               c.template in<accumulator_t<T>>(0), c.template in<T>(1),
                               c.template in<std::int32_t>(2), c.template out<T>(0)});
  }
};

template <> struct kernel_of<&op::expert_load> { // experts, b -> count - share, added
  template <class T, class Call> static void run(Call& c) {
    using G = accumulator_t<T>;
    const std::int64_t choices = c.in_size(0), experts = c.in_size(1);
    const std::int32_t* chosen = c.template in<std::int32_t>(0);
    G* load = c.template out<G>(0);
    const std::int64_t each = rows_at_once(c.sums(), c.ranks(), c.value_in(0), choices);
    const G share = static_cast<G>(each) / static_cast<G>(experts);
    for (std::int64_t first = 0; first < choices; first += each) {
      for (std::int64_t i = first; i < first + each; ++i) load[chosen[i]] += G(1);
      for (std::int64_t e = 0; e < experts; ++e) load[e] -= share;
    }
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
    for_rows(groups * b.blocks, b);
    double z = 0;
    for (std::int64_t g = 0; g < groups; ++g)
      for (std::int64_t i = 0; i < width; ++i) {
        const double sum = rows::sum_of_parts(b.parts + g * b.blocks * width + i, b.blocks, width);
        const auto kept = static_cast<G>(sum);
        if (i < b.experts) c.template out<G>(0)[g * b.experts + i] = kept;
        else if (i < 2 * b.experts) c.template out<G>(1)[g * b.experts + i - b.experts] = kept;
        else z += sum;
      }
    *c.template out<G>(2) = static_cast<G>(z);
  }
};

template <> struct kernel_of<&op::router_statistics_grad> { // ds, dz, l
  template <class T, class Call> static void run(Call& c) {
    using G = accumulator_t<T>;
    const std::int64_t experts = c.template in_span<2, -1, 0>();
    for_rows(c.in_rows(2),
             rows::router_statistics_grad_row<T>{experts, c.in_rows(2) / (c.in_size(0) / experts),
                                                 c.template in<G>(0), c.template in<G>(1),
                                                 c.template in<T>(2), c.template out<T>(0)});
  }
};

namespace detail {
/// E / sum_e c_e of one group.
template <class G> double experts_a_choice(const G* count, std::int64_t experts) {
  double choices = 0;
  for (std::int64_t e = 0; e < experts; ++e) choices += static_cast<double>(count[e]);
  return static_cast<double>(experts) / choices;
}
} // namespace detail

template <> struct kernel_of<&op::router_loss> { // s, c, z
  template <class G, class Call> static void run(Call& c) {
    const std::int64_t experts = c.template in_span<1, -1, 0>();
    const G *s = c.template in<G>(0), *count = c.template in<G>(1);
    double sum = 0;
    for (std::int64_t i = 0; i < c.in_size(1); i += experts) {
      double of_group = 0;
      for (std::int64_t e = i; e < i + experts; ++e)
        of_group += static_cast<double>(s[e]) * static_cast<double>(count[e]);
      sum += of_group * detail::experts_a_choice(count + i, experts);
    }
    const auto [balance, z] = c.template attr<op::router_loss_attributes>();
    *c.template out<G>(0) =
        static_cast<G>(balance * sum + z * static_cast<double>(*c.template in<G>(2)));
  }
};

template <> struct kernel_of<&op::router_loss_grad> { // dL, c -> ds, dz
  template <class G, class Call> static void run(Call& c) {
    const double d = static_cast<double>(*c.template in<G>(0));
    const auto [balance, z] = c.template attr<op::router_loss_attributes>();
    const std::int64_t experts = c.template in_span<1, -1, 0>();
    const G* count = c.template in<G>(1);
    for (std::int64_t i = 0; i < c.in_size(1); i += experts) {
      const double share = balance * d * detail::experts_a_choice(count + i, experts);
      for (std::int64_t e = i; e < i + experts; ++e)
        c.template out<G>(0)[e] = static_cast<G>(share * static_cast<double>(count[e]));
    }
    *c.template out<G>(1) = static_cast<G>(z * d);
  }
};

} // namespace mc
