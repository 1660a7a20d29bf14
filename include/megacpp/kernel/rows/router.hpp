// Rows of the router (op/router.hpp): the experts and weights of tokens, and sums over tokens.
//
// Experts are found one after another: the greatest score below the one found last, the lower index
// first among equals. Without a bias the scores are the logits, which have the order of the
// probabilities.
#pragma once

#include <megacpp/exec/launch.hpp>
#include <megacpp/vectors/math.hpp>

namespace mc::rows {

/// The number of 16-byte vectors of a router's row that a thread keeps: a warp keeps 512 logits in
/// fp32.
inline constexpr int vectors_of_router = 4;

/// Returns the logsumexp of a row of logits that the team keeps. The greatest logit is subtracted
/// first.
template <class T, class Team, class Row>
MEGACPP_HD accumulator_t<T> logsumexp(const Team& team, std::int64_t n, const Row& l) {
  using G = accumulator_t<T>;
  const G top = team.template max<T>(n, [&](auto i) { return load<G>(l, i); });
  const G sum = team.template sum<T>(n, [&](auto i) {
    const auto x = load<G>(l, i);
    return portable_exp(x - decltype(x)(top));
  });
  return top + log(vec<G, 1>(sum)).v[0];
}

/// Returns log sum exp of the k chosen logits of a row, by which weights are normalised. The chosen
/// logits may all be small beside the others where a bias has chosen them.
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

  static constexpr int keeps = vectors_of_router;
  std::int64_t row_bytes() const { return std::int64_t{experts} * std::int64_t{sizeof(T)}; }
  bool aligned() const { return rows_aligned<T>(experts, logits, bias); }
  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t row) const {
    const T* const of_row = logits + row * experts;
    const auto l = team.template keep<T>(experts, of_row);
    const G lse = logsumexp<T>(team, experts, l);
    const auto score = team.template keep_values<T>(experts, [&](auto i) {
      const auto x = load<G>(l, i);
      return bias == nullptr ? x : portable_exp(x - decltype(x)(lse)) + load<G>(bias, i);
    });
    std::int32_t* const e = chosen + row * k;
    two<G> last{std::numeric_limits<G>::infinity(), G(-1)}; // the score found last, and its index
    for (int j = 0; j < k; ++j) {
      last = team.template first_greatest<T>(experts, [&](auto i) { // among scores not found yet
        const auto s = score(i);
        using V = std::remove_const_t<decltype(s)>;
        const V index = counting<G, V::count>(static_cast<G>(i.first));
        const auto left = (s < V(last.first)) | ((s == V(last.first)) & (index > V(last.second)));
        return marked<V, std::remove_const_t<decltype(left)>>{s, left};
      });
      // NaN scores are never found: the router's logits are not finite then, and so is the loss.
      // The first experts stand for them.
      const bool found = last.second < static_cast<G>(experts);
      if (team.leader()) e[j] = found ? static_cast<std::int32_t>(last.second) : j;
    }
    team.sync(); // other threads read the leader's choices behind this barrier
    const G all = normalise ? logsumexp_of_chosen(of_row, e, k) : lse;
    for (int j = team.index(); j < k; j += team.count())
      weights[row * k + j] = portable_exp(vec<G, 1>(convert<G>(of_row[e[j]]) - all)).v[0];
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

  static constexpr int keeps = vectors_of_router;
  std::int64_t row_bytes() const { return std::int64_t{experts} * std::int64_t{sizeof(T)}; }
  bool aligned() const { return rows_aligned<T>(experts, logits, dlogits); }
  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t row) const {
    const T* const of_row = logits + row * experts;
    T* const d = dlogits + row * experts;
    const auto l = team.template keep<T>(experts, of_row);
    const G* dw = dweights + row * k;
    const std::int32_t* e = chosen + row * k;
    const G lse = logsumexp<T>(team, experts, l);
    const G all = normalise ? logsumexp_of_chosen(of_row, e, k) : lse;
    const auto w = [&](int j) {
      return portable_exp(vec<G, 1>(convert<G>(of_row[e[j]]) - all)).v[0];
    };
    G mean = 0;
    for (int j = 0; j < k; ++j) mean += dw[j] * w(j);
    // Normalised weights do not depend on the logits that were not chosen.
    const G of_chosen = normalise ? mean : G(0), of_all = normalise ? G(0) : mean;
    // A logit that was not chosen has the gradient 0, and not -0, since 0 is added.
    const auto of_any = [&](auto x) {
      return portable_exp(x - decltype(x)(lse)) * decltype(x)(-of_all) + decltype(x)(G(0));
    };
    team.template each<T>(experts, [&](auto i) { store(d, i, of_any(load<G>(l, i))); });
    team.sync(); // other threads overwrite the chosen logits' gradients
    const auto of_choice = [&](int j) { return w(j) * (dw[j] - of_chosen); };
    for (int j = team.index(); j < k; j += team.count()) {
      int first = 0; // first choice of that expert: NaN scores leave several choices of one
      while (e[first] != e[j]) ++first;
      if (first < j) continue;
      G sum = of_choice(j);
      for (int i = j + 1; i < k; ++i)
        if (e[i] == e[j]) sum += of_choice(i);
      store(d, lanes<1>{e[j]}, of_any(vec<G, 1>(convert<G>(of_row[e[j]]))) + vec<G, 1>(sum));
    }
  }
};

