// Definitions for the attention kernels of the host: shapes, the keys that a query sees in each
// tile, and the packing of query tiles.
//
// A tile is query_tile queries of one head by key_tile keys. Scores are kept transposed, keys in
// rows and queries in lanes: the statistics of the softmax are lane-wise then, the products read K
// and V in place (elements broadcast), and only the query tile is transposed.
#pragma once

#include <megacpp/kernel/rows/attention.hpp>
#include <megacpp/kernel/tile.hpp>
#include <megacpp/threads/parallel.hpp>
#include <megacpp/vectors/math.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <limits>

namespace mc {

/// The extents of an attention: each is a fixed<N> or a std::int64_t.
/// B batch, Sq queries, Sk keys, A heads, K kv heads (divides A), D head dim (any >= 1).
template <class Batch = std::int64_t, class Queries = std::int64_t, class Keys = std::int64_t,
          class Heads = std::int64_t, class KvHeads = std::int64_t, class HeadDim = std::int64_t>
struct attention_shape {
  Batch batch;
  Queries queries;
  Keys keys;
  Heads heads;
  KvHeads kv_heads;
  HeadDim head_dim;
};
template <class... Extents> attention_shape(Extents...) -> attention_shape<Extents...>;

/// The memory that the caller lends to a kernel, of attention_forward_bytes or
/// attention_backward_bytes for this number of threads; and the threads. Results do not depend on
/// their number.
struct attention_scratch {
  std::byte* data;
  int threads;
  const host_pool& on;
};

namespace tiled {

template <class G> inline constexpr int query_tile = 256 / static_cast<int>(sizeof(G));
inline constexpr int key_tile = 64;
inline constexpr int keys_per_mask = 16; // number of keys by which visibility is decided

using shape = attention_shape<>;
template <class... E> constexpr shape run_time(const attention_shape<E...>& s) {
  return {s.batch, s.queries, s.keys, s.heads, s.kv_heads, s.head_dim};
}

constexpr std::int64_t ceil_to(std::int64_t n, std::int64_t m) { return (n + m - 1) / m * m; }
/// Returns the head dim D, rounded up to whole registers.
template <class G> constexpr std::int64_t padded(std::int64_t head_dim) {
  return ceil_to(head_dim, register_lanes<G>);
}

/// Cuts arrays that start on cache lines from one range of memory; without memory it only counts.
struct carver {
  std::byte* memory = nullptr;
  std::int64_t used = 0;
  template <class G> constexpr G* take(std::int64_t n) {
    G* const p = memory != nullptr ? reinterpret_cast<G*>(memory + used) : nullptr;
    used += ceil_to(n * static_cast<std::int64_t>(sizeof(G)), 64);
    return p;
  }
};
inline std::byte* aligned(std::byte* p) {
  return p + (64 - (reinterpret_cast<std::uintptr_t>(p) & 63)) % 64;
}

/// Calls f(item, thread) for every item, each once, on up to so many threads. The items
/// are independent.
template <class F> void for_items(std::int64_t items, const attention_scratch& of, F f) {
  std::atomic<std::int64_t> next{0};
  of.on.for_pieces(static_cast<int>(std::min<std::int64_t>(items, of.threads)), [&](int thread) {
    for (std::int64_t t = next++; t < items; t = next++) f(t, thread);
  });
}

struct range {
  std::int64_t low = std::numeric_limits<std::int64_t>::max();
  std::int64_t high = std::numeric_limits<std::int64_t>::min();
  void add(std::int64_t x) {
    low = std::min(low, x);
    high = std::max(high, x);
  }
  void add(const range& r) {
    low = std::min(low, r.low);
    high = std::max(high, r.high);
  }
};

/// The queries of a tile, as lanes: query i sees position p of document d if lower[i] < p <=
/// upper[i] and d == document[i].
template <class G> struct query_marks {
  static constexpr int registers = query_tile<G> / register_lanes<G>;
  alignas(64) int_like<G> upper[query_tile<G>];
  alignas(64) int_like<G> lower[query_tile<G>];
  alignas(64) int_like<G> document[query_tile<G>];
  range uppers[registers], lowers[registers], documents[registers]; // ranges of each register
  int used;                         // number of registers with queries
  std::int64_t first_key, last_key; // no query of the tile sees a key outside of these

  /// Sets queries [first, first + n) of sequence b. Lanes beyond n repeat the last query: their
  /// results stay in their lanes, or are multiplied by zero, and are never stored.
  void set(const shape& s, const attention_visibility& o, std::int64_t b, std::int64_t first,
           std::int64_t n) {
    constexpr std::int64_t least = std::numeric_limits<std::int32_t>::min();
    constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
    const std::int64_t ahead = std::max<std::int64_t>(s.keys - s.queries, 0);
    used = static_cast<int>((n + register_lanes<G> - 1) / register_lanes<G>);
    range visible;
    for (int g = 0; g < used; ++g) {
      uppers[g] = lowers[g] = documents[g] = range{};
      for (int l = 0; l < register_lanes<G>; ++l) {
        const int lane = g * register_lanes<G> + l;
        const std::int64_t i = first + std::min<std::int64_t>(lane, n - 1);
        const std::int64_t p = o.query_position ? o.query_position[b * s.queries + i] : i + ahead;
        const std::int64_t high = o.causal || o.window > 0 ? p : most;
        const std::int64_t low = o.window > 0 ? std::max(p - o.window, least) : least;
        const std::int64_t d = o.query_document ? o.query_document[b * s.queries + i] : 0;
        uppers[g].add(high);
        lowers[g].add(low);
        documents[g].add(d);
        upper[lane] = static_cast<int_like<G>>(high);
        lower[lane] = static_cast<int_like<G>>(low);
        document[lane] = static_cast<int_like<G>>(d);
      }
      visible.add(range{lowers[g].low + 1, uppers[g].high});
    }
    first_key = o.key_position ? 0 : std::clamp<std::int64_t>(visible.low, 0, s.keys);
    last_key = o.key_position ? s.keys : std::clamp<std::int64_t>(visible.high + 1, 0, s.keys);
  }
};

/// The positions and documents of the keys of one sequence.
struct key_marks {
  const std::int32_t* position; // null: the position is the index
  const std::int32_t* document; // null: all keys are of document 0
  key_marks(const shape& s, const attention_visibility& o, std::int64_t b)
      : position(o.key_position ? o.key_position + b * s.keys : nullptr),
        document(o.key_document ? o.key_document + b * s.keys : nullptr) {}

