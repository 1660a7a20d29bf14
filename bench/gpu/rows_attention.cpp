// Attention by the own bodies.
#include "rows.hpp"

#include <megacpp/kernel/rows/attention.hpp>

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
// sqrt(terms) of them are rounded to the other side, each of about `size`.
template <class T> bound of_products(double terms, double size) {
  if (sizeof(T) != 2) return same_bits;
  return {.roundings = 1, .inner = 2 * size * std::sqrt(terms)};
}

template <class T> void forward(report& r, const sizes& m) {
  using G = mc::accumulator_t<T>;
  const attended of(m);
  arrays a;
  const auto q = a.read<T>(m.tokens * of.of_q), k = a.read<T>(m.tokens * of.of_k),
             v = a.read<T>(m.tokens * of.of_k);
  // Where products are plain, all sums have the same order.
  bound of_o = same_bits, of_lse = same_bits;
  if (sizeof(T) == 2) {
    const double steps = steps_of_sum<rows::attention_tile<T>, G>(m.tokens) + 8;
    of_o = {.roundings = 1, .steps = steps, .magnitude = 1, .inner = 0.5};
    of_lse = {.steps = steps, .magnitude = 1};
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

} // namespace

void attention_by_rows(report& r, std::span<const sizes> all) {
  for (const sizes& m : all) {
    if (m.timed || m.heads == 0 || m.half > 512) continue;
    forward<float>(r, m), forward<mc::bf16>(r, m);
    backward<float>(r, m), backward<mc::bf16>(r, m);
  }
}

} // namespace gpu
