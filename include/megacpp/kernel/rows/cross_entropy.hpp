// Rows of logits: log-sum-exp and target, and the gradient in place of the logits.
//
//   lse_t = log sum_{v < valid} e^(l_tv)
//   target_t = l_t,label, or 0 where this rank has not the label
//   dl_tv = dlse_t e^(l_tv - lse_t) + dtarget_t [v = label_t], or 0 for v >= valid
//
// A loss is often far smaller than the logits whose difference it is, and far smaller than 1, the
// largest of the terms e^(l - max) of its sum. So these terms, fp32 numbers within 9e-8
// (exp_of_difference), are added up in double, which holds 1 and the smallest tail that matters:
// the sum less 1 is the tail, and the loss of the likeliest label is log1p of the tail. Neither
// error grows with the vocabulary. Log-sum-exps and their gradients are doubles for the same
// reason, and so is the gradient of the label's logit, which is the difference of a number near 1
// and 1.
// and 1.
#pragma once

#include <megacpp/exec/launch.hpp>
#include <megacpp/num/elementary.hpp>
#include <megacpp/vectors/math.hpp>

namespace mc::rows {
namespace detail {

// Writes zeros to the columns that are no tokens of the vocabulary, which begin anywhere.
template <class G, class T, class Team>
MEGACPP_HD void clear(const Team& team, T* d, std::int64_t begin, std::int64_t end) {
  team.template each<G>(end - begin, [&](auto i) {
    constexpr int N = decltype(i)::count;
    store(d + begin, lanes<N>{i.first}, vec<G, N>(G(0)));
  });
}

// Returns log sum_v e^(l_v - max), given the sum, of which one term at least is 1; a NaN stays a
// NaN.
MEGACPP_HD double log_of_terms(double sum) {
  return sum >= 1 ? natural_log_of_one_plus(sum - 1) : sum;
}

// Returns a number as the sum of two G, of which the second is small.
template <class G> MEGACPP_HD two<G> split(double x) {
  const G high = static_cast<G>(x);
  return {high, static_cast<G>(x - static_cast<double>(high))};
}

// Returns x times a split factor, to be stored as T: the rounding of the factor adds no error to
// that of the product, the only one that a narrower T sees.
template <class T, class V, class G> MEGACPP_HD V scaled(V x, two<G> by) {
  if constexpr (std::is_same_v<T, G>) return fma(x, V(by.first), x * V(by.second));
  else return x * V(by.first);
}

// Returns the log-sum-exp of a row from those of the vocabulary's shards.
MEGACPP_HD double log_sum_exp(const double* lse_of_shard, std::int64_t shards) {
  if (shards == 1) return lse_of_shard[0];
  double top = lse_of_shard[0], sum = 0;
  for (std::int64_t i = 1; i < shards; ++i)
    if (top < lse_of_shard[i]) top = lse_of_shard[i];
  for (std::int64_t i = 0; i < shards; ++i) sum += exponential(lse_of_shard[i] - top);
  return top + log_of_terms(sum);
}

} // namespace detail

template <class G> struct logits_row {
  std::int64_t width, valid, first; // all columns; those with tokens; global index of column 0
  const G* logits;                  // (rows, width)
  const std::int32_t* labels;       // (rows)
  double* lse;                      // (rows)
  G* target;                        // (rows)

  std::int64_t row_bytes() const { return std::int64_t{width} * std::int64_t{sizeof(G)}; }
  bool aligned() const { return rows_aligned<G>(width, logits); }
  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t row) const {
    const G* l = logits + row * width;
    const auto all = team.template max_and_sum_exp<G>(valid, [&](auto i) { return load<G>(l, i); });
    if (!team.leader()) return;
    lse[row] = static_cast<double>(all.maximum) + detail::log_of_terms(all.sum);
    const std::int64_t at = labels[row] - first;
    target[row] = labels[row] >= 0 && at >= 0 && at < valid ? l[at] : G(0);
  }
};

template <class T> struct logits_grad_row {
  using G = accumulator_t<T>;
  std::int64_t width, valid, first;
  const G* logits;            // (rows, width)
  const std::int32_t* labels; // (rows)
  const double* lse;          // (rows)
  const double* dlse;         // (rows)
  const G* dtarget;           // (rows)
  T* dlogits;                 // (rows, width); may be logits where T is G

  std::int64_t row_bytes() const { return std::int64_t{width} * std::int64_t{sizeof(G)}; }
  bool aligned() const { return rows_aligned<G>(width, logits, dlogits); }
  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t row) const {
    const G* l = logits + row * width;
    T* d = dlogits + row * width;
    const auto z = detail::split<G>(lse[row]), scale = detail::split<G>(dlse[row]);
    const std::int64_t at = labels[row] >= 0 ? labels[row] - first : -1;
    const G at_label = at >= 0 && at < valid ? l[at] : G(0);
    team.sync(); // another thread may overwrite the label's logit
    team.template each<G>(valid, [&](auto i) {
      store(d, i, detail::scaled<T>(exp_of_difference(load<G>(l, i), z.first, z.second), scale));
    });
    detail::clear<G>(team, d, valid, width);
    team.sync(); // the leader overwrites what the label's thread stored
    if (team.leader() && at >= 0 && at < valid)
      d[at] = convert<T>(dlse[row] * exponential(static_cast<double>(at_label) - lse[row]) +
                         static_cast<double>(dtarget[row]));
  }
};

