// The backward sweep of causal attention. With p_ij = exp(s_ij - lse_i) recomputed from lse:
//
//   delta_i = sum_d do_id o_id
//   dv_j = sum_i p_ij do_i
//   ds_ij = p_ij (do_i . v_j - delta_i)
//   dq_i = scale sum_j ds_ij k_j        dk_j = scale sum_i ds_ij q_i
//
// One sweep computes all three (five products a tile), one item for each kv head. Where there are
// too few kv heads for the threads, or the sums of dk and dv would not stay in cache, two sweeps
// compute them: dq by query tiles, then dk and dv by key tiles (seven products). Every element is
// the same chain of additions either way: dq over ascending keys, dk and dv over the query heads of
// the kv head and ascending queries; so both ways give the same bits.
#pragma once

#include <megacpp/kernel/attention_tile.hpp>

#include <numbers>

namespace mc {

namespace tiled {

// Two sweeps compute the gradient if the sums of dk and dv of a thread take more bytes than this.
inline constexpr std::int64_t one_sweep_limit = 8 << 20;

template <class T> constexpr bool one_sweep_fits(const shape& s) {
  using G = accumulator_t<T>;
  return 2 * s.keys * padded<G>(s.head_dim) * static_cast<std::int64_t>(sizeof(G)) <=
         one_sweep_limit;
}
/// Returns true for one sweep, unless its idle threads would cost more than the two products
/// that it saves.
template <class T> constexpr bool one_sweep(const shape& s, int threads) {
  const std::int64_t items = s.batch * s.kv_heads;
  const std::int64_t items_of_thread = ceil_to(items, threads);
  return one_sweep_fits<T>(s) && items_of_thread * 5 <= items * 7;
}

template <class T> struct backward_scratch {
  using G = accumulator_t<T>;
  G *query, *dout;           // (D, query_tile); query times scale * log2(e)
  G *query_rows, *dout_rows; // (query_tile, padded D)
  G* dquery;                 // (D, query_tile)
  G *score, *dscore;         // (key_tile, query_tile)
  G *dkey, *dvalue;          // (Sk in one sweep, key_tile in two; padded D)
  G *key, *value;            // the same extents, where T is narrower than G

  std::int64_t bytes; // bytes of one thread

  constexpr backward_scratch(carver c, const shape& s) {
    const std::int64_t kept =
        one_sweep_fits<T>(s) ? std::max<std::int64_t>(s.keys, key_tile) : key_tile;
    const std::int64_t room = kept * padded<G>(s.head_dim);
    const std::int64_t columns = s.head_dim * query_tile<G>;
    const std::int64_t rows = padded<G>(s.head_dim) * query_tile<G>;
    query = c.take<G>(columns);
    dout = c.take<G>(columns);
    query_rows = c.take<G>(rows);
    dout_rows = c.take<G>(rows);
    dquery = c.take<G>(columns);
    score = c.take<G>(key_tile * query_tile<G>);
    dscore = c.take<G>(key_tile * query_tile<G>);
    dkey = c.take<G>(room);
    dvalue = c.take<G>(room);
    key = c.take<G>(std::is_same_v<G, T> ? 0 : room);
    value = c.take<G>(std::is_same_v<G, T> ? 0 : room);
    bytes = c.used;
  }
};

/// The operands and results of a call of attention's backward sweep, which all of its items use.
template <class T> struct backward_call {
  using G = accumulator_t<T>;
  shape s;
  attention_visibility options;
  head_rows<const T> dout, q, k, v, out;
  const G* lse;
  head_rows<T> dq, dk, dv;
};

/// Returns partial dot products of a and b: lane l has the sum over d = l modulo lanes of a_d b_d.
template <class G, class T>
[[gnu::noinline]] register_of<G> lanewise_dot(const T* a, const T* b, std::int64_t n) {
  register_of<G> sum = {};
  std::int64_t d = 0;
  for (; d + register_lanes<G> <= n; d += register_lanes<G>)
    sum = fma(load<register_of<G>>(a + d), load<register_of<G>>(b + d), sum);
  if (d == n) return sum;
  return fma(load_first<register_of<G>>(a + d, n - d), load_first<register_of<G>>(b + d, n - d),
             sum);
}

/// One query tile of one head of attention, packed into columns.
template <class T> struct query_side {
  using G = accumulator_t<T>;
  query_marks<G> marks;
  std::int64_t token, head, first, n;
  alignas(64) G lse[query_tile<G>]; // lse to the base 2
  alignas(64) G delta[query_tile<G>];

  void set(const backward_call<T>& x, std::int64_t b, std::int64_t h, std::int64_t at,
           const backward_scratch<T>& buffer) {
    constexpr int w = register_lanes<G>;
    const std::int64_t dim = x.s.head_dim;
    head = h;
    first = at;
    n = std::min<std::int64_t>(query_tile<G>, x.s.queries - at);
    token = b * x.s.queries + at;
    marks.set(x.s, x.options, b, first, n);
    const T* const q = x.q.data + token * x.q.stride + head * dim;
    const T* const dout = x.dout.data + token * x.dout.stride + head * dim;
    const T* const out = x.out.data + token * x.out.stride + head * dim;
    pack_columns<G>(q, x.q.stride, n, dim, static_cast<G>(x.options.scale * std::numbers::log2e),
                    buffer.query);
    pack_columns<G>(dout, x.dout.stride, n, dim, G(1), buffer.dout);
    pack_rows<G>(q, x.q.stride, n, marks.used * w, dim, buffer.query_rows);
    pack_rows<G>(dout, x.dout.stride, n, marks.used * w, dim, buffer.dout_rows);
    const G* const statistics = x.lse + (b * x.s.heads + head) * x.s.queries + first;
    for (int i = 0; i < marks.used * w; ++i)
      lse[i] = i < n ? statistics[i] * std::numbers::log2e_v<G> : G(0);
    for (int i = 0; i < marks.used * w; i += w) {
      // Products of w rows are summed lane by lane; then the lanes of a row are summed as a column
      // of the transpose.
      register_of<G> v[w];
      unroll<w>([&](auto r) __attribute__((always_inline)) {
        v[r] = i + r < n ? lanewise_dot<G>(dout + (i + r) * x.dout.stride,
                                           out + (i + r) * x.out.stride, dim)
                         : register_of<G>{};
      });
      transpose(v);
      unroll<w - 1>([&](auto r) __attribute__((always_inline)) { v[0] = v[0] + v[r + 1]; });
      store(delta + i, v[0]);
    }
  }
};

/// Turns the scores of a tile into p, and the products of dy with v into ds, in place.
template <class T, class G = accumulator_t<T>>
void soften_backward(const query_side<T>& q, const key_marks& k, std::int64_t tile_first,
                     const segment& s, G* score, G* dscore) {
  constexpr int w = register_lanes<G>;
  using V = register_of<G>;
  for (int g = s.from; g < s.to; ++g) {
    const V lse = load<V>(q.lse + g * w), delta = load<V>(q.delta + g * w);
    const auto step = [&](int j, auto masked) __attribute__((always_inline)) {
      G* const p = score + j * query_tile<G> + g * w;
      G* const dp = dscore + j * query_tile<G> + g * w;
      V e = exp2(load<V>(p) - lse);
      V ds = e * (load<V>(dp) - delta);
      if constexpr (masked) {
        const auto h = hidden<G>(q.marks, k, tile_first + j, g);
        e = select(h, V(G(0)), e);
        ds = select(h, V(G(0)), ds);
      }
      store(p, e);
      store(dp, ds);
    };
    if (s.masked >> g & 1u)
      for (int j = s.first; j < s.last; ++j) step(j, std::true_type{});
    else
      for (int j = s.first; j < s.last; ++j) step(j, std::false_type{});
  }
}

/// Computes one tile: adds to dq of the query side (if asked) and to dk and dv (key_tile, padded D;
/// if not null). key and value start at the tile's first key.
template <class T, class G = accumulator_t<T>>
void backward_tile(const query_side<T>& q, const key_marks& marks, const tile_segments& segments,
                   std::int64_t tile_first, rows_of<G> key, rows_of<G> value, std::int64_t dim,
                   bool dquery, G* dkey, G* dvalue, const backward_scratch<T>& buffer) {
  constexpr int w = register_lanes<G>;
  constexpr int row = query_tile<G>;
  constexpr auto depth = tile::contiguous::depth;
  const std::int64_t width = padded<G>(dim);
  using operands = tile::operands<G>;
  for (const segment& p : segments) {
    const int at = p.first * row + p.from * w, keys = p.last - p.first, seen = (p.to - p.from) * w;
    G* const score = buffer.score + at;
    G* const dscore = buffer.dscore + at;
    tile::multiply<depth>(operands{key.data + p.first * key.stride, key.stride,
                                   buffer.query + p.from * w, row, score, row},
                          keys, seen, dim, tile::start::zero);
    tile::multiply<depth>(operands{value.data + p.first * value.stride, value.stride,
                                   buffer.dout + p.from * w, row, dscore, row},
                          keys, seen, dim, tile::start::zero);
    soften_backward<T>(q, marks, tile_first, p, buffer.score, buffer.dscore);
    if (dkey != nullptr) {
      tile::multiply<depth>(operands{score, row, buffer.dout_rows + p.from * w * width, width,
                                     dvalue + p.first * width, width},
                            keys, width, seen, tile::start::c);
      tile::multiply<depth>(operands{dscore, row, buffer.query_rows + p.from * w * width, width,
                                     dkey + p.first * width, width},
                            keys, width, seen, tile::start::c);
    }
    if (dquery)
      tile::multiply<tile::contiguous::row>(operands{key.data + p.first * key.stride, key.stride,
                                                     dscore, row, buffer.dquery + p.from * w, row},
                                            dim, seen, keys, tile::start::c);
  }
}

template <class T> void store_dquery(const backward_call<T>& x, const query_side<T>& q,
                                     const backward_scratch<T>& buffer) {
  using G = accumulator_t<T>;
  alignas(64) G factor[query_tile<G>];
  std::fill(factor, factor + query_tile<G>, static_cast<G>(x.options.scale));
  unpack_columns<G>(buffer.dquery, factor, q.n, x.s.head_dim,
                    x.dq.data + q.token * x.dq.stride + q.head * x.s.head_dim, x.dq.stride);
}

/// Writes n rows of gradient sums (n, padded D) times a factor to rows of T at `token`.
template <class T, class G> void store_rows(const G* from, G factor, const shape& s,
                                            std::int64_t token, std::int64_t kv_head,
                                            std::int64_t n, head_rows<T> to) {
  const std::int64_t dim = s.head_dim;
  for (std::int64_t j = 0; j < n; ++j)
    for (std::int64_t d = 0; d < dim; d += register_lanes<G>)
      store_first(to.data + (token + j) * to.stride + kv_head * dim + d,
                  load<register_of<G>>(from + j * padded<G>(dim) + d) * factor, dim - d);
}

/// Calls f for the key tiles that a tile of queries sees, in ascending order.
template <class T, class Tile> void for_key_tiles(const backward_call<T>& x, const query_side<T>& q,
                                                  const key_marks& keys, Tile f) {
  for (std::int64_t at = q.marks.first_key / key_tile * key_tile; at < q.marks.last_key;
       at += key_tile) {
    const int count = static_cast<int>(std::min<std::int64_t>(key_tile, x.s.keys - at));
    const tile_segments segments = segments_of_tile(q.marks, keys, at, count);
    if (segments.size > 0) f(at, count, segments);
  }
}

/// Computes dq, dk and dv of attention for one kv head and its query heads.
template <class T> void backward_kv_head(const backward_call<T>& x, std::int64_t b,
                                         std::int64_t kv_head, const backward_scratch<T>& buffer) {
  using G = accumulator_t<T>;
  const shape& s = x.s;
  const std::int64_t dim = s.head_dim, width = padded<G>(dim), group = s.heads / s.kv_heads;
  const std::int64_t token = b * s.keys;
  const key_marks marks(s, x.options, b);
  std::fill(buffer.dkey, buffer.dkey + s.keys * width, G(0));
  std::fill(buffer.dvalue, buffer.dvalue + s.keys * width, G(0));
  const rows_of<G> key = widened<G>(x.k.data + token * x.k.stride + kv_head * dim, x.k.stride,
                                    s.keys, dim, buffer.key);
  const rows_of<G> value = widened<G>(x.v.data + token * x.v.stride + kv_head * dim, x.v.stride,
                                      s.keys, dim, buffer.value);
  query_side<T> q;
  for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head)
    for (std::int64_t first = 0; first < s.queries; first += query_tile<G>) {
      q.set(x, b, head, first, buffer);
      std::fill(buffer.dquery, buffer.dquery + dim * query_tile<G>, G(0));
      for_key_tiles(x, q, marks, [&](std::int64_t at, int, const tile_segments& segments) {
        backward_tile<T>(q, marks, segments, at, {key.data + at * key.stride, key.stride},
                         {value.data + at * value.stride, value.stride}, dim, true,
                         buffer.dkey + at * width, buffer.dvalue + at * width, buffer);
      });
      store_dquery(x, q, buffer);
    }
  store_rows(buffer.dkey, static_cast<G>(x.options.scale), s, token, kv_head, s.keys, x.dk);
  store_rows(buffer.dvalue, G(1), s, token, kv_head, s.keys, x.dv);
}

/// Computes dq of one query tile: the first of two sweeps.
template <class T> void backward_queries(const backward_call<T>& x, std::int64_t b,
                                         std::int64_t head, std::int64_t first,
                                         const backward_scratch<T>& buffer) {
  using G = accumulator_t<T>;
  const std::int64_t dim = x.s.head_dim, kv_head = head / (x.s.heads / x.s.kv_heads);
  const key_marks marks(x.s, x.options, b);
  query_side<T> q;
  q.set(x, b, head, first, buffer);
  std::fill(buffer.dquery, buffer.dquery + dim * query_tile<G>, G(0));
  for_key_tiles(x, q, marks, [&](std::int64_t at, int count, const tile_segments& segments) {
    const std::int64_t token = b * x.s.keys + at;
    const auto key = widened<G>(x.k.data + token * x.k.stride + kv_head * dim, x.k.stride, count,
                                dim, buffer.key);
    const auto value = widened<G>(x.v.data + token * x.v.stride + kv_head * dim, x.v.stride, count,
                                  dim, buffer.value);
    backward_tile<T>(q, marks, segments, at, key, value, dim, true, static_cast<G*>(nullptr),
                     static_cast<G*>(nullptr), buffer);
  });
  store_dquery(x, q, buffer);
}

/// Computes dk and dv of one key tile over the kv head's query heads and ascending queries: the
/// second of two sweeps.
template <class T> void backward_keys(const backward_call<T>& x, std::int64_t b,
                                      std::int64_t kv_head, std::int64_t at,
                                      const backward_scratch<T>& buffer) {
  using G = accumulator_t<T>;
  const shape& s = x.s;
  const std::int64_t dim = s.head_dim, width = padded<G>(dim), group = s.heads / s.kv_heads;
  const int count = static_cast<int>(std::min<std::int64_t>(key_tile, s.keys - at));
  const std::int64_t token = b * s.keys + at;
  const key_marks marks(s, x.options, b);
  std::fill(buffer.dkey, buffer.dkey + count * width, G(0));
  std::fill(buffer.dvalue, buffer.dvalue + count * width, G(0));
  const auto key =
      widened<G>(x.k.data + token * x.k.stride + kv_head * dim, x.k.stride, count, dim, buffer.key);
  const auto value = widened<G>(x.v.data + token * x.v.stride + kv_head * dim, x.v.stride, count,
                                dim, buffer.value);
  query_side<T> q;
  for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head)
    for (std::int64_t first = 0; first < s.queries; first += query_tile<G>) {
      // This test of the key tile's visibility costs little beside packing the tile of queries.
      q.marks.set(s, x.options, b, first, std::min<std::int64_t>(query_tile<G>, s.queries - first));
      if (at >= q.marks.last_key || at + count <= q.marks.first_key) continue;
      const tile_segments segments = segments_of_tile(q.marks, marks, at, count);
      if (segments.size == 0) continue;
      q.set(x, b, head, first, buffer);
      backward_tile<T>(q, marks, segments, at, key, value, dim, false, buffer.dkey, buffer.dvalue,
                       buffer);
    }
  store_rows(buffer.dkey, static_cast<G>(x.options.scale), s, token, kv_head, count, x.dk);
  store_rows(buffer.dvalue, G(1), s, token, kv_head, count, x.dv);
}

} // namespace tiled

