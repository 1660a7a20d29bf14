// The bodies of attention on emulated teams, against the definition in double.
#define BOOST_TEST_MODULE emulated_attention
#include <boost/test/unit_test.hpp>

#include <megacpp/kernel/rows/attention.hpp>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "emulated_rows.hpp"

namespace {

namespace rows = mc::rows;
using namespace test;

} // namespace

// Named outside, since lambdas capture them.

/// An attention: B, Sq, Sk, A, K, D, and what its queries see.
struct problem {
  std::string name;
  int64_t batch, queries, keys, heads, kv_heads, width;
  bool causal = true;
  int64_t window = 0;
  bool documents = false, positions = false; // those of positions: the last token first
};
const problem problems[] = {
    {"one of each", 1, 1, 1, 1, 1, 1},
    {"a width that is no group", 2, 5, 5, 2, 1, 7},
    {"more keys than a team holds", 1, 3, 150, 2, 2, 8},
    {"more queries than a team holds", 1, 70, 70, 1, 1, 5},
    {"wider than a team holds", 1, 3, 3, 1, 1, 300},
    {"every key", 1, 4, 9, 2, 1, 8, false},
    {"pairs of heads", 1, 3, 3, 4, 2, 4},
    {"a window", 1, 20, 20, 1, 1, 4, true, 3},
    {"documents", 2, 12, 12, 2, 1, 4, true, 0, true},
    {"places against the order", 1, 9, 9, 1, 1, 4, true, 4, false, true},
    {"queries before all keys", 1, 4, 2, 1, 1, 4, true, 0, true, true},
};

/// Tensors of a problem in T, and the same in double.
template <class T> struct attended {
  problem p;
  std::vector<T> q, k, v, dy;
  std::vector<std::int32_t> q_position, k_position, q_document, k_document;

  explicit attended(const problem& of) : p(of) {
    numbers from;
    const int64_t nq = p.batch * p.queries, nk = p.batch * p.keys;
    q = from.of<T>(nq * p.heads * p.width), dy = from.of<T>(nq * p.heads * p.width);
    k = from.of<T>(nk * p.kv_heads * p.width), v = from.of<T>(nk * p.kv_heads * p.width);
    for (int64_t i = 0; i < nq; ++i) {
      const auto at = static_cast<std::int32_t>(i % p.queries);
      q_position.push_back(static_cast<std::int32_t>(p.queries) - 1 - at);
      q_document.push_back(at / 5);
    }
    for (int64_t j = 0; j < nk; ++j) {
      const auto at = static_cast<std::int32_t>(j % p.keys);
      k_position.push_back(static_cast<std::int32_t>(p.keys) - 1 - at);
      k_document.push_back(at / 5 + (p.keys < p.queries ? 7 : 0)); // those that no query has
    }
  }
  mc::attention_visibility see() const {
    mc::attention_visibility o;
    o.scale = 0.8, o.causal = p.causal, o.window = p.window;
    if (p.positions) o.query_position = q_position.data(), o.key_position = k_position.data();
    if (p.documents) o.query_document = q_document.data(), o.key_document = k_document.data();
    return o;
  }
  rows::attention_extents extents() const {
    return {p.queries, p.keys, p.heads, p.kv_heads, p.width};
  }
  bool sees(int64_t b, int64_t i, int64_t j) const {
    const auto qi = static_cast<std::size_t>(b * p.queries + i),
               kj = static_cast<std::size_t>(b * p.keys + j);
    const int64_t from =
                      p.positions ? q_position[qi] : i + std::max<int64_t>(p.keys - p.queries, 0),
                  to = p.positions ? k_position[kj] : j;
    if (p.causal && to > from) return false;
    if (p.window > 0 && to <= from - p.window) return false;
    return !p.documents || q_document[qi] == k_document[kj];
  }
};

