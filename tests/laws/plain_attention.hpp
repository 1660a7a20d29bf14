// Attention in plain loops and double: every score of every query, without tiles.
#pragma once

#include "plain_rows.hpp"

#include <megacpp/op/cached_attention.hpp>

#include <limits>

namespace mc::laws::plain {

/// A query row with the keys that it sees, and the softmax of their scores.
struct heads_of {
  block q, k;
  double scale;
  const array *queries, *keys, *q_order, *k_order, *q_document, *k_document;
  bool causal;
  int64_t window;

  heads_of(node_task& t, int first, int ints)
      : q(t.in_block(first)),
        k(t.in_block(first + 1)),
        scale(t.attr<attention_options>().scale > 0
                  ? t.attr<attention_options>().scale
                  : 1 / std::sqrt(static_cast<double>(q.local[3]))),
        queries(&t.in(first)),
        keys(&t.in(first + 1)),
        q_order(t.has(ints) ? &t.in(ints) : nullptr),
        k_order(t.has(ints + 1) ? &t.in(ints + 1) : nullptr),
        q_document(t.has(ints + 2) ? &t.in(ints + 2) : nullptr),
        k_document(t.has(ints + 3) ? &t.in(ints + 3) : nullptr),
        causal(t.attr<attention_options>().causal),
        window(t.attr<attention_options>().window) {
    need(k.local[0] == q.local[0] && k.local[3] == q.local[3] && k.local[2] > 0 &&
             q.local[2] % k.local[2] == 0,
         "attention");
    need(length(t.in(first + 2)) == k.size(), "attention: values");
    for (const auto& [of_q, of_k] : {std::pair{q_order, k_order}, {q_document, k_document}}) {
      need((of_q == nullptr) == (of_k == nullptr), "attention: marks of one side");
      if (of_q != nullptr)
        need(length(*of_q) == q.local[0] * q.local[1] && length(*of_k) == k.local[0] * k.local[1],
             "attention: marks");
    }
    need(q_order != nullptr || !causal, "attention: positions");
  }
  std::size_t q_at(int64_t b, int64_t i, int64_t a) const {
    return at(((b * q.local[1] + i) * q.local[2] + a) * q.local[3]);
  }
  std::size_t k_at(int64_t b, int64_t j, int64_t a) const {
    return at(((b * k.local[1] + j) * k.local[2] + a * k.local[2] / q.local[2]) * k.local[3]);
  }
  bool visible(int64_t b, int64_t i, int64_t j) const {
    const std::size_t qi = at(b * q.local[1] + i), kj = at(b * k.local[1] + j);
    const double ahead = causal ? (*k_order)[kj] - (*q_order)[qi] : 0;
    if (causal && (ahead > 0 || (window > 0 && ahead <= -static_cast<double>(window))))
      return false;
    return q_document == nullptr || (*q_document)[qi] == (*k_document)[kj];
  }
  /// A key that a query sees, and the weight of its value.
  struct seen {
    int64_t j;
    double p;
  };
  /// Returns the keys that row i sees, with the softmax of their scores, and the scores'
  /// log-sum-exp.
  std::vector<seen> softmax(int64_t b, int64_t i, int64_t a, double& lse) const {
    std::vector<seen> keys_seen;
    double top = -std::numeric_limits<double>::infinity(), sum = 0;
    const double* const of_q = queries->data() + q_at(b, i, a);
    for (int64_t j = 0; j < k.local[1]; ++j) {
      if (!visible(b, i, j)) continue;
      const double* const of_k = keys->data() + k_at(b, j, a);
      double score = 0;
      for (int64_t d = 0; d < q.local[3]; ++d) score += scale * of_q[d] * of_k[d];
      keys_seen.push_back({j, score});
      top = std::max(top, score);
    }
    lse = top;
    if (!std::isfinite(top)) return {}; // the query sees no key
    for (seen& x : keys_seen) sum += x.p = std::exp(x.p - top);
    for (seen& x : keys_seen) x.p /= sum;
    lse = top + std::log(sum);
    return keys_seen;
  }
  template <class F> void each(F f) const {
    for (int64_t b = 0; b < q.local[0]; ++b)
      for (int64_t a = 0; a < q.local[2]; ++a)
        for (int64_t i = 0; i < q.local[1]; ++i) f(b, a, i);
  }
};

inline void attention(node_task& t) { // q, k, v, positions, documents -> o, lse (B, A, S)
  const heads_of h(t, 0, 3);
  h.each([&](int64_t b, int64_t a, int64_t i) {
    double& lse = t.out(1)[at((b * h.q.local[2] + a) * h.q.local[1] + i)];
    double* const o = t.out(0).data() + h.q_at(b, i, a);
    for (const auto& [j, p] : h.softmax(b, i, a, lse)) {
      const double* const v = t.in(2).data() + h.k_at(b, j, a);
      for (int64_t d = 0; d < h.q.local[3]; ++d) o[d] += p * v[d];
    }
  });
}
inline void attention_grad(
    node_task& t) { // dy, q, k, v, o, lse, positions, documents -> dq, dk, dv
  const heads_of h(t, 1, 6);
  need(t.in(0).size() == t.in(1).size() && t.in(4).size() == t.in(1).size(), "attention_grad");
  h.each([&](int64_t b, int64_t a, int64_t i) {
    double lse = 0, delta = 0;
    const std::size_t qi = h.q_at(b, i, a);
    const double *const dy = t.in(0).data() + qi, *const q = t.in(1).data() + qi,
                        *const o = t.in(4).data() + qi;
    double* const dq = t.out(0).data() + qi;
    for (int64_t d = 0; d < h.q.local[3]; ++d) delta += dy[d] * o[d];
    for (const auto& [j, p] : h.softmax(b, i, a, lse)) {
      const std::size_t kj = h.k_at(b, j, a);
      const double *const k = t.in(2).data() + kj, *const v = t.in(3).data() + kj;
      double *const dk = t.out(1).data() + kj, *const dv = t.out(2).data() + kj;
      double dp = 0;
      for (int64_t d = 0; d < h.q.local[3]; ++d) dp += dy[d] * v[d];
      const double ds = p * (dp - delta) * h.scale;
      for (int64_t d = 0; d < h.q.local[3]; ++d) {
        dq[d] += ds * k[d];
        dk[d] += ds * q[d];
        dv[d] += p * dy[d];
      }
    }
  });
}

/// q, k, v, keys, values, slots -> o. The caches are operands that simulated ranks hold, so this
/// works on copies.
inline void cached_attention(node_task& t) {
  const block q = t.in_block(0), k = t.in_block(1), cache = t.in_block(3);
  need(k.local[0] == q.local[0] && k.local[1] == q.local[1] && k.local[3] == q.local[3] &&
           cache.local[0] == k.local[0] && cache.local[2] == k.local[2] &&
           cache.local[3] == k.local[3] && q.local[2] % k.local[2] == 0,
       "cached_attention");
  array keys = t.in(3), values = t.in(4);
  const int64_t width = k.local[2] * k.local[3], room = cache.local[1];
  const double scale = t.attr<attention_options>().scale > 0
                           ? t.attr<attention_options>().scale
                           : 1 / std::sqrt(static_cast<double>(q.local[3]));
  for (int64_t b = 0; b < q.local[0]; ++b)
    for (int64_t i = 0; i < q.local[1]; ++i)
      for (int64_t d = 0; d < width; ++d) {
        const auto slot = whole_number(t.in(5)[at(b * q.local[1] + i)]);
        if (slot < 0) continue; // padding
        const std::size_t to = at((b * room + slot) * width + d),
                          from = at((b * q.local[1] + i) * width + d);
        keys[to] = t.in(1)[from], values[to] = t.in(2)[from];
      }
  for (int64_t b = 0; b < q.local[0]; ++b)
    for (int64_t i = 0; i < q.local[1]; ++i)
      for (int64_t a = 0; a < q.local[2]; ++a) {
        const auto slot = whole_number(t.in(5)[at(b * q.local[1] + i)]);
        const int64_t window = t.attr<attention_options>().window;
        const int64_t first = window > 0 ? std::max<int64_t>(slot - window + 1, 0) : 0;
        const int64_t row = ((b * q.local[1] + i) * q.local[2] + a) * q.local[3];
        const int64_t head = a * k.local[2] / q.local[2] * q.local[3];
        array p;
        double sum = 0;
        for (int64_t j = first; j <= slot; ++j) {
          double x = 0;
          for (int64_t d = 0; d < q.local[3]; ++d)
            x += scale * t.in(0)[at(row + d)] * keys[at((b * room + j) * width + head + d)];
          sum += std::exp(x), p.push_back(std::exp(x));
        }
        for (int64_t j = first; j <= slot; ++j)
          for (int64_t d = 0; d < q.local[3]; ++d)
            t.out(0)[at(row + d)] +=
                p[at(j - first)] / sum * values[at((b * room + j) * width + head + d)];
      }
}

} // namespace mc::laws::plain
