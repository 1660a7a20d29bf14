// AdamW (Loshchilov, Hutter, "Decoupled weight decay regularization", ICLR 2019) on a flat range,
// in the order of torch.optim.AdamW. Arithmetic and masters are in G = accumulator_t<T>; moments
// are in G or bf16.
//
//   g' = g scale                              scale: clipping, and the mean over micro-batches
//   p -= lr decay p
//   m  = beta1 m + (1 - beta1) g'
//   v  = beta2 v + (1 - beta2) g'^2
//   p -= lr / (1 - beta1^t) m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
//   weight = round(p)
//
// A block of elements reports if a number that it wrote is not finite: 0 x + 0 y is 0 unless x or y
// is infinite or a NaN. A second moment that overflows would freeze its parameter otherwise, and
// nothing else would show it.
// and nothing else would show it.
#pragma once

#include <megacpp/exec/launch.hpp>
#include <megacpp/num/random.hpp>

#include <cmath>
#include <limits>
#include <type_traits>

namespace mc::rows {

/// The factors of one step. Where the gradients' factor is not finite, `applies` is 0, and the step
/// changes nothing.
template <class G> struct adamw_factors {
  G keep;         // 1 - lr decay
  G beta1, rest1; // beta1, 1 - beta1
  G beta2, rest2; // beta2, 1 - beta2
  G step;         // lr / (1 - beta1^t)
  G root;         // 1 / sqrt(1 - beta2^t)
  G eps;
  G scale;
  int_like<G> applies; // 1 or 0; as wide as the others, so that no byte is left unset
};

/// Computes the factors of AdamW's step t, counted from 1, in double; each is rounded once.
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

/// Computes the factors of AdamW's step that follows *done steps.
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

/// Moments of AdamW that are stored as they are computed.
struct kept_moments {
  template <class G> using type = G;
  struct state {
    MEGACPP_HD explicit state(const kept_moments&) {}
  };

  template <class G, class I, class V>
  MEGACPP_HD void store(state&, G* m, G* v, I i, const V& m1, const V& v1) const {
    mc::store(m, i, m1), mc::store(v, i, v1);
  }
};
/// Moments of bf16, each rounded up with the probability that keeps its mean (Gupta et al. 2015,
/// stochastic rounding). The random bits follow from the seed, the step, the parameter and the
/// element of the logical tensor: the lower half of a random number is for m and the upper half for
/// v.
struct rounded_moments {
  template <class> using type = bf16;
  static constexpr int dims = 4;
  /// The elements of a layer's parameter in the range of parameters: those of a box of the logical
  /// tensor.
  struct origin {
    std::int64_t begin, count, key;
    struct {
      std::int64_t whole, local, first;
    } dim[dims];
  };
  std::int64_t first;        // place of the first element in the range of parameters
  std::int64_t rows;         // number of layers' parameters in the range
  const origin* origins;     // (rows), in the order of their beginnings
  const std::int64_t* seed;  // ()
  const std::int64_t* steps; // (): number of steps done before this one

  /// The random numbers of consecutive elements. A key serves the elements of one parameter, a
  /// place serves elements that are consecutive in the logical tensor, and a call of the generator
  /// serves four elements.
  struct state {
    const rounded_moments& of;
    std::int64_t next = -1;             // the element after the last one
    std::int64_t row = 0, behind = 0;   // row of the last element, and where the next row begins
    std::int64_t logical = 0, left = 0; // the next element's place; elements that follow there
    std::uint64_t key = 0, counter = 0;
    bool drawn = false;
    philox_numbers numbers{};

