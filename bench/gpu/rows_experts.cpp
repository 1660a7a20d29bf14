// The router, and rows between tokens and experts.
#include "rows.hpp"

#include <megacpp/kernel/rows/experts.hpp>
#include <megacpp/kernel/rows/router.hpp>

namespace gpu {
namespace {

namespace rows = mc::rows;
using mc::bf16;
using std::int64_t;

// Different experts of each token.
array<std::int32_t> choices_of(arrays& a, const sizes& m) {
  return a.numbered(m.tokens * m.choices, [=](int64_t i) {
    const auto token = static_cast<std::uint64_t>(i / m.choices);
    const auto first = static_cast<int64_t>(mixed(3, token) >> 1) % m.experts;
    return (first + i % m.choices) % m.experts;
  });
}

// Choices are the same: those of probabilities with a bias, too, unless two scores are closer than
// the roundings of a sum, which these are not. A weight's logarithm is a difference of logits and
// of the logarithm of a sum: `steps` roundings of up to 8.
template <class T> void route(report& r, const sizes& m, bool normalise) {
  using body = rows::route_row<T>;
  const int64_t n = m.tokens * m.experts, k = m.tokens * m.choices;
  const double steps = steps_of_sum<T>(m.experts, threads_of<body>) + 32;
  const bool biased = normalise;
  const std::string how = biased ? " biased" : "";
  {
    arrays a;
    const auto logits = a.read<T>(n, -4, 4);
    const array<T> bias = biased ? a.read<T>(m.experts, -0.1, 0.1) : array<T>{};
    const auto weights = a.written<float>("weights", k, {.steps = steps});
    const auto chosen = a.written<std::int32_t>("chosen", k);
    run(r, ("route_row" + how).c_str(), name_of_type<T>, m, a, m.tokens, [=](place at) {
      return body{m.experts, m.choices, normalise, at(logits), at(bias), at(weights), at(chosen)};
    });
  }
  {
    arrays a;
    const auto dweights = a.read<float>(k);
    const auto logits = a.read<T>(n, -4, 4);
    const auto chosen = choices_of(a, m);
    const auto d = a.written<T>("dlogits", n, {.roundings = 1, .steps = steps, .magnitude = 4});
    run(r, ("route_grad_row" + how).c_str(), name_of_type<T>, m, a, m.tokens, [=](place at) {
      return rows::route_grad_row<T>{m.experts,  m.choices,  normalise, at(dweights),
                                     at(logits), at(chosen), at(d)};
    });
  }
}

// Sums over at most 128 tokens, of probabilities and of squares of up to 16.
template <class T> void statistics(report& r, const sizes& m) {
  using body = rows::router_statistics_block<T>;
  const int64_t n = m.tokens * m.experts, of = body::tokens_of_block;
  const int64_t blocks = (m.tokens + of - 1) / of;
  const double steps = steps_of_sum<T>(m.experts, threads_of<body>) + 32;
  {
    arrays a;
    const auto logits = a.read<T>(n, -4, 4);
    const auto chosen = choices_of(a, m);
    const auto parts =
        a.written<float>("parts", blocks * (2 * m.experts + 1), {.steps = steps, .magnitude = 16});
    run(r, "router_statistics_block", name_of_type<T>, m, a, blocks, [=](place at) {
      return body{m.experts, m.tokens, blocks, m.choices, at(logits), at(chosen), at(parts)};
    });
  }
  {
    arrays a;
    const auto dp = a.read<float>(m.experts), dz = a.read<float>(1);
    const auto logits = a.read<T>(n, -4, 4);
    // p (dp + 2 dz lse - sum of p dp), of which the bracket is up to 1 + 32 + 1.
    const auto d = a.written<T>("dlogits", n, {.roundings = 1, .steps = steps, .magnitude = 34});
    run(r, "router_statistics_grad_row", name_of_type<T>, m, a, m.tokens, [=](place at) {
      return rows::router_statistics_grad_row<T>{m.experts, m.tokens,   at(dp),
                                                 at(dz),    at(logits), at(d)};
    });
  }
}

// A round has the middle one of three parts of the rows; every eleventh choice was dropped.
template <class T> void token_rows(report& r, const sizes& m) {
  const int64_t n = m.tokens * m.hidden, all = m.tokens * m.choices;
  const int64_t base = m.timed ? 0 : all / 3, count = m.timed ? all : all - 2 * (all / 3);
  const auto row = [=](int64_t i) { // a permutation of all
    return i % 11 == 10 ? int64_t{-1} : (i % m.choices) * m.tokens + i / m.choices;
  };
  const int64_t moved = m.timed ? all - all / 11 : count;
  {
    arrays a;
    const auto x = a.read<T>(n);
    const auto rows_of = a.numbered(all, row);
    const auto to = a.changed<T>("rows", count * m.hidden);
    a.moves(to, moved * m.hidden); // written, not read
    run(r, "dispatch_token", name_of_type<T>, m, a, m.tokens, [=](place at) {
      return rows::dispatch_token<T, int64_t>{m.hidden, m.choices,   base,  count,
                                              at(x),    at(rows_of), at(to)};
    });
  }
  {
    arrays a;
    const auto from = a.read<T>(count * m.hidden);
    const auto rows_of = a.numbered(all, row);
    const auto y = a.changed<T>("y", n);
    a.moves(from, moved * m.hidden);
    run(r, "combine_token", name_of_type<T>, m, a, m.tokens, [=](place at) {
      return rows::combine_token<T, int64_t>{m.hidden, m.choices,   base, count,
                                             at(from), at(rows_of), at(y)};
    });
  }
}

template <class T> void scales(report& r, const sizes& m) {
  const int64_t n = m.tokens * m.ffn;
  {
    arrays a;
    const auto x = a.read<T>(n);
    const auto w = a.read<float>(m.tokens);
    const auto y = a.written<T>("y", n);
    run(r, "scale_row", name_of_type<T>, m, a, m.tokens, [=](place at) {
      return rows::scale_row<T, int64_t>{m.ffn, at(x), at(w), at(y)};
    });
  }
  {
    using body = rows::scale_weight_grad_row<T, int64_t>;
    arrays a;
    const auto dy = a.read<T>(n), x = a.read<T>(n);
    // A sum of products of numbers up to 1, of which the mean is 1/4.
    const auto dw = a.written<float>("dw", m.tokens,
                                     {.steps = steps_of_sum<T>(m.ffn, threads_of<body>) + 2,
                                      .magnitude = static_cast<double>(m.ffn) / 4 + 1});
    run(r, "scale_weight_grad_row", name_of_type<T>, m, a, m.tokens, [=](place at) {
      return body{m.ffn, at(dy), at(x), at(dw)};
    });
  }
}

template <class T> void of_type(report& r, const sizes& m) {
  route<T>(r, m, false), route<T>(r, m, true);
  statistics<T>(r, m), token_rows<T>(r, m), scales<T>(r, m);
}

} // namespace

void experts(report& r, std::span<const sizes> all) {
  for (const sizes& m : all) {
    if (m.experts == 0) continue;
    of_type<float>(r, m), of_type<bf16>(r, m);
  }
}

} // namespace gpu
