// Attention by rows.
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

template <class T> void forward(report& r, const sizes& m) {
  using G = mc::accumulator_t<T>;
  const attended of(m);
  arrays a;
  const auto q = a.read<T>(m.tokens * of.of_q), k = a.read<T>(m.tokens * of.of_k),
             v = a.read<T>(m.tokens * of.of_k);
  // Only sums of probabilities have another order.
  const double steps = steps_of_sum<rows::attention_row<T>, G>(m.tokens) + 8;
  const auto o =
      a.written<T>("o", m.tokens * of.of_q, {.roundings = 1, .steps = steps, .magnitude = 1});
  const auto lse = a.written<G>("lse", m.tokens * m.heads, {.steps = steps, .magnitude = 1});
  run(r, "attention_row", name_of_type<T>, m, a, m.tokens * m.heads, [=](place at) {
    return rows::attention_row<T>{
        of.s,   of.see, {at(q), of.of_q}, {at(k), of.of_k}, {at(v), of.of_k}, {at(o), of.of_q},
        at(lse)};
  });
}

template <class T> void backward(report& r, const sizes& m) {
  using G = mc::accumulator_t<T>;
  const attended of(m);
  const double width = static_cast<double>(of.s.width);
  {
    arrays a;
    const auto q = a.read<T>(m.tokens * of.of_q), k = a.read<T>(m.tokens * of.of_k),
               v = a.read<T>(m.tokens * of.of_k), o = a.read<T>(m.tokens * of.of_q),
               dy = a.read<T>(m.tokens * of.of_q);
    const auto lse = a.read<G>(m.tokens * m.heads, 3, 5);
    // delta is a sum of numbers up to 1; a gradient, the sum over keys of such differences, each
    // times a probability e^(2 - 3) at most and times the scale.
    const double steps = steps_of_sum<rows::attention_query_grad_row<T>, T>(of.s.width);
    const auto delta =
        a.written<G>("delta", m.tokens * m.heads, {.steps = steps, .magnitude = width});
    const double magnitude = static_cast<double>(m.tokens) * width * of.see.scale;
    const auto dq = a.written<T>("dq", m.tokens * of.of_q,
                                 {.roundings = 1, .steps = steps, .magnitude = magnitude});
    run(r, "attention_query_grad_row", name_of_type<T>, m, a, m.tokens * m.heads, [=](place at) {
      return rows::attention_query_grad_row<T>{of.s,
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
  const auto dk = a.written<T>("dk", m.tokens * of.of_k),
             dv = a.written<T>("dv", m.tokens * of.of_k);
  run(r, "attention_key_grad_row", name_of_type<T>, m, a, m.tokens * of.s.kv_heads, [=](place at) {
    return rows::attention_key_grad_row<T>{
        of.s,    of.see,    {at(dy), of.of_q}, {at(q), of.of_q}, {at(k), of.of_k}, {at(v), of.of_k},
        at(lse), at(delta), {at(dk), of.of_k}, {at(dv), of.of_k}};
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