/// Computes loss and gradient of one row in one visit, for a summed loss whose cotangent is `seed`:
///   loss_t = lse - l_label + z lse^2,  dl_v = seed ((1 + 2 z lse) e^(l_v - lse) - [v = label])
/// A row whose label is negative has no loss and a zero gradient.
template <class T> struct loss_row {
  using G = accumulator_t<T>;
  std::int64_t width, valid;
  G* logits;                  // (rows, width); overwritten
  const std::int32_t* labels; // (rows)
  const G* seed;              // ()
  double z;
  double* loss; // (rows)
  T* dlogits;   // (rows, width); may be logits where T is G

  std::int64_t row_bytes() const { return std::int64_t{width} * std::int64_t{sizeof(G)}; }
  bool aligned() const { return rows_aligned<G>(width, logits, dlogits); }
  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t row) const {
    G* l = logits + row * width;
    T* d = dlogits + row * width;
    const std::int64_t label = labels[row];
    if (label < 0) {
      detail::clear<G>(team, d, 0, width);
      if (team.leader()) loss[row] = 0;
      return;
    }
    const G at_label = l[label];
    // The barriers of terms() come before another thread overwrites the label's logit.
    const auto all = terms(team, l);
    const double over_top = detail::log_of_terms(all.sum),
                 lse = static_cast<double>(all.maximum) + over_top,
                 factor = z > 0 ? 1 + 2 * z * lse : 1, of_seed = static_cast<double>(*seed);
    if (team.leader())
      loss[row] = over_top + (static_cast<double>(all.maximum) - static_cast<double>(at_label)) +
                  z * lse * lse;
    const auto scale = detail::split<G>(of_seed * factor / all.sum);
    team.template each<G>(valid, [&](auto i) {
      auto term = load<G>(l, i);
      if constexpr (!keeps_terms<Team>) term = exp_of_difference(term, all.maximum);
      store(d, i, detail::scaled<T>(term, scale));
    });
    detail::clear<G>(team, d, valid, width);
    team.sync(); // the leader overwrites what the label's thread stored
    if (!team.leader()) return;
    // A label with a probability above 1/2 is the likeliest label: its term is 1, without error.
    const auto term = static_cast<double>(exp_of_difference(vec<G, 1>(at_label), all.maximum).v[0]);
    d[label] = convert<T>(of_seed * (factor * term / all.sum - 1));
  }

private:
  /// A core visits the row three times and stores its terms in it, which saves exponentials. A
  /// block, whose memory is slower than its arithmetic, visits the row twice.
  template <class Team> static constexpr bool keeps_terms = Team::threads == 1;
  template <class Team> MEGACPP_HD maximum_and_sum<G> terms(const Team& team, G* l) const {
    if constexpr (!keeps_terms<Team>) {
      return team.template max_and_sum_exp<G>(valid, [&](auto i) { return load<G>(l, i); });
    } else {
      const G top = team.template max<G>(valid, [&](auto i) { return load<G>(l, i); });
      return {top, team.template sum<G>(valid, [&](auto i) {
                const auto term = exp_of_difference(load<G>(l, i), top);
                store(l, i, term);
                return to<double>(term);
              })};
    }
  }
};

/// Computes the loss of a row whose vocabulary is in shards: lse - target + z lse^2, 0 where its
/// label is negative.
template <class G> struct cross_entropy_row {
  std::int64_t shards;
  const double* lse_of_shards; // (rows, shards)
  const G* target;             // (rows)
  const std::int32_t* labels;  // (rows)
  double z;
  double* loss; // (rows)

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t row) const {
    if (!team.leader()) return;
    const double lse = detail::log_sum_exp(lse_of_shards + row * shards, shards);
    loss[row] = labels[row] < 0 ? 0 : lse - static_cast<double>(target[row]) + z * lse * lse;
  }
};

/// Computes the adjoint of cross_entropy_row, for the cotangent `seed` of the sum of losses:
///   dlse_i = seed (1 + 2 z lse) e^(lse_i - lse),  dtarget = -seed
template <class G> struct cross_entropy_grad_row {
  std::int64_t shards;
  const G* seed;               // ()
  const double* lse_of_shards; // (rows, shards)
  const std::int32_t* labels;  // (rows)
  double z;
  double* dlse; // (rows, shards)
  G* dtarget;   // (rows)

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t row) const {
    if (!team.leader()) return;
    const bool seen = labels[row] >= 0;
    const double *lse_of_shard = lse_of_shards + row * shards,
                 lse = detail::log_sum_exp(lse_of_shard, shards), d = static_cast<double>(*seed);
    for (std::int64_t i = 0; i < shards; ++i)
      dlse[row * shards + i] =
          seen ? d * (1 + 2 * z * lse) * exponential(lse_of_shard[i] - lse) : 0;
    dtarget[row] = seen ? static_cast<G>(-d) : G(0);
  }
};

/// Adds up the losses of all rows, in order, and counts the rows with a label.
template <class G> struct sum_of_losses {
  std::int64_t n;
  const double* losses;       // (n)
  const std::int32_t* labels; // (n)
  G* loss;                    // ()
  G* count;                   // ()

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t) const {
    if (!team.leader()) return;
    double sum = 0;
    std::int64_t labelled = 0;
    for (std::int64_t t = 0; t < n; ++t) sum += losses[t], labelled += labels[t] >= 0 ? 1 : 0;
    *loss = static_cast<G>(sum);
    *count = static_cast<G>(labelled);
  }
};

} // namespace mc::rows
