// Every op in plain loops and double, one rank's part of it, straight from the equations in op/*.hpp
// and independent of kernel/. Wherever an op needs to know which elements it holds (embedding,
// vocabulary, dropout columns), it reads the block that the rank holds.
#pragma once

#include "simulated_ranks.hpp"

#include <megacpp/op/attention.hpp>
#include <megacpp/op/dropout.hpp>
#include <megacpp/op/elementwise.hpp>
#include <megacpp/op/embedding.hpp>
#include <megacpp/op/fused.hpp>
#include <megacpp/op/linear.hpp>
#include <megacpp/op/loss.hpp>
#include <megacpp/op/norm.hpp>
#include <megacpp/op/optimizer.hpp>
#include <megacpp/op/rope.hpp>
#include <megacpp/op/select.hpp>

#include <cmath>
#include <limits>

namespace mc::laws::plain {

using std::int64_t;
inline std::size_t at(int64_t i) { return static_cast<std::size_t>(i); }
inline int64_t length(const array& x) { return static_cast<int64_t>(x.size()); }
inline int64_t whole_number(double x) { return static_cast<int64_t>(std::llround(x)); }

// --- elementwise ---------------------------------------------------------------------------------

inline void add(task& t) { // add and sum
  need(t.in(0).size() == t.in(1).size() && t.in(0).size() == t.out(0).size(), "add");
  for (std::size_t i = 0; i < t.out(0).size(); ++i) t.out(0)[i] = t.in(0)[i] + t.in(1)[i];
}
inline void accumulate(task& t) {
  need(t.in(0).size() == t.out(0).size(), "accumulate");
  t.out(0) = t.in(0);
}

inline void gelu(task& t) {
  need(t.in(0).size() == t.out(0).size(), "gelu");
  for (std::size_t i = 0; i < t.out(0).size(); ++i) {
    const double x = t.in(0)[i];
    t.out(0)[i] = t.i(0) != 0 ? x * 0.5 * std::erfc(-x / std::sqrt(2.0))
                              : 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
  }
}
inline void gelu_grad(task& t) { // dy, x
  need(t.in(0).size() == t.out(0).size() && t.in(1).size() == t.out(0).size(), "gelu_grad");
  for (std::size_t i = 0; i < t.out(0).size(); ++i) {
    const double x = t.in(1)[i];
    double slope;
    if (t.i(0) != 0) {
      slope = 0.5 * std::erfc(-x / std::sqrt(2.0)) + x * std::exp(-x * x / 2) / std::sqrt(2 * M_PI);
    } else {
      const double c = std::sqrt(2 / M_PI), h = std::tanh(c * (x + 0.044715 * x * x * x));
      slope = 0.5 * (1 + h) + 0.5 * x * (1 - h * h) * c * (1 + 3 * 0.044715 * x * x);
    }
    t.out(0)[i] = t.in(0)[i] * slope;
  }
}

inline double logistic(double z) { return 1 / (1 + std::exp(-z)); }
inline void swiglu(task& t) { // gate, up
  need(t.in(0).size() == t.out(0).size() && t.in(1).size() == t.out(0).size(), "swiglu");
  for (std::size_t i = 0; i < t.out(0).size(); ++i) t.out(0)[i] = t.in(0)[i] * logistic(t.in(0)[i]) * t.in(1)[i];
}
inline void swiglu_grad(task& t) { // dy, gate, up -> dgate, dup
  for (int k = 0; k < 3; ++k) need(t.in(k).size() == t.out(0).size(), "swiglu_grad");
  for (std::size_t i = 0; i < t.out(0).size(); ++i) {
    const double dy = t.in(0)[i], z = t.in(1)[i], up = t.in(2)[i], s = logistic(z);
    t.out(0)[i] = dy * up * (s + z * s * (1 - s));
    t.out(1)[i] = dy * z * s;
  }
}

// --- products ------------------------------------------------------------------------------------

/// y (m, n) = x (m, k) w (n, k)^T + bias (n).
inline void linear(task& t) { // x, w, [bias]
  const int summed = static_cast<int>(t.i(0));
  const block x = t.in_block(0), w = t.in_block(1);
  const int64_t m = x.count(0, x.rank - summed), k = x.count(x.rank - summed, x.rank), n = w.count(0, w.rank - summed);
  need(w.size() == n * k && t.out_block(0).size() == m * n, "linear");
  for (int d = 1; d <= summed; ++d)
    need(x.local[at(x.rank - d)] == w.local[at(w.rank - d)] && x.first[at(x.rank - d)] == w.first[at(w.rank - d)], "linear: summed dims");
  if (t.has(2)) need(length(t.in(2)) == n, "linear: bias");
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      double y = t.has(2) ? t.in(2)[at(j)] : 0;
      for (int64_t l = 0; l < k; ++l) y += t.in(0)[at(i * k + l)] * t.in(1)[at(j * k + l)];
      t.out(0)[at(i * n + j)] = y;
    }
}
inline void linear_input_grad(task& t) { // dy, w -> dx
  const block dy = t.in_block(0), w = t.in_block(1);
  const int out = w.rank - static_cast<int>(t.i(0));
  const int64_t n = w.count(0, out), k = w.count(out, w.rank), m = dy.count(0, dy.rank - out);
  need(dy.size() == m * n && t.out_block(0).size() == m * k, "linear_input_grad");
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j)
      for (int64_t l = 0; l < k; ++l) t.out(0)[at(i * k + l)] += t.in(0)[at(i * n + j)] * t.in(1)[at(j * k + l)];
}
inline void linear_weight_grad(task& t) { // dy, x -> dw
  const block dy = t.in_block(0), x = t.in_block(1);
  const int lead = x.rank - static_cast<int>(t.i(0));
  const int64_t m = x.count(0, lead), k = x.count(lead, x.rank), n = dy.count(lead, dy.rank);
  need(dy.size() == m * n && t.out_block(0).size() == n * k, "linear_weight_grad");
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j)
      for (int64_t l = 0; l < k; ++l) t.out(0)[at(j * k + l)] += t.in(0)[at(i * n + j)] * t.in(1)[at(i * k + l)];
}
inline void bias_grad(task& t) { // dy -> db
  const int64_t n = length(t.out(0));
  need(n > 0 && length(t.in(0)) % n == 0, "bias_grad");
  for (int64_t i = 0; i < length(t.in(0)); ++i) t.out(0)[at(i % n)] += t.in(0)[at(i)];
}
inline void add_bias(task& t) { // x, bias
  const int64_t n = length(t.in(1));
  need(t.in(0).size() == t.out(0).size() && length(t.in(0)) % n == 0, "add_bias");
  const block x = t.in_block(0), b = t.in_block(1);
  for (int d = 1; d <= b.rank; ++d) need(x.local[at(x.rank - d)] == b.local[at(b.rank - d)], "add_bias: dims");
  for (int64_t i = 0; i < length(t.in(0)); ++i) t.out(0)[at(i)] = t.in(0)[at(i)] + t.in(1)[at(i % n)];
}

