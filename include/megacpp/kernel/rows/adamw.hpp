// AdamW (Loshchilov, Hutter, "Decoupled weight decay regularization", ICLR 2019) on a flat range,
// in the order of torch.optim.AdamW. State and arithmetic in G = accumulator_t<T>.
//
//   g' = g scale                              scale: clipping, and the mean over micro-batches
//   p -= lr decay p
//   m  = beta1 m + (1 - beta1) g'
//   v  = beta2 v + (1 - beta2) g'^2
//   p -= lr / (1 - beta1^t) m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
//   weight = round(p)
//
// A block of elements tells whether all that it wrote is finite: 0 x + 0 y is 0, unless one of them
// is infinite or not a number. A second moment that overflows would otherwise freeze its parameter,
// and nothing else would show it.
#pragma once

#include <megacpp/exec/parallel.hpp>

#include <cmath>
#include <numeric>
#include <type_traits>

namespace mc::rows {

/// What one step multiplies by.
template <class G> struct adamw_factors {
  G keep;         // 1 - lr decay
  G beta1, rest1; // beta1, 1 - beta1
  G beta2, rest2; // beta2, 1 - beta2
  G step;         // lr / (1 - beta1^t)
  G root;         // 1 / sqrt(1 - beta2^t)
  G eps;
  G scale;
};

/// t counts steps from 1. Computed in double, rounded once.
template <class G> adamw_factors<G> adamw_step(std::int64_t t, double lr, double beta1,
                                               double beta2, double eps, double decay,
                                               double scale) {
  const double n = static_cast<double>(t);
  const auto g = [](double x) { return static_cast<G>(x); };
  return {g(1 - lr * decay),
          g(beta1),
          g(1 - beta1),
          g(beta2),
          g(1 - beta2),
          g(lr / (1 - std::pow(beta1, n))),
          g(1 / std::sqrt(1 - std::pow(beta2, n))),
          g(eps),
          g(scale)};
}

template <class T> struct adamw_block {
  using G = accumulator_t<T>;
  std::int64_t n;
  adamw_factors<G> f;
  const G* grad;        // (n)
  G* master;            // (n)
  G* m;                 // (n)
  G* v;                 // (n)
  T* weight;            // (n); may be master where T is G
  std::uint8_t* broken; // (blocks_of(n)): 1 where a block holds what is not finite

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t block) const {
    const G written = sum_in_block<T>(team, block, n, [&](auto i) {
      const auto g = load<G>(grad, i) * f.scale;
      const auto m1 = fma(load<G>(m, i), f.beta1, g * f.rest1);
      const auto v1 = fma(load<G>(v, i), f.beta2, g * g * f.rest2);
      store(m, i, m1);
      store(v, i, v1);
      const auto update = m1 * f.step / fma(sqrt(v1), f.root, f.eps);
      const auto p = load<G>(master, i) * f.keep - update;
      store(master, i, p);
      store(weight, i, p);
      const auto zero = vec<G, decltype(i)::count>(G(0));
      const auto moments = fma(m1, zero, v1 * zero);
      // A weight that is not finite shows a master that is not, and a master that rounds to none.
      // Where the two are one it is at hand; read again, it costs where memory is the limit.
      if constexpr (std::is_same_v<T, G>) return fma(p, zero, moments);
      else return fma(load<G>(weight, i), zero, moments);
    });
    if (team.leader()) broken[block] = written == 0 ? 0 : 1;
  }
};

/// How many blocks hold what is not finite. `broken` has room for blocks_of(n).
template <class T>
std::int64_t adamw(std::int64_t n, const adamw_factors<accumulator_t<T>>& factors,
                   const accumulator_t<T>* grad, accumulator_t<T>* master, accumulator_t<T>* m,
                   accumulator_t<T>* v, T* weight, std::uint8_t* broken) {
  for_blocks(n, adamw_block<T>{n, factors, grad, master, m, v, weight, broken});
  return std::accumulate(broken, broken + blocks_of(n), std::int64_t{0});
}

} // namespace mc::rows
