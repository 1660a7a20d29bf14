// The vocabulary loss and the end of a step in plain loops and double.
#pragma once

#include "plain_rows.hpp"

#include <megacpp/op/loss.hpp>
#include <megacpp/op/optimizer.hpp>

#include <limits>

namespace mc::laws::plain {

// --- loss ----------------------------------------------------------------------------------------

/// Returns the logits of row m over this rank's rows of w; -inf for padding.
inline array logits_of(const node_task& t, int x, int w, int64_t words, int64_t m) {
  const block table = t.in_block(w);
  const int64_t h = table.local[1];
  need(t.in_block(x).last() == h, "vocabulary_partial");
  array out(at(table.local[0]), -std::numeric_limits<double>::infinity());
  for (int64_t v = 0; v < table.local[0] && table.first[0] + v < words; ++v) {
    out[at(v)] = 0;
    for (int64_t k = 0; k < h; ++k) out[at(v)] += t.in(x)[at(m * h + k)] * t.in(w)[at(v * h + k)];
  }
  return out;
}
inline void vocabulary_partial(
    node_task& t) { // x, w, labels -> local_lse (B, S, shards), target (B, S)
  const int64_t rows = t.in_block(0).rows(), first = t.in_block(1).first[0],
                words = t.attr<op::vocabulary_attributes>().vocabulary;
  need(length(t.in(2)) == rows && length(t.out(0)) == rows && length(t.out(1)) == rows,
       "vocabulary_partial: rows");
  for (int64_t m = 0; m < rows; ++m) {
    const array l = logits_of(t, 0, 1, words, m);
    const double top = *std::max_element(l.begin(), l.end());
    double sum = 0;
    for (double x : l) sum += std::isfinite(top) ? std::exp(x - top) : 0;
    t.out(0)[at(m)] = std::isfinite(top) ? top + std::log(sum) : top;
    const int64_t mine = whole_number(t.in(2)[at(m)]) - first;
    if (t.in(2)[at(m)] >= 0 && mine >= 0 && mine < length(l)) t.out(1)[at(m)] = l[at(mine)];
  }
}
inline void vocabulary_partial_grad(
    node_task& t) { // dlse, dtarget, x, w, labels, local_lse -> dx, [dw]
  const block w = t.in_block(3);
  const int64_t rows = t.in_block(2).rows(), h = w.local[1];
  const auto [words, weights] = t.attr<op::vocabulary_attributes>();
  need(length(t.in(0)) == rows && length(t.in(1)) == rows && length(t.in(4)) == rows &&
           length(t.in(5)) == rows,
       "vocabulary_partial_grad");
  for (int64_t m = 0; m < rows; ++m) {
    const array l = logits_of(t, 2, 3, words, m);
    for (int64_t v = 0; v < length(l); ++v) {
      if (!std::isfinite(l[at(v)])) continue;
      const bool is_label = t.in(4)[at(m)] >= 0 && whole_number(t.in(4)[at(m)]) == w.first[0] + v;
      const double dl =
          t.in(0)[at(m)] * std::exp(l[at(v)] - t.in(5)[at(m)]) + (is_label ? t.in(1)[at(m)] : 0);
      for (int64_t k = 0; k < h; ++k) {
        t.out(0)[at(m * h + k)] += dl * t.in(3)[at(v * h + k)];
        if (weights) t.out(1)[at(v * h + k)] += dl * t.in(2)[at(m * h + k)];
      }
    }
  }
}
inline double total_lse(const array& shards, int64_t row, int64_t n) {
  double top = -std::numeric_limits<double>::infinity(), sum = 0;
  for (int64_t i = 0; i < n; ++i) top = std::max(top, shards[at(row * n + i)]);
  for (int64_t i = 0; i < n; ++i) sum += std::exp(shards[at(row * n + i)] - top);
  return top + std::log(sum);
}
inline void cross_entropy(node_task& t) { // local_lse, target, labels -> loss, count
  const int64_t shards = t.in_block(0).last(), rows = t.in_block(0).rows();
  need(length(t.in(1)) == rows && length(t.in(2)) == rows, "cross_entropy");
  for (int64_t m = 0; m < rows; ++m) {
    if (t.in(2)[at(m)] < 0) continue;
    const double lse = total_lse(t.in(0), m, shards);
    t.out(0)[0] += lse - t.in(1)[at(m)] + t.attr<op::cross_entropy_attributes>().z * lse * lse;
    t.out(1)[0] += 1;
  }
}
inline void cross_entropy_grad(node_task& t) { // dloss, local_lse, target, labels -> dlse, dtarget
  const int64_t shards = t.in_block(1).last(), rows = t.in_block(1).rows();
  need(length(t.in(2)) == rows && length(t.in(3)) == rows, "cross_entropy_grad");
  for (int64_t m = 0; m < rows; ++m) {
    if (t.in(3)[at(m)] < 0) continue;
    const double lse = total_lse(t.in(1), m, shards), d = t.in(0)[0];
    for (int64_t i = 0; i < shards; ++i)
      t.out(0)[at(m * shards + i)] = d * (1 + 2 * t.attr<op::cross_entropy_attributes>().z * lse) *
                                     std::exp(t.in(1)[at(m * shards + i)] - lse);
    t.out(1)[at(m)] = -d;
  }
}

// --- the end of a step ---------------------------------------------------------------------------

inline void sum_of_squares(node_task& t) {
  for (double x : t.in(0)) t.out(0)[0] += x * x;
}
inline constexpr double clip_at = 0.25;
inline void clip_factor(node_task& t) { // token count, loss, sums of squares -> factor, norm
  double squares = 0;
  for (int k = 2; k < max_inputs; ++k)
    if (t.has(k)) squares += t.in(k)[0];
  const double count = t.in(0)[0], norm = std::sqrt(squares) / count;
  t.out(0)[0] = std::min(1.0, clip_at / (norm + 1e-6)) / count;
  t.out(1)[0] = norm;
}
/// Changes its operands in place. Every element counts as broken, so that the count shows whether
/// all ranks together saw each element once.
inline void adamw(node_task& t) {
  for (int k = 1; k < 5; ++k) need(t.in(k).size() == t.in(0).size(), "adamw");
  t.out(0)[0] = static_cast<double>(t.in(0).size());
}
/// Changes its operands in place and counts nothing.
inline void balance_step(node_task& t) {
  for (int k = 1; k < 3; ++k) need(t.in(k).size() == t.in(0).size(), "balance_step");
}

} // namespace mc::laws::plain