// --- norms ---------------------------------------------------------------------------------------

inline void norm(task& t, bool centred) { // x, gain, [bias] -> y, [mu,] r
  const block b = t.in_block(0);
  const int64_t n = b.last();
  need(length(t.in(1)) == n && (!t.has(2) || length(t.in(2)) == n), "norm");
  for (int64_t row = 0; row < b.rows(); ++row) {
    const double* x = t.in(0).data() + row * n;
    double mu = 0, square = 0;
    for (int64_t i = 0; centred && i < n; ++i) mu += x[i] / static_cast<double>(n);
    for (int64_t i = 0; i < n; ++i) square += (x[i] - mu) * (x[i] - mu);
    const double r = 1 / std::sqrt(square / static_cast<double>(n) + t.f(0));
    for (int64_t i = 0; i < n; ++i)
      t.out(0)[at(row * n + i)] = (x[i] - mu) * r * t.in(1)[at(i)] + (t.has(2) ? t.in(2)[at(i)] : 0);
    if (centred) t.out(1)[at(row)] = mu;
    t.out(centred ? 2 : 1)[at(row)] = r;
  }
}
inline void rms_norm(task& t) { norm(t, false); }
inline void layer_norm(task& t) { norm(t, true); }

inline void norm_grad(task& t, bool centred) { // dy, x, gain, [mu,] r -> dx
  const block b = t.in_block(1);
  const int64_t n = b.last();
  need(t.in(0).size() == t.in(1).size() && length(t.in(2)) == n, "norm_grad");
  for (int64_t row = 0; row < b.rows(); ++row) {
    const double mu = centred ? t.in(3)[at(row)] : 0, r = t.in(centred ? 4 : 3)[at(row)];
    double mean_e = 0, mean_eh = 0;
    for (int64_t i = row * n; i < (row + 1) * n; ++i) {
      const double e = t.in(0)[at(i)] * t.in(2)[at(i - row * n)];
      mean_e += e / static_cast<double>(n);
      mean_eh += e * (t.in(1)[at(i)] - mu) * r / static_cast<double>(n);
    }
    for (int64_t i = row * n; i < (row + 1) * n; ++i) {
      const double e = t.in(0)[at(i)] * t.in(2)[at(i - row * n)];
      t.out(0)[at(i)] = r * (e - (t.in(1)[at(i)] - mu) * r * mean_eh - (centred ? mean_e : 0));
    }
  }
}
inline void rms_norm_grad(task& t) { norm_grad(t, false); }
inline void layer_norm_grad(task& t) { norm_grad(t, true); }

