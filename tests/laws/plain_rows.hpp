// Ops in plain loops and double, for one rank's shard, straight from the equations in op/*.hpp and
// independent of kernel/. An op that needs to know which elements the rank holds (embedding,
// vocabulary, dropout columns) reads the rank's box.
#pragma once

#include "simulated_ranks.hpp"

#include <megacpp/num/random.hpp>
#include <megacpp/op/dropout.hpp>
#include <megacpp/op/elementwise.hpp>
#include <megacpp/op/embedding.hpp>
#include <megacpp/op/linear.hpp>
#include <megacpp/op/norm.hpp>
#include <megacpp/op/rope.hpp>
#include <megacpp/op/select.hpp>

#include <cmath>

namespace mc::laws::plain {

using std::int64_t;
inline std::size_t at(int64_t i) { return static_cast<std::size_t>(i); }
inline int64_t length(const array& x) { return static_cast<int64_t>(x.size()); }
inline int64_t whole_number(double x) { return static_cast<int64_t>(std::llround(x)); }

// --- elementwise ---------------------------------------------------------------------------------

inline void add(node_task& t) { // add and sum
  need(t.in(0).size() == t.in(1).size() && t.in(0).size() == t.out(0).size(), "add");
  for (std::size_t i = 0; i < t.out(0).size(); ++i) t.out(0)[i] = t.in(0)[i] + t.in(1)[i];
}
inline void accumulate(node_task& t) {
  need(t.in(0).size() == t.out(0).size(), "accumulate");
  t.out(0) = t.in(0);
}
inline void cast(node_task& t) { // integers have one type here
  need(t.in(0).size() == t.out(0).size(), "cast");
  t.out(0) = t.in(0);
}

inline void scale(node_task& t) {
  need(t.in(0).size() == t.out(0).size(), "scale");
  for (std::size_t i = 0; i < t.out(0).size(); ++i)
    t.out(0)[i] = t.in(0)[i] * t.attr<op::scale_attributes>().factor;
}
inline void gelu(node_task& t) {
  need(t.in(0).size() == t.out(0).size(), "gelu");
  for (std::size_t i = 0; i < t.out(0).size(); ++i) {
    const double x = t.in(0)[i];
    t.out(0)[i] = t.attr<op::gelu_attributes>().form == gelu_form::exact
                      ? x * 0.5 * std::erfc(-x / std::sqrt(2.0))
                      : 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
  }
}
inline void gelu_grad(node_task& t) { // dy, x
  need(t.in(0).size() == t.out(0).size() && t.in(1).size() == t.out(0).size(), "gelu_grad");
  for (std::size_t i = 0; i < t.out(0).size(); ++i) {
    const double x = t.in(1)[i];
    double slope;
    if (t.attr<op::gelu_attributes>().form == gelu_form::exact) {
      slope = 0.5 * std::erfc(-x / std::sqrt(2.0)) + x * std::exp(-x * x / 2) / std::sqrt(2 * M_PI);
    } else {
      const double c = std::sqrt(2 / M_PI), h = std::tanh(c * (x + 0.044715 * x * x * x));
      slope = 0.5 * (1 + h) + 0.5 * x * (1 - h * h) * c * (1 + 3 * 0.044715 * x * x);
    }
    t.out(0)[i] = t.in(0)[i] * slope;
  }
}

inline double logistic(double z) { return 1 / (1 + std::exp(-z)); }
inline void swiglu(node_task& t) { // gate, up
  need(t.in(0).size() == t.out(0).size() && t.in(1).size() == t.out(0).size(), "swiglu");
  for (std::size_t i = 0; i < t.out(0).size(); ++i)
    t.out(0)[i] = t.in(0)[i] * logistic(t.in(0)[i]) * t.in(1)[i];
}
inline void swiglu_grad(node_task& t) { // dy, gate, up -> dgate, dup
  for (int k = 0; k < 3; ++k) need(t.in(k).size() == t.out(0).size(), "swiglu_grad");
  for (std::size_t i = 0; i < t.out(0).size(); ++i) {
    const double dy = t.in(0)[i], z = t.in(1)[i], up = t.in(2)[i], s = logistic(z);
    t.out(0)[i] = dy * up * (s + z * s * (1 - s));
    t.out(1)[i] = dy * z * s;
  }
}

// --- products ------------------------------------------------------------------------------------

/// y (m, n) = x (m, k) w (n, k)^T + bias (n).
inline void linear(node_task& t) { // x, w, [bias]
  const int summed = t.attr<op::product_attributes>().summed;
  const block x = t.in_block(0), w = t.in_block(1);
  const int64_t m = x.count(0, x.rank - summed), k = x.count(x.rank - summed, x.rank),
                n = w.count(0, w.rank - summed);
  need(w.size() == n * k && t.out_block(0).size() == m * n, "linear");
  for (int d = 1; d <= summed; ++d)
    need(x.local[at(x.rank - d)] == w.local[at(w.rank - d)] &&
             x.first[at(x.rank - d)] == w.first[at(w.rank - d)],
         "linear: summed dims");
  if (t.has(2)) need(length(t.in(2)) == n, "linear: bias");
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      double y = t.has(2) ? t.in(2)[at(j)] : 0;
      for (int64_t l = 0; l < k; ++l) y += t.in(0)[at(i * k + l)] * t.in(1)[at(j * k + l)];
      t.out(0)[at(i * n + j)] = y;
    }
}
inline void linear_input_grad(node_task& t) { // dy, w -> dx
  const block dy = t.in_block(0), w = t.in_block(1);
  const int out = w.rank - t.attr<op::product_attributes>().summed;
  const int64_t n = w.count(0, out), k = w.count(out, w.rank), m = dy.count(0, dy.rank - out);
  need(dy.size() == m * n && t.out_block(0).size() == m * k, "linear_input_grad");
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j)
      for (int64_t l = 0; l < k; ++l)
        t.out(0)[at(i * k + l)] += t.in(0)[at(i * n + j)] * t.in(1)[at(j * k + l)];
}
inline void linear_weight_grad(node_task& t) { // dy, x -> dw
  const block dy = t.in_block(0), x = t.in_block(1);
  const int lead = x.rank - t.attr<op::product_attributes>().summed;
  const int64_t m = x.count(0, lead), k = x.count(lead, x.rank), n = dy.count(lead, dy.rank);
  need(dy.size() == m * n && t.out_block(0).size() == n * k, "linear_weight_grad");
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j)
      for (int64_t l = 0; l < k; ++l)
        t.out(0)[at(j * k + l)] += t.in(0)[at(i * n + j)] * t.in(1)[at(i * k + l)];
}
inline void bias_grad(node_task& t) { // dy -> db
  const int64_t n = length(t.out(0));
  need(n > 0 && length(t.in(0)) % n == 0, "bias_grad");
  for (int64_t i = 0; i < length(t.in(0)); ++i) t.out(0)[at(i % n)] += t.in(0)[at(i)];
}
inline void add_bias(node_task& t) { // x, bias
  const int64_t n = length(t.in(1));
  need(t.in(0).size() == t.out(0).size() && length(t.in(0)) % n == 0, "add_bias");
  const block x = t.in_block(0), b = t.in_block(1);
  for (int d = 1; d <= b.rank; ++d)
    need(x.local[at(x.rank - d)] == b.local[at(b.rank - d)], "add_bias: dims");
  for (int64_t i = 0; i < length(t.in(0)); ++i)
    t.out(0)[at(i)] = t.in(0)[at(i)] + t.in(1)[at(i % n)];
}

