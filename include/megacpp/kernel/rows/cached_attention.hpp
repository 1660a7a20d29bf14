// Attention of new tokens to cached keys and values, for devices other than CPUs
// (op/cached_attention.hpp has the equations).
//
// A team takes up to 16 queries that read the same keys: the heads of a token that share a head of
// keys, and those heads of the tokens that follow it. A token that is decoded alone has few queries
// and many keys, so teams share its keys: each team takes one tile of keys and stores partial sums,
// which another body adds up in the order of the keys ("Flash-Decoding", Dao, Haziza, Massa and
// Sizov 2023). Where there are queries enough for all teams, one team takes all tiles of its
// queries' keys, and adds up in the same order by the same arithmetic. So a query gets the same
// bits either way. Where all values are finite, the bits depend only on the keys that the query
// sees: not on keys behind it, nor on other queries.
// no other query.
#pragma once

#include <megacpp/exec/launch.hpp>
#include <megacpp/kernel/rows/heads.hpp>
#include <megacpp/vectors/team_tile.hpp>

#include <limits>
#include <type_traits>

namespace mc::rows {

inline constexpr int cached_queries = 16; ///< number of queries of a team
/// The number of keys in a tile of cached attention: as many as a team has shared memory for.
template <class T> inline constexpr int cached_keys = 128 / static_cast<int>(sizeof(T));

/// The keys of a cache that queries see: query (b, s) has slot p = slots[b, s], and sees slots 0
/// ... p, or with a window only those above p - window. p = -1 sees no slot.
struct cached_sight {
  double scale;
  std::int64_t window;       // 0: there is no window
  const std::int32_t* slots; // (B, S)

