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

#include <megacpp/exec/launch.hpp>
#include <megacpp/num/random.hpp>

#include <array>
#include <bit>
#include <cmath>
#include <type_traits>

namespace mc::rows {

/// The numbers by which one step multiplies. Where the gradients' factor is not finite, `applies`
/// is 0, and the step changes nothing.
template <class G> struct adamw_factors {
  G keep;         // 1 - lr decay
  G beta1, rest1; // beta1, 1 - beta1
  G beta2, rest2; // beta2, 1 - beta2
  G step;         // lr / (1 - beta1^t)
  G root;         // 1 / sqrt(1 - beta2^t)
  G eps;
  G scale;
  int_like<G> applies; // 1 or 0; as wide as the others, so that no byte here is left unset
};

/// t counts steps from 1. Computed in double, rounded once.
template <class G> MEGACPP_HD adamw_factors<G> adamw_step(std::int64_t t, double lr, double beta1,
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
          g(scale),
          scale - scale == 0};
}

/// The factors of the step behind *done steps.
template <class G> struct factors_of_step {
  double beta1, beta2, eps, decay;
  const std::int64_t* done; // ()
  const double* lr;         // ()
  const double* scale;      // ()
  adamw_factors<G>* to;     // ()

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t) const {
    if (team.leader()) *to = adamw_step<G>(*done + 1, *lr, beta1, beta2, eps, decay, *scale);
  }
};

/// Moments that are kept as they are computed.
struct kept_moments {
  template <class G> using type = G;

  template <class G, class I, class V>
  MEGACPP_HD void store(G* m, G* v, I i, const V& m1, const V& v1) const {
    mc::store(m, i, m1), mc::store(v, i, v1);
  }
};
/// Moments of bf16, each rounded up with the probability that makes its mean what it was (Gupta et
/// al. 2015, stochastic rounding): by a random number of the seed, the step, the parameter and the
/// element of the logical tensor, the lower half of a word for m and the upper one for v.
struct rounded_moments {
  template <class> using type = bf16;
  static constexpr int dims = 4;
  /// Which elements a parameter of a layer has in the group: those of a box of the logical tensor.
  struct origin {
    std::int64_t begin, count, key;
    struct {
      std::int64_t whole, local, first;
    } dim[dims];
  };
  std::int64_t first;        // of the range, in the group's
  std::int64_t parameters;   // of the group
  const origin* origins;     // (parameters), by their beginning
  const std::int64_t* seed;  // ()
  const std::int64_t* steps; // (): done before this one

  template <class G, class I, class V>
  MEGACPP_HD void store(bf16* m, bf16* v, I i, const V& m1, const V& v1) const {
    constexpr int N = I::count;
    G of_m[N], of_v[N];
    mc::store(of_m, lanes<N>{0}, m1), mc::store(of_v, lanes<N>{0}, v1);
    noise of(*this, first + i.first);
    for (int k = 0; k < N; ++k) {
      const std::uint32_t w = of.word(first + i.first + k);
      m[i.first + k] = rounded(static_cast<float>(of_m[k]), w & 0xffff);
      v[i.first + k] = rounded(static_cast<float>(of_v[k]), w >> 16);
    }
  }
  /// Random words of elements that follow each other: a key serves those of one parameter, and a
  /// call of the generator four of them.
  struct noise {
    const rounded_moments& of;
    std::int64_t at = 0; // the last parameter that begins at or before the element
    std::uint64_t key = 0, counter = ~std::uint64_t{0};
    std::array<std::uint32_t, 4> words{};

    MEGACPP_HD noise(const rounded_moments& r, std::int64_t element) : of(r) {
      for (std::int64_t high = of.parameters; high - at > 1;) {
        const std::int64_t middle = (at + high) / 2;
        (of.origins[middle].begin <= element ? at : high) = middle;
      }
      use();
    }
    MEGACPP_HD void use() {
      const auto bits = [](std::int64_t x) { return static_cast<std::uint64_t>(x); };
      key = random_key(random_key(bits(*of.seed), bits(of.origins[at].key)), bits(*of.steps));
      counter = ~std::uint64_t{0};
    }
    /// That of an element of the group, none before the last one; of padding, 0.
    MEGACPP_HD std::uint32_t word(std::int64_t element) {
      while (at + 1 < of.parameters && of.origins[at + 1].begin <= element) ++at, use();
      const origin& o = of.origins[at];
      std::int64_t left = element - o.begin, logical = 0, stride = 1;
      if (left < 0 || left >= o.count) return 0;
      for (int d = dims - 1; d >= 0; --d) {
        logical += (o.dim[d].first + left % o.dim[d].local) * stride;
        left /= o.dim[d].local, stride *= o.dim[d].whole;
      }
      if (const auto fourth = static_cast<std::uint64_t>(logical) / 4; fourth != counter)
        counter = fourth, words = philox(key, counter);
      return words[static_cast<std::size_t>(logical % 4)];
    }
  };
  /// x, or its neighbour of bf16 away from zero where so much of 2^16 is added to what is cut off.
  MEGACPP_HD static bf16 rounded(float x, std::uint32_t noise) {
    if (!(x - x == 0)) return convert<bf16>(x);
    const auto bits = std::bit_cast<std::uint32_t>(x) + noise;
    return convert<bf16>(std::bit_cast<float>(bits & 0xffff0000u));
  }
};

