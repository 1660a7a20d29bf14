// The forward pass of causal attention.
//
//   s_ij = scale q_i . k_j for the keys j that i sees     (B, A, Sq, Sk), never held
//   lse_i = log sum_j exp s_ij                            (B, A, Sq)
//   o_i = sum_j exp(s_ij - lse_i) v_j                     (B, Sq, A, D)
//
// The kernel goes tile by tile over the keys with a running maximum m and sum l (Milakov and
// Gimelshein 2018; Dao 2023): when m grows, l and o are multiplied by exp(m_old - m_new).
// Exponentials are powers of two: the query tile carries scale * log2(e).
#pragma once

#include <megacpp/kernel/attention_tile.hpp>

#include <numbers>

namespace mc {

namespace tiled {

template <class T> struct forward_scratch {
  using G = accumulator_t<T>;
  G *query, *out; // (D, query_tile)
  G* score;       // (key_tile, query_tile)
  G *key, *value; // (key_tile, padded D), where T is narrower than G

  std::int64_t bytes; // bytes of one thread

  constexpr forward_scratch(carver c, const shape& s) {
    const std::int64_t room = std::is_same_v<G, T> ? 0 : key_tile * padded<G>(s.head_dim);
    query = c.take<G>(s.head_dim * query_tile<G>);
    out = c.take<G>(s.head_dim * query_tile<G>);
    score = c.take<G>(key_tile * query_tile<G>);
    key = c.take<G>(room);
    value = c.take<G>(room);
    bytes = c.used;
  }
};

// Four independent chains hide the latency of max and of the polynomial. Row j belongs to chain j %
// 4 (segments begin at multiples of keys_per_mask), however many rows there are: the sum of a query
// does not depend on keys that only other queries of its tile see.
template <class G, class F> MEGACPP_HD void each_row(int first, int last, F f) {
  int j = first;
  for (; j + 4 <= last; j += 4)
    unroll<4>([&](auto c) __attribute__((always_inline)) { f(j + c, c); });
  unroll<3>([&](auto c) __attribute__((always_inline)) {
    if (j + c < last) f(j + c, c);
  });
}

template <class G> void hide(const query_marks<G>& q, const key_marks& k, std::int64_t tile_first,
                             const segment& s, G* score) {
  const register_of<G> none(-std::numeric_limits<G>::infinity());
  for (int g = s.from; g < s.to; ++g) {
    if (!(s.masked >> g & 1u)) continue;
    for (int j = s.first; j < s.last; ++j) {
      G* const p = score + j * query_tile<G> + g * register_lanes<G>;
      store(p, select(hidden<G>(q, k, tile_first + j, g), none, load<register_of<G>>(p)));
    }
  }
}

/// Turns the scores of one tile into exp(s - m), updating m and l. alpha gets the factors that
/// bring earlier sums to the new m. Returns true if a factor differs from 1.
template <class G>
bool soften(const tile_segments& segments, int registers, G* score, G* m, G* l, G* alpha) {
  constexpr int w = register_lanes<G>;
  using V = register_of<G>;
  const V none(-std::numeric_limits<G>::infinity());
  bool rescale = false;
  for (int g = 0; g < registers; ++g) {
    const V before = load<V>(m + g * w);
    V top[4] = {before, before, before, before};
    for (const segment& s : segments)
      if (s.from <= g && g < s.to)
        each_row<G>(
            s.first, s.last, [&](int j, auto c) __attribute__((always_inline)) {
              top[c] = max(load<V>(score + j * query_tile<G> + g * w), top[c]);
            });
    const V now = max(max(top[0], top[1]), max(top[2], top[3]));
    const V base = select(now == none, V(G(0)), now); // none: the row has seen no key yet
    const V factor = exp2(before - base);
    V sum[4] = {};
    for (const segment& s : segments)
      if (s.from <= g && g < s.to)
        each_row<G>(
            s.first, s.last, [&](int j, auto c) __attribute__((always_inline)) {
              G* const p = score + j * query_tile<G> + g * w;
              const V e = exp2(load<V>(p) - base);
              store(p, e);
              sum[c] = sum[c] + e;
            });
    store(m + g * w, now);
    store(l + g * w, fma(load<V>(l + g * w), factor, (sum[0] + sum[1]) + (sum[2] + sum[3])));
    store(alpha + g * w, factor);
    for (int i = 0; i < w; ++i) rescale |= alpha[g * w + i] != G(1);
  }
  return rescale;
}

/// Computes attention for one tile of queries [first, first + n) of one head of sequence b.
template <class T, class G = accumulator_t<T>>
void forward_tile(const shape& s, const attention_visibility& o, head_rows<const T> q,
                  head_rows<const T> k, head_rows<const T> v, head_rows<T> out, G* lse,
                  std::int64_t b, std::int64_t head, std::int64_t first, std::int64_t n,
                  const forward_scratch<T>& buffer) {
  constexpr int w = register_lanes<G>;
  constexpr int row = query_tile<G>;
  const std::int64_t dim = s.head_dim;
  const std::int64_t kv_head = head / (s.heads / s.kv_heads);
  const std::int64_t q_token = b * s.queries + first;
  query_marks<G> marks;
  marks.set(s, o, b, first, n);
  const key_marks keys(s, o, b);
  pack_columns<G>(q.data + q_token * q.stride + head * dim, q.stride, n, dim,
                  static_cast<G>(o.scale * std::numbers::log2e), buffer.query);

  alignas(64) G m[row], l[row], alpha[row];
  std::fill(m, m + row, -std::numeric_limits<G>::infinity());
  std::fill(l, l + row, G(0));
  bool begun = false;
  for (std::int64_t at = marks.first_key / key_tile * key_tile; at < marks.last_key;
       at += key_tile) {
    const int count = static_cast<int>(std::min<std::int64_t>(key_tile, marks.last_key - at));
    const tile_segments segments = segments_of_tile(marks, keys, at, count);
    if (segments.size == 0) continue;
    const std::int64_t token = b * s.keys + at;
    const rows_of<G> key =
        widened<G>(k.data + token * k.stride + kv_head * dim, k.stride, count, dim, buffer.key);
    for (const segment& p : segments) {
      tile::multiply<tile::contiguous::depth>(
          tile::operands<G>{key.data + p.first * key.stride, key.stride, buffer.query + p.from * w,
                            row, buffer.score + p.first * row + p.from * w, row},
          p.last - p.first, (p.to - p.from) * w, dim, tile::start::zero);
      if (p.masked) hide(marks, keys, at, p, buffer.score);
    }
    const bool rescale = soften(segments, marks.used, buffer.score, m, l, alpha);
    const bool whole =
        segments.size == 1 && segments.list[0].from == 0 && segments.list[0].to == marks.used;
    if (!begun && !whole) std::fill(buffer.out, buffer.out + dim * row, G(0));
    if (begun && rescale)
      for (std::int64_t d = 0; d < dim; ++d)
        for (int g = 0; g < marks.used; ++g) {
          G* const x = buffer.out + d * row + g * w;
          store(x, load<register_of<G>>(x) * load<register_of<G>>(alpha + g * w));
        }
    const rows_of<G> value =
        widened<G>(v.data + token * v.stride + kv_head * dim, v.stride, count, dim, buffer.value);
    for (const segment& p : segments)
      tile::multiply<tile::contiguous::row>(
          tile::operands<G>{value.data + p.first * value.stride, value.stride,
                            buffer.score + p.first * row + p.from * w, row, buffer.out + p.from * w,
                            row},
          dim, (p.to - p.from) * w, p.last - p.first,
          begun || !whole ? tile::start::c : tile::start::zero);
    begun = true;
  }
  if (!begun) std::fill(buffer.out, buffer.out + dim * row, G(0));

  G* const statistics = lse ? lse + (b * s.heads + head) * s.queries + first : nullptr;
  for (std::int64_t i = 0; statistics && i < n; ++i)
    statistics[i] = l[i] == G(0) ? -std::numeric_limits<G>::infinity()
                                 : m[i] * std::numbers::ln2_v<G> + std::log(l[i]);
  for (int i = 0; i < marks.used * w; ++i) alpha[i] = l[i] == G(0) ? G(0) : G(1) / l[i];
  unpack_columns<G>(buffer.out, alpha, n, dim, out.data + q_token * out.stride + head * dim,
                    out.stride);
}

} // namespace tiled

/// Returns the bytes of scratch of attention_forward on this many threads.
template <class T, class... E>
constexpr std::int64_t attention_forward_bytes(const attention_shape<E...>& s, int threads) {
  return 64 + threads * tiled::forward_scratch<T>({}, tiled::run_time(s)).bytes;
}

/// Computes o (B, Sq, A, D) and, unless lse is null, lse (B, A, Sq) from q (B, Sq, A, D), k and v
/// (B, Sk, K, D). lse is the logarithm of the sum of the exponentials of a query's scaled scores. A
/// query that sees no key gets o = 0 and lse = -infinity. Without key positions, keys that no query
/// of a tile sees are not read. The results of a query do not depend on the queries beside it, nor
/// on keys that it does not see. Query head a reads kv head a / (A / K). The bits do not depend on
/// scratch.threads, nor on which extents are constants.
template <class T, class... E>
void attention_forward(const attention_shape<E...>& extents, const attention_visibility& options,
                       std::type_identity_t<head_rows<const T>> q,
                       std::type_identity_t<head_rows<const T>> k,
                       std::type_identity_t<head_rows<const T>> v, head_rows<T> o,
                       accumulator_t<T>* lse, attention_scratch scratch) {
  using G = accumulator_t<T>;
  const tiled::shape s = tiled::run_time(extents);
  constexpr std::int64_t tile = tiled::query_tile<G>;
  const std::int64_t tiles = (s.queries + tile - 1) / tile;
  std::byte* const memory = tiled::aligned(scratch.data);
  const std::int64_t each = tiled::forward_scratch<T>({}, s).bytes;
  tiled::for_items(s.batch * s.heads * tiles, scratch, [&](std::int64_t t, int thread) {
    // The last query tile of a head, which has the most work under a causal mask, goes first.
    const std::int64_t first = (tiles - 1 - t % tiles) * tile;
    const std::int64_t head = t / tiles % s.heads, b = t / tiles / s.heads;
    const tiled::forward_scratch<T> buffer({memory + thread * each}, s);
    tiled::forward_tile<T>(s, options, q, k, v, o, lse, b, head, first,
                           std::min(tile, s.queries - first), buffer);
  });
}

} // namespace mc
