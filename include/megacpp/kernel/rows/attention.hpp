// Attention by tiles, for devices other than CPUs (op/attention.hpp has the equations).
//
// A team takes a tile of queries and goes over the keys by tiles. Its threads compute scores and
// put them into memory that they share; then they multiply the scores with the values. Tiles of
// keys follow each other with a running maximum m and sum l (Milakov and Gimelshein 2018). A tile
// in which no query sees a key is left out, such as one of other documents. The results of a query
// depend on its own keys alone, and not on the other queries of its tile.
#pragma once

#include <megacpp/exec/launch.hpp>
#include <megacpp/kernel/rows/heads.hpp>
#include <megacpp/vectors/math.hpp>
#include <megacpp/vectors/team_tile.hpp>

#include <limits>

namespace mc {

/// The keys that a query sees, and the factor of its scores. Query i sees key j if all of these
/// hold:
/// position(j) <= position(i), if causal or window > 0;
/// position(i) - window < position(j), if window > 0;
/// document(i) == document(j), if documents are given.
struct attention_visibility {
  double scale = 1; // usually 1 / sqrt(D)
  bool causal = true;
  std::int64_t window = 0; // 0: there is no window
  // Positions (B, Sq) and (B, Sk), or null: key j stands at j then, and query i at i + max(Sk - Sq,
  // 0), so that fewer queries than keys are the last ones.
  const std::int32_t* query_position = nullptr;
  const std::int32_t* key_position = nullptr;
  // Document numbers (B, Sq) and (B, Sk) of packed sequences, both or neither.
  const std::int32_t* query_document = nullptr;
  const std::int32_t* key_document = nullptr;
};

namespace rows {

inline constexpr int attention_tokens = 64; ///< number of tokens in a tile

namespace detail {

/// A query as keys see it: its place and its document.
struct seen_from {
  std::int64_t position, document;
};
MEGACPP_HD seen_from query_of(const attention_visibility& o, const attention_extents& s,
                              std::int64_t b, std::int64_t i) {
  const std::int64_t at = b * s.queries + i, ahead = s.keys > s.queries ? s.keys - s.queries : 0;
  return {o.query_position != nullptr ? o.query_position[at] : i + ahead,
          o.query_document != nullptr ? o.query_document[at] : 0};
}
MEGACPP_HD bool sees(const attention_visibility& o, const attention_extents& s, const seen_from& q,
                     std::int64_t b, std::int64_t j) {
  const std::int64_t at = b * s.keys + j,
                     position = o.key_position != nullptr ? o.key_position[at] : j;
  if ((o.causal || o.window > 0) && position > q.position) return false;
  if (o.window > 0 && position <= q.position - o.window) return false;
  return o.key_document == nullptr || o.key_document[at] == q.document;
}

/// Returns a . b in G, summed from the first element to the last.
template <class G, class T> MEGACPP_HD G dot(const T* a, const T* b, std::int64_t n) {
  vec<G, 1> sum(G(0));
  for (std::int64_t d = 0; d < n; ++d)
    sum = fma(load<G>(a, lanes<1>{d}), load<G>(b, lanes<1>{d}), sum);
  return sum.v[0];
}

/// The place of a tile of attention: `count` tokens of a head from `first` on.
struct tile_place {
  std::int64_t sequence, head, first;
  int count;
  /// Finds tile `row` among the tokens of all sequences and heads. The last tokens come first: with
  /// causal attention they take longest.
  MEGACPP_HD tile_place(std::int64_t tokens, std::int64_t heads, std::int64_t row) {
    const std::int64_t tiles = tiles_of(tokens);
    first = (tiles - 1 - row % tiles) * attention_tokens;
    head = row / tiles % heads, sequence = row / tiles / heads;
    count = static_cast<int>(tokens - first < attention_tokens ? tokens - first : attention_tokens);
  }
  MEGACPP_HD static std::int64_t tiles_of(std::int64_t tokens) {
    return (tokens + attention_tokens - 1) / attention_tokens;
  }
};

/// The least and the greatest place and document of a range of tokens.
struct token_bounds {
  double first_place, last_place, first_document, last_document;
};

template <class Team> MEGACPP_HD void bounds_of_numbers(const Team& team, const std::int32_t* at,
                                                        std::int64_t n, double& least,
                                                        double& greatest) {
  const auto greatest_of = [&](double sign) {
    return team.template max<double>(n, [&](auto i) {
      double x[decltype(i)::count];
      for (int e = 0; e < decltype(i)::count; ++e) x[e] = sign * at[i.first + e];
      return load<double>(x, lanes<decltype(i)::count>{0});
    });
  };
  least = -greatest_of(-1), greatest = greatest_of(1);
}
/// Returns the bounds of n tokens from the first on. Without `places`, the tokens stand at place,
/// place + 1, ...
template <class Team>
MEGACPP_HD token_bounds bounds_of(const Team& team, const std::int32_t* places, std::int64_t place,
                                  const std::int32_t* documents, std::int64_t first,
                                  std::int64_t n) {
  token_bounds b{static_cast<double>(place), static_cast<double>(place + n - 1), 0, 0};
  if (places != nullptr) bounds_of_numbers(team, places + first, n, b.first_place, b.last_place);
  if (documents != nullptr)
    bounds_of_numbers(team, documents + first, n, b.first_document, b.last_document);
  return b;
}
template <class Team>
MEGACPP_HD token_bounds bounds_of_queries(const Team& team, const attention_visibility& o,
                                          const attention_extents& s, std::int64_t b,
                                          std::int64_t first, std::int64_t n) {
  const std::int64_t ahead = s.keys > s.queries ? s.keys - s.queries : 0;
  return bounds_of(team, o.query_position, first + ahead, o.query_document, b * s.queries + first,
                   n);
}
template <class Team>
MEGACPP_HD token_bounds bounds_of_keys(const Team& team, const attention_visibility& o,
                                       const attention_extents& s, std::int64_t b,
                                       std::int64_t first, std::int64_t n) {
  return bounds_of(team, o.key_position, first, o.key_document, b * s.keys + first, n);
}

/// Returns the index behind the last key that a query of the tile sees; all keys are below it where
/// keys stand at other places than their indices.
MEGACPP_HD std::int64_t keys_until(const attention_visibility& o, const attention_extents& s,
                                   const token_bounds& queries) {
  if (o.key_position != nullptr || !(o.causal || o.window > 0)) return s.keys;
  const auto until = static_cast<std::int64_t>(queries.last_place) + 1;
  return until < s.keys ? until : s.keys;
}

/// The pairs of a query and a key that see each other: none, some, or all pairs.
enum class pairs { none, some, all };
MEGACPP_HD pairs pairs_seen(const attention_visibility& o, const token_bounds& q,
                            const token_bounds& k) {
  const bool ordered = o.causal || o.window > 0;
  const auto window = static_cast<double>(o.window);
  if (ordered && k.first_place > q.last_place) return pairs::none;
  if (o.window > 0 && k.last_place <= q.first_place - window) return pairs::none;
  if (k.last_document < q.first_document || k.first_document > q.last_document) return pairs::none;
  const bool all = (!ordered || k.last_place <= q.first_place) &&
                   (o.window == 0 || k.first_place > q.last_place - window) &&
                   k.first_document == q.last_document && k.last_document == q.first_document;
  return all ? pairs::all : pairs::some;
}

/// The visibility of a tile of keys for a tile of queries: the call operator returns true if query
/// i of the one sees key j of the other.
struct tile_sight {
  const attention_visibility& see;
  const attention_extents& s;
  std::int64_t sequence, query, key; // first sequence, query and key of the tiles
  int queries, keys;
  pairs seen;
  MEGACPP_HD bool operator()(int i, int j) const {
    if (i >= queries || j >= keys) return false;
    return seen == pairs::all ||
           sees(see, s, query_of(see, s, sequence, query + i), sequence, key + j);
  }
};

/// Returns the visibility of at most N keys, from `key` on, for a tile of queries with these
/// bounds.
template <int N, class Team>
MEGACPP_HD tile_sight sight_of(const Team& team, const attention_visibility& see,
                               const attention_extents& s, const tile_place& at,
                               const token_bounds& looking, std::int64_t key) {
  const int n = width_of_section<N>(s.keys, key);
  const pairs seen = pairs_seen(see, looking, bounds_of_keys(team, see, s, at.sequence, key, n));
  return {see, s, at.sequence, at.first, key, at.count, n, seen};
}

/// rows_of returns heads of tokens, from one token on, as rows of a matrix; turned returns them
/// with each element of a head as a row, from element `section` on.
template <class T> MEGACPP_HD tile_rows<T> rows_of(const head_rows<const T>& x, std::int64_t token,
                                                   std::int64_t head, int count) {
  return {x.data + token * x.stride + head, x.stride, count};
}
template <class T> MEGACPP_HD tile_rows<T, true> turned(const head_rows<const T>& x,
                                                        std::int64_t token, std::int64_t head,
                                                        std::int64_t section, int width) {
  return {x.data + token * x.stride + head + section, x.stride, width};
}
/// The mark in place of the probability of a key that is not seen: no probability is negative.
inline constexpr int unseen = -1;
} // namespace detail

/// Computes o and lse of `attention_tokens` queries of one head, over as many keys at a time. Rows
/// are (B, A, tiles of Sq). The order of all sums follows from the extents, and from the tiles of
/// keys that no query of the tile sees.
template <class T> struct attention_tile {
  using G = accumulator_t<T>;
  static constexpr int threads_at_once = 256;
  attention_extents s;
  attention_visibility see;
  head_rows<const T> q, k, v;
  head_rows<T> o;
  G* lse; // (B, A, Sq)

  static std::int64_t tiles(std::int64_t tokens) { return detail::tile_place::tiles_of(tokens); }

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t row) const {
    constexpr int M = attention_tokens, N = attention_tokens, W = attention_section<T>,
                  stride = N + 2;
    constexpr G none = -std::numeric_limits<G>::infinity();
    G* const score = team.template shared<G, M * stride, 0>();
    G* const top = team.template shared<G, M, 1>();    // greatest score of a query
    G* const sum = team.template shared<G, M, 2>();    // sum of e^(score - top)
    G* const factor = team.template shared<G, M, 3>(); // e^(top before - top now)
    const detail::tile_place at(s.queries, s.heads, row);
    const std::int64_t token = at.sequence * s.queries + at.first, head = at.head * s.width,
                       kv = s.kv_head(at.head) * s.width;
    const auto queries = detail::rows_of(q, token, head, at.count);
    const detail::token_bounds looking =
        detail::bounds_of_queries(team, see, s, at.sequence, at.first, at.count);
    const std::int64_t until = detail::keys_until(see, s, looking);
    const G scale = static_cast<G>(see.scale);
    const int depth = static_cast<int>(s.width);
    for (std::int64_t section = 0; section < s.width; section += W) {
      const int width = detail::width_of_section<W>(s.width, section);
      team_tile<T, M, W, Team> out(team);
      for (int i = team.index(); i < M; i += team.count()) top[i] = none, sum[i] = 0;
      for (std::int64_t key = 0; key < until; key += N) {
        const detail::tile_sight sees = detail::sight_of<N>(team, see, s, at, looking, key);
        const int n = sees.keys;
        if (sees.seen == detail::pairs::none) continue;
        team_tile<T, M, N, Team> x(team);
        x.add_product(queries, detail::rows_of(k, at.sequence * s.keys + key, kv, n), depth);
        x.each([&](int i, int j, G& e) {
          e = sees(i, j) ? scale * e : none;
          score[i * stride + j] = e;
        });
        team.sync();
        for (int i = team.index(); i < at.count; i += team.count()) {
          G now = top[i];
          for (int j = 0; j < n; ++j) {
            const G e = score[i * stride + j];
            if (e > now || e != e) now = e; // a NaN stays
          }
          factor[i] = now == none ? G(1) : detail::exp_of(top[i] - now);
          top[i] = now;
        }
        team.sync();
        x.each([&](int i, int j, G& e) {
          score[i * stride + j] = e == none ? G(0) : detail::exp_of(e - top[i]);
        });
        out.each([&](int i, int, G& e) {
          if (i < at.count) e *= factor[i];
        });
        team.sync();
        for (int i = team.index(); i < at.count; i += team.count()) {
          G more = 0;
          for (int j = 0; j < n; ++j) more += score[i * stride + j];
          sum[i] = sum[i] * factor[i] + more;
        }
        out.add_product(tile_rows<G>{score, stride, at.count},
                        detail::turned(v, at.sequence * s.keys + key, kv, section, width), n);
        team.sync(); // the next tile writes score again
      }
      team.sync();
      out.each([&](int i, int d, G& e) {
        if (i < at.count && d < width)
          o.data[(token + i) * o.stride + head + section + d] =
              convert<T>(sum[i] == 0 ? G(0) : e / sum[i]);
      });
      if (section == 0) {
        G* const to = lse + (at.sequence * s.heads + at.head) * s.queries + at.first;
        for (int i = team.index(); i < at.count; i += team.count())
          to[i] = sum[i] == 0 ? none : top[i] + log(vec<G, 1>(sum[i])).v[0];
      }
      team.sync(); // the next section of the head begins its sums
    }
  }
};

/// Computes dq of a tile of queries of one head, and delta_i = do_i . o_i. Rows are (B, A, tiles of
/// Sq).
template <class T> struct attention_query_grad_tile {
  using G = accumulator_t<T>;
  static constexpr int threads_at_once = 256;
  attention_extents s;
  attention_visibility see;
  head_rows<const T> dy, q, k, v, o;
  const G* lse; // (B, A, Sq)
  G* delta;     // (B, A, Sq)
  head_rows<T> dq;

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t row) const {
    constexpr int M = attention_tokens, N = attention_tokens, W = attention_section<T>,
                  stride = N + 2;
    G* const ds = team.template shared<G, M * stride, 0>();
    G* const all = team.template shared<G, M, 1>();   // lse of a query
    G* const inner = team.template shared<G, M, 2>(); // delta of a query
    const detail::tile_place at(s.queries, s.heads, row);
    const std::int64_t token = at.sequence * s.queries + at.first, head = at.head * s.width,
                       kv = s.kv_head(at.head) * s.width,
                       first = (at.sequence * s.heads + at.head) * s.queries + at.first;
    for (int i = team.index(); i < at.count; i += team.count()) {
      // delta is computed in double, since dp minus delta may be small.
      inner[i] =
          static_cast<G>(detail::dot<double>(dy.data + (token + i) * dy.stride + head,
                                             o.data + (token + i) * o.stride + head, s.width));
      delta[first + i] = inner[i], all[i] = lse[first + i];
    }
    const auto queries = detail::rows_of(q, token, head, at.count),
               gradients = detail::rows_of(dy, token, head, at.count);
    const detail::token_bounds looking =
        detail::bounds_of_queries(team, see, s, at.sequence, at.first, at.count);
    const std::int64_t until = detail::keys_until(see, s, looking);
    const G scale = static_cast<G>(see.scale);
    const int depth = static_cast<int>(s.width);
    team.sync();
    for (std::int64_t section = 0; section < s.width; section += W) {
      const int width = detail::width_of_section<W>(s.width, section);
      team_tile<T, M, W, Team> out(team);
      for (std::int64_t key = 0; key < until; key += N) {
        const detail::tile_sight sees = detail::sight_of<N>(team, see, s, at, looking, key);
        const int n = sees.keys;
        if (sees.seen == detail::pairs::none) continue;
        const std::int64_t keys = at.sequence * s.keys + key;
        team_tile<T, M, N, Team> x(team);
        x.add_product(queries, detail::rows_of(k, keys, kv, n), depth);
        x.each([&](int i, int j, G& e) {
          ds[i * stride + j] = sees(i, j) ? detail::exp_of(scale * e - all[i]) : G(detail::unseen);
        });
        team_tile<T, M, N, Team> dp(team);
        dp.add_product(gradients, detail::rows_of(v, keys, kv, n), depth);
        dp.each([&](int i, int j, G& e) {
          G& share = ds[i * stride + j]; // written by this thread
          share = share == detail::unseen ? G(0) : scale * share * (e - inner[i]);
        });
        team.sync();
        out.add_product(tile_rows<G>{ds, stride, at.count},
                        detail::turned(k, keys, kv, section, width), n);
        team.sync(); // the next tile writes ds again
      }
      out.each([&](int i, int d, G& e) {
        if (i < at.count && d < width)
          dq.data[(token + i) * dq.stride + head + section + d] = convert<T>(e);
      });
    }
  }
};

