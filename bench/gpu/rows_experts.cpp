// Checks of the router, and of rows between tokens and experts.
#include "rows.hpp"

#include <megacpp/kernel/rows/experts.hpp>
#include <megacpp/kernel/rows/router.hpp>

#include <algorithm>

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
  const double steps = steps_of_sum<body, T>(m.experts) + 32;
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

// Sums over at most 128 tokens, of probabilities and of squares of logsumexps, in the order of a
// core.
template <class T> void statistics(report& r, const sizes& m) {
  using body = rows::router_statistics_block<T>;
  const int64_t n = m.tokens * m.experts, of = body::tokens_of_block;
  const int64_t blocks = (m.tokens + of - 1) / of;
  {
    arrays a;
    const auto logits = a.read<T>(n, -4, 4);
    const auto chosen = choices_of(a, m);
    const auto lse = a.read<float>(m.tokens, 4, 8);
    const auto parts = a.written<float>("parts", blocks * (2 * m.experts + 1));
    run(r, "router_statistics_block", name_of_type<T>, m, a, blocks, [=](place at) {
      return body{m.experts,  m.tokens,   blocks,    m.choices,
                  at(logits), at(chosen), at(parts), at(lse)};
    });
  }
  {
    using body = rows::router_lse_row<T>;
    arrays a;
    const auto logits = a.read<T>(n, -4, 4);
    const auto lse = a.written<float>(
        "lse", m.tokens, {.steps = steps_of_sum<body, T>(m.experts) + 32, .magnitude = 4});
    run(r, "router_lse_row", name_of_type<T>, m, a, m.tokens, [=](place at) {
      return body{m.experts, at(logits), at(lse)};
    });
  }
  {
    using body = rows::router_statistics_grad_row<T>;
    const double steps = steps_of_sum<body, T>(m.experts) + 32;
    arrays a;
    const auto dp = a.read<float>(m.experts), dz = a.read<float>(1);
    const auto logits = a.read<T>(n, -4, 4);
    // p (dp + 2 dz lse - sum of p dp), of which the bracket is up to 1 + 32 + 1.
    const auto d = a.written<T>("dlogits", n, {.roundings = 1, .steps = steps, .magnitude = 34});
    run(r, "router_statistics_grad_row", name_of_type<T>, m, a, m.tokens,
        [=](place at) { return body{m.experts, m.tokens, at(dp), at(dz), at(logits), at(d)}; });
  }
}

// What becomes of the statistics of three groups of tokens, each in two blocks. Sums are of one
// thread, in order.
void of_groups(report& r, const sizes& m) {
  constexpr int64_t groups = 3, blocks = 2;
  const int64_t experts = m.experts, width = 2 * experts + 1, n = groups * experts;
  const char* const type = name_of_type<float>;
  {
    arrays a;
    const auto parts = a.read<float>(groups * blocks * width, 0, 128);
    const auto p = a.written<float>("probabilities", n), c = a.written<float>("choices", n);
    run(r, "router_sums", type, m, a, groups, [=](place at) {
      return rows::router_sums<float>{experts, blocks, at(parts), at(p), at(c)};
    });
  }
  {
    arrays a;
    const auto parts = a.read<float>(groups * blocks * width, 0, 128);
    const auto z = a.written<float>("z", 1);
    run(r, "router_square_sum", type, m, a, 1, [=](place at) {
      return rows::router_square_sum<float>{width, groups * blocks, blocks, at(parts), at(z)};
    });
  }
  {
    arrays a;
    const auto p = a.read<float>(n, 0, 1), c = a.read<float>(n, 1, 9);
    const auto squares = a.given(40.5f);
    const auto loss = a.written<float>("loss", 1);
    run(r, "router_loss", type, m, a, 1, [=](place at) {
      return rows::router_loss<float>{experts, groups, 0.01,        0.003,
                                      at(p),   at(c),  at(squares), at(loss)};
    });
  }
  {
    arrays a;
    const auto dloss = a.given(0.75f);
    const auto c = a.read<float>(n, 1, 9);
    const auto dp = a.written<float>("dprobabilities", n), dz = a.written<float>("dsquares", 1);
    run(r, "router_loss_grad", type, m, a, groups, [=](place at) {
      return rows::router_loss_grad<float>{experts, 0.01, 0.003, at(dloss), at(c), at(dp), at(dz)};
    });
  }
}