/// Computes the logsumexp of the router's logits of each token.
template <class T> struct router_lse_row {
  using G = accumulator_t<T>;
  std::int64_t experts;
  const T* logits; // (tokens, E)
  G* lse;          // (tokens)

  static constexpr int keeps = vectors_of_router;
  std::int64_t row_bytes() const { return std::int64_t{experts} * std::int64_t{sizeof(T)}; }
  bool aligned() const { return rows_aligned<T>(experts, logits); }
  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t row) const {
    const auto l = team.template keep<T>(experts, logits + row * experts);
    const G of_row = logsumexp<T>(team, experts, l);
    if (team.leader()) lse[row] = of_row;
  }
};

/// Sums up a block of tokens of one scope: probabilities, choices, squares of logsumexp. The
/// sums of blocks are added up in order and in double (sum_of_partials), whatever the number of
/// threads. A core may compute the logsumexp of a token here. Threads of a GPU read it
/// (router_lse_row), and each thread adds up columns of its own, in the order of a core.
template <class T> struct router_statistics_block {
  using G = accumulator_t<T>;
  static constexpr std::int64_t tokens_of_block = 128;
  std::int64_t experts, tokens, blocks; // experts; tokens and blocks of a scope
  int k;
  const T* logits;            // (scopes, tokens, E)
  const std::int32_t* chosen; // (scopes, tokens, k)
  G* partials;                // (scopes, blocks, 2 E + 1)
  const G* lse;               // (scopes, tokens); null: a core computes it here

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t partial) const {
    const std::int64_t first = partial % blocks * tokens_of_block, left = tokens - first;
    const std::int64_t n = left < tokens_of_block ? left : tokens_of_block;
    const std::int64_t begin = partial / blocks * tokens + first;
    G *p = partials + partial * (2 * experts + 1), *c = p + experts, z = 0;
    const auto probability = [&](std::int64_t t, auto i, G of_token) {
      const auto x = load<G>(logits + t * experts, i);
      return portable_exp(x - decltype(x)(of_token));
    };
    if constexpr (Team::threads == 1) {
      for (std::int64_t t = begin; t < begin + n; ++t) {
        const G of_token =
            lse == nullptr ? logsumexp<T>(team, experts, logits + t * experts) : lse[t];
        z += of_token * of_token;
        team.template each<T>(experts, [&](auto i) {
          constexpr int N = decltype(i)::count;
          using V = vec<G, N>;
          const V index = counting<G, N>(static_cast<G>(i.first));
          V hits(G(0));
          for (int j = 0; j < k; ++j)
            hits = hits + select(index == V(static_cast<G>(chosen[t * k + j])), V(G(1)), V(G(0)));
          const bool start = t == begin;
          store(p, i, (start ? V(G(0)) : load<G>(p, i)) + probability(t, i, of_token));
          store(c, i, (start ? V(G(0)) : load<G>(c, i)) + hits);
        });
      }
    } else {
      if (team.leader())
        for (std::int64_t t = begin; t < begin + n; ++t) z += lse[t] * lse[t];
      for (std::int64_t e = team.index(); e < experts; e += team.count())
        of_column(e, begin, n, probability, p, c);
    }
    if (team.leader()) c[experts] = z;
  }

private:
  /// Adds up the column of one expert. The loads of eight tokens are on their way at once. The
  /// count of the expert's choices is a whole number, whatever the order.
  template <class F> MEGACPP_HD void of_column(std::int64_t e, std::int64_t begin, std::int64_t n,
                                               F probability, G* p, G* c) const {
    constexpr int together = 8;
    vec<G, 1> sum(G(0));
    std::int64_t t = begin;
    for (; t + together <= begin + n; t += together) {
      vec<G, 1> x[together];
      MEGACPP_UNROLL
      for (int l = 0; l < together; ++l) x[l] = probability(t + l, lanes<1>{e}, lse[t + l]);
      MEGACPP_UNROLL
      for (int l = 0; l < together; ++l) sum = sum + x[l];
    }
    for (; t < begin + n; ++t) sum = sum + probability(t, lanes<1>{e}, lse[t]);
    int hits = 0;
    for (std::int64_t j = begin * k; j < (begin + n) * k; ++j) hits += chosen[j] == e ? 1 : 0;
    store(p, lanes<1>{e}, sum), store(c, lanes<1>{e}, vec<G, 1>(static_cast<G>(hits)));
  }
};

/// Returns the sum of one number over the blocks of a scope; the numbers are `width` apart.
template <class G>
MEGACPP_HD double sum_of_partials(const G* partial, std::int64_t blocks, std::int64_t width) {
  double sum = 0;
  for (std::int64_t k = 0; k < blocks; ++k) sum += static_cast<double>(partial[k * width]);
  return sum;
}

