// Attention by rows, for devices without tiles of their own: a team computes a query of a head,
// or the gradients of a key of a head (op/attention.hpp has the equations).
//
// A team takes `attention_keys` keys (or queries) at a time. Its threads compute their scores, each
// of other ones, and put them into memory that they share; then each adds up other elements of the
// output. Keys follow each other with a running maximum m and sum l (Milakov and Gimelshein 2018).
// The order of all sums follows from the extents alone.
#pragma once

#include <megacpp/exec/launch.hpp>
#include <megacpp/exec/math.hpp>

#include <limits>
#include <type_traits>

namespace mc {

/// The keys that a query sees, and the factor of its scores. Query i sees key j if all of these
/// hold:
/// position(j) <= position(i), if causal or window > 0;
/// position(i) - window < position(j), if window > 0;
/// document(i) == document(j), if documents are given.
struct attention_visibility {
  double scale = 1; // usually 1 / sqrt(D)
  bool causal = true;
  std::int64_t window = 0; // 0: none
  // Positions (B, Sq) and (B, Sk), or null: then key j stands at j and query i at
  // i + max(Sk - Sq, 0), so that with fewer queries than keys the queries are the last ones.
  const std::int32_t* query_position = nullptr;
  const std::int32_t* key_position = nullptr;
  // Document numbers (B, Sq) and (B, Sk) of packed sequences, both or neither.
  const std::int32_t* query_document = nullptr;
  const std::int32_t* key_document = nullptr;
};

/// Heads of tokens: element (b, s, a, d) is data[(b * S + s) * stride + a * D + d], so that a part
/// of a packed (T, 3H) row is read where it lies.
template <class T> struct head_rows {
  T* data;
  std::int64_t stride; // of a token, in elements
  template <class U>
  requires(std::is_same_v<U, const T> && !std::is_const_v<T>) operator head_rows<U>() const {
    return {data, stride};
  }
};

namespace rows {

inline constexpr int attention_keys = 64;   ///< whose scores a team holds
inline constexpr int attention_width = 256; ///< elements of an output that it holds

/// The extents of an attention: B is that of its rows.
struct attention_extents {
  std::int64_t queries, keys;   // Sq, Sk
  std::int64_t heads, kv_heads; // A, K
  std::int64_t width;           // D

