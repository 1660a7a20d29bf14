// The bodies that go element by element, and sums of flat ranges, on emulated teams, against plain
// loops in double.
#define BOOST_TEST_MODULE emulated_elements
#include <boost/test/unit_test.hpp>

#include <megacpp/exec/rank_order.hpp>
#include <megacpp/kernel/rows/adamw.hpp>
#include <megacpp/kernel/rows/clip_factor.hpp>
#include <megacpp/kernel/rows/dropout.hpp>
#include <megacpp/kernel/rows/elementwise.hpp>
#include <megacpp/kernel/rows/embedding.hpp>
#include <megacpp/kernel/rows/redistribute.hpp>
#include <megacpp/kernel/rows/reduce.hpp>
#include <megacpp/kernel/rows/rope.hpp>
#include <megacpp/kernel/rows/sum_squares.hpp>
#include <megacpp/kernel/rows/swiglu.hpp>
#include <megacpp/num/random.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <tuple>
#include <type_traits>
#include <vector>

#include "emulated_rows.hpp"

namespace {

namespace rows = mc::rows;
using namespace test;

// Ranges of as many elements as rows would have, and of more than one block.
template <class T, class F> void for_ranges(F f) {
  for_teams<T>([&](team_shape s) {
    if (s.threads == 64) s.width += mc::flat_block;
    s.rows = mc::blocks_of(s.width);
    f(s, s.width);
  });
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double silu(double x) { return x * sigmoid(x); }
double silu_slope(double x) { return sigmoid(x) + x * sigmoid(x) * sigmoid(-x); }
double cdf(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }
double pdf(double x) { return std::exp(-x * x / 2) / std::sqrt(2 * std::acos(-1.0)); }
double inner(double x) { return 2 * std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x); }
double bend(double x) { return 2 * std::sqrt(2 / std::acos(-1.0)) * (1 + 3 * 0.044715 * x * x); }

template <class F, class T, class Value, class Slope>
void activation(const char* what, team_shape s, Value value, Slope slope) {
  numbers from;
  const auto x = from.of<T>(s.width, 9), dy = from.of<T>(s.width);
  const auto values = of_each(x, [&](std::size_t i) { return value(wide(x[i])); });
  const auto slopes = of_each(x, [&](std::size_t i) { return wide(dy[i]) * slope(wide(x[i])); });
  auto y = x;
  on_team(what, s, rows::activation_block<F, T>{s.width, y.data(), y.data()}, y);
  close<T>(what, y, values, 1, 12);
  y = unset<T>(s.width);
  on_team(what, s, rows::activation_dx_block<F, T>{s.width, dy.data(), x.data(), y.data()}, y);
  close<T>(what, y, slopes, 1, 48, 2);
  y = x;
  on_team(what, s, rows::activation_dx_block<F, T>{s.width, dy.data(), y.data(), y.data()}, y);
  close<T>(what, y, slopes, 1, 48, 2);
}

} // namespace

BOOST_AUTO_TEST_CASE_TEMPLATE(activations, T, types) {
  for_ranges<T>([](team_shape s, int64_t) {
    activation<rows::silu, T>("silu", s, silu, silu_slope);
    activation<rows::gelu_exact, T>(
        "gelu_exact", s, [](double x) { return x * cdf(x); },
        [](double x) { return cdf(x) + x * pdf(x); });
    activation<rows::gelu_tanh, T>(
        "gelu_tanh", s, [](double x) { return x * sigmoid(inner(x)); },
        [](double x) {
          const double t = sigmoid(inner(x));
          return t + x * t * sigmoid(-inner(x)) * bend(x);
        });
  });
}