/// Computes dk and dv of a tile of keys of one kv head. A thread has sums of both. Rows are (B, K,
/// tiles of Sk).
template <class T> struct attention_key_grad_tile {
  using G = accumulator_t<T>;
  static constexpr int threads_at_once = 256;
  attention_extents s;
  attention_visibility see;
  head_rows<const T> dy, q, k, v;
  const G* lse;   // (B, A, Sq)
  const G* delta; // (B, A, Sq)
  head_rows<T> dk, dv;

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t row) const {
    constexpr int M = attention_tokens, N = attention_tokens / 2, W = attention_section<T> / 2,
                  stride = N + 2;
    G* const ds = team.template shared<G, M * stride, 0>();
    G* const p = team.template shared<G, M * stride, 1>();
    const detail::tile_place at(s.keys, s.kv_heads, row);
    const std::int64_t token = at.sequence * s.keys + at.first, kv = at.head * s.width,
                       group = s.heads / s.kv_heads;
    const auto keys = detail::rows_of(k, token, kv, at.count),
               values = detail::rows_of(v, token, kv, at.count);
    const detail::token_bounds seen_at =
        detail::bounds_of_keys(team, see, s, at.sequence, at.first, at.count);
    const G scale = static_cast<G>(see.scale);
    const int depth = static_cast<int>(s.width);
    for (std::int64_t section = 0; section < s.width; section += W) {
      const int width = detail::width_of_section<W>(s.width, section);
      team_tile<T, M, W, Team> of_key(team), of_value(team);
      for (std::int64_t head = at.head * group; head < (at.head + 1) * group; ++head)
        for (std::int64_t query = 0; query < s.queries; query += N) {
          const int n = static_cast<int>(s.queries - query < N ? s.queries - query : N);
          const detail::pairs seen = detail::pairs_seen(
              see, detail::bounds_of_queries(team, see, s, at.sequence, query, n), seen_at);
          if (seen == detail::pairs::none) continue;
          const detail::tile_sight sees{see, s, at.sequence, query, at.first, n, at.count, seen};
          const std::int64_t queries = at.sequence * s.queries + query,
                             of = (at.sequence * s.heads + head) * s.queries + query;
          team_tile<T, M, N, Team> x(team);
          x.add_product(keys, detail::rows_of(q, queries, head * s.width, n), depth);
          x.each([&](int j, int i, G& e) {
            p[j * stride + i] =
                sees(i, j) ? detail::exp_of(scale * e - lse[of + i]) : G(detail::unseen);
          });
          team_tile<T, M, N, Team> dp(team);
          dp.add_product(values, detail::rows_of(dy, queries, head * s.width, n), depth);
          dp.each([&](int j, int i, G& e) {
            G& share = p[j * stride + i]; // written by this thread
            ds[j * stride + i] =
                share == detail::unseen ? G(0) : scale * share * (e - delta[of + i]);
            if (share == detail::unseen) share = 0;
          });
          team.sync();
          of_key.add_product(tile_rows<G>{ds, stride, at.count},
                             detail::turned(q, queries, head * s.width, section, width), n);
          of_value.add_product(tile_rows<G>{p, stride, at.count},
                               detail::turned(dy, queries, head * s.width, section, width), n);
          team.sync(); // the next tile writes ds and p again
        }
      const auto keep = [&](team_tile<T, M, W, Team>& of, const head_rows<T>& to) {
        of.each([&](int j, int d, G& e) {
          if (j < at.count && d < width)
            to.data[(token + j) * to.stride + kv + section + d] = convert<T>(e);
        });
      };
      keep(of_key, dk), keep(of_value, dv);
    }
  }
};

} // namespace rows
} // namespace mc