  std::int32_t position_of(std::int64_t j) const {
    return position ? position[j] : static_cast<std::int32_t>(j);
  }
  std::int32_t document_of(std::int64_t j) const { return document ? document[j] : 0; }

  static range spread(const std::int32_t* x, std::int64_t first, std::int64_t last) {
    const auto [low, high] = std::minmax_element(x + first, x + last);
    return {*low, *high};
  }
  range positions(std::int64_t first, std::int64_t last) const {
    return position ? spread(position, first, last) : range{first, last - 1};
  }
  range documents(std::int64_t first, std::int64_t last) const {
    return document ? spread(document, first, last) : range{0, 0};
  }
};

/// A segment of a tile that is computed: keys [first, last) by registers [from, to) of queries. Bit
/// g of masked is set if some query of register g does not see some of these keys.
struct segment {
  int first, last, from, to;
  std::uint32_t masked;
};

/// The segments of a tile of queries and keys, keys ascending; a tile that no query sees has none.
struct tile_segments {
  segment list[key_tile / keys_per_mask];
  int size = 0;
  const segment* begin() const { return list; }
  const segment* end() const { return list + size; }
};

template <class G> tile_segments segments_of_tile(const query_marks<G>& q, const key_marks& k,
                                                  std::int64_t tile_first, int n) {
  tile_segments segments;
  for (int first = 0; first < n; first += keys_per_mask) {
    const int last = std::min(first + keys_per_mask, n);
    const range p = k.positions(tile_first + first, tile_first + last);
    const range d = k.documents(tile_first + first, tile_first + last);
    segment s{first, last, q.used, 0, 0};
    for (int g = 0; g < q.used; ++g) {
      const range& u = q.uppers[g];
      const range& l = q.lowers[g];
      const range& e = q.documents[g];
      if (p.low > u.high || p.high <= l.low || d.low > e.high || d.high < e.low) continue;
      s.from = std::min(s.from, g);
      s.to = g + 1;
    }
    if (s.from >= s.to) continue;
    // A register that sees no key, between two registers that see some, is computed and masked.
    for (int g = s.from; g < s.to; ++g) {
      const range& e = q.documents[g];
      const bool all = p.high <= q.uppers[g].low && p.low > q.lowers[g].high && d.low == d.high &&
                       e.low == e.high && d.low == e.low;
      if (!all) s.masked |= 1u << g;
    }
    segment* before = segments.size > 0 ? &segments.list[segments.size - 1] : nullptr;
    if (before && before->last == s.first && before->from == s.from && before->to == s.to) {
      before->last = s.last;
      before->masked |= s.masked;
    } else {
      segments.list[segments.size++] = s;
    }
  }
  return segments;
}

/// Returns the mask of the queries of register g that do not see key j of the sequence.
template <class G> MEGACPP_HD register_of<int_like<G>> hidden(const query_marks<G>& q,
                                                              const key_marks& k, std::int64_t j,
                                                              int g) {
  const int_like<G> p = k.position_of(j), d = k.document_of(j);
  const int lane = g * register_lanes<G>;
  return (load<register_of<int_like<G>>>(q.upper + lane) < p) |
         (load<register_of<int_like<G>>>(q.lower + lane) >= p) |
         (load<register_of<int_like<G>>>(q.document + lane) != d);
}

/// Packs one square of pack_columns: all of its rows, and the first `columns` of its columns.
template <class G, class T> MEGACPP_HD void pack_square(const T* from, std::int64_t stride,
                                                        std::int64_t columns, G factor, G* to) {
  register_of<G> v[register_lanes<G>];
  unroll<register_lanes<G>>([&](auto r) __attribute__((always_inline)) {
    v[r] = load<register_of<G>>(from + r * stride) * factor;
  });
  transpose(v);
  unroll<register_lanes<G>>([&](auto r) __attribute__((always_inline)) {
    if (r < columns) store(to + r * query_tile<G>, v[r]);
  });
}

/// to[d * query_tile + i] = factor * from[i * stride + d] for n rows. Lanes up to a whole register
/// are zero.
template <class G, class T> void pack_columns(const T* from, std::int64_t stride, std::int64_t n,
                                              std::int64_t head_dim, G factor, G* to) {
  constexpr int w = register_lanes<G>;
  for (std::int64_t i = 0; i < n; i += w)
    for (std::int64_t d = 0; d < head_dim; d += w) {
      const T* const corner = from + i * stride + d;
      G* const at = to + d * query_tile<G> + i;
      if (i + w <= n && d + w <= head_dim) {
        pack_square<G>(corner, stride, w, factor, at);
        continue;
      }
      alignas(64) G edge[w * w];
      for (std::int64_t r = 0; r < w; ++r)
        store(edge + r * w, i + r < n
                                ? load_first<register_of<G>>(corner + r * stride, head_dim - d)
                                : register_of<G>{});
      pack_square<G>(edge, w, head_dim - d, factor, at);
    }
}

/// to[i * stride + d] = from[d * query_tile + i] * factor[i] for n rows.
template <class G, class T> void unpack_columns(const G* from, const G* factor, std::int64_t n,
                                                std::int64_t head_dim, T* to, std::int64_t stride) {
  constexpr int w = register_lanes<G>;
  for (std::int64_t i = 0; i < n; i += w) {
    const register_of<G> f = load<register_of<G>>(factor + i);
    for (std::int64_t d = 0; d < head_dim; d += w) {
      const std::int64_t columns = head_dim - d, rows = n - i;
      register_of<G> v[w];
      unroll<w>([&](auto r) __attribute__((always_inline)) {
        v[r] = r < columns ? load<register_of<G>>(from + (d + r) * query_tile<G> + i) * f
                           : register_of<G>{};
      });
      transpose(v);
      T* const corner = to + i * stride + d;
      if (columns >= w && rows >= w) {
        unroll<w>([&](auto r) __attribute__((always_inline)) { store(corner + r * stride, v[r]); });
        continue;
      }
      alignas(64) G edge[w * w];
      unroll<w>([&](auto r) __attribute__((always_inline)) { store(edge + r * w, v[r]); });
      for (std::int64_t r = 0; r < std::min<std::int64_t>(w, rows); ++r)
        store_first(corner + r * stride, load<register_of<G>>(edge + r * w), columns);
    }
  }
}

/// to[i * padded + d] = from[i * stride + d] for n rows; zero for d >= D and for rows [n, rows).
template <class G, class T> void pack_rows(const T* from, std::int64_t stride, std::int64_t n,
                                           std::int64_t rows, std::int64_t head_dim, G* to) {
  constexpr int w = register_lanes<G>;
  const std::int64_t row = padded<G>(head_dim);
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t d = 0; d < head_dim; d += w)
      store(to + i * row + d, i < n
                                  ? load_first<register_of<G>>(from + i * stride + d, head_dim - d)
                                  : register_of<G>{});
}

/// Rows of keys or values as G: the operand itself, or a widened copy.
template <class G> struct rows_of {
  const G* data;
  std::int64_t stride;
};
/// Returns rows of T as G: the rows themselves, or a copy in `room` (n, padded).
template <class G, class T> rows_of<G> widened(const T* from, std::int64_t stride, std::int64_t n,
                                               std::int64_t head_dim, G* room) {
  if constexpr (std::is_same_v<G, T>) {
    (void)n, (void)head_dim, (void)room;
    return {from, stride};
  } else {
    pack_rows<G>(from, stride, n, n, head_dim, room);
    return {room, padded<G>(head_dim)};
  }
}

} // namespace tiled
} // namespace mc