/// Adds up the router's probabilities and choices of one scope over its blocks.
template <class G> struct router_sums {
  std::int64_t experts, blocks;
  const G* partials; // (scopes, blocks, 2 E + 1)
  G* probabilities;  // (scopes, E)
  G* choices;        // (scopes, E)

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t scope) const {
    const std::int64_t width = 2 * experts + 1;
    const G* const p = partials + scope * blocks * width;
    team.template each<double>(experts, [&](auto i) {
      for (std::int64_t e = i.first; e < i.first + decltype(i)::count; ++e) {
        probabilities[scope * experts + e] = static_cast<G>(sum_of_partials(p + e, blocks, width));
        choices[scope * experts + e] =
            static_cast<G>(sum_of_partials(p + experts + e, blocks, width));
      }
    });
  }
};

/// Adds up the squares of the router's logsumexp of all scopes, each over its blocks.
template <class G> struct router_square_sum {
  std::int64_t width, all_partials, blocks;
  const G* partials; // (scopes, blocks, width); the last number of each block is a sum of squares
  G* z;              // ()

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t) const {
    if (!team.leader()) return;
    double sum = 0;
    for (std::int64_t k = 0; k < all_partials; k += blocks)
      sum += sum_of_partials(partials + k * width + width - 1, blocks, width);
    *z = static_cast<G>(sum);
  }
};

/// Adds the number of an expert's choices above its fair share to its load, scope by scope of
/// `each` choices.
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

/// Returns E / sum_e c_e, the number of experts for each choice of one scope.
template <class G> MEGACPP_HD double experts_a_choice(const G* count, std::int64_t experts) {
  double choices = 0;
  for (std::int64_t e = 0; e < experts; ++e) choices += static_cast<double>(count[e]);
  return static_cast<double>(experts) / choices;
}

/// L = balance sum over scopes of E / sum_e c_e sum_e s_e c_e + z Z.
template <class G> struct router_loss {
  std::int64_t experts, scopes;
  double balance, z;
  const G* probabilities; // (scopes, E)
  const G* choices;       // (scopes, E)
  const G* squares;       // ()
  G* loss;                // ()

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t) const {
    if (!team.leader()) return;
    double sum = 0;
    for (std::int64_t g = 0; g < scopes; ++g) {
      const G *const s = probabilities + g * experts, *const c = choices + g * experts;
      double of_scope = 0;
      for (std::int64_t e = 0; e < experts; ++e)
        of_scope += static_cast<double>(s[e]) * static_cast<double>(c[e]);
      sum += of_scope * experts_a_choice(c, experts);
    }
    *loss = static_cast<G>(balance * sum + z * static_cast<double>(*squares));
  }
};

/// Computes the adjoint of router_loss for one scope: ds_e = balance dL E / sum_e c_e c_e, dZ = z
/// dL.
template <class G> struct router_loss_grad {
  std::int64_t experts;
  double balance, z;
  const G* dloss;    // ()
  const G* choices;  // (scopes, E)
  G* dprobabilities; // (scopes, E)
  G* dsquares;       // ()

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t scope) const {
    if (!team.leader()) return;
    const double d = static_cast<double>(*dloss);
    const G* const c = choices + scope * experts;
    const double share = balance * d * experts_a_choice(c, experts);
    for (std::int64_t e = 0; e < experts; ++e)
      dprobabilities[scope * experts + e] = static_cast<G>(share * static_cast<double>(c[e]));
    if (scope == 0) *dsquares = static_cast<G>(z * d);
  }
};

template <class T> struct router_statistics_grad_row {
  using G = accumulator_t<T>;
  std::int64_t experts, tokens; // experts; tokens of a scope
  const G* dprobabilities;      // (scopes, E)
  const G* dz;                  // ()
  const T* logits;              // (scopes, tokens, E)
  T* dlogits;                   // (scopes, tokens, E)

  static constexpr int keeps = vectors_of_router;
  std::int64_t row_bytes() const { return std::int64_t{experts} * std::int64_t{sizeof(T)}; }
  bool aligned() const { return rows_aligned<T>(experts, logits, dlogits, dprobabilities); }
  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t row) const {
    const auto l = team.template keep<T>(experts, logits + row * experts);
    const G* d = dprobabilities + row / tokens * experts;
    const G lse = logsumexp<T>(team, experts, l);
    const auto p = team.template keep_values<T>(experts, [&](auto i) {
      const auto x = load<G>(l, i);
      return portable_exp(x - decltype(x)(lse));
    });
    const G inner = team.template sum<T>(experts, [&](auto i) { return p(i) * load<G>(d, i); });
    const G shift = G(2) * *dz * lse - inner;
    team.template each<T>(experts, [&](auto i) {
      const auto x = load<G>(d, i);
      store(dlogits + row * experts, i, p(i) * (x + decltype(x)(shift)));
    });
  }
};

} // namespace mc::rows