  MEGACPP_HD std::int64_t kv_head(std::int64_t head) const { return head / (heads / kv_heads); }
};

namespace detail {

/// A query as its keys see it: its place, its document, and the keys among which it looks.
struct seen_from {
  std::int64_t position, document;
  bool bounded; // keys stand at their indices, so that none beyond [first, last) is seen
  std::int64_t first, last;
};
MEGACPP_HD seen_from query_of(const attention_visibility& o, const attention_extents& s,
                              std::int64_t b, std::int64_t i) {
  const std::int64_t at = b * s.queries + i, ahead = s.keys > s.queries ? s.keys - s.queries : 0;
  seen_from q{o.query_position != nullptr ? o.query_position[at] : i + ahead,
              o.query_document != nullptr ? o.query_document[at] : 0,
              o.key_position == nullptr && (o.causal || o.window > 0), 0, s.keys};
  if (q.bounded) {
    if (q.position + 1 < q.last) q.last = q.position + 1;
    if (o.window > 0 && q.position - o.window + 1 > 0) q.first = q.position - o.window + 1;
  }
  return q;
}
MEGACPP_HD bool sees(const attention_visibility& o, const attention_extents& s, const seen_from& q,
                     std::int64_t b, std::int64_t j) {
  const std::int64_t at = b * s.keys + j,
                     position = o.key_position != nullptr ? o.key_position[at] : j;
  if ((o.causal || o.window > 0) && position > q.position) return false;
  if (o.window > 0 && position <= q.position - o.window) return false;
  return o.key_document == nullptr || o.key_document[at] == q.document;
}

/// a . b in G, from the first element to the last.
template <class G, class T> MEGACPP_HD G dot(const T* a, const T* b, std::int64_t n) {
  vec<G, 1> sum(G(0));
  for (std::int64_t d = 0; d < n; ++d)
    sum = fma(load<G>(a, lanes<1>{d}), load<G>(b, lanes<1>{d}), sum);
  return sum.v[0];
}

} // namespace detail

/// o_i and lse_i of one query of one head; rows are (B, A, Sq). A query that sees no key gets o = 0
/// and lse = -infinity.
template <class T> struct attention_row {
  using G = accumulator_t<T>;
  attention_extents s;
  attention_visibility see;
  head_rows<const T> q, k, v;
  head_rows<T> o;
  G* lse; // (B, A, Sq)

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t row) const {
    constexpr G none = -std::numeric_limits<G>::infinity();
    G* const p = team.template shared<G, attention_keys, 0>();
    G* const sum = team.template shared<G, attention_width, 1>();
    const std::int64_t i = row % s.queries, head = row / s.queries % s.heads,
                       b = row / s.queries / s.heads, kv = s.kv_head(head) * s.width;
    const T* const query = q.data + (b * s.queries + i) * q.stride + head * s.width;
    const detail::seen_from from = detail::query_of(see, s, b, i);
    const G scale = static_cast<G>(see.scale);
    for (std::int64_t part = 0; part < s.width; part += attention_width) {
      const std::int64_t width =
          s.width - part < attention_width ? s.width - part : attention_width;
      G m = none, l = 0;
      bool begun = false;
      for (std::int64_t at = from.first; at < from.last; at += attention_keys) {
        const std::int64_t n = from.last - at < attention_keys ? from.last - at : attention_keys;
        const G top = team.template max<G>(n, [&](auto c) {
          constexpr int N = decltype(c)::count;
          G of[N];
          for (int e = 0; e < N; ++e) {
            const std::int64_t j = at + c.first + e;
            of[e] = detail::sees(see, s, from, b, j)
                        ? scale * detail::dot<G>(query, k.data + (b * s.keys + j) * k.stride + kv,
                                                 s.width)
                        : none;
          }
          const auto score = load<G>(of, lanes<N>{0});
          store(p, c, score);
          return score;
        });
        const G now = m < top ? top : m;
        if (now == none) continue; // no key is seen yet
        const G factor = exp(vec<G, 1>(m - now)).v[0];
        const G more = team.template sum<G>(n, [&](auto c) {
          const auto e = exp(load<G>(p, c) - vec<G, decltype(c)::count>(now));
          store(p, c, e);
          return e;
        });
        l = l * factor + more, m = now;
        team.template each<T>(width, [&](auto d) {
          using V = vec<G, decltype(d)::count>;
          V x = begun ? load<G>(sum, d) * V(factor) : V(G(0));
          for (std::int64_t j = 0; j < n; ++j)
            x = fma(V(p[j]), load<G>(v.data + (b * s.keys + at + j) * v.stride + kv + part, d), x);
          store(sum, d, x);
        });
        begun = true;
        team.sync(); // before p is written again
      }
      const G share = l == 0 ? G(0) : 1 / l;
      T* const out = o.data + (b * s.queries + i) * o.stride + head * s.width + part;
      team.template each<T>(width, [&](auto d) {
        using V = vec<G, decltype(d)::count>;
        store(out, d, begun ? load<G>(sum, d) * V(share) : V(G(0)));
      });
      if (part == 0 && team.leader() && lse != nullptr)
        lse[row] = l == 0 ? none : m + log(vec<G, 1>(l)).v[0];
    }
  }
};

/// dq_i of one query of one head, and delta_i = do_i . o_i; rows are (B, A, Sq).
template <class T> struct attention_query_grad_row {
  using G = accumulator_t<T>;
  attention_extents s;
  attention_visibility see;
  head_rows<const T> dy, q, k, v, o;
  const G* lse; // (B, A, Sq)
  G* delta;     // (B, A, Sq)
  head_rows<T> dq;

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t row) const {
    G* const ds = team.template shared<G, attention_keys, 0>();
    G* const sum = team.template shared<G, attention_width, 1>();
    const std::int64_t i = row % s.queries, head = row / s.queries % s.heads,
                       b = row / s.queries / s.heads, kv = s.kv_head(head) * s.width,
                       token = b * s.queries + i, at_head = head * s.width;
    const T* const query = q.data + token * q.stride + at_head;
    const T* const gradient = dy.data + token * dy.stride + at_head;
    const T* const output = o.data + token * o.stride + at_head;
    const G of_row = team.template sum<T>(
        s.width, [&](auto d) { return load<G>(gradient, d) * load<G>(output, d); });
    if (team.leader()) delta[row] = of_row;
    const detail::seen_from from = detail::query_of(see, s, b, i);
    const G scale = static_cast<G>(see.scale), all = lse[row];
    for (std::int64_t part = 0; part < s.width; part += attention_width) {
      const std::int64_t width =
          s.width - part < attention_width ? s.width - part : attention_width;
      bool begun = false;
      for (std::int64_t at = from.first; at < from.last; at += attention_keys) {
        const std::int64_t n = from.last - at < attention_keys ? from.last - at : attention_keys;
        team.template each<G>(n, [&](auto c) {
          for (int e = 0; e < decltype(c)::count; ++e) {
            const std::int64_t j = at + c.first + e, key = b * s.keys + j;
            G x = 0;
            if (detail::sees(see, s, from, b, j)) {
              const G score = scale * detail::dot<G>(query, k.data + key * k.stride + kv, s.width);
              const G dp = detail::dot<G>(gradient, v.data + key * v.stride + kv, s.width);
              x = scale * exp(vec<G, 1>(score - all)).v[0] * (dp - of_row);
            }
            ds[c.first + e] = x;
          }
        });
        team.sync();
        team.template each<T>(width, [&](auto d) {
          using V = vec<G, decltype(d)::count>;
          V x = begun ? load<G>(sum, d) : V(G(0));
          for (std::int64_t j = 0; j < n; ++j)
            x = fma(V(ds[j]), load<G>(k.data + (b * s.keys + at + j) * k.stride + kv + part, d), x);
          store(sum, d, x);
        });
        begun = true;
        team.sync(); // before ds is written again
      }
      T* const out = dq.data + token * dq.stride + at_head + part;
      team.template each<T>(width, [&](auto d) {
        store(out, d, begun ? load<G>(sum, d) : vec<G, decltype(d)::count>(G(0)));
      });
    }
  }
};