inline void norm_gain_grad(task& t, bool centred) { // dy, x, [mu,] r -> dgain
  const block b = t.in_block(1);
  const int64_t n = b.last();
  need(t.in(0).size() == t.in(1).size() && length(t.out(0)) == n, "norm_gain_grad");
  for (int64_t i = 0; i < b.size(); ++i) {
    const double mu = centred ? t.in(2)[at(i / n)] : 0, r = t.in(centred ? 3 : 2)[at(i / n)];
    t.out(0)[at(i % n)] += t.in(0)[at(i)] * (t.in(1)[at(i)] - mu) * r;
  }
}
inline void rms_norm_gain_grad(task& t) { norm_gain_grad(t, false); }
inline void layer_norm_gain_grad(task& t) { norm_gain_grad(t, true); }

// --- rows by index -------------------------------------------------------------------------------

inline void embedding(task& t) { // ids, table
  const block table = t.in_block(1);
  const int64_t width = table.local[1];
  need(length(t.out(0)) == length(t.in(0)) * width, "embedding");
  for (int64_t i = 0; i < length(t.in(0)); ++i) {
    const int64_t id = whole_number(t.in(0)[at(i)]);
    need(id >= 0 && id < table.whole[0], "embedding: id");
    const int64_t row = id - table.first[0];
    for (int64_t j = 0; j < width && row >= 0 && row < table.local[0]; ++j)
      t.out(0)[at(i * width + j)] = t.in(1)[at(row * width + j)];
  }
}
inline void embedding_grad(task& t) { // dy, ids, table -> dtable
  const block table = t.in_block(2);
  const int64_t width = table.local[1];
  need(length(t.in(0)) == length(t.in(1)) * width && length(t.out(0)) == table.size(), "embedding_grad");
  for (int64_t i = 0; i < length(t.in(1)); ++i) {
    const int64_t row = whole_number(t.in(1)[at(i)]) - table.first[0];
    for (int64_t j = 0; j < width && row >= 0 && row < table.local[0]; ++j)
      t.out(0)[at(row * width + j)] += t.in(0)[at(i * width + j)];
  }
}
inline void select(task& t) { // x (B, S, H), index (B)
  const block x = t.in_block(0);
  const int64_t s = x.local[1], h = x.local[2];
  need(length(t.in(1)) == x.local[0] && length(t.out(0)) == x.local[0] * h, "select");
  for (int64_t b = 0; b < x.local[0]; ++b) {
    const int64_t row = whole_number(t.in(1)[at(b)]);
    need(row >= 0 && row < s, "select: index");
    for (int64_t j = 0; j < h; ++j) t.out(0)[at(b * h + j)] = t.in(0)[at((b * s + row) * h + j)];
  }
}
inline void repeat(task& t) { // x
  const block x = t.in_block(0);
  const int64_t times = t.i(0), inner = x.count(1, x.rank);
  need(length(t.out(0)) == x.size() * times, "repeat");
  for (int64_t i = 0; i < length(t.out(0)); ++i) t.out(0)[at(i)] = t.in(0)[at(i / inner / times * inner + i % inner)];
}
inline void repeat_grad(task& t) { // dy
  const block x = t.out_block(0);
  const int64_t times = t.i(0), inner = x.count(1, x.rank);
  need(length(t.in(0)) == x.size() * times, "repeat_grad");
  for (int64_t i = 0; i < length(t.in(0)); ++i) t.out(0)[at(i / inner / times * inner + i % inner)] += t.in(0)[at(i)];
}