// Gate and up in one matrix; their gradients in their place.
BOOST_AUTO_TEST_CASE_TEMPLATE(swiglu, T, types) {
  for_teams<T>([](team_shape s) {
    numbers from;
    const int64_t n = s.rows * s.width, stride = 2 * s.width;
    auto packed = from.of<T>(2 * n);
    const auto dy = from.of<T>(n);
    reference want, gradient(packed.size());
    for (std::size_t k = 0; k < dy.size(); ++k) {
      const auto w = static_cast<std::size_t>(s.width), at = k / w * 2 * w + k % w;
      const double g = wide(packed[at]), u = wide(packed[at + w]), d = wide(dy[k]);
      want.push_back(silu(g) * u);
      gradient[at] = d * u * silu_slope(g);
      gradient[at + w] = d * silu(g);
    }
    auto y = unset<T>(n);
    T *gate = packed.data(), *up = gate + s.width;
    on_team("swiglu", s, rows::swiglu_row<T, int64_t>{s.width, stride, gate, up, y.data()}, y);
    close<T>("swiglu", y, want, 1, 8, 2);
    on_team("swiglu_backward in place", s,
            rows::swiglu_backward_row<T, int64_t>{s.width, stride, dy.data(), gate, up, gate, up},
            packed);
    close<T>("swiglu_backward", packed, gradient, 1, 16, 4);
  });
}

// Pieces of (outer, n, run), longer than a block too, in the order of ranks and back; all bits of
// what is copied, of a NaN too.
BOOST_AUTO_TEST_CASE_TEMPLATE(pieces, T, types) {
  for_teams<T>([](team_shape s) {
    numbers from;
    const int64_t outer = 2, n = 3, run = s.threads == 64 ? s.width + mc::flat_block : s.width;
    const std::size_t length = static_cast<std::size_t>(run);
    auto x = from.of<T>(outer * n * run);
    std::memset(static_cast<void*>(x.data()), 0xfb, sizeof(T)); // a NaN
    std::vector<T> ordered, padded;
    const auto part = [&](std::size_t o, std::size_t p) { return x.data() + (o * 3 + p) * length; };
    for (std::size_t p = 0; p < 3; ++p)
      for (std::size_t o = 0; o < 2; ++o)
        ordered.insert(ordered.end(), part(o, p), part(o, p) + length);
    s.rows = outer * n * mc::blocks_of(run);
    auto y = unset<T>(outer * n * run);
    on_team("pack", s,
            rows::piece_block<T>{n, run, {n * run, run}, {run, outer * run}, x.data(), y.data()},
            y);
    BOOST_TEST(same_bytes(y.data(), ordered.data(), y.size() * sizeof(T)));
    y = unset<T>(outer * n * run);
    on_team("zero-pad", s,
            rows::piece_block<T>{n, run, {run, 0}, {n * run, run}, x.data(), y.data(), 1}, y);
    for (std::size_t o = 0; o < 2; ++o) {
      padded.resize(padded.size() + length);
      padded.insert(padded.end(), x.data() + o * length, x.data() + (o + 1) * length);
      padded.resize(padded.size() + length);
    }
    BOOST_TEST(same_bytes(y.data(), padded.data(), y.size() * sizeof(T)));
  });
}

BOOST_AUTO_TEST_CASE_TEMPLATE(elementwise, T, types) {
  for_ranges<T>([](team_shape s, int64_t n) {
    numbers from;
    const auto a = from.of<T>(n), b = from.of<T>(n);
    auto y = a;
    on_team("add over a", s, rows::add_block<T>{n, y.data(), b.data(), y.data()}, y);
    close<T>("add", y, of_each(a, [&](std::size_t i) { return wide(a[i]) + wide(b[i]); }), 1, 1);
    y = a;
    on_team("scale in place", s, rows::scale_block<T>{n, G<T>(0.75f), y.data(), y.data()}, y);
    close<T>("scale", y, of_each(a, [&](std::size_t i) { return wide(a[i]) * 0.75; }), 1, 1);
    on_team("fill", s, rows::fill_block<T>{n, G<T>(3), y.data()}, y);
    close<T>("fill", y, reference(y.size(), 3.0), 0, 0.01);
    const auto cast = [&](auto zero) {
      using To = decltype(zero);
      std::vector<To> want, out = unset<To>(n);
      for (T v : a) want.push_back(mc::convert<To>(v));
      on_team("cast", s, rows::cast_block<T, To>{n, a.data(), out.data()}, out);
      BOOST_TEST(same_bytes(out.data(), want.data(), out.size() * sizeof(To)));
    };
    cast(float{}), cast(bf16{});
  });
  for_teams<T>([](team_shape s) {
    numbers from;
    const auto x = from.of<T>(s.rows * s.width), bias = from.of<T>(s.width);
    auto y = x;
    on_team("bias_add in place", s,
            rows::bias_add_row<T, int64_t>{s.width, y.data(), bias.data(), y.data()}, y);
    close<T>("bias_add", y,
             of_each(x, [&](std::size_t i) { return wide(x[i]) + wide(bias[i % bias.size()]); }), 1,
             1);
  });
}

