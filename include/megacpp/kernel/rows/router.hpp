// Rows of the router (op/router.hpp): a token's experts and weights, and sums over tokens.
//
// Experts are found one after another: the greatest score below the last one found, the lower index
// first among equals. Without a bias the scores are the logits, whose order is that of the
// probabilities.
#pragma once

#include <megacpp/exec/launch.hpp>
#include <megacpp/exec/math.hpp>

namespace mc::rows {

/// logsumexp of a row of logits, with its greatest taken out first.
template <class T, class Team>
MEGACPP_HD accumulator_t<T> logsumexp(const Team& team, std::int64_t n, const T* l) {
  using G = accumulator_t<T>;
  const G top = team.template max<T>(n, [&](auto i) { return load<G>(l, i); });
  const G sum = team.template sum<T>(n, [&](auto i) {
    const auto x = load<G>(l, i);
    return portable_exp(x - decltype(x)(top));
  });
  return top + log(vec<G, 1>(sum)).v[0];
}

/// log sum exp of the k chosen logits of a row: what its weights are normalised by. They may all be
/// small beside the others', where a bias has chosen them.
template <class T> MEGACPP_HD accumulator_t<T> logsumexp_of_chosen(const T* logits,
                                                                   const std::int32_t* chosen,
                                                                   int k) {
  using G = accumulator_t<T>;
  G top = convert<G>(logits[chosen[0]]), sum = 0;
  for (int j = 1; j < k; ++j)
    if (const G l = convert<G>(logits[chosen[j]]); l > top) top = l;
  for (int j = 0; j < k; ++j)
    sum += portable_exp(vec<G, 1>(convert<G>(logits[chosen[j]]) - top)).v[0];
  return top + log(vec<G, 1>(sum)).v[0];
}

template <class T> struct route_row {
  using G = accumulator_t<T>;
  std::int64_t experts;
  int k;
  bool normalise;
  const T* logits;      // (rows, E)
  const T* bias;        // (E) or null
  G* weights;           // (rows, k)
  std::int32_t* chosen; // (rows, k)

  std::int64_t row_bytes() const { return std::int64_t{experts} * std::int64_t{sizeof(T)}; }
  bool aligned() const { return rows_aligned<T>(experts, logits, bias); }
  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t row) const {
    const T* l = logits + row * experts;
    const G lse = logsumexp<T>(team, experts, l);
    const G none = -std::numeric_limits<G>::infinity();
    const auto score = [&](auto i) {
      const auto x = load<G>(l, i);
      return bias == nullptr ? x : portable_exp(x - decltype(x)(lse)) + load<G>(bias, i);
    };
    G last = -none, at = -1;
    for (int j = 0; j < k; ++j) {
      const auto left = [&](auto i, auto s) { // not found yet
        using V = decltype(s);
        const V index = counting<G, decltype(i)::count>(static_cast<G>(i.first));
        return (s < V(last)) | ((s == V(last)) & (index > V(at)));
      };
      const G best = team.template max<T>(experts, [&](auto i) {
        const auto s = score(i);
        return select(left(i, s), s, decltype(s)(none));
      });
      const G index = -team.template max<T>(experts, [&](auto i) {
        const auto s = score(i);
        using V = decltype(s);
        const V number = counting<G, decltype(i)::count>(static_cast<G>(i.first));
        return select(left(i, s) & (s == V(best)), -number, V(none));
      });
      last = best, at = index;
      // Scores that are no numbers are never found: the router's logits are not finite then, and so
      // is the loss. The first experts stand for them.
      const std::int64_t e = index < static_cast<G>(experts) ? static_cast<std::int64_t>(index) : j;
      if (team.leader()) chosen[row * k + j] = static_cast<std::int32_t>(e);
    }
    if (!team.leader()) return;
    const std::int32_t* const e = chosen + row * k;
    const G all = normalise ? logsumexp_of_chosen(l, e, k) : lse;
    for (int j = 0; j < k; ++j)
      weights[row * k + j] = portable_exp(vec<G, 1>(convert<G>(l[e[j]]) - all)).v[0];
  }
};