// --- positions and masks -------------------------------------------------------------------------

inline void rope(task& t) { // x (..., D), positions (B, S)
  const block x = t.in_block(0);
  const int64_t d = x.last(), heads = x.size() / length(t.in(1)) / d;
  need(length(t.in(1)) * heads * d == x.size() && x.count(0, t.value_in(1).rank) == length(t.in(1)), "rope");
  for (int64_t row = 0; row < x.rows(); ++row)
    for (int64_t i = 0; i < d / 2; ++i) {
      const double angle = t.in(1)[at(row / heads)] * std::pow(t.f(0), -2 * static_cast<double>(i) / static_cast<double>(d));
      const double c = std::cos(angle), s = static_cast<double>(t.i(0)) * std::sin(angle);
      const double a = t.in(0)[at(row * d + i)], b = t.in(0)[at(row * d + i + d / 2)];
      t.out(0)[at(row * d + i)] = a * c - b * s;
      t.out(0)[at(row * d + i + d / 2)] = b * c + a * s;
    }
}
/// The mask's random bits are any function of (key of the token, salt, global column).
inline void dropout(task& t) { // x (B, S, N), token_keys (B, S)
  const block x = t.in_block(0);
  const int64_t n = x.last();
  need(length(t.in(1)) == x.rows(), "dropout");
  for (int64_t i = 0; i < x.size(); ++i) {
    const auto key = static_cast<std::uint64_t>(whole_number(t.in(1)[at(i / n)]));
    const auto column = static_cast<std::uint64_t>(x.first[at(x.rank - 1)] + i % n);
    const bool keep = (scrambled(key, static_cast<std::uint64_t>(t.i(0)) + 1, column) + 1) / 2 >= t.f(0);
    t.out(0)[at(i)] = keep ? t.in(0)[at(i)] / (1 - t.f(0)) : 0;
  }
}

// --- attention -----------------------------------------------------------------------------------

/// One query row against all keys: calls f(i, j, p) for head a of batch b, with the scores' softmax.
struct heads_of {
  block q, k;
  double scale;
  const array *queries, *keys, *q_position, *k_position, *q_document, *k_document;
  bool causal;
  int64_t window;