/// What the definition gives: o, lse, delta, dq, dk, dv.
struct defined {
  reference o, lse, delta, dq, dk, dv;
  template <class T> explicit defined(const attended<T>& in) {
    const problem& p = in.p;
    const auto size = [](int64_t n) { return static_cast<std::size_t>(n); };
    o.resize(in.q.size()), dq.resize(in.q.size()), dk.resize(in.k.size()), dv.resize(in.k.size());
    const double scale = in.see().scale;
    for (int64_t b = 0; b < p.batch; ++b)
      for (int64_t a = 0; a < p.heads; ++a)
        for (int64_t i = 0; i < p.queries; ++i) {
          const std::size_t qi = size(((b * p.queries + i) * p.heads + a) * p.width);
          const auto at_key = [&](int64_t j) {
            return size(((b * p.keys + j) * p.kv_heads + a / (p.heads / p.kv_heads)) * p.width);
          };
          const auto dot = [&](const std::vector<T>& x, std::size_t at, const std::vector<T>& y,
                               std::size_t to) {
            double sum = 0;
            for (std::size_t d = 0; d < size(p.width); ++d)
              sum += wide(x[at + d]) * wide(y[to + d]);
            return sum;
          };
          double sum = 0, inner = 0;
          reference e(size(p.keys));
          for (int64_t j = 0; j < p.keys; ++j)
            if (in.sees(b, i, j))
              sum += e[size(j)] = std::exp(scale * dot(in.q, qi, in.k, at_key(j)));
          lse.push_back(std::log(sum)); // -infinity where it sees none
          for (int64_t j = 0; j < p.keys; ++j)
            for (std::size_t d = 0; d < size(p.width) && sum > 0; ++d)
              o[qi + d] += e[size(j)] / sum * wide(in.v[at_key(j) + d]);
          for (std::size_t d = 0; d < size(p.width); ++d) inner += wide(in.dy[qi + d]) * o[qi + d];
          delta.push_back(inner);
          for (int64_t j = 0; j < p.keys && sum > 0; ++j) {
            const std::size_t kj = at_key(j);
            const double share = e[size(j)] / sum,
                         ds = scale * share * (dot(in.dy, qi, in.v, kj) - inner);
            for (std::size_t d = 0; d < size(p.width); ++d) {
              dq[qi + d] += ds * wide(in.k[kj + d]);
              dk[kj + d] += ds * wide(in.q[qi + d]);
              dv[kj + d] += share * wide(in.dy[qi + d]);
            }
          }
        }
  }
};

namespace {

/// Each number within `most` of what it should be, relative to the largest of them and to 1.
template <class T>
void near(const char* what, const std::vector<T>& x, const reference& r, double most) {
  double largest = 1;
  for (const double y : r)
    if (std::isfinite(y)) largest = std::max(largest, std::abs(y));
  BOOST_REQUIRE(x.size() == r.size());
  for (std::size_t i = 0; i < r.size(); ++i) {
    const double y = wide(x[i]);
    const bool fits = std::isfinite(r[i]) ? std::abs(y - r[i]) <= most * largest : y == r[i];
    if (fits) continue;
    BOOST_ERROR(what << " " << i << " is " << y << ", not " << r[i]);
    return;
  }
}

template <class T> std::vector<T> of_all(const reference& r) {
  std::vector<T> x;
  for (const double y : r) x.push_back(mc::convert<T>(static_cast<G<T>>(y)));
  return x;
}

} // namespace

BOOST_AUTO_TEST_CASE_TEMPLATE(attention, T, types) {
  constexpr double most = sizeof(T) == 8 ? 1e-13 : sizeof(T) == 4 ? 4e-6 : 0x1p-8 + 4e-6;
  for (const problem& p : problems)
    for (const int threads : {32, 128}) {
      BOOST_TEST_CONTEXT(p.name << ", " << threads << " threads") {
        const attended<T> in(p);
        const defined right(in);
        const rows::attention_extents s = in.extents();
        const mc::attention_visibility see = in.see();
        const int64_t of_q = p.heads * p.width, of_k = p.kv_heads * p.width;
        const auto shape_of = [&](int64_t n) { return team_shape{{n, p.width}, threads}; };
        const int64_t queries = p.batch * p.heads * p.queries, keys = p.batch * p.kv_heads * p.keys;
        const mc::head_rows<const T> q{in.q.data(), of_q}, k{in.k.data(), of_k},
            v{in.v.data(), of_k}, dy{in.dy.data(), of_q};

        auto o = unset<T>(std::ssize(in.q));
        auto lse = unset<G<T>>(queries);
        on_team("attention_row", shape_of(queries),
                rows::attention_row<T>{s, see, q, k, v, {o.data(), of_q}, lse.data()}, o, lse);
        near("o", o, right.o, most), near("lse", lse, right.lse, sizeof(T) == 8 ? 1e-13 : 4e-6);

        // Gradients of what the definition says of the forward.
        const auto output = of_all<T>(right.o);
        const auto sums = of_all<G<T>>(right.lse);
        auto delta = unset<G<T>>(queries);
        auto dq = unset<T>(std::ssize(in.q)), dk = unset<T>(std::ssize(in.k)),
             dv = unset<T>(std::ssize(in.k));
        on_team("attention_query_grad_row", shape_of(queries),
                rows::attention_query_grad_row<T>{s,
                                                  see,
                                                  dy,
                                                  q,
                                                  k,
                                                  v,
                                                  {output.data(), of_q},
                                                  sums.data(),
                                                  delta.data(),
                                                  {dq.data(), of_q}},
                delta, dq);
        on_team("attention_key_grad_row", shape_of(keys),
                rows::attention_key_grad_row<T>{s,
                                                see,
                                                dy,
                                                q,
                                                k,
                                                v,
                                                sums.data(),
                                                delta.data(),
                                                {dk.data(), of_k},
                                                {dv.data(), of_k}},
                dk, dv);
        // delta is that of an output that was rounded.
        near("dq", dq, right.dq, 2 * most), near("dk", dk, right.dk, 2 * most),
            near("dv", dv, right.dv, 2 * most);
      }
    }
}