// --- norms ---------------------------------------------------------------------------------------

inline void norm(node_task& t, bool centred) { // x, gain, [bias] -> y, [mu,] r
  const block b = t.in_block(0);
  const int64_t n = b.last();
  need(length(t.in(1)) == n && (!t.has(2) || length(t.in(2)) == n), "norm");
  for (int64_t row = 0; row < b.rows(); ++row) {
    const double* x = t.in(0).data() + row * n;
    double mu = 0, square = 0;
    for (int64_t i = 0; centred && i < n; ++i) mu += x[i] / static_cast<double>(n);
    for (int64_t i = 0; i < n; ++i) square += (x[i] - mu) * (x[i] - mu);
    const double r =
        1 / std::sqrt(square / static_cast<double>(n) + t.attr<op::norm_attributes>().eps);
    for (int64_t i = 0; i < n; ++i)
      t.out(0)[at(row * n + i)] =
          (x[i] - mu) * r * t.in(1)[at(i)] + (t.has(2) ? t.in(2)[at(i)] : 0);
    if (centred) t.out(1)[at(row)] = mu;
    t.out(centred ? 2 : 1)[at(row)] = r;
  }
}
inline void rms_norm(node_task& t) { norm(t, false); }
inline void layer_norm(node_task& t) { norm(t, true); }