// With one expert more than are chosen, so that no expert's share is what it has; of few experts,
// since each reads all choices.
void loads(report& r, const sizes& m) {
  const int64_t experts = std::min<int64_t>(m.experts, 512) + 1, each = m.tokens * m.choices;
  arrays a;
  const auto chosen = a.numbered(2 * each, [=](int64_t i) {
    return static_cast<int64_t>(mixed(3, static_cast<std::uint64_t>(i)) >> 1) % (experts - 1);
  });
  const auto load = a.changed<float>("load", experts);
  run(r, "expert_load", name_of_type<float>, m, a, experts, [=](place at) {
    return rows::expert_load<float>{experts, 2 * each, each, at(chosen), at(load)};
  });
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

// Rows of one number, and what lies on the way between ranks.
template <class T> void numbers_and_pieces(report& r, const sizes& m) {
  const int64_t all = m.tokens * m.choices, base = all / 3, count = all - 2 * (all / 3);
  const auto row = [=](int64_t i) {
    return i % 11 == 10 ? int64_t{-1} : (i % m.choices) * m.tokens + i / m.choices;
  };
  {
    arrays a;
    const auto x = a.read<T>(all);
    const auto rows_of = a.numbered(all, row);
    const auto to = a.changed<T>("rows", count);
    run(r, "dispatch_numbers", name_of_type<T>, m, a, mc::blocks_of(all), [=](place at) {
      return rows::dispatch_numbers<T>{all, base, count, at(x), at(rows_of), at(to)};
    });
  }
  {
    arrays a;
    const auto from = a.read<T>(count);
    const auto rows_of = a.numbered(all, row);
    const auto y = a.changed<T>("y", all);
    run(r, "combine_numbers", name_of_type<T>, m, a, mc::blocks_of(all), [=](place at) {
      return rows::combine_numbers<T>{all, base, count, at(from), at(rows_of), at(y)};
    });
  }
  // Pieces of two rows, whose order on the way is the reverse.
  const int64_t pieces = m.experts < 8 ? m.experts : 8, elements = 2 * pieces * m.hidden;
  const auto number = [=](int64_t i) { // row, element of the way, rows
    const int64_t k = i / 3;
    return i % 3 == 0 ? 2 * k : i % 3 == 1 ? 2 * (pieces - 1 - k) * m.hidden : int64_t{2};
  };
  const auto piece_at = [](place at, array<int64_t> table) {
    return reinterpret_cast<const rows::piece_of_rows*>(at(table));
  };
  {
    arrays a;
    const auto table = a.numbered<int64_t>(3 * pieces, number);
    const auto way = a.read<T>(elements);
    const auto to = a.written<T>("rows", elements);
    run(r, "rows_from_way", name_of_type<T>, m, a, pieces, [=](place at) {
      return rows::rows_from_way<T>{m.hidden, piece_at(at, table), at(way), at(to)};
    });
  }
  {
    arrays a;
    const auto table = a.numbered<int64_t>(3 * pieces, number);
    const auto held = a.read<T>(elements);
    const auto to = a.written<T>("way", elements);
    run(r, "rows_to_way", name_of_type<T>, m, a, pieces, [=](place at) {
      return rows::rows_to_way<T>{m.hidden, piece_at(at, table), at(held), at(to)};
    });
  }
  {
    constexpr int64_t copies = 2;
    const int64_t n = m.tokens * m.hidden;
    arrays a;
    const auto x = a.changed<T>("x", copies * n);
    run(r, "sum_of_copies", name_of_type<T>, m, a, mc::blocks_of(n), [=](place at) {
      return rows::sum_of_copies<T>{n, copies, at(x)};
    });
  }
}

// The numbering of choices on one of two ranks that share experts.
void numbering(report& r, const sizes& m) {
  const int64_t all = m.tokens * m.choices;
  const rows::choice_ranges parts{1, all};
  const auto before = [=](int64_t i) { return i % 5; };
  const auto run_once = [&](const char* body, const arrays& a, int64_t launched, auto make) {
    run(r, body, "i32", m, a, launched, make);
  };
  {
    arrays a;
    const auto chosen = choices_of(a, m);
    const auto count = a.written<std::int32_t>("count", m.experts);
    const auto taken = a.written<std::uint8_t>("taken", all);
    run_once("take_choices", a, m.experts, [=](place at) {
      return rows::take_choices{
          0, all, all / m.experts, true, at(chosen), at(count), reinterpret_cast<bool*>(at(taken))};
    });
  }
  {
    arrays a;
    const auto chosen = choices_of(a, m);
    const auto count = a.written<std::int32_t>("count", parts.count() * m.experts);
    run_once("count_choices", a, parts.count(), [=](place at) {
      return rows::count_choices{parts, m.experts, {nullptr, all, all, 0}, at(chosen), at(count)};
    });
  }
  {
    arrays a;
    const auto count = a.numbered(parts.count() * m.experts, before);
    const auto own = a.written<std::int32_t>("own", m.experts);
    run_once("add_counts", a, m.experts, [=](place at) {
      return rows::add_counts{parts, m.experts, at(count), at(own)};
    });
  }
  {
    arrays a;
    const auto of_ranks = a.numbered(2 * m.experts, before);
    const auto counts = a.written<std::int32_t>("counts", 2 * m.experts);
    const auto begin = a.written<std::int32_t>("begin", m.experts);
    run_once("place_experts", a, 1, [=](place at) {
      return rows::place_experts{m.experts,    2,          1,        1, m.experts,
                                 at(of_ranks), at(counts), at(begin)};
    });
  }
  {
    arrays a;
    const auto chosen = choices_of(a, m);
    const auto begin = a.numbered(m.experts, [=](int64_t e) { return e * all; });
    const auto count = a.numbered(parts.count() * m.experts, before);
    const auto row = a.changed<std::int32_t>("row", all, same_bits, 0, 9);
    run_once("number_choices", a, parts.count(), [=](place at) {
      return rows::number_choices{
          parts, m.experts, {nullptr, all, all, 0}, at(chosen), at(begin), at(count), at(row)};
    });
  }
  {
    arrays a;
    const auto counts = a.numbered(2 * m.experts, before);
    const auto rounds = a.written<std::int32_t>("rounds", 1);
    run_once("count_rounds", a, 1, [=](place at) {
      return rows::count_rounds{3, 2, m.experts, at(counts), at(rounds)};
    });
  }
  {
    arrays a;
    const auto chosen = choices_of(a, m);
    const auto row = a.numbered(all, [](int64_t i) { return i % 7 == 6 ? int64_t{-1} : i; });
    const auto shift = a.numbered<int64_t>(m.experts, [](int64_t e) { return 3 * e; });
    const auto where = a.changed<std::int32_t>("place", all, same_bits, 0, 9);
    run_once("place_choices", a, mc::blocks_of(all), [=](place at) {
      return rows::place_choices{all,     0,         (3 * all + 3) / 4, at(chosen),
                                 at(row), at(shift), at(where)};
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
                                     {.steps = steps_of_sum<body, T>(m.ffn) + 2,
                                      .magnitude = static_cast<double>(m.ffn) / 4 + 1});
    run(r, "scale_weight_grad_row", name_of_type<T>, m, a, m.tokens, [=](place at) {
      return body{m.ffn, at(dy), at(x), at(dw)};
    });
  }
}

template <class T> void of_type(report& r, const sizes& m) {
  route<T>(r, m, false), route<T>(r, m, true);
  statistics<T>(r, m), token_rows<T>(r, m), numbers_and_pieces<T>(r, m), scales<T>(r, m);
}

} // namespace

void experts(report& r, std::span<const sizes> all) {
  for (const sizes& m : all) {
    if (m.experts == 0) continue;
    of_type<float>(r, m), of_type<bf16>(r, m);
    if (!m.timed) of_groups(r, m), loads(r, m), numbering(r, m);
  }
}

} // namespace gpu
