// The bodies that go element by element, and sums of flat ranges, on emulated teams, against plain
// loops in double.
#define BOOST_TEST_MODULE emulated_elements
#include <boost/test/unit_test.hpp>

#include <megacpp/kernel/rows/adamw.hpp>
#include <megacpp/kernel/rows/dropout.hpp>
#include <megacpp/kernel/rows/elementwise.hpp>
#include <megacpp/kernel/rows/embedding.hpp>
#include <megacpp/kernel/rows/redistribute.hpp>
#include <megacpp/kernel/rows/rope.hpp>
#include <megacpp/kernel/rows/sum_squares.hpp>
#include <megacpp/kernel/rows/swiglu.hpp>
#include <megacpp/num/random.hpp>

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

BOOST_AUTO_TEST_CASE_TEMPLATE(sum_squares, T, types) {
  const auto check = [](team_shape s, int64_t n) {
    numbers from;
    const auto x = from.of<T>(n);
    s.rows = rows::sum_squares_parts(n);
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
      return rows::adamw_block<T>{n,        factors,  grad.data(), p.data(),
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

// Not of double: a group of two numbers is less than philox gives at once, and no program of CUDA
// has it.
BOOST_AUTO_TEST_CASE_TEMPLATE(dropout, T, decltype(std::tuple<float, bf16>())) {
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
          rows::dropout_row<T, int64_t>{s.width, global, column, key, 1u << 22,
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
    std::vector<rows::token_of_row> order(ids.size());
    const int64_t ordered = rows::order_tokens(tokens, ids.data(), first, count, order.data());
    on_team("embedding_gradient", slabs,
            rows::embedding_gradient_slab<T>{s.width, tokens, ordered, columns, dy.data(),
                                             order.data(), dtable.data()},
            dtable);
    close<G<T>>("embedding_gradient", dtable, gradient, 1, 8, 4);
  });
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