  heads_of(task& t, int first, int ints)
      : q(t.in_block(first)), k(t.in_block(first + 1)),
        scale(t.f(0) > 0 ? t.f(0) : 1 / std::sqrt(static_cast<double>(q.local[3]))), queries(&t.in(first)), keys(&t.in(first + 1)),
        q_position(&t.in(ints)), k_position(&t.in(ints + 1)), q_document(t.has(ints + 2) ? &t.in(ints + 2) : nullptr),
        k_document(t.has(ints + 3) ? &t.in(ints + 3) : nullptr), causal(t.i(0) != 0), window(t.i(1)) {
    need(k.local[0] == q.local[0] && k.local[3] == q.local[3] && k.local[2] > 0 && q.local[2] % k.local[2] == 0, "attention");
    need(length(t.in(first + 2)) == k.size(), "attention: values");
    need(length(*q_position) == q.local[0] * q.local[1] && length(*k_position) == k.local[0] * k.local[1], "attention: positions");
    if (q_document != nullptr) need(q_document->size() == q_position->size() && k_document->size() == k_position->size(), "attention: documents");
  }
  std::size_t q_at(int64_t b, int64_t i, int64_t a) const { return at(((b * q.local[1] + i) * q.local[2] + a) * q.local[3]); }
  std::size_t k_at(int64_t b, int64_t j, int64_t a) const {
    return at(((b * k.local[1] + j) * k.local[2] + a * k.local[2] / q.local[2]) * k.local[3]);
  }
  bool visible(int64_t b, int64_t i, int64_t j) const {
    const std::size_t qi = at(b * q.local[1] + i), kj = at(b * k.local[1] + j);
    const double ahead = (*k_position)[kj] - (*q_position)[qi];
    if (causal && (ahead > 0 || (window > 0 && ahead <= -static_cast<double>(window)))) return false;
    return q_document == nullptr || (*q_document)[qi] == (*k_document)[kj];
  }
  /// Softmax of row i's scores, and their log-sum-exp.
  array softmax(int64_t b, int64_t i, int64_t a, double& lse) const {
    array p(at(k.local[1]), -std::numeric_limits<double>::infinity());
    double top = -std::numeric_limits<double>::infinity(), sum = 0;
    for (int64_t j = 0; j < k.local[1]; ++j) {
      if (!visible(b, i, j)) continue;
      p[at(j)] = 0;
      for (int64_t d = 0; d < q.local[3]; ++d)
        p[at(j)] += scale * (*queries)[q_at(b, i, a) + at(d)] * (*keys)[k_at(b, j, a) + at(d)];
      top = std::max(top, p[at(j)]);
    }
    need(std::isfinite(top), "attention: a query sees no key");
    for (double& x : p) sum += x = std::exp(x - top);
    for (double& x : p) x /= sum;
    lse = top + std::log(sum);
    return p;
  }
  template <class F> void each(F f) const {
    for (int64_t b = 0; b < q.local[0]; ++b)
      for (int64_t a = 0; a < q.local[2]; ++a)
        for (int64_t i = 0; i < q.local[1]; ++i) f(b, a, i);
  }
};

inline void attention(task& t) { // q, k, v, positions, documents -> o, lse (B, A, S)
  const heads_of h(t, 0, 3);
  h.each([&](int64_t b, int64_t a, int64_t i) {
    const array p = h.softmax(b, i, a, t.out(1)[at((b * h.q.local[2] + a) * h.q.local[1] + i)]);
    for (int64_t j = 0; j < h.k.local[1]; ++j)
      for (int64_t d = 0; d < h.q.local[3]; ++d) t.out(0)[h.q_at(b, i, a) + at(d)] += p[at(j)] * t.in(2)[h.k_at(b, j, a) + at(d)];
  });
}
inline void attention_grad(task& t) { // dy, q, k, v, o, lse, positions, documents -> dq, dk, dv
  const heads_of h(t, 1, 6);
  need(t.in(0).size() == t.in(1).size() && t.in(4).size() == t.in(1).size(), "attention_grad");
  h.each([&](int64_t b, int64_t a, int64_t i) {
    double lse = 0, delta = 0;
    const array p = h.softmax(b, i, a, lse);
    const std::size_t qi = h.q_at(b, i, a);
    for (int64_t d = 0; d < h.q.local[3]; ++d) delta += t.in(0)[qi + at(d)] * t.in(4)[qi + at(d)];
    for (int64_t j = 0; j < h.k.local[1]; ++j) {
      const std::size_t kj = h.k_at(b, j, a);
      double dp = 0;
      for (int64_t d = 0; d < h.q.local[3]; ++d) dp += t.in(0)[qi + at(d)] * t.in(3)[kj + at(d)];
      const double ds = p[at(j)] * (dp - delta) * h.scale;
      for (int64_t d = 0; d < h.q.local[3]; ++d) {
        t.out(0)[qi + at(d)] += ds * t.in(2)[kj + at(d)];
        t.out(1)[kj + at(d)] += ds * t.in(1)[qi + at(d)];
        t.out(2)[kj + at(d)] += p[at(j)] * t.in(0)[qi + at(d)];
      }
    }
  });
}