  MEGACPP_HD bool operator()(std::int64_t slot, std::int64_t key) const {
    return key <= slot && (window == 0 || key > slot - window);
  }
  /// Returns the first slot of the cache that a query sees.
  MEGACPP_HD std::int64_t first(std::int64_t slot) const {
    return window > 0 && slot >= window ? slot - window + 1 : 0;
  }
};

/// The partial sums of attention of every query over each tile of cached keys: (B, S, A, tiles).
template <class G> struct cached_sums {
  G* o;   // (B, S, A, tiles, D): sum of e^(score - top) v
  G* top; // greatest score; -infinity where the query sees no key of the tile
  G* sum; // sum of e^(score - top)

  /// Returns the bytes of the partial sums of so many queries, which follow each other.
  static constexpr std::int64_t bytes(std::int64_t queries, std::int64_t tiles,
                                      std::int64_t width) {
    return queries * tiles * (width + 2) * std::int64_t{sizeof(G)};
  }
  static cached_sums at(std::byte* room, std::int64_t queries, std::int64_t tiles,
                        std::int64_t width) {
    G* const o = reinterpret_cast<G*>(room);
    return {o, o + queries * tiles * width, o + queries * tiles * (width + 1)};
  }
};

namespace detail {

/// The greatest score and the sum of the keys that a query has seen so far, and the rule for adding
/// sums over further keys: either sum is multiplied by its factor.
template <class G> struct seen_keys {
  static constexpr G none = -std::numeric_limits<G>::infinity();
  G top = none, sum = 0;

  struct shares {
    G before,
        now; // below 0: there are no further keys, and their sum is not read
    MEGACPP_HD G operator()(G x, G y) const {
      return now < 0 ? x : fma(vec<G, 1>(x), vec<G, 1>(before), vec<G, 1>(y * now)).v[0];
    }
  };
  MEGACPP_HD shares add(G other_top, G other_sum) {
    if (other_top == none) return {1, -1};
    const G before = top;
    if (!(top > other_top)) top = other_top; // a NaN makes the sum a NaN
    const shares of{exp_of(before - top), exp_of(other_top - top)};
    sum = of(sum, other_sum);
    return of;
  }
};

} // namespace detail

/// Computes o of the queries of a team, or their partial sums over one tile of keys. Rows are (B,
/// K, teams of queries), and (..., tiles of keys) where there are partial sums.
template <class T> struct cached_attention_tile {
  using G = accumulator_t<T>;
  using seen_keys = detail::seen_keys<G>;
  static constexpr int threads_at_once = 384; // three teams of 128; no GPU has measured the number
  attention_extents s;                        // the keys are the slots of a cache
  cached_sight see;
  bool whole; // heads are a whole number of 16 bytes, and aligned
  head_rows<const T> q, k, v;
  head_rows<T> o;      // output; not used with partial sums
  cached_sums<G> sums; // partial sums; null: the team takes all tiles

  static constexpr std::int64_t tiles(std::int64_t slots) {
    return (slots + cached_keys<T> - 1) / cached_keys<T>;
  }
  static constexpr std::int64_t teams(std::int64_t tokens, std::int64_t heads_of_one) {
    return (tokens * heads_of_one + cached_queries - 1) / cached_queries;
  }
  static bool is_whole(std::int64_t width, const T* q, const T* k, const T* v) {
    return rows_aligned<T>(width, q, k, v);
  }

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t row) const {
    constexpr int M = cached_queries, N = cached_keys<T>, W = attention_section<T>, stride = N + 2;
    constexpr G none = seen_keys::none;
    using raw = std::conditional_t<sizeof(T) == 2, std::uint16_t, T>; // a type without constructors
    constexpr int apart = carried_stride<T, W>;
    T* const of_q = reinterpret_cast<T*>(team.template shared<raw, M * apart, 0>());
    T* const of_k = reinterpret_cast<T*>(team.template shared<raw, N * apart, 1>());
    T* const of_v = reinterpret_cast<T*>(team.template shared<raw, N * apart, 2>());
    G* const score = team.template shared<G, M * stride, 3>();
    G* const top = team.template shared<G, M * ranges, 4>();
    G* const sum = team.template shared<G, M * ranges, 5>();
    G* const before = team.template shared<G, M, 6>();
    G* const now = team.template shared<G, M, 7>();
    G* const seen_top = team.template shared<G, M, 8>();
    G* const seen_sum = team.template shared<G, M, 9>();
    std::int32_t* const slot = team.template shared<std::int32_t, M, 10>();

    const bool splits = sums.o != nullptr;
    const std::int64_t of_one = s.heads / s.kv_heads, queries = s.queries * of_one,
                       all_tiles = tiles(s.keys), pieces = splits ? all_tiles : 1,
                       of_sequence = teams(s.queries, of_one), piece = row % pieces,
                       head = row / pieces / of_sequence % s.kv_heads,
                       sequence = row / pieces / of_sequence / s.kv_heads,
                       first = row / pieces % of_sequence * M;
    const int count = detail::width_of_section<M>(queries, first);
    const auto token = [&](int i) { return sequence * s.queries + (first + i) / of_one; };
    const auto head_of = [&](int i) { return head * of_one + (first + i) % of_one; };

    // from, last: the first and the last slot that queries of the team see.
    std::int64_t from = s.keys, last = -1;
    for (std::int64_t t = token(0); t <= token(count - 1); ++t) {
      const std::int64_t at = see.slots[t];
      if (at < 0) continue;
      if (see.first(at) < from) from = see.first(at);
      if (at > last) last = at;
    }
    if (last >= s.keys) last = s.keys - 1;
    std::int64_t tile = from / N, until = last < 0 ? tile : last / N + 1;
    if (splits) {
      if (piece < tile || piece >= until) return;
      tile = piece, until = piece + 1;
    }
    for (int i = team.index(); i < count; i += team.count()) slot[i] = see.slots[token(i)];

    const G scale = static_cast<G>(see.scale);
    for (std::int64_t section = 0; section < s.width; section += W) {
      const int width = detail::width_of_section<W>(s.width, section);
      team_tile<T, M, W, Team> out(team);
      for (int i = team.index(); i < M; i += team.count()) seen_top[i] = none, seen_sum[i] = 0;
      for (std::int64_t t = tile; t < until; ++t) {
        const std::int64_t key = t * N;
        const int n = static_cast<int>(last + 1 - key < N ? last + 1 - key : N);
        const auto row_of = [&](const head_rows<const T>& x, std::int64_t d) {
          return [&x, at = (sequence * s.keys + key) * x.stride + head * s.width + d](int j) {
            return x.data + at + j * x.stride;
          };
        };
        team_tile<T, M, N, Team> x(team);
        for (std::int64_t d = 0; d < s.width; d += W) {
          const int depth = detail::width_of_section<W>(s.width, d);
          if (d > 0) team.sync(); // of_q and of_k are written again
          carry_rows<W>(team, n, depth, whole, row_of(k, d), of_k);
          if (t == tile || s.width > W)
            carry_rows<W>(
                team, count, depth, whole,
                [&](int i) { return q.data + token(i) * q.stride + head_of(i) * s.width + d; },
                of_q);
          if (d == 0) carry_rows<W>(team, n, width, whole, row_of(v, section), of_v);
          team.carried();
          team.sync();
          x.add_product(tile_rows<T>{of_q, apart, count}, tile_rows<T>{of_k, apart, n}, depth);
        }
        x.each([&](int i, int j, G& e) {
          score[i * stride + j] = i < count && j < n && see(slot[i], key + j) ? scale * e : none;
        });
        team.sync();
        for (int u = team.index(); u < M * ranges; u += team.count()) {
          const G* const at = score + u / ranges * stride + u % ranges * of_range;
          top[u] = greatest<of_range>(at);
        }
        team.sync();
        for (int u = team.index(); u < M * ranges; u += team.count()) {
          const G most = greatest<ranges>(top + u / ranges * ranges);
          G* const at = score + u / ranges * stride + u % ranges * of_range;
          G all = 0;
          for (int j = 0; j < of_range; ++j) {
            at[j] = at[j] == none ? G(0) : detail::exp_of(at[j] - most);
            all += at[j];
          }
          sum[u] = all;
        }
        team.sync();
        for (int i = team.index(); i < count; i += team.count()) {
          G all = 0;
          for (int g = 0; g < ranges; ++g) all += sum[i * ranges + g];
          seen_keys seen{seen_top[i], seen_sum[i]};
          const auto shares = seen.add(greatest<ranges>(top + i * ranges), all);
          before[i] = shares.before, now[i] = shares.now;
          seen_top[i] = seen.top, seen_sum[i] = seen.sum;
        }
        team_tile<T, M, W, Team> more(team);
        more.add_product(tile_rows<G>{score, stride, count}, tile_rows<T, true>{of_v, apart, width},
                         n);
        team.sync();
        out.each_with(more, [&](int i, int, G& e, const G& y) {
          if (i < count) e = typename seen_keys::shares{before[i], now[i]}(e, y);
        });
      }
      team.sync();
      out.each([&](int i, int d, G& e) {
        if (i >= count || d >= width) return;
        const std::int64_t at = token(i) * s.heads + head_of(i);
        if (splits) sums.o[(at * all_tiles + piece) * s.width + section + d] = e;
        else
          o.data[token(i) * o.stride + head_of(i) * s.width + section + d] =
              convert<T>(seen_sum[i] == 0 ? G(0) : e / seen_sum[i]);
      });
      for (int i = team.index(); splits && section == 0 && i < count; i += team.count()) {
        const std::int64_t at = (token(i) * s.heads + head_of(i)) * all_tiles + piece;
        sums.top[at] = seen_top[i], sums.sum[at] = seen_sum[i];
      }
      team.sync(); // the next section of the head begins its sums
    }
  }

private:
  // The scores of a query are split into ranges, and one thread looks at each range.
  static constexpr int ranges = 8, of_range = cached_keys<T> / ranges;