// Sums of up to as many ranks as there may be, into the last one's memory, have the bits of those
// that the host takes; so have maxima, of which some are not numbers and some are zeros of either
// sign.
BOOST_AUTO_TEST_CASE(over_ranks) {
  using of_ranks = std::tuple<float, double, bf16, std::uint32_t, std::uint64_t>;
  for (const int count : {1, 2, 5, mc::most_reduced}) {
    for_ranges<float>([count](team_shape s, int64_t n) {
      const auto check = [&](auto zero, const char* what, mc::reduction by) {
        using T = decltype(zero);
        constexpr mc::dtype type = std::is_same_v<T, std::uint32_t>   ? mc::dtype::i32
                                   : std::is_same_v<T, std::uint64_t> ? mc::dtype::i64
                                                                      : mc::dtype_of<T>;
        numbers from;
        std::vector<std::vector<T>> parts;
        for (int q = 0; q < count; ++q) {
          if constexpr (std::is_integral_v<T>) {
            parts.emplace_back(static_cast<std::size_t>(n));
            for (std::size_t i = 0; i < parts.back().size(); ++i)
              parts.back()[i] =
                  static_cast<T>((i + 1) * (static_cast<T>(q) + 3) * 0x9E3779B97F4A7C15u);
          } else {
            parts.push_back(from.of<T>(n));
          }
          if constexpr (std::is_same_v<T, float>)
            if (by == mc::reduction::maximum)
              for (std::size_t i = 0; i < parts.back().size(); ++i) {
                if ((i + static_cast<unsigned>(q)) % 7 == 0) parts.back()[i] = std::nanf("7");
                if (i % 5 == 0) parts.back()[i] = q % 2 == 0 ? -0.0f : 0.0f;
              }
        }
        std::vector<const void*> at;
        for (const auto& part : parts) at.push_back(part.data());
        std::vector<T> want(static_cast<std::size_t>(n));
        mc::reduce_in_rank_order(by, type, at, want.data(), n);
        auto& out = parts.back();
        const auto run = [&](auto body) {
          body.n = n, body.count = count, body.out = out.data();
          for (std::size_t q = 0; q < parts.size(); ++q) body.arrays[q] = parts[q].data();
          on_team(what, s, body, out);
        };
        if constexpr (std::is_same_v<T, float>)
          if (by == mc::reduction::maximum) run(rows::maximum_of_ranks_block{});
        if (by == mc::reduction::sum) run(rows::sum_of_ranks_block<T>{});
        BOOST_TEST(same_bytes(out.data(), want.data(), want.size() * sizeof(T)),
                   what << " of " << count);
      };
      std::apply([&](auto... zero) { (check(zero, "sum", mc::reduction::sum), ...); }, of_ranks());
      check(0.0f, "maximum", mc::reduction::maximum);
    });
  }
}

// All bits, of a NaN too.
BOOST_AUTO_TEST_CASE_TEMPLATE(copies, T, types) {
  for_ranges<T>([](team_shape s, int64_t n) {
    numbers from;
    auto x = from.of<T>(n);
    std::memset(static_cast<void*>(x.data()), 0xfb, sizeof(T)); // a NaN
    auto y = unset<T>(n);
    on_team("copy", s, rows::copy_block<T>{n, x.data(), y.data()}, y);
    BOOST_TEST(same_bytes(y.data(), x.data(), x.size() * sizeof(T)));
  });
}

// In double: a total of single precision would lose the number.
BOOST_AUTO_TEST_CASE_TEMPLATE(added_to_a_total, T, types) {
  for_teams<T>([](team_shape s) {
    const T x = mc::convert<T>(1.5f);
    std::vector<double> total{0x1p40 + 0.25};
    on_team("add_to_total", one_row(s), rows::add_to_total<T>{&x, total.data()}, total);
    BOOST_TEST(total[0] == 0x1p40 + 1.75);
  });
}