    MEGACPP_HD explicit state(const rounded_moments& r) : of(r) {}
    /// Returns the random number of an element's moments; 0 for padding.
    MEGACPP_HD std::uint32_t number(std::int64_t element) {
      if (element != next || element >= behind) find(element);
      next = element + 1;
      if (left == 0) place(element);
      if (left == 0) return 0;
      --left;
      const auto fourth = static_cast<std::uint64_t>(logical) / 4;
      if (!drawn || fourth != counter)
        counter = fourth, numbers = philox(key, counter), drawn = true;
      return numbers[static_cast<std::size_t>(logical++ % 4)];
    }
    /// Finds the last row that begins at or before an element, and the row's key.
    MEGACPP_HD void find(std::int64_t element) {
      row = 0;
      for (std::int64_t high = of.rows; high - row > 1;) {
        const std::int64_t middle = (row + high) / 2;
        (of.origins[middle].begin <= element ? row : high) = middle;
      }
      behind =
          row + 1 < of.rows ? of.origins[row + 1].begin : std::numeric_limits<std::int64_t>::max();
      const auto bits = [](std::int64_t x) { return static_cast<std::uint64_t>(x); };
      key = random_key(random_key(bits(*of.seed), bits(of.origins[row].key)), bits(*of.steps));
      left = 0, drawn = false;
    }
    /// Finds the place of an element of the row in the logical tensor; padding has none.
    MEGACPP_HD void place(std::int64_t element) {
      const origin& o = of.origins[row];
      std::int64_t i = element - o.begin, stride = 1;
      if (i < 0 || i >= o.count) return;
      left = o.dim[dims - 1].local - i % o.dim[dims - 1].local;
      logical = 0;
      for (int d = dims - 1; d >= 0; --d) {
        logical += (o.dim[d].first + i % o.dim[d].local) * stride;
        i /= o.dim[d].local, stride *= o.dim[d].whole;
      }
    }
  };
  template <class G, class I, class V>
  MEGACPP_HD void store(state& noise, bf16* m, bf16* v, I i, const V& m1, const V& v1) const {
    constexpr int N = I::count;
    G of_m[N], of_v[N];
    mc::store(of_m, lanes<N>{0}, m1), mc::store(of_v, lanes<N>{0}, v1);
    for (int k = 0; k < N; ++k) {
      const std::uint32_t w = noise.number(first + i.first + k);
      m[i.first + k] = rounded(static_cast<float>(of_m[k]), w & 0xffff);
      v[i.first + k] = rounded(static_cast<float>(of_v[k]), w >> 16);
    }
  }
  /// Returns x without the lower 16 bits of its float, or its neighbour of bf16 away from zero, if
  /// adding `noise` to these bits carries. A finite number never becomes infinite.
  MEGACPP_HD static bf16 rounded(float x, std::uint32_t noise) {
    if (!(x - x == 0)) return convert<bf16>(x);
    const auto bits = __builtin_bit_cast(std::uint32_t, x), up = bits + noise;
    const bool beyond = (up & 0x7f800000u) == 0x7f800000u;
    return convert<bf16>(__builtin_bit_cast(float, (beyond ? bits : up) & 0xffff0000u));
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
  std::uint8_t* broken;            // (blocks_of(n)): 1 if a number of the block is not finite
  Moments moments{};

  bool aligned() const { return rows_aligned<T>(flat_block, grad, master, m, v, weight); }
  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t block) const {
    const adamw_factors<G> f = *factors;
    if (!f.applies) {
      if (team.leader()) broken[block] = 0;
      return;
    }
    typename Moments::state state(moments);
    const G written = sum_in_block<T>(team, block, n, [&](auto i) {
      const auto g = load<G>(grad, i) * f.scale;
      const auto m1 = fma(load<G>(m, i), f.beta1, g * f.rest1);
      const auto v1 = fma(load<G>(v, i), f.beta2, g * g * f.rest2);
      moments.template store<G>(state, m, v, i, m1, v1);
      const auto update = m1 * f.step / fma(sqrt(v1), f.root, f.eps);
      const auto p = load<G>(master, i) * f.keep - update;
      store(master, i, p);
      store(weight, i, p);
      const auto zero = vec<G, decltype(i)::count>(G(0));
      auto finite = fma(m1, zero, v1 * zero);
      if constexpr (!std::is_same_v<M, G>)
        finite = fma(load<G>(m, i), zero, load<G>(v, i) * zero); // as they were stored
      // A weight that is not finite shows a master that is not finite, or that rounds to infinity.
      // Where weight and master are one, p is at hand; reading it again would cost time where
      // memory is the limit.
      if constexpr (std::is_same_v<T, G>) return fma(p, zero, finite);
      else return fma(load<G>(weight, i), zero, finite);
    });
    if (team.leader()) broken[block] = written == 0 ? 0 : 1;
  }
};

/// Counts the ones among n bytes that are 0 or 1.
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

/// Updates n elements, and writes to *count how many blocks have a number that is not finite.
/// `broken` has room for blocks_of(n).
template <class T, class Device>
void adamw(Device& on, std::int64_t n, const adamw_factors<accumulator_t<T>>* factors,
           const accumulator_t<T>* grad, accumulator_t<T>* master, accumulator_t<T>* m,
           accumulator_t<T>* v, T* weight, std::uint8_t* broken, double* count) {
  const adamw_block<T> body{n, factors, grad, master, m, v, weight, broken};
  for_blocks(on, n, body);
  for_one(on, count_of_ones{blocks_of(n), body.broken, count});
}

/// Updates the biases that balance experts, by the sign of each expert's load (op/optimizer.hpp):
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