/// Returns the bytes of scratch of attention_backward on this many threads.
template <class T, class... E>
constexpr std::int64_t attention_backward_bytes(const attention_shape<E...>& s, int threads) {
  return 64 + threads * tiled::backward_scratch<T>({}, tiled::run_time(s)).bytes;
}

/// Computes dq (B, Sq, A, D) and dk and dv (B, Sk, K, D), which it overwrites, from do (B, Sq, A,
/// D) and the inputs and results of attention_forward. A query that sees no key, and a key that no
/// query sees, get zero. The bits do not depend on scratch.threads, nor on which extents are
/// constants.
template <class T, class... E> void attention_backward(
    const attention_shape<E...>& extents, const attention_visibility& options,
    std::type_identity_t<head_rows<const T>> dout, std::type_identity_t<head_rows<const T>> q,
    std::type_identity_t<head_rows<const T>> k, std::type_identity_t<head_rows<const T>> v,
    std::type_identity_t<head_rows<const T>> o, const accumulator_t<T>* lse, head_rows<T> dq,
    head_rows<T> dk, head_rows<T> dv, attention_scratch scratch) {
  using G = accumulator_t<T>;
  using buffers = tiled::backward_scratch<T>;
  const tiled::shape s = tiled::run_time(extents);
  const tiled::backward_call<T> call{s, options, dout, q, k, v, o, lse, dq, dk, dv};
  std::byte* const memory = tiled::aligned(scratch.data);
  const std::int64_t each = buffers({}, s).bytes;
  const auto buffer = [&](int thread) { return buffers({memory + thread * each}, s); };
  if (tiled::one_sweep<T>(s, scratch.threads)) {
    tiled::for_items(s.batch * s.kv_heads, scratch, [&](std::int64_t t, int thread) {
      tiled::backward_kv_head(call, t / s.kv_heads, t % s.kv_heads, buffer(thread));
    });
    return;
  }
  constexpr std::int64_t q_tile = tiled::query_tile<G>, k_tile = tiled::key_tile;
  const std::int64_t q_tiles = (s.queries + q_tile - 1) / q_tile;
  const std::int64_t k_tiles = (s.keys + k_tile - 1) / k_tile;
  // The tiles with the most work under a causal mask go first: late queries, early keys.
  tiled::for_items(s.batch * s.heads * q_tiles, scratch, [&](std::int64_t t, int thread) {
    tiled::backward_queries(call, t / q_tiles / s.heads, t / q_tiles % s.heads,
                            (q_tiles - 1 - t % q_tiles) * q_tile, buffer(thread));
  });
  tiled::for_items(s.batch * s.kv_heads * k_tiles, scratch, [&](std::int64_t t, int thread) {
    tiled::backward_keys(call, t / k_tiles / s.kv_heads, t / k_tiles % s.kv_heads,
                         t % k_tiles * k_tile, buffer(thread));
  });
}

} // namespace mc