// Ones that are added to 1e16 one by one are lost; those that follow when it is gone are not. The
// sum of none is zero.
BOOST_AUTO_TEST_CASE(sums_in_order) {
  for_teams<double>([](team_shape s) {
    std::vector<double> x(static_cast<std::size_t>(2 * s.width + 2), 1.0);
    x[0] = 1e16, x[static_cast<std::size_t>(s.width + 1)] = -1e16;
    const auto sum_of = [&](int64_t n) {
      auto sum = unset<double>(1);
      on_team("sum_in_order", one_row(s), rows::sum_in_order{n, x.data(), sum.data()}, sum);
      return sum[0];
    };
    BOOST_TEST(sum_of(2 * s.width + 2) == static_cast<double>(s.width));
    BOOST_TEST(sum_of(1) == 1e16);
    BOOST_TEST(sum_of(0) == 0);
  });
}

BOOST_AUTO_TEST_CASE_TEMPLATE(sum_squares, T, types) {
  const auto check = [](team_shape s, int64_t n) {
    numbers from;
    const auto x = from.of<T>(n);
    s.rows = rows::sum_squares_partials(n);
    auto parts = unset<double>(s.rows);
    reference want(parts.size());
    for (std::size_t i = 0; i < x.size(); ++i)
      want[i / static_cast<std::size_t>(rows::sum_squares_elements)] += wide(x[i]) * wide(x[i]);
    on_team("sum_squares", s, rows::sum_squares_block<T>{n, x.data(), parts.data()}, parts);
    close<double>("sum_squares", parts, want, 1, 512);
  };
  for_teams<T>([&](team_shape s) { check(s, s.width); });
  check({{2, 0}, 256}, rows::sum_squares_elements + 5);
}

// With numbers that are no numbers in one block of two. The weight is the master where it can be.
BOOST_AUTO_TEST_CASE_TEMPLATE(adamw, T, types) {
  for_ranges<T>([](team_shape s, int64_t n) {
    using F = G<T>;
    numbers from;
    const double lr = 0.01, b1 = 0.9, b2 = 0.99, eps = 1e-8, decay = 0.1, scale = 0.5;
    const auto factors = rows::adamw_step<F>(2, lr, b1, b2, eps, decay, scale);
    const auto grad = from.of<F>(n);
    auto p = from.of<F>(n), m = from.of<F>(n), v = from.of<F>(n, 1);
    for (F& x : v) x = x * x;
    reference want, first, second;
    for (std::size_t i = 0; i < p.size(); ++i) {
      const double g = wide(grad[i]) * scale;
      first.push_back(b1 * wide(m[i]) + (1 - b1) * g);
      second.push_back(b2 * wide(v[i]) + (1 - b2) * g * g);
      want.push_back(wide(p[i]) * (1 - lr * decay) -
                     lr / (1 - b1 * b1) * first[i] /
                         (std::sqrt(second[i]) / std::sqrt(1 - b2 * b2) + eps));
    }
    std::vector<std::uint8_t> broken(static_cast<std::size_t>(s.rows), 7);
    const auto body = [&](T* weight) {
      return rows::adamw_block<T>{n,        &factors, grad.data(), p.data(),
                                  m.data(), v.data(), weight,      broken.data()};
    };
    if constexpr (std::is_same_v<T, F>) {
      on_team("adamw", s, body(p.data()), p, m, v, broken);
    } else {
      auto weight = unset<T>(n);
      on_team("adamw", s, body(weight.data()), p, m, v, weight, broken);
      close<T>("weight", weight, want, 1, 24);
    }
    close<F>("master", p, want, 1, 24);
    close<F>("first moment", m, first, 1, 24);
    close<F>("second moment", v, second, 1, 24);
    BOOST_TEST((broken == std::vector<std::uint8_t>(broken.size(), 0)));
    m.back() = std::numeric_limits<F>::infinity();
    auto weight = unset<T>(n);
    on_team("adamw that breaks", s, body(weight.data()), p, m, v, weight, broken);
    for (std::size_t k = 0; k < broken.size(); ++k)
      BOOST_TEST(broken[k] == (k + 1 == broken.size() ? 1 : 0));
  });
}