// --- loss ----------------------------------------------------------------------------------------

/// Logits of row m over this rank's rows of w; -inf for padding.
inline array logits_of(const task& t, int x, int w, int64_t m) {
  const block table = t.in_block(w);
  const int64_t h = table.local[1];
  need(t.in_block(x).last() == h, "vocabulary_partial");
  array out(at(table.local[0]), -std::numeric_limits<double>::infinity());
  for (int64_t v = 0; v < table.local[0] && table.first[0] + v < t.i(0); ++v) {
    out[at(v)] = 0;
    for (int64_t k = 0; k < h; ++k) out[at(v)] += t.in(x)[at(m * h + k)] * t.in(w)[at(v * h + k)];
  }
  return out;
}
inline void vocabulary_partial(task& t) { // x, w, labels -> lse_part (B, S, parts), target (B, S)
  const int64_t rows = t.in_block(0).rows(), first = t.in_block(1).first[0];
  need(length(t.in(2)) == rows && length(t.out(0)) == rows && length(t.out(1)) == rows, "vocabulary_partial: rows");
  for (int64_t m = 0; m < rows; ++m) {
    const array l = logits_of(t, 0, 1, m);
    const double top = *std::max_element(l.begin(), l.end());
    double sum = 0;
    for (double x : l) sum += std::isfinite(top) ? std::exp(x - top) : 0;
    t.out(0)[at(m)] = std::isfinite(top) ? top + std::log(sum) : top;
    const int64_t mine = whole_number(t.in(2)[at(m)]) - first;
    if (t.in(2)[at(m)] >= 0 && mine >= 0 && mine < length(l)) t.out(1)[at(m)] = l[at(mine)];
  }
}
inline void vocabulary_partial_grad(task& t) { // dlse, dtarget, x, w, labels, lse_part -> dx, [dw]
  const block w = t.in_block(3);
  const int64_t rows = t.in_block(2).rows(), h = w.local[1];
  need(length(t.in(0)) == rows && length(t.in(1)) == rows && length(t.in(4)) == rows && length(t.in(5)) == rows, "vocabulary_partial_grad");
  for (int64_t m = 0; m < rows; ++m) {
    const array l = logits_of(t, 2, 3, m);
    for (int64_t v = 0; v < length(l); ++v) {
      if (!std::isfinite(l[at(v)])) continue;
      const bool is_label = t.in(4)[at(m)] >= 0 && whole_number(t.in(4)[at(m)]) == w.first[0] + v;
      const double dl = t.in(0)[at(m)] * std::exp(l[at(v)] - t.in(5)[at(m)]) + (is_label ? t.in(1)[at(m)] : 0);
      for (int64_t k = 0; k < h; ++k) {
        t.out(0)[at(m * h + k)] += dl * t.in(3)[at(v * h + k)];
        if (t.i(1) != 0) t.out(1)[at(v * h + k)] += dl * t.in(2)[at(m * h + k)];
      }
    }
  }
}
inline double total_lse(const array& parts, int64_t row, int64_t n) {
  double top = -std::numeric_limits<double>::infinity(), sum = 0;
  for (int64_t i = 0; i < n; ++i) top = std::max(top, parts[at(row * n + i)]);
  for (int64_t i = 0; i < n; ++i) sum += std::exp(parts[at(row * n + i)] - top);
  return top + std::log(sum);
}
inline void cross_entropy(task& t) { // lse_part, target, labels -> loss, count
  const int64_t parts = t.in_block(0).last(), rows = t.in_block(0).rows();
  need(length(t.in(1)) == rows && length(t.in(2)) == rows, "cross_entropy");
  for (int64_t m = 0; m < rows; ++m) {
    if (t.in(2)[at(m)] < 0) continue;
    const double lse = total_lse(t.in(0), m, parts);
    t.out(0)[0] += lse - t.in(1)[at(m)] + t.f(0) * lse * lse;
    t.out(1)[0] += 1;
  }
}
inline void cross_entropy_grad(task& t) { // dloss, lse_part, target, labels -> dlse_part, dtarget
  const int64_t parts = t.in_block(1).last(), rows = t.in_block(1).rows();
  need(length(t.in(2)) == rows && length(t.in(3)) == rows, "cross_entropy_grad");
  for (int64_t m = 0; m < rows; ++m) {
    if (t.in(3)[at(m)] < 0) continue;
    const double lse = total_lse(t.in(1), m, parts), d = t.in(0)[0];
    for (int64_t i = 0; i < parts; ++i)
      t.out(0)[at(m * parts + i)] = d * (1 + 2 * t.f(0) * lse) * std::exp(t.in(1)[at(m * parts + i)] - lse);
    t.out(1)[at(m)] = -d;
  }
}