template <class T> struct route_grad_row {
  using G = accumulator_t<T>;
  std::int64_t experts;
  int k;
  bool normalise;
  const G* dweights;          // (rows, k)
  const T* logits;            // (rows, E)
  const std::int32_t* chosen; // (rows, k)
  T* dlogits;                 // (rows, E)

  std::int64_t row_bytes() const { return std::int64_t{experts} * std::int64_t{sizeof(T)}; }
  bool aligned() const { return rows_aligned<T>(experts, logits, dlogits); }
  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t row) const {
    const T* l = logits + row * experts;
    const G* dw = dweights + row * k;
    const std::int32_t* e = chosen + row * k;
    const G lse = logsumexp<T>(team, experts, l);
    const G all = normalise ? logsumexp_of_chosen(l, e, k) : lse;
    const auto w = [&](int j) { return portable_exp(vec<G, 1>(convert<G>(l[e[j]]) - all)).v[0]; };
    G mean = 0;
    for (int j = 0; j < k; ++j) mean += dw[j] * w(j);
    // Normalised weights do not depend on the logits that were not chosen.
    const G of_chosen = normalise ? mean : G(0), of_all = normalise ? G(0) : mean;
    team.template each<T>(experts, [&](auto i) {
      const auto x = load<G>(l, i);
      using V = decltype(x - x);
      const V index = counting<G, decltype(i)::count>(static_cast<G>(i.first));
      V d = portable_exp(x - V(lse)) * V(-of_all);
      for (int j = 0; j < k; ++j)
        d = d + select(index == V(static_cast<G>(e[j])), V(w(j) * (dw[j] - of_chosen)), V(G(0)));
      store(dlogits + row * experts, i, d);
    });
  }
};

/// Sums over a block of tokens of one group: probabilities, choices, squares of logsumexp. Blocks
/// are added up in order and in double (sum_of_parts), whatever the number of threads.
template <class T> struct router_statistics_block {
  using G = accumulator_t<T>;
  static constexpr std::int64_t tokens_of_block = 128;
  std::int64_t experts, tokens, blocks; // of a group
  int k;
  const T* logits;            // (groups, tokens, E)
  const std::int32_t* chosen; // (groups, tokens, k)
  G* parts;                   // (groups, blocks, 2 E + 1)

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t part) const {
    const std::int64_t first = part % blocks * tokens_of_block, left = tokens - first;
    const std::int64_t n = left < tokens_of_block ? left : tokens_of_block;
    const std::int64_t begin = part / blocks * tokens + first;
    G *p = parts + part * (2 * experts + 1), *c = p + experts, z = 0;
    for (std::int64_t t = begin; t < begin + n; ++t) {
      const T* l = logits + t * experts;
      const G lse = logsumexp<T>(team, experts, l);
      z += lse * lse;
      team.template each<T>(experts, [&](auto i) {
        const auto x = load<G>(l, i);
        using V = decltype(x - x);
        const V index = counting<G, decltype(i)::count>(static_cast<G>(i.first));
        V hits(G(0));
        for (int j = 0; j < k; ++j)
          hits = hits + select(index == V(static_cast<G>(chosen[t * k + j])), V(G(1)), V(G(0)));
        const bool start = t == begin;
        store(p, i, (start ? V(G(0)) : load<G>(p, i)) + portable_exp(x - V(lse)));
        store(c, i, (start ? V(G(0)) : load<G>(c, i)) + hits);
      });
    }
    if (team.leader()) c[experts] = z;
  }
};

/// One number of a group: of each of its blocks, `width` apart.
template <class G>
MEGACPP_HD double sum_of_parts(const G* part, std::int64_t blocks, std::int64_t width) {
  double sum = 0;
  for (std::int64_t k = 0; k < blocks; ++k) sum += static_cast<double>(part[k * width]);
  return sum;
}

/// Probabilities and choices of one group, added up over its blocks.
template <class G> struct router_sums {
  std::int64_t experts, blocks;
  const G* parts;   // (groups, blocks, 2 E + 1)
  G* probabilities; // (groups, E)
  G* choices;       // (groups, E)

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t group) const {
    const std::int64_t width = 2 * experts + 1;
    const G* const p = parts + group * blocks * width;
    team.template each<double>(experts, [&](auto i) {
      for (std::int64_t e = i.first; e < i.first + decltype(i)::count; ++e) {
        probabilities[group * experts + e] = static_cast<G>(sum_of_parts(p + e, blocks, width));
        choices[group * experts + e] = static_cast<G>(sum_of_parts(p + experts + e, blocks, width));
      }
    });
  }
};

