// The bodies of attention on emulated teams, against the definition in double.
#define BOOST_TEST_MODULE emulated_attention
#include <boost/test/unit_test.hpp>

#include <megacpp/kernel/rows/attention.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <type_traits>
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
    {"tiles that nobody sees", 1, 200, 200, 1, 1, 4, true, 40, true},
    {"tiles of places against the order", 1, 130, 130, 2, 1, 6, true, 0, true, true},
    {"a window that ends in a tile", 1, 130, 130, 1, 1, 4, true, 100},
    {"several parts and tiles", 1, 130, 130, 1, 1, 150},
    {"a later part of the queries", 1, 70, 150, 1, 1, 4},
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
  if (wrong_on_teams != nullptr) return; // they are not to be right
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

namespace {

/// The bounds of a result in T, and of a sum in its accumulator, for heads of a width: each score is a
/// sum of so many products.
template <class T> double most_of_sum(const problem& p) {
  return sizeof(T) == 8 ? 1e-13 : p.width > 64 ? 8e-6 : 4e-6;
}
template <class T> double most(const problem& p) {
  return (sizeof(T) == 2 ? 0x1p-8 : 0) + most_of_sum<T>(p);
}

/// Views of a problem's tensors.
template <class T> struct viewed {
  int64_t of_q, of_k;
  rows::attention_extents s;
  mc::attention_visibility see;
  mc::head_rows<const T> q, k, v, dy;
  explicit viewed(const attended<T>& in)
      : of_q(in.p.heads * in.p.width),
        of_k(in.p.kv_heads * in.p.width),
        s(in.extents()),
        see(in.see()),
        q{in.q.data(), of_q},
        k{in.k.data(), of_k},
        v{in.v.data(), of_k},
        dy{in.dy.data(), of_q} {}
};

/// o and lse of a body that has them for `count` rows.
template <class Team, class Body, class T> void forward(const char* what, const attended<T>& in,
                                                        const defined& right, int64_t count,
                                                        int threads) {
  const viewed<T> x(in);
  auto o = unset<T>(std::ssize(in.q));
  auto lse = unset<G<T>>(in.p.batch * in.p.heads * in.p.queries);
  on_team<Team>(what, team_shape{{count, in.p.width}, threads},
                Body{x.s, x.see, x.q, x.k, x.v, {o.data(), x.of_q}, lse.data()}, o, lse);
  near("o", o, right.o, most<T>(in.p)), near("lse", lse, right.lse, most_of_sum<T>(in.p));
}

/// Gradients of what the definition says of the forward.
template <class Team, class T>
void backward(const attended<T>& in, const defined& right, int threads) {
  const problem& p = in.p;
  const viewed<T> x(in);
  const auto rows_of = [&](int64_t heads, int64_t tokens) {
    return team_shape{{p.batch * heads * rows::attention_tile<T>::tiles(tokens), p.width}, threads};
  };
  const auto output = of_all<T>(right.o);
  const auto sums = of_all<G<T>>(right.lse);
  auto delta = unset<G<T>>(p.batch * p.heads * p.queries);
  auto dq = unset<T>(std::ssize(in.q)), dk = unset<T>(std::ssize(in.k)),
       dv = unset<T>(std::ssize(in.k));
  on_team<Team>("attention_query_grad_tile", rows_of(p.heads, p.queries),
                rows::attention_query_grad_tile<T>{x.s,
                                                   x.see,
                                                   x.dy,
                                                   x.q,
                                                   x.k,
                                                   x.v,
                                                   {output.data(), x.of_q},
                                                   sums.data(),
                                                   delta.data(),
                                                   {dq.data(), x.of_q}},
                delta, dq);
  on_team<Team>("attention_key_grad_tile", rows_of(p.kv_heads, p.keys),
                rows::attention_key_grad_tile<T>{x.s,
                                                 x.see,
                                                 x.dy,
                                                 x.q,
                                                 x.k,
                                                 x.v,
                                                 sums.data(),
                                                 delta.data(),
                                                 {dk.data(), x.of_k},
                                                 {dv.data(), x.of_k}},
                dk, dv);
  // delta is that of an output that was rounded.
  near("delta", delta, right.delta, 2 * most<T>(p)), near("dq", dq, right.dq, 2 * most<T>(p)),
      near("dk", dk, right.dk, 2 * most<T>(p)), near("dv", dv, right.dv, 2 * most<T>(p));
}

} // namespace

BOOST_AUTO_TEST_CASE_TEMPLATE(attention, T, types) {
  for (const problem& p : problems) {
    const attended<T> in(p);
    const defined right(in);
    const int64_t heads = p.batch * p.heads;
    for (const int threads : {16, 32, 128}) {
      if (p.keys > 100 && threads != 32) continue; // many tiles, each as of few queries
      BOOST_TEST_CONTEXT(p.name << ", " << threads << " threads") {
        forward<emulated_team, rows::attention_tile<T>>(
            "attention_tile", in, right, heads * rows::attention_tile<T>::tiles(p.queries),
            threads);
        backward<emulated_team>(in, right, threads);
      }
    }
  }
}

// A product of the tensor cores is a barrier here, as it is none on a GPU: what barriers a body lacks
// shows where its products are plain.
BOOST_AUTO_TEST_CASE(attention_by_tensor_cores) {
  using T = mc::bf16;
  for (const problem& p : problems) {
    BOOST_TEST_CONTEXT(p.name) {
      const attended<T> in(p);
      const defined right(in);
      forward<emulated_tensor_team, rows::attention_tile<T>>(
          "attention_tile", in, right,
          p.batch * p.heads * rows::attention_tile<T>::tiles(p.queries), 128);
      backward<emulated_tensor_team>(in, right, 128);
    }
  }
}

BOOST_AUTO_TEST_CASE(each_barrier_of_attention) {
  const attended<float> all[] = {
      attended<float>(problem{"several parts and tiles", 1, 70, 70, 1, 1, 150}),
      attended<float>(problem{"a tile that sees no key", 1, 70, 2, 1, 1, 4, true, 1})};
  every_barrier_is_needed([&] {
    for (const attended<float>& in : all) {
      const defined right(in);
      forward<emulated_team, rows::attention_tile<float>>(
          "attention_tile", in, right, rows::attention_tile<float>::tiles(in.p.queries), 32);
      backward<emulated_team>(in, right, 32);
    }
  });
}