inline void norm_grad(node_task& t, bool centred) { // dy, x, gain, [mu,] r -> dx
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
inline void rms_norm_grad(node_task& t) { norm_grad(t, false); }
inline void layer_norm_grad(node_task& t) { norm_grad(t, true); }

inline void norm_gain_grad(node_task& t, bool centred) { // dy, x, [mu,] r -> dgain
  const block b = t.in_block(1);
  const int64_t n = b.last();
  need(t.in(0).size() == t.in(1).size() && length(t.out(0)) == n, "norm_gain_grad");
  for (int64_t i = 0; i < b.size(); ++i) {
    const double mu = centred ? t.in(2)[at(i / n)] : 0, r = t.in(centred ? 3 : 2)[at(i / n)];
    t.out(0)[at(i % n)] += t.in(0)[at(i)] * (t.in(1)[at(i)] - mu) * r;
  }
}
inline void rms_norm_gain_grad(node_task& t) { norm_gain_grad(t, false); }
inline void layer_norm_gain_grad(node_task& t) { norm_gain_grad(t, true); }

// --- rows by index -------------------------------------------------------------------------------

inline void embedding(node_task& t) { // ids, table
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
inline void embedding_grad(node_task& t) { // dy, ids, table -> dtable
  const block table = t.in_block(2);
  const int64_t width = table.local[1];
  need(length(t.in(0)) == length(t.in(1)) * width && length(t.out(0)) == table.size(),
       "embedding_grad");
  for (int64_t i = 0; i < length(t.in(1)); ++i) {
    const int64_t row = whole_number(t.in(1)[at(i)]) - table.first[0];
    for (int64_t j = 0; j < width && row >= 0 && row < table.local[0]; ++j)
      t.out(0)[at(row * width + j)] += t.in(0)[at(i * width + j)];
  }
}
inline void select(node_task& t) { // x (B, S, H), index (B)
  const block x = t.in_block(0);
  const int64_t s = x.local[1], h = x.local[2];
  need(length(t.in(1)) == x.local[0] && length(t.out(0)) == x.local[0] * h, "select");
  for (int64_t b = 0; b < x.local[0]; ++b) {
    const int64_t row = whole_number(t.in(1)[at(b)]);
    need(row >= 0 && row < s, "select: index");
    for (int64_t j = 0; j < h; ++j) t.out(0)[at(b * h + j)] = t.in(0)[at((b * s + row) * h + j)];
  }
}
inline void repeat(node_task& t) { // x
  const block x = t.in_block(0);
  const int64_t times = t.attr<op::repeat_attributes>().times, inner = x.count(1, x.rank);
  need(length(t.out(0)) == x.size() * times, "repeat");
  for (int64_t i = 0; i < length(t.out(0)); ++i)
    t.out(0)[at(i)] = t.in(0)[at(i / inner / times * inner + i % inner)];
}
inline void repeat_grad(node_task& t) { // dy
  const block x = t.out_block(0);
  const int64_t times = t.attr<op::repeat_attributes>().times, inner = x.count(1, x.rank);
  need(length(t.in(0)) == x.size() * times, "repeat_grad");
  for (int64_t i = 0; i < length(t.in(0)); ++i)
    t.out(0)[at(i / inner / times * inner + i % inner)] += t.in(0)[at(i)];
}

// --- positions and masks -------------------------------------------------------------------------

inline void rope(node_task& t) { // x (..., D), positions (B, S)
  const block x = t.in_block(0);
  const int64_t d = x.last(), heads = x.size() / length(t.in(1)) / d;
  need(length(t.in(1)) * heads * d == x.size() && x.count(0, t.value_in(1).rank) == length(t.in(1)),
       "rope");
  for (int64_t row = 0; row < x.rows(); ++row)
    for (int64_t i = 0; i < d / 2; ++i) {
      const auto told = t.attr<op::rope_attributes>();
      const double v = std::pow(told.base, -2 * static_cast<double>(i) / static_cast<double>(d)),
                   along = told.along == op::rope_ramp::pair ? static_cast<double>(i) : v,
                   kept = told.along == op::rope_ramp::none
                              ? 0
                              : std::clamp((along - told.slow) / (told.fast - told.slow), 0.0, 1.0),
                   angle = t.in(1)[at(row / heads)] * v * (kept + (1 - kept) / told.factor);
      const double c = std::cos(angle), s = static_cast<double>(told.direction) * std::sin(angle);
      const double a = t.in(0)[at(row * d + i)], b = t.in(0)[at(row * d + i + d / 2)];
      t.out(0)[at(row * d + i)] = a * c - b * s;
      t.out(0)[at(row * d + i + d / 2)] = b * c + a * s;
    }
}
/// Returns the mask of layer 0, straight from its definition in op/dropout.hpp.
inline void dropout(node_task& t) { // x (B, S, N) or (B, S, A, D), token_keys (B, S), seed, step
  const block x = t.in_block(0);
  const int dims = t.value_in(1).rank; // number of dims of token_keys
  const int64_t n = x.count(dims, x.rank);
  need(length(t.in(1)) * n == x.size() && x.rank > dims, "dropout");
  const auto seed = static_cast<std::uint64_t>(whole_number(t.in(2)[0])),
             step = static_cast<std::uint64_t>(whole_number(t.in(3)[0]));
  const auto [p, salt] = t.attr<op::dropout_attributes>();
  const std::uint64_t key = random_key(seed, (step << 24) + 256 + static_cast<std::uint64_t>(salt));
  for (int64_t i = 0; i < x.size(); ++i) {
    auto c = static_cast<std::uint64_t>(whole_number(t.in(1)[at(i / n)]));
    for (int d = dims; d < x.rank; ++d)
      c = c * static_cast<std::uint64_t>(x.whole[at(d)]) +
          static_cast<std::uint64_t>(x.first[at(d)] + i / x.count(d + 1, x.rank) % x.local[at(d)]);
    const bool keep =
        static_cast<double>(philox(key, c >> 2)[c & 3] >> 8) >= std::floor(p * 0x1p24);
    t.out(0)[at(i)] = keep ? t.in(0)[at(i)] / (1 - p) : 0;
  }
}

} // namespace mc::laws::plain