// A factor that is not finite leaves all as it is, and breaks nothing.
BOOST_AUTO_TEST_CASE_TEMPLATE(adamw_without_a_step, T, types) {
  for_ranges<T>([](team_shape s, int64_t n) {
    using F = G<T>;
    numbers from;
    const auto factors = rows::adamw_step<F>(2, 0.01, 0.9, 0.99, 1e-8, 0.1, std::nan(""));
    const auto grad = from.of<F>(n), master = from.of<F>(n), first = from.of<F>(n),
               second = from.of<F>(n, 1);
    const auto before = from.of<T>(n);
    auto p = master, m = first, v = second;
    auto weight = before;
    std::vector<std::uint8_t> broken(static_cast<std::size_t>(s.rows), 7);
    on_team("adamw without a step", s,
            rows::adamw_block<T>{n, &factors, grad.data(), p.data(), m.data(), v.data(),
                                 weight.data(), broken.data()},
            p, m, v, weight, broken);
    BOOST_TEST((p == master));
    BOOST_TEST((m == first));
    BOOST_TEST((v == second));
    BOOST_TEST(same_bytes(weight.data(), before.data(), before.size() * sizeof(T)));
    BOOST_TEST((broken == std::vector<std::uint8_t>(broken.size(), 0)));
  });
}

// The first step, the second, and one whose powers have vanished; a step that is none keeps the
// other factors.
BOOST_AUTO_TEST_CASE_TEMPLATE(factors_of_a_step, F, decltype(std::tuple<float, double>())) {
  const double b1 = 0.9, b2 = 0.99, eps = 1e-8, decay = 0.1, lr = 0.01;
  const double infinite = std::numeric_limits<double>::infinity();
  for_teams<F>([&](team_shape s) {
    for (int64_t done : {0, 1, 10000}) {
      for (double scale : {0.5, 0.0, infinite, -infinite, std::nan("")}) {
        double p1 = 1, p2 = 1;
        for (int64_t t = 0; t <= done; ++t) p1 *= b1, p2 *= b2;
        std::vector<rows::adamw_factors<F>> to(1);
        on_team("factors_of_step", one_row(s),
                rows::factors_of_step<F>{b1, b2, eps, decay, &done, &lr, &scale, to.data()}, to);
        const rows::adamw_factors<F>& f = to[0];
        close<F>(
            "factors",
            std::vector<F>{f.keep, f.beta1, f.rest1, f.beta2, f.rest2, f.step, f.root, f.eps},
            {1 - lr * decay, b1, 1 - b1, b2, 1 - b2, lr / (1 - p1), 1 / std::sqrt(1 - p2), eps}, 1,
            sizeof(F) == 4 ? 1 : 128, 0);
        BOOST_TEST(f.applies == (std::isfinite(scale) ? 1 : 0));
        if (f.applies) BOOST_TEST(f.scale == static_cast<F>(scale));
      }
    }
  });
}

// Bytes that are all ones are more than a byte can count. None of none.
BOOST_AUTO_TEST_CASE(count_of_ones) {
  for_teams<float>([](team_shape s) {
    for (int64_t every : {1, 3}) {
      std::vector<std::uint8_t> x;
      for (int64_t i = 0; i < s.width; ++i) x.push_back((i + 1) % every == 0 ? 1 : 0);
      const auto check = [&](int64_t n) {
        auto count = unset<double>(1);
        on_team("count_of_ones", one_row(s), rows::count_of_ones{n, x.data(), count.data()}, count);
        BOOST_TEST(count[0] == static_cast<double>(n / every));
      };
      check(s.width), check(0);
    }
  });
}