// --- fused ops: their definitions in op/fused.hpp, by the plain ops ----------------------------------

/// A node of another op on the same rank: operands and outputs of `t`, renamed.
inline task renamed(task& t, const node& n) {
  task u{t.w, t.g, n, t.rank};
  for (unsigned k = 0; k < max_inputs; ++k)
    for (unsigned j = 0; j < max_inputs && n.in[k] >= 0; ++j)
      if (t.n.in[j] == n.in[k]) u.inputs[k] = t.inputs[j];
  for (unsigned k = 0; k < max_outputs; ++k)
    if (n.out[k] >= 0 && t.g.at(n.out[k]).is != role::scratch)
      u.outputs[k].assign(at(u.out_block(static_cast<int>(k)).size()), 0.0);
  return u;
}
inline void add_norm(task& t, bool centred) { // x, a, gain, [bias] -> s, y, [mu,] r
  add(t);
  node n = t.n;
  n.in = {t.n.in[0], t.n.in[2], t.n.in[3], -1, -1, -1, -1, -1, -1, -1};
  n.out = {t.n.out[1], t.n.out[2], centred ? t.n.out[3] : value_id{-1}};
  for (unsigned k = 3; k < max_outputs; ++k) n.out[k] = -1;
  task u = renamed(t, n);
  u.inputs[0] = &t.out(0);
  norm(u, centred);
  for (int k = 0; k < (centred ? 3 : 2); ++k) t.out(1 + k) = u.out(k);
}
inline void add_rms_norm(task& t) { add_norm(t, false); }
inline void add_layer_norm(task& t) { add_norm(t, true); }
inline void add_operand(task& t, int k) {
  need(t.in(k).size() == t.out(0).size(), "a fused sum");
  for (std::size_t i = 0; i < t.out(0).size(); ++i) t.out(0)[i] += t.in(k)[i];
}
inline void rms_norm_grad_add(task& t) { norm_grad(t, false), add_operand(t, 4); }
inline void layer_norm_grad_add(task& t) { norm_grad(t, true), add_operand(t, 5); }
inline void linear_input_grad_add(task& t) { linear_input_grad(t), add_operand(t, 2); }
inline void vocabulary_loss(task& t) { // x, w, labels, dloss -> loss, count, dx, [dw]
  const block x = t.in_block(0), w = t.in_block(1);
  const int64_t h = w.local[1];
  need(w.local[0] == w.whole[0] && length(t.in(2)) == x.rows(), "vocabulary_loss");
  for (int64_t m = 0; m < x.rows(); ++m) {
    if (t.in(2)[at(m)] < 0) continue;
    const array l = logits_of(t, 0, 1, m);
    const double lse = total_lse(l, 0, length(l)), d = t.in(3)[0];
    const int64_t label = whole_number(t.in(2)[at(m)]);
    t.out(0)[0] += lse - l[at(label)] + t.f(0) * lse * lse;
    t.out(1)[0] += 1;
    for (int64_t v = 0; v < length(l); ++v) {
      if (!std::isfinite(l[at(v)])) continue;
      const double dl = d * (1 + 2 * t.f(0) * lse) * std::exp(l[at(v)] - lse) - (v == label ? d : 0);
      for (int64_t k = 0; k < h; ++k) {
        t.out(2)[at(m * h + k)] += dl * t.in(1)[at(v * h + k)];
        if (t.i(1) != 0) t.out(3)[at(v * h + k)] += dl * t.in(0)[at(m * h + k)];
      }
    }
  }
}