  template <int N> MEGACPP_HD static G greatest(const G* x) {
    G most = x[0];
    for (int j = 1; j < N; ++j)
      if (x[j] > most || x[j] != x[j]) most = x[j]; // a NaN stays
    return most;
  }
};

/// Computes o of one query from its partial sums over tiles of keys. Rows are (B, S, A).
template <class T> struct cached_attention_total {
  using G = accumulator_t<T>;
  attention_extents s;
  cached_sight see;
  cached_sums<const G> sums;
  head_rows<T> o;

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t row) const {
    constexpr int N = cached_keys<T>;
    const std::int64_t token = row / s.heads, tiles = cached_attention_tile<T>::tiles(s.keys),
                       slot = see.slots[token], last = slot < s.keys ? slot : s.keys - 1,
                       first = see.first(slot) / N, until = last < 0 ? 0 : last / N + 1;
    team.template each<G>(s.width, [&](auto i) {
      constexpr int count = decltype(i)::count;
      G x[count] = {};
      detail::seen_keys<G> seen;
      for (std::int64_t t = first; t < until; ++t) {
        const std::int64_t at = row * tiles + t;
        const auto shares = seen.add(sums.top[at], sums.sum[at]);
        G y[count];
        store(y, lanes<count>{0}, load<G>(sums.o + at * s.width, i));
        for (int e = 0; e < count; ++e) x[e] = shares(x[e], y[e]);
      }
      for (int e = 0; e < count; ++e) x[e] = seen.sum == 0 ? G(0) : x[e] / seen.sum;
      store(o.data + token * o.stride + row % s.heads * s.width, i, load<G>(x, lanes<count>{0}));
    });
  }
};

} // namespace mc::rows