// By the sign alone: of the smallest numbers as of infinity; a zero, of either sign, has none, and
// neither has what is no number. Nothing changes where the factor is not finite.
BOOST_AUTO_TEST_CASE_TEMPLATE(balance, T, types) {
  for_ranges<T>([](team_shape s, int64_t n) {
    using F = G<T>;
    using limits = std::numeric_limits<F>;
    numbers from;
    const F least = limits::denorm_min(), infinite = limits::infinity(), rate(0.125f);
    const std::vector<F> loads{F(2.5f), F(-2.5f), F(0),      F(-0.0f),           least,
                               -least,  infinite, -infinite, limits::quiet_NaN()};
    const std::vector<double> signs{1, -1, 0, 0, 1, -1, 1, -1, 0};
    std::vector<F> load;
    for (int64_t i = 0; i < n; ++i)
      load.push_back(loads[static_cast<std::size_t>(i) % loads.size()]);
    auto master = from.of<F>(n);
    const auto before = master;
    const auto old = from.of<T>(n);
    auto weight = old;
    const auto body = [&](const double* factor, T* w) {
      return rows::balance_block<T>{n, rate, load.data(), factor, master.data(), w};
    };
    const double inf = std::numeric_limits<double>::infinity();
    for (double factor : {inf, -inf, std::nan("")}) {
      on_team("balance without a step", s, body(&factor, weight.data()), master, weight);
      BOOST_TEST((master == before));
      BOOST_TEST(same_bytes(weight.data(), old.data(), old.size() * sizeof(T)));
    }
    const auto want = of_each(before, [&](std::size_t i) {
      return wide(before[i]) - wide(rate) * signs[i % signs.size()];
    });
    const double factor = 0.5;
    if constexpr (std::is_same_v<T, F>) {
      on_team("balance in place", s, body(&factor, master.data()), master);
    } else {
      on_team("balance", s, body(&factor, weight.data()), master, weight);
      close<T>("weight", weight, want, 1, 1);
    }
    close<F>("master", master, want, 1, 0.01);
  });
}

// 16 parts are the most. Not a number where the norm or the loss is none or infinite, and where
// nothing was counted; the norm is told all the same.
BOOST_AUTO_TEST_CASE(clip_factor) {
  struct step {
    double clip, count, loss;
    std::vector<double> squares;
    double norm, factor;
  };
  const double inf = std::numeric_limits<double>::infinity(), nan = std::nan("");
  const std::vector<step> steps{
      {1, 2, 5, {9, 16}, 2.5, 1 / (2.5 + 1e-6) / 2},
      {2.5, 2, 5, {9, 16}, 2.5, 2.5 / (2.5 + 1e-6) / 2},
      {10, 2, 5, {9, 16}, 2.5, 0.5},
      {0, 2, 5, {9, 16}, 2.5, 0.5},
      {2, 1, 0, std::vector<double>(16, 4.0), 8, 2 / (8 + 1e-6)},
      {1, 4, 0, {0}, 0, 0.25},
      {1, 4, 0, {}, 0, 0.25},
      {1, 2, inf, {9, 16}, 2.5, nan},
      {1, 2, -inf, {9, 16}, 2.5, nan},
      {1, 2, nan, {9, 16}, 2.5, nan},
      {0, 2, nan, {9, 16}, 2.5, nan},
      {1, 2, 5, {9, inf}, inf, nan},
      {0, 2, 5, {9, inf}, inf, nan},
      {1, 2, 5, {1e308, 1e308}, inf, nan},
      {1, 2, 5, {9, nan}, nan, nan},
      {1, 0, 5, {9, 16}, inf, nan},
      {1, 0, 0, {0}, nan, nan},
  };
  for_teams<double>([&](team_shape s) {
    for (const step& of : steps) {
      std::vector<double> factor{-7}, norm{-7};
      auto body = rows::clip_factor{
          of.clip,       &of.count,  &of.loss, {}, static_cast<int>(of.squares.size()),
          factor.data(), norm.data()};
      for (std::size_t k = 0; k < of.squares.size(); ++k) body.squares[k] = &of.squares[k];
      on_team("clip_factor", one_row(s), body, factor, norm);
      const auto is = [](double x, double want) {
        if (std::isfinite(want)) return std::fabs(x - want) <= 1e-15 * want;
        return std::isnan(want) ? std::isnan(x) : x == want;
      };
      BOOST_TEST(is(norm[0], of.norm), "the norm is " << norm[0] << ", not " << of.norm);
      BOOST_TEST(is(factor[0], of.factor), "the factor is " << factor[0] << ", not " << of.factor);
    }
  });
}