/// The squares of logsumexp of all groups, each added up over its blocks.
template <class G> struct router_square_sum {
  std::int64_t width, parts_of_all, blocks;
  const G* parts; // (groups, blocks, width): the last number of each
  G* z;           // ()

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t) const {
    if (!team.leader()) return;
    double sum = 0;
    for (std::int64_t k = 0; k < parts_of_all; k += blocks)
      sum += sum_of_parts(parts + k * width + width - 1, blocks, width);
    *z = static_cast<G>(sum);
  }
};

/// What one expert is chosen above its share, added to its load: group by group of `each` choices.
template <class G> struct expert_load {
  std::int64_t experts, choices, each;
  const std::int32_t* chosen; // (choices)
  G* load;                    // (E)

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t expert) const {
    if (!team.leader()) return;
    const G share = static_cast<G>(each) / static_cast<G>(experts);
    G x = load[expert];
    for (std::int64_t first = 0; first < choices; first += each) {
      std::int64_t n = 0;
      for (std::int64_t i = first; i < first + each; ++i) n += chosen[i] == expert ? 1 : 0;
      for (; n > 0; --n) x += G(1); // one by one, since x need not be a whole number
      x -= share;
    }
    load[expert] = x;
  }
};

/// E / sum_e c_e of one group.
template <class G> MEGACPP_HD double experts_a_choice(const G* count, std::int64_t experts) {
  double choices = 0;
  for (std::int64_t e = 0; e < experts; ++e) choices += static_cast<double>(count[e]);
  return static_cast<double>(experts) / choices;
}

/// L = balance sum over groups of E / sum_e c_e sum_e s_e c_e + z Z.
template <class G> struct router_loss {
  std::int64_t experts, groups;
  double balance, z;
  const G* probabilities; // (groups, E)
  const G* choices;       // (groups, E)
  const G* squares;       // ()
  G* loss;                // ()

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t) const {
    if (!team.leader()) return;
    double sum = 0;
    for (std::int64_t g = 0; g < groups; ++g) {
      const G *const s = probabilities + g * experts, *const c = choices + g * experts;
      double of_group = 0;
      for (std::int64_t e = 0; e < experts; ++e)
        of_group += static_cast<double>(s[e]) * static_cast<double>(c[e]);
      sum += of_group * experts_a_choice(c, experts);
    }
    *loss = static_cast<G>(balance * sum + z * static_cast<double>(*squares));
  }
};

/// Its adjoint for one group: ds_e = balance dL E / sum_e c_e c_e, dZ = z dL.
template <class G> struct router_loss_grad {
  std::int64_t experts;
  double balance, z;
  const G* dloss;    // ()
  const G* choices;  // (groups, E)
  G* dprobabilities; // (groups, E)
  G* dsquares;       // ()

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t group) const {
    if (!team.leader()) return;
    const double d = static_cast<double>(*dloss);
    const G* const c = choices + group * experts;
    const double share = balance * d * experts_a_choice(c, experts);
    for (std::int64_t e = 0; e < experts; ++e)
      dprobabilities[group * experts + e] = static_cast<G>(share * static_cast<double>(c[e]));
    if (group == 0) *dsquares = static_cast<G>(z * d);
  }
};

template <class T> struct router_statistics_grad_row {
  using G = accumulator_t<T>;
  std::int64_t experts, tokens; // of a group
  const G* dprobabilities;      // (groups, E)
  const G* dz;                  // ()
  const T* logits;              // (groups, tokens, E)
  T* dlogits;                   // (groups, tokens, E)

  std::int64_t row_bytes() const { return std::int64_t{experts} * std::int64_t{sizeof(T)}; }
  bool aligned() const { return rows_aligned<T>(experts, logits, dlogits, dprobabilities); }
  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t row) const {
    const T* l = logits + row * experts;
    const G* d = dprobabilities + row / tokens * experts;
    const G lse = logsumexp<T>(team, experts, l);
    const auto p = [&](auto i) {
      const auto x = load<G>(l, i);
      return portable_exp(x - decltype(x)(lse));
    };
    const G inner = team.template sum<T>(experts, [&](auto i) { return p(i) * load<G>(d, i); });
    const G shift = G(2) * *dz * lse - inner;
    team.template each<T>(experts, [&](auto i) {
      const auto x = load<G>(d, i);
      store(dlogits + row * experts, i, p(i) * (x + decltype(x)(shift)));
    });
  }
};

} // namespace mc::rows