/// dk_j and dv_j of one key of one kv head; rows are (B, K, Sk).
template <class T> struct attention_key_grad_row {
  using G = accumulator_t<T>;
  attention_extents s;
  attention_visibility see;
  head_rows<const T> dy, q, k, v;
  const G* lse;   // (B, A, Sq)
  const G* delta; // (B, A, Sq)
  head_rows<T> dk, dv;

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t row) const {
    G* const ds = team.template shared<G, attention_keys, 0>();
    G* const p = team.template shared<G, attention_keys, 1>();
    G* const of_key = team.template shared<G, attention_width, 2>();
    G* const of_value = team.template shared<G, attention_width, 3>();
    const std::int64_t j = row % s.keys, kv_head = row / s.keys % s.kv_heads,
                       b = row / s.keys / s.kv_heads, token = b * s.keys + j,
                       kv = kv_head * s.width, group = s.heads / s.kv_heads;
    const T* const key = k.data + token * k.stride + kv;
    const T* const value = v.data + token * v.stride + kv;
    const G scale = static_cast<G>(see.scale);
    for (std::int64_t part = 0; part < s.width; part += attention_width) {
      const std::int64_t width =
          s.width - part < attention_width ? s.width - part : attention_width;
      bool begun = false;
      for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head)
        for (std::int64_t at = 0; at < s.queries; at += attention_keys) {
          const std::int64_t n = s.queries - at < attention_keys ? s.queries - at : attention_keys;
          team.template each<G>(n, [&](auto c) {
            for (int e = 0; e < decltype(c)::count; ++e) {
              const std::int64_t i = at + c.first + e, query = b * s.queries + i,
                                 of = (b * s.heads + head) * s.queries + i;
              G x = 0, y = 0;
              if (detail::sees(see, s, detail::query_of(see, s, b, i), b, j)) {
                const G score = scale * detail::dot<G>(q.data + query * q.stride + head * s.width,
                                                       key, s.width);
                const G dp =
                    detail::dot<G>(dy.data + query * dy.stride + head * s.width, value, s.width);
                y = exp(vec<G, 1>(score - lse[of])).v[0];
                x = scale * y * (dp - delta[of]);
              }
              ds[c.first + e] = x, p[c.first + e] = y;
            }
          });
          team.sync();
          team.template each<T>(width, [&](auto d) {
            using V = vec<G, decltype(d)::count>;
            V x = begun ? load<G>(of_key, d) : V(G(0)), y = begun ? load<G>(of_value, d) : V(G(0));
            for (std::int64_t i = 0; i < n; ++i) {
              const std::int64_t query = b * s.queries + at + i, first = head * s.width + part;
              x = fma(V(ds[i]), load<G>(q.data + query * q.stride + first, d), x);
              y = fma(V(p[i]), load<G>(dy.data + query * dy.stride + first, d), y);
            }
            store(of_key, d, x), store(of_value, d, y);
          });
          begun = true;
          team.sync(); // before ds and p are written again
        }
      team.template each<T>(width, [&](auto d) {
        store(dk.data + token * dk.stride + kv + part, d, load<G>(of_key, d));
        store(dv.data + token * dv.stride + kv + part, d, load<G>(of_value, d));
      });
    }
  }
};

} // namespace rows
} // namespace mc
