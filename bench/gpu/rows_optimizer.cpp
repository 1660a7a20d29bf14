// Checks of the optimizer and the gradient norm, on flat ranges.
#include "rows.hpp"

#include <megacpp/kernel/rows/adamw.hpp>
#include <megacpp/kernel/rows/clip_factor.hpp>
#include <megacpp/kernel/rows/sum_squares.hpp>

namespace gpu {
namespace {

namespace rows = mc::rows;
using mc::bf16;
using std::int64_t;

template <class T> void adamw(report& r, const sizes& m, bool broken) {
  const int64_t n = m.tokens * m.hidden, blocks = mc::blocks_of(n);
  auto factors = rows::adamw_step<float>(3, 1e-3, 0.9, 0.95, 1e-8, 0.1, 0.5);
  // An update beyond the range leaves infinity, which every block has to tell.
  if (broken) factors.step = 3e38f, factors.root = 0;
  arrays a;
  const auto grad = a.read<float>(n);
  const auto master = a.changed<float>("master", n), first = a.changed<float>("m", n);
  const auto second = a.changed<float>("v", n, same_bits, 0, 1);
  const auto weight = a.written<T>("weight", n);
  const auto flags = a.written<std::uint8_t>("broken", blocks);
  const auto step = a.given(factors);
  run(r, broken ? "adamw_block infinite" : "adamw_block", name_of_type<T>, m, a, blocks,
      [=](place at) {
        return rows::adamw_block<T>{n,         at(step),   at(grad),   at(master),
                                    at(first), at(second), at(weight), at(flags)};
      });
}

// Moments of bf16, of two parameters of which the second is a part of the columns of a matrix.
template <class T> void rounded(report& r, const sizes& m) {
  const int64_t n = m.tokens * m.hidden, blocks = mc::blocks_of(n), whole = 3 * m.hidden;
  const int64_t origins[][15] = {
      {0, m.hidden, 11, 1, 1, 0, 1, 1, 0, 1, 1, 0, m.hidden, m.hidden, 0},
      {m.hidden, n - 2 * m.hidden, 12, 1, 1, 0, 1, 1, 0, m.tokens, m.tokens - 2, 0, whole, m.hidden,
       m.hidden}};
  const auto factors = rows::adamw_step<float>(3, 1e-3, 0.9, 0.95, 1e-8, 0.1, 0.5);
  arrays a;
  const auto grad = a.read<float>(n), master = a.changed<float>("master", n);
  const auto first = a.changed<bf16>("m", n), second = a.changed<bf16>("v", n, same_bits, 0, 1);
  const auto weight = a.written<T>("weight", n);
  const auto flags = a.written<std::uint8_t>("broken", blocks);
  const auto step = a.given(factors);
  const auto seed = a.given(int64_t{5}), done = a.given(int64_t{2});
  const auto places = a.numbered<int64_t>(30, [&](int64_t i) { return origins[i / 15][i % 15]; });
  run(r, "adamw_block rounded", name_of_type<T>, m, a, blocks, [=](place at) {
    return rows::adamw_block<T, rows::rounded_moments>{
        n,
        at(step),
        at(grad),
        at(master),
        at(first),
        at(second),
        at(weight),
        at(flags),
        {0, 2, reinterpret_cast<const rows::rounded_moments::origin*>(at(places)), at(seed),
         at(done)}};
  });
}

// Powers in double are not the same everywhere; what is rounded to single precision may be off by a
// step. Ten numbers, of which the last is 1 and none.
void factors(report& r, const sizes& m) {
  using to = rows::adamw_factors<float>;
  constexpr int64_t numbers = sizeof(to) / sizeof(float);
  arrays a;
  const auto done = a.given(m.tokens - 1);
  const auto lr = a.given(1e-3), scale = a.given(0.3);
  const auto all = a.written<float>("factors", numbers, {.steps = 2});
  run(r, "factors_of_step", name_of_type<float>, m, a, 1, [=](place at) {
    return rows::factors_of_step<float>{
        0.9, 0.95, 1e-8, 0.1, at(done), at(lr), at(scale), reinterpret_cast<to*>(at(all))};
  });
}

// Loads of both signs.
template <class T> void balance(report& r, const sizes& m) {
  const int64_t n = m.tokens * m.hidden, blocks = mc::blocks_of(n);
  arrays a;
  const auto load = a.read<float>(n), master = a.changed<float>("master", n);
  const auto weight = a.written<T>("weight", n);
  const auto factor = a.given(0.5);
  run(r, "balance_block", name_of_type<T>, m, a, blocks, [=](place at) {
    return rows::balance_block<T>{n, 1e-3f, at(load), at(factor), at(master), at(weight)};
  });
}

void single_numbers(report& r, const sizes& m) {
  const int64_t n = m.hidden;
  {
    arrays a;
    const auto x = a.numbered<std::uint8_t>(n, [](int64_t i) { return i % 3 == 0 ? 1 : 0; });
    const auto count = a.written<double>("count", 1);
    run(r, "count_of_ones", "u8", m, a, 1, [=](place at) {
      return rows::count_of_ones{n, at(x), at(count)};
    });
  }
  {
    arrays a;
    const auto x = a.read<double>(n), sum = a.written<double>("sum", 1);
    run(r, "sum_in_order", "f64", m, a, 1, [=](place at) {
      return rows::sum_in_order{n, at(x), at(sum)};
    });
  }
}

// Clipped, and where the norm is below what clips it, or nothing does.
void clip(report& r, const char* what, const sizes& m, double limit) {
  arrays a;
  const auto count = a.given(static_cast<double>(m.tokens)), loss = a.given(3.5);
  std::vector<array<double>> squares;
  for (int k = 0; k < rows::clip_factor::most_terms; ++k)
    squares.push_back(a.read<double>(1, 10, 20));
  const auto factor = a.written<double>("factor", 1), norm = a.written<double>("norm", 1);
  run(r, what, "f64", m, a, 1, [=](place at) {
    auto body = rows::clip_factor{
        limit, at(count), at(loss), {}, rows::clip_factor::most_terms, at(factor), at(norm)};
    for (std::size_t k = 0; k < squares.size(); ++k) body.squares[k] = at(squares[k]);
    return body;
  });
}

template <class T> void sum_squares(report& r, const sizes& m) {
  using body = rows::sum_squares_block<T>;
  const int64_t n = m.tokens * m.hidden, parts = rows::sum_squares_partials(n);
  const int64_t most = n < rows::sum_squares_elements ? n : rows::sum_squares_elements;
  arrays a;
  const auto x = a.read<T>(n);
  const auto sums =
      a.written<double>("parts", parts, {.steps = steps_of_sum<body, T>(most), .unit = 0x1p-53});
  run(r, "sum_squares_block", name_of_type<T>, m, a, parts, [=](place at) {
    return body{n, at(x), at(sums)};
  });
}

} // namespace

void optimizer(report& r, std::span<const sizes> all) {
  for (const sizes& m : all) {
    adamw<float>(r, m, false), adamw<bf16>(r, m, false);
    rounded<float>(r, m), rounded<bf16>(r, m);
    if (!m.timed) adamw<bf16>(r, m, true);
    sum_squares<float>(r, m), sum_squares<bf16>(r, m);
    if (m.timed) continue;
    factors(r, m), single_numbers(r, m);
    balance<float>(r, m), balance<bf16>(r, m);
    clip(r, "clip_factor", m, 1e-3), clip(r, "clip_factor above", m, 1e6);
    clip(r, "clip_factor none", m, 0);
  }
}

} // namespace gpu