// --- the end of a step ---------------------------------------------------------------------------

inline void sum_of_squares(task& t) {
  for (double x : t.in(0)) t.out(0)[0] += x * x;
}
inline constexpr double clip_at = 0.25;
inline void clip_factor(task& t) { // token count, sums of squares -> factor, norm
  double squares = 0;
  for (int k = 1; k < max_inputs; ++k)
    if (t.has(k)) squares += t.in(k)[0];
  const double count = t.in(0)[0], norm = std::sqrt(squares) / count;
  t.out(0)[0] = std::min(1.0, clip_at / (norm + 1e-6)) / count;
  t.out(1)[0] = norm;
}
/// Changes its operands in place and has no outputs: nothing flows out of it.
inline void adamw(task& t) {
  for (int k = 1; k < 5; ++k) need(t.in(k).size() == t.in(0).size(), "adamw");
}

inline const implementations& all() {
  static const implementations table{
      {&op::add, &add}, {&op::sum, &add}, {&op::accumulate, &accumulate},
      {&op::gelu, &gelu}, {&op::gelu_grad, &gelu_grad}, {&op::swiglu, &swiglu}, {&op::swiglu_grad, &swiglu_grad},
      {&op::linear, &linear}, {&op::linear_input_grad, &linear_input_grad}, {&op::linear_weight_grad, &linear_weight_grad},
      {&op::bias_grad, &bias_grad}, {&op::add_bias, &add_bias},
      {&op::rms_norm, &rms_norm}, {&op::rms_norm_grad, &rms_norm_grad}, {&op::rms_norm_gain_grad, &rms_norm_gain_grad},
      {&op::layer_norm, &layer_norm}, {&op::layer_norm_grad, &layer_norm_grad}, {&op::layer_norm_gain_grad, &layer_norm_gain_grad},
      {&op::embedding, &embedding}, {&op::embedding_grad, &embedding_grad},
      {&op::select, &select}, {&op::repeat, &repeat}, {&op::repeat_grad, &repeat_grad},
      {&op::rope, &rope}, {&op::dropout, &dropout},
      {&op::attention, &attention}, {&op::attention_grad, &attention_grad},
      {&op::vocabulary_partial, &vocabulary_partial}, {&op::vocabulary_partial_grad, &vocabulary_partial_grad},
      {&op::cross_entropy, &cross_entropy}, {&op::cross_entropy_grad, &cross_entropy_grad},
      {&op::sum_of_squares, &sum_of_squares}, {&op::clip_factor, &clip_factor}, {&op::adamw, &adamw},
      {&op::add_rms_norm, &add_rms_norm}, {&op::add_layer_norm, &add_layer_norm},
      {&op::rms_norm_grad_add, &rms_norm_grad_add}, {&op::layer_norm_grad_add, &layer_norm_grad_add},
      {&op::linear_input_grad_add, &linear_input_grad_add}, {&op::vocabulary_loss, &vocabulary_loss},
      {&op::redistribute, nullptr}};
  return table;
}

} // namespace mc::laws::plain