// A function of the seed, of the step and of the salt, with none of which two agree.
BOOST_AUTO_TEST_CASE(dropout_key) {
  for_teams<float>([](team_shape s) {
    std::vector<std::uint64_t> keys;
    for (int64_t seed : {int64_t{0}, int64_t{-1}, int64_t{1} << 40})
      for (int64_t step : {int64_t{0}, int64_t{1}, int64_t{1} << 39})
        for (std::uint64_t salt : {0u, 1u, (1u << 24) - 1}) {
          std::vector<std::uint64_t> key{0};
          on_team("dropout_key", one_row(s), rows::dropout_key{salt, &seed, &step, key.data()},
                  key);
          const auto stream = static_cast<std::uint64_t>(step) * (1u << 24) + salt;
          BOOST_TEST(key[0] == mc::random_key(static_cast<std::uint64_t>(seed), stream));
          keys.push_back(key[0]);
        }
    std::sort(keys.begin(), keys.end());
    BOOST_TEST((std::unique(keys.begin(), keys.end()) == keys.end()));
  });
}

// A group of two doubles is less than philox gives at once.
BOOST_AUTO_TEST_CASE_TEMPLATE(dropout, T, types) {
  for_teams<T>([](team_shape s) {
    constexpr std::uint64_t key = 0x0123456789abcdefu;
    const std::vector<std::int32_t> tokens{11, (1 << 30) + 18};
    numbers from;
    const auto x = from.of<T>(s.rows * s.width);
    const int64_t global = s.width + 5;
    for (int64_t column : {0, 3}) {
      const auto want = of_each(x, [&](std::size_t i) {
        const auto k = static_cast<int64_t>(i);
        const auto c = static_cast<std::uint64_t>(
            tokens[static_cast<std::size_t>(k / s.width)] * global + column + k % s.width);
        return mc::uniform(mc::philox(key, c >> 2)[c & 3]) >= 0.25f ? wide(x[i]) / 0.75 : 0.0;
      });
      auto y = x;
      on_team(
          "dropout in place", s,
          rows::dropout_row<T, int64_t>{s.width, global, column, &key, 1u << 22,
                                        G<T>(1) / G<T>(0.75f), tokens.data(), y.data(), y.data()},
          y);
      close<T>("dropout", y, want, 1, 2, 0);
    }
  });
}

// One row that the table holds twice, and one that it does not hold.
BOOST_AUTO_TEST_CASE_TEMPLATE(embedding, T, types) {
  for_teams<T>([](team_shape s) {
    numbers from;
    const int64_t first = 3, count = 2, tokens = 4, columns = (s.width + 1) / 2;
    const std::vector<std::int32_t> ids{4, 9, 4, 3};
    const auto table = from.of<T>(count * s.width), dy = from.of<T>(tokens * s.width);
    auto dtable = from.of<G<T>>(count * s.width);
    std::vector<T> want;
    reference gradient = wide(dtable);
    for (std::size_t k = 0; k < dy.size(); ++k) {
      const auto w = static_cast<std::size_t>(s.width);
      const int64_t id = ids[k / w] - first;
      const std::size_t at = static_cast<std::size_t>(id) * w + k % w;
      const bool here = id >= 0 && id < count;
      want.push_back(here ? table[at] : mc::convert<T>(0.0f));
      if (here) gradient[at] += wide(dy[k]);
    }
    auto y = unset<T>(tokens * s.width);
    team_shape all = s, slabs = s;
    all.rows = tokens, slabs.rows = 2;
    on_team(
        "embedding", all,
        rows::embedding_row<T, int64_t>{s.width, first, count, table.data(), ids.data(), y.data()},
        y);
    BOOST_TEST(same_bytes(y.data(), want.data(), y.size() * sizeof(T)));
    const ordered_tokens in_order(tokens, ids, first, count);
    auto numbers = unset<std::uint64_t>(tokens);
    team_shape flat = s;
    flat.rows = mc::blocks_of(tokens);
    on_team("number_tokens", flat,
            rows::number_tokens{tokens, in_order.order, first, ids.data(), numbers.data()},
            numbers);
    std::sort(numbers.begin(), numbers.end());
    BOOST_TEST((numbers == in_order.numbers));
    on_team("embedding_gradient", slabs,
            rows::embedding_gradient_slab<T>{s.width, tokens, in_order.order, columns, dy.data(),
                                             numbers.data(), dtable.data()},
            dtable);
    close<G<T>>("embedding_gradient", dtable, gradient, 1, 8, 4);
  });
}

