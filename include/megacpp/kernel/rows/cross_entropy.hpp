// Rows of logits: log-sum-exp and target, and the gradient in place.
//
//   lse_t = log sum_{v < valid} e^(l_tv)
//   target_t = l_t,label, or 0 where the label is not in this part
//   dl_tv = dlse_t e^(l_tv - lse_t) + dtarget_t [v = label_t], or 0 for v >= valid
#pragma once

#include <megacpp/exec/math.hpp>
#include <megacpp/exec/parallel.hpp>

namespace mc::rows {
namespace detail {

// Zeros in the columns that are no words.
template <class G, class T, class Team>
MEGACPP_HD void clear(const Team& team, T* d, std::int64_t begin, std::int64_t end) {
  team.template each<G>(end - begin,
                        [&](auto i) { store(d + begin, i, vec<G, decltype(i)::count>(G(0))); });
}

} // namespace detail

template <class G> struct logits_row {
  std::int64_t width, valid, first; // columns, those that are words, global index of column 0
  const G* logits;                  // (rows, width)
  const std::int32_t* labels;       // (rows)
  G* lse;                           // (rows)
  G* target;                        // (rows)

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t row) const {
    const G* l = logits + row * width;
    const G top = team.template max<G>(valid, [&](auto i) { return load<G>(l, i); });
    const G sum = team.template sum<G>(valid, [&](auto i) {
      const auto x = load<G>(l, i);
      return exp(x - decltype(x)(top));
    });
    if (!team.leader()) return;
    lse[row] = top + log(vec<G, 1>(sum)).v[0];
    const std::int64_t at = labels[row] - first;
    target[row] = labels[row] >= 0 && at >= 0 && at < valid ? l[at] : G(0);
  }
};

template <class T> struct logits_grad_row {
  using G = accumulator_t<T>;
  std::int64_t width, valid, first;
  const G* logits;            // (rows, width)
  const std::int32_t* labels; // (rows)
  const G* lse;               // (rows)
  const G* dlse;              // (rows)
  const G* dtarget;           // (rows)
  T* dlogits;                 // (rows, width); may be logits where T is G

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t row) const {
    const G* l = logits + row * width;
    T* d = dlogits + row * width;
    const G z = lse[row], scale = dlse[row], hit = dtarget[row];
    const std::int64_t at = labels[row] >= 0 ? labels[row] - first : -1;
    const G at_label = at >= 0 && at < valid ? l[at] : G(0);
    team.sync(); // before another thread overwrites the label's logit
    team.template each<G>(valid, [&](auto i) {
      const auto x = load<G>(l, i);
      store(d, i, exp(x - decltype(x)(z)) * scale);
    });
    detail::clear<G>(team, d, valid, width);
    team.sync(); // before the leader overwrites what the label's thread stored
    if (team.leader() && at >= 0 && at < valid)
      d[at] = convert<T>(exp(vec<G, 1>(at_label - z)).v[0] * scale + hit);
  }
};

/// Loss and gradient of one row in one visit, for a summed loss whose cotangent is `seed`:
///   loss_t = lse - l_label + z lse^2,  dl_v = seed ((1 + 2 z lse) e^(l_v - lse) - [v = label])
/// A row whose label is negative has no loss and a zero gradient.
template <class T> struct loss_row {
  using G = accumulator_t<T>;
  std::int64_t width, valid;
  const G* logits;            // (rows, width)
  const std::int32_t* labels; // (rows)
  G seed, z;
  double* loss; // (rows)
  T* dlogits;   // (rows, width); may be logits where T is G

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t row) const {
    const G* l = logits + row * width;
    T* d = dlogits + row * width;
    const std::int64_t label = labels[row];
    if (label < 0) {
      detail::clear<G>(team, d, 0, width);
      if (team.leader()) loss[row] = 0;
      return;
    }
    const G top = team.template max<G>(valid, [&](auto i) { return load<G>(l, i); });
    const G sum = team.template sum<G>(valid, [&](auto i) {
      const auto x = load<G>(l, i);
      return exp(x - decltype(x)(top));
    });
    const G lse = top + log(vec<G, 1>(sum)).v[0], at_label = l[label];
    team.sync(); // before another thread overwrites the label's logit
    const G scale = seed * (G(1) + G(2) * z * lse);
    if (team.leader())
      loss[row] = static_cast<double>(lse) - static_cast<double>(at_label) +
                  static_cast<double>(z) * static_cast<double>(lse) * static_cast<double>(lse);
    team.template each<G>(valid, [&](auto i) {
      const auto x = load<G>(l, i);
      store(d, i, exp(x - decltype(x)(lse)) * scale);
    });
    detail::clear<G>(team, d, valid, width);
    team.sync(); // before the leader overwrites what the label's thread stored
    if (team.leader()) d[label] = convert<T>(exp(vec<G, 1>(at_label - lse)).v[0] * scale - seed);
  }
};

} // namespace mc::rows
