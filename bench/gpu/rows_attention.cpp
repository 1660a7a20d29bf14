// Checks of attention by megacpp's own bodies.
#include "rows.hpp"

#include <megacpp/kernel/rows/attention.hpp>
#include <megacpp/kernel/rows/cached_attention.hpp>

#include <cmath>

namespace gpu {
namespace {

namespace rows = mc::rows;
using std::int64_t;

// One sequence, causal, two heads of queries for each of keys where there are so many.
struct attended {
  rows::attention_extents s;
  mc::attention_visibility see;
  int64_t of_q, of_k; // elements of a token
  explicit attended(const sizes& m)
      : s{m.tokens, m.tokens, m.heads, m.heads % 2 == 0 ? m.heads / 2 : m.heads, 2 * m.half},
        of_q(s.heads * s.width),
        of_k(s.kv_heads * s.width) {
    see.scale = 1 / std::sqrt(static_cast<double>(s.width));
  }
};

// What tensor cores add up in another order and multiply with rounded probabilities: about
// sqrt(terms) of them are rounded to the other side, each of about `size`. Where probabilities are
// approximations, all terms may be off to the same side; the 5 is for values of more than average
// size.
template <class T> bound of_products(double terms, double size) {
  bound b = approximated(ulps_of_exp, 5 * size * terms);
  if (sizeof(T) == 2) b.roundings = 1, b.inner = 2 * size * std::sqrt(terms);
  return b;
}

template <class T> void forward(report& r, const sizes& m) {
  using G = mc::accumulator_t<T>;
  const attended of(m);
  arrays a;
  const auto q = a.read<T>(m.tokens * of.of_q), k = a.read<T>(m.tokens * of.of_k),
             v = a.read<T>(m.tokens * of.of_k);
  // Where products are plain, all sums have the same order. A term is a product of one exponential
  // and of one for each tile behind it; the sum by which all are divided is as far off.
  const double off =
      ulps_of_exp * static_cast<double>(1 + rows::attention_tile<T>::tiles(m.tokens));
  bound of_o = approximated(2 * off, 1), of_lse = approximated(off, 1);
  if (sizeof(T) == 2) {
    const double steps = steps_of_sum<rows::attention_tile<T>, G>(m.tokens) + 8;
    of_o = {.roundings = 1, .steps = of_o.steps + steps, .magnitude = 1, .inner = 0.5};
    of_lse = {.steps = of_lse.steps + steps, .magnitude = 1};
  }
  const auto o = a.written<T>("o", m.tokens * of.of_q, of_o);
  const auto lse = a.written<G>("lse", m.tokens * m.heads, of_lse);
  run(r, "attention_tile", name_of_type<T>, m, a,
      m.heads * rows::attention_tile<T>::tiles(m.tokens), [=](place at) {
        return rows::attention_tile<T>{
            of.s,   of.see, {at(q), of.of_q}, {at(k), of.of_k}, {at(v), of.of_k}, {at(o), of.of_q},
            at(lse)};
      });
}

template <class T> void backward(report& r, const sizes& m) {
  using G = mc::accumulator_t<T>;
  using rows::attention_tile;
  const attended of(m);
  const auto tokens = static_cast<double>(m.tokens);
  {
    arrays a;
    const auto q = a.read<T>(m.tokens * of.of_q), k = a.read<T>(m.tokens * of.of_k),
               v = a.read<T>(m.tokens * of.of_k), o = a.read<T>(m.tokens * of.of_q),
               dy = a.read<T>(m.tokens * of.of_q);
    const auto lse = a.read<G>(m.tokens * m.heads, 3, 5);
    const auto delta = a.written<G>("delta", m.tokens * m.heads);
    const auto dq = a.written<T>("dq", m.tokens * of.of_q, of_products<T>(tokens, 0.02));
    run(r, "attention_query_grad_tile", name_of_type<T>, m, a,
        m.heads * attention_tile<T>::tiles(m.tokens), [=](place at) {
          return rows::attention_query_grad_tile<T>{of.s,
                                                    of.see,
                                                    {at(dy), of.of_q},
                                                    {at(q), of.of_q},
                                                    {at(k), of.of_k},
                                                    {at(v), of.of_k},
                                                    {at(o), of.of_q},
                                                    at(lse),
                                                    at(delta),
                                                    {at(dq), of.of_q}};
        });
  }
  arrays a;
  const auto q = a.read<T>(m.tokens * of.of_q), k = a.read<T>(m.tokens * of.of_k),
             v = a.read<T>(m.tokens * of.of_k), dy = a.read<T>(m.tokens * of.of_q);
  const auto lse = a.read<G>(m.tokens * m.heads, 3, 5), delta = a.read<G>(m.tokens * m.heads);
  const double terms = tokens * static_cast<double>(m.heads / of.s.kv_heads);
  const auto dk = a.written<T>("dk", m.tokens * of.of_k, of_products<T>(terms, 0.02)),
             dv = a.written<T>("dv", m.tokens * of.of_k, of_products<T>(terms, 0.05));
  run(r, "attention_key_grad_tile", name_of_type<T>, m, a,
      of.s.kv_heads * attention_tile<T>::tiles(m.tokens), [=](place at) {
        return rows::attention_key_grad_tile<T>{of.s,
                                                of.see,
                                                {at(dy), of.of_q},
                                                {at(q), of.of_q},
                                                {at(k), of.of_k},
                                                {at(v), of.of_k},
                                                at(lse),
                                                at(delta),
                                                {at(dk), of.of_k},
                                                {at(dv), of.of_k}};
      });
}

// A token that is decoded behind the others of its sequence: all tiles of its keys by one team, and
// a tile by each.
template <class T> void decoded(report& r, const sizes& m, bool apart) {
  using G = mc::accumulator_t<T>;
  using tile = rows::cached_attention_tile<T>;
  attended of(m);
  of.s.queries = 1;
  const int64_t tiles = apart ? tile::tiles(m.tokens) : 1;
  // A term is a product of one exponential and of one for each tile that follows; the sum by which
  // all are divided is as far off. Tensor cores add up in another order, and a score that differs
  // by so little changes e^x by the same share.
  const double off = ulps_of_exp * static_cast<double>(1 + tile::tiles(m.tokens));
  bound of_o = approximated(2 * off, 1), of_top = same_bits, of_sum = approximated(ulps_of_exp, 1),
        of_part = approximated(ulps_of_exp, 8);
  if (sizeof(T) == 2) {
    const double steps = 6 * std::sqrt(static_cast<double>(of.s.width + 64)) + 8;
    of_o = {.roundings = 1, .steps = of_o.steps + steps, .magnitude = 1, .inner = 0.5};
    of_top = {.steps = steps, .magnitude = 1};
    of_sum = {.steps = of_sum.steps + steps, .magnitude = 64};
    of_part = {.steps = of_part.steps + 0x1p15,
               .magnitude = 8}; // shares are rounded, by 2^-9 of each
  }
  arrays a;
  const auto q = a.read<T>(of.of_q), k = a.read<T>(m.tokens * of.of_k),
             v = a.read<T>(m.tokens * of.of_k);
  const auto slots = a.numbered(1, [n = m.tokens](int64_t) { return n - 1; });
  array<T> o;
  array<G> sums_o, top, sum;
  if (apart) {
    sums_o = a.written<G>("sums of values", tiles * of.of_q, of_part);
    top = a.written<G>("greatest scores", tiles * m.heads, of_top);
    sum = a.written<G>("sums", tiles * m.heads, of_sum);
  } else {
    o = a.written<T>("o", of.of_q, of_o);
  }
  const std::string name = apart ? "cached_attention_tile, keys apart" : "cached_attention_tile";
  run(r, name.c_str(), name_of_type<T>, m, a,
      of.s.kv_heads * tile::teams(1, of.s.heads / of.s.kv_heads) * tiles, [=](place at) {
        return tile{of.s,
                    {of.see.scale, 0, at(slots)},
                    tile::is_whole(of.s.width, at(q), at(k), at(v)),
                    {at(q), of.of_q},
                    {at(k), of.of_k},
                    {at(v), of.of_k},
                    {at(o), of.of_q},
                    {at(sums_o), at(top), at(sum)}};
      });
}
template <class T> void total(report& r, const sizes& m) {
  using G = mc::accumulator_t<T>;
  attended of(m);
  of.s.queries = 1;
  const int64_t tiles = rows::cached_attention_tile<T>::tiles(m.tokens);
  arrays a;
  const auto sums_o = a.read<G>(tiles * of.of_q), top = a.read<G>(tiles * m.heads),
             sum = a.read<G>(tiles * m.heads, 1, 64);
  const auto slots = a.numbered(1, [n = m.tokens](int64_t) { return n - 1; });
  const double off = ulps_of_exp * static_cast<double>(1 + tiles);
  const auto o = a.written<T>("o", of.of_q, approximated(2 * off, 1));
  run(r, "cached_attention_total", name_of_type<T>, m, a, m.heads, [=](place at) {
    return rows::cached_attention_total<T>{
        of.s, {of.see.scale, 0, at(slots)}, {at(sums_o), at(top), at(sum)}, {at(o), of.of_q}};
  });
}
template <class T> void cached(report& r, const sizes& m) {
  if (!m.timed) decoded<T>(r, m, false);
  decoded<T>(r, m, true), total<T>(r, m);
}

} // namespace

void attention_by_rows(report& r, std::span<const sizes> all) {
  for (const sizes& m : all) {
    if (m.heads == 0 || m.half > 512) continue;
    cached<float>(r, m), cached<mc::bf16>(r, m);
    if (m.timed) continue;
    forward<float>(r, m), forward<mc::bf16>(r, m);
    backward<float>(r, m), backward<mc::bf16>(r, m);
  }
}

} // namespace gpu