// A part of the tokens of an id for each body has the bits of a core, which walks all of them: ids that
// come once, up to a part, a part and one more, and several parts, in one sequence and in two; where
// one ends, the next one begins within the same 64 tokens.
BOOST_AUTO_TEST_CASE_TEMPLATE(embedding_by_parts, T, types) {
  numbers from;
  const int64_t first = 3, count = 9, threads = 32, width = 45;
  for (const int64_t sequences : {1, 2}) {
    // What is several parts in the one sequence is one part in the other, and the other way round.
    const int comes[2][9] = {{1, 64, 65, 130, 0, 2, 63, 127, 70},
                             {70, 1, 2, 63, 127, 130, 0, 64, 65}};
    std::vector<std::int32_t> ids, of_one;
    for (const auto& by_id : std::span(comes).first(static_cast<std::size_t>(sequences))) {
      of_one.clear();
      for (int id = 0; id < 9; ++id)
        of_one.insert(of_one.end(), static_cast<std::size_t>(by_id[id]),
                      static_cast<int>(first) + id);
      of_one.insert(of_one.end(), {2, 99, 12});       // no rows of the table
      for (std::size_t k = 0; k < of_one.size(); ++k) // in another order
        ids.push_back(of_one[k * 101 % of_one.size()]);
    }
    const auto tokens = std::ssize(ids);
    const rows::summed_rows of(tokens, std::ssize(of_one));
    const ordered_tokens in_order(of, ids, first, count);
    const auto dy = from.of<T>(tokens * width);
    auto dtable = from.of<G<T>>(count * width), want = dtable;
    rows::embedding_gradient(host, of, in_order.order, width, dy.data(), in_order.numbers.data(),
                             want.data());
    const rows::token_partials parts{tokens, in_order.order, in_order.numbers.data()};
    const int64_t windows = rows::token_partials::windows(tokens);
    auto sums = unset<G<T>>(2 * windows * width);
    for (int64_t s = 0; s < sequences; ++s) {
      on_team("parts", {{of.sequence, width}, threads},
              rows::embedding_gradient_partial<T>{width, s, parts, dy.data(), dtable.data(),
                                                  sums.data()},
              dtable, sums);
      on_team("totals", {{windows, width}, threads},
              rows::embedding_gradient_total<G<T>>{width, s, parts, sums.data(), dtable.data()},
              dtable);
    }
    BOOST_TEST(same_bytes(dtable.data(), want.data(), want.size() * sizeof(G<T>)),
               sequences << " sequences");
  }
}

// Heads of an odd half, in place.
BOOST_AUTO_TEST_CASE_TEMPLATE(rope, T, types) {
  for_teams<T>([](team_shape s) {
    numbers from;
    const int64_t heads = 3, half = s.width, stride = 2 * heads * half + 1;
    const std::vector<std::int32_t> positions{1, 0};
    const auto x = from.of<T>(s.rows * stride);
    const auto cos = from.of<G<T>>(2 * half), sin = from.of<G<T>>(2 * half);
    reference want = wide(x);
    for (int64_t t = 0; t < s.rows; ++t) {
      for (int64_t k = 0; k < heads * half; ++k) {
        const int64_t first = t * stride + k / half * 2 * half + k % half;
        const auto a = static_cast<std::size_t>(first), b = static_cast<std::size_t>(first + half);
        const auto at =
            static_cast<std::size_t>(positions[static_cast<std::size_t>(t)] * half + k % half);
        const double c = wide(cos[at]), d = -wide(sin[at]);
        want[a] = wide(x[a]) * c - wide(x[b]) * d;
        want[b] = wide(x[b]) * c + wide(x[a]) * d;
      }
    }
    auto y = x;
    on_team("rope in place", s,
            rows::rope_row<T, int64_t>{half, heads, stride, stride, y.data(), positions.data(),
                                       cos.data(), sin.data(), G<T>(-1), y.data()},
            y);
    close<T>("rope", y, want, 1, 8, 4);
  });
}