template <class T, class Moments = kept_moments> struct adamw_block {
  using G = accumulator_t<T>;
  using M = typename Moments::template type<G>;
  std::int64_t n;
  const adamw_factors<G>* factors; // ()
  const G* grad;                   // (n)
  G* master;                       // (n)
  M* m;                            // (n)
  M* v;                            // (n)
  T* weight;                       // (n); may be master where T is G
  std::uint8_t* broken;            // (blocks_of(n)): 1 where a block holds what is not finite
  Moments moments{};

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t block) const {
    const adamw_factors<G> f = *factors;
    if (!f.applies) {
      if (team.leader()) broken[block] = 0;
      return;
    }
    const G written = sum_in_block<T>(team, block, n, [&](auto i) {
      const auto g = load<G>(grad, i) * f.scale;
      const auto m1 = fma(load<G>(m, i), f.beta1, g * f.rest1);
      const auto v1 = fma(load<G>(v, i), f.beta2, g * g * f.rest2);
      moments.template store<G>(m, v, i, m1, v1);
      const auto update = m1 * f.step / fma(sqrt(v1), f.root, f.eps);
      const auto p = load<G>(master, i) * f.keep - update;
      store(master, i, p);
      store(weight, i, p);
      const auto zero = vec<G, decltype(i)::count>(G(0));
      const auto finite = fma(m1, zero, v1 * zero);
      // A weight that is not finite shows a master that is not, and a master that rounds to none.
      // Where the two are one it is at hand; read again, it costs where memory is the limit.
      if constexpr (std::is_same_v<T, G>) return fma(p, zero, finite);
      else return fma(load<G>(weight, i), zero, finite);
    });
    if (team.leader()) broken[block] = written == 0 ? 0 : 1;
  }
};

/// How many of so many bytes are 1; the others are 0.
struct count_of_ones {
  std::int64_t n;
  const std::uint8_t* x; // (n)
  double* count;         // ()

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t) const {
    if (!team.leader()) return;
    std::int64_t all = 0;
    for (std::int64_t i = 0; i < n; ++i) all += x[i];
    *count = static_cast<double>(all);
  }
};

/// Tells in *count how many blocks hold what is not finite. `broken` has room for blocks_of(n).
template <class T, class Device>
void adamw(Device& on, std::int64_t n, const adamw_factors<accumulator_t<T>>* factors,
           const accumulator_t<T>* grad, accumulator_t<T>* master, accumulator_t<T>* m,
           accumulator_t<T>* v, T* weight, std::uint8_t* broken, double* count) {
  const adamw_block<T> body{n, factors, grad, master, m, v, weight, broken};
  for_blocks(on, n, body);
  for_one(on, count_of_ones{blocks_of(n), body.broken, count});
}

/// A bias that balances experts, by the sign of an expert's load (op/optimizer.hpp):
///   master -= rate sign(load),  weight = round(master)
/// unless the factor is not finite.
template <class T> struct balance_block {
  using G = accumulator_t<T>;
  std::int64_t n;
  G rate;
  const G* load;        // (n)
  const double* factor; // ()
  G* master;            // (n)
  T* weight;            // (n); may be master where T is G

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t block) const {
    if (!(*factor - *factor == 0)) return;
    each_in_block<T>(team, block, n, [&](auto i) {
      const auto l = mc::load<G>(load, i);
      using V = decltype(l - l);
      const V none(G(0)), one(G(1));
      const auto sign = select(none < l, one, none) - select(l < none, one, none);
      const auto p = mc::load<G>(master, i) - V(rate) * sign;
      store(master, i, p);
      store(weight, i, p);
    });
  }
};

} // namespace mc::rows
