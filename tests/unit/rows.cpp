// Row kernels against plain loops in double, at awkward shapes. Bits are the business of
// rows_bits.cpp, elementary functions that of vec_math.cpp.
#define BOOST_TEST_MODULE rows
#include <boost/test/unit_test.hpp>

#include <megacpp/kernel/rows/adamw.hpp>
#include <megacpp/kernel/rows/dropout.hpp>
#include <megacpp/kernel/rows/elementwise.hpp>
#include <megacpp/kernel/rows/embedding.hpp>
#include <megacpp/kernel/rows/layer_norm.hpp>
#include <megacpp/kernel/rows/rope.hpp>
#include <megacpp/kernel/rows/router.hpp>
#include <megacpp/kernel/rows/sum_squares.hpp>
#include <megacpp/kernel/rows/swiglu.hpp>
#include <megacpp/num/random.hpp>
#include <megacpp/vectors/math.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "rows.hpp"

namespace {

namespace rows = mc::rows;
using namespace test;

constexpr int64_t widths[] = {1, 3, 15, 16, 17, 33, 64, 96, 127, 768};
constexpr int64_t heights[] = {1, 5, 131};

template <class F> void for_shapes(F f) {
  for (int64_t r : heights) {
    for (int64_t w : widths) {
      BOOST_TEST_CONTEXT(r << " rows of " << w) f(shape{r, w});
    }
  }
}

} // namespace

BOOST_AUTO_TEST_CASE_TEMPLATE(norms, T, types) {
  for_shapes([](shape s) {
    numbers from;
    const int64_t n = s.rows * s.width;
    const auto x = from.of<T>(n), dy = from.of<T>(n), gain = from.of<T>(s.width),
               bias = from.of<T>(s.width);
    auto y = zeros<T>(n), dx = y;
    auto mean = zeros<G<T>>(s.rows), rstd = mean;
    auto dgain = zeros<G<T>>(s.width), dbias = dgain;
    const G<T> eps(1e-2f);
    const reference none(static_cast<std::size_t>(s.width));
    const double many = 8 + std::sqrt(static_cast<double>(s.rows));

    auto want = norm_of(wide(x), wide(dy), wide(gain), none, wide(eps), false, s);
    rows::rms_norm(host, s.rows, s.width, x.data(), gain.data(), eps, y.data(), rstd.data());
    rows::rms_norm_dx(host, s.rows, s.width, dy.data(), x.data(), gain.data(), rstd.data(),
                      dx.data());
    rows::rms_norm_dgain(host, s.rows, s.width, dy.data(), x.data(), rstd.data(), dgain.data());
    close<T>("rms_norm", y, want.y, 2, 8);
    close<T>("rms_norm_dx", dx, want.dx, 1, 32, 20);
    close<G<T>>("rms_norm_dgain", dgain, want.dgain, 1, many, 10);

    want = norm_of(wide(x), wide(dy), wide(gain), wide(bias), wide(eps), true, s);
    std::fill(dgain.begin(), dgain.end(), G<T>(0));
    rows::layer_norm(host, s.rows, s.width, x.data(), gain.data(), bias.data(), eps, y.data(),
                     mean.data(), rstd.data());
    rows::layer_norm_dx(host, s.rows, s.width, dy.data(), x.data(), gain.data(), mean.data(),
                        rstd.data(), dx.data());
    rows::layer_norm_dgain_dbias(host, s.rows, s.width, dy.data(), x.data(), mean.data(),
                                 rstd.data(), dgain.data(), dbias.data());
    close<T>("layer_norm", y, want.y, 1, 16, 4);
    close<T>("layer_norm_dx", dx, want.dx, 1, 48, 40);
    close<G<T>>("layer_norm_dgain", dgain, want.dgain, 1, many, 20);
    close<G<T>>("layer_norm_dbias", dbias, want.dbias, 1, many, 10);

    // Gradients accumulate; a bias may be absent.
    for (double& d : want.dbias) d *= 2;
    rows::bias_gradient(host, s.rows, s.width, dy.data(), dbias.data());
    close<G<T>>("bias_gradient", dbias, want.dbias, 1, many, 20);
    want = norm_of(wide(x), wide(dy), wide(gain), none, wide(eps), true, s);
    rows::layer_norm(host, s.rows, s.width, x.data(), gain.data(), static_cast<const T*>(nullptr),
                     eps, y.data(), mean.data(), rstd.data());
    close<T>("layer_norm without bias", y, want.y, 1, 16, 4);
  });
}

// Of rows of any length, whatever fills their last group.
BOOST_AUTO_TEST_CASE_TEMPLATE(the_greatest_of_a_row_is_one_of_its_own, T, types) {
  constexpr int most = 40;
  for (int n = 1; n <= most; ++n)
    for (int at = 0; at < n; ++at) {
      std::vector<G<T>> x(most, G<T>(9)); // beyond the row are greater ones
      for (int i = 0; i < n; ++i) x[static_cast<unsigned>(i)] = i == at ? G<T>(-3) : G<T>(-5);
      const G<T> top =
          mc::core_team().max<T>(int64_t{n}, [&](auto i) { return mc::load<G<T>>(x.data(), i); });
      BOOST_REQUIRE(top == G<T>(-3));
    }
}

BOOST_AUTO_TEST_CASE(a_large_mean_does_not_cancel) {
  // x = 1000 + small: the variance is that of the small part.
  constexpr int64_t n = 768;
  numbers from;
  std::vector<float> x = from.of<float>(n, 1), gain(n, 1.0f), y(n), mean(1), rstd(1);
  for (float& v : x) v += 1000.0f;
  const auto want = norm_of(wide(x), wide(x), wide(gain), reference(n), 1e-5, true, {1, n});
  rows::layer_norm(host, int64_t{1}, n, x.data(), gain.data(), static_cast<const float*>(nullptr),
                   1e-5f, y.data(), mean.data(), rstd.data());
  close<float>("layer_norm", y, want.y, 1, 4, 1000);
}

BOOST_AUTO_TEST_CASE_TEMPLATE(activations, T, types) {
  const auto cdf = [](double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); };
  const auto pdf = [](double x) { return std::exp(-x * x / 2) / std::sqrt(2 * std::acos(-1.0)); };
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  const auto inner = [](double x) {
    return 2 * std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x);
  };
  for_shapes([&](shape s) {
    numbers from;
    const int64_t n = s.rows * s.width;
    const auto x = from.of<T>(n, 9), u = from.of<T>(n), dy = from.of<T>(n);
    auto y = zeros<T>(n), dx = y, du = y;
    reference value, slope, exact, exact_slope, tanh, tanh_slope, glu, dgate, dup;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double a = wide(x[i]), d = wide(dy[i]), b = wide(u[i]), q = sigmoid(a);
      const double t = sigmoid(inner(a));
      const double bend = 2 * std::sqrt(2 / std::acos(-1.0)) * (1 + 3 * 0.044715 * a * a);
      exact.push_back(a * cdf(a));
      exact_slope.push_back(d * (cdf(a) + a * pdf(a)));
      tanh.push_back(a * t);
      tanh_slope.push_back(d * (t + a * t * sigmoid(-inner(a)) * bend));
      value.push_back(a * q);
      slope.push_back(d * (q + a * q * sigmoid(-a)));
      glu.push_back(a * q * b);
      dgate.push_back(d * b * (q + a * q * sigmoid(-a)));
      dup.push_back(d * a * q);
    }
    rows::activation<rows::gelu_exact>(host, n, x.data(), y.data());
    rows::activation_dx<rows::gelu_exact>(host, n, dy.data(), x.data(), dx.data());
    close<T>("gelu_exact", y, exact, 1, 12);
    close<T>("gelu_exact dx", dx, exact_slope, 1, 24);
    rows::activation<rows::gelu_tanh>(host, n, x.data(), y.data());
    rows::activation_dx<rows::gelu_tanh>(host, n, dy.data(), x.data(), dx.data());
    close<T>("gelu_tanh", y, tanh, 1, 12);
    close<T>("gelu_tanh dx", dx, tanh_slope, 1, 48);
    rows::activation<rows::silu>(host, n, x.data(), y.data());
    rows::activation_dx<rows::silu>(host, n, dy.data(), x.data(), dx.data());
    close<T>("silu", y, value, 1, 8);
    close<T>("silu dx", dx, slope, 1, 16, 2);
    rows::swiglu(host, s.rows, s.width, s.width, x.data(), u.data(), y.data());
    rows::swiglu_backward(host, s.rows, s.width, s.width, dy.data(), x.data(), u.data(), dx.data(),
                          du.data());
    close<T>("swiglu", y, glu, 1, 8, 2);
    close<T>("swiglu dgate", dx, dgate, 1, 16, 4);
    close<T>("swiglu dup", du, dup, 1, 8, 2);

    // The same from one matrix that holds gate and up side by side.
    auto packed = zeros<T>(2 * n), dpacked = packed, again = y;
    for (int64_t r = 0; r < s.rows; ++r) {
      std::copy_n(x.begin() + r * s.width, s.width, packed.begin() + 2 * r * s.width);
      std::copy_n(u.begin() + r * s.width, s.width, packed.begin() + (2 * r + 1) * s.width);
    }
    rows::swiglu(host, s.rows, s.width, 2 * s.width, packed.data(), packed.data() + s.width,
                 again.data());
    BOOST_TEST(same_bytes(again.data(), y.data(), y.size() * sizeof(T)));
  });
}

BOOST_AUTO_TEST_CASE_TEMPLATE(elementwise, T, types) {
  for_shapes([](shape s) {
    numbers from;
    const int64_t n = s.rows * s.width;
    const auto a = from.of<T>(n), b = from.of<T>(n), bias = from.of<T>(s.width);
    auto y = zeros<T>(n);
    reference sum, scaled, biased;
    for (std::size_t i = 0; i < a.size(); ++i) {
      sum.push_back(wide(a[i]) + wide(b[i]));
      scaled.push_back(wide(a[i]) * 0.75);
      biased.push_back(wide(a[i]) + wide(bias[i % static_cast<std::size_t>(s.width)]));
    }
    rows::add(host, n, a.data(), b.data(), y.data());
    close<T>("add", y, sum, 1, 1);
    rows::scale(host, n, G<T>(0.75), a.data(), y.data());
    close<T>("scale", y, scaled, 1, 1);
    rows::bias_add(host, s.rows, s.width, a.data(), bias.data(), y.data());
    close<T>("bias_add", y, biased, 1, 1);
    rows::fill(host, n, G<T>(3), y.data());
    close<T>("fill", y, reference(y.size(), 3.0), 0, 0.01);

    const auto casts = [&](auto to) {
      std::vector<decltype(to)> out(a.size()), want;
      for (T v : a) want.push_back(mc::convert<decltype(to)>(v));
      rows::cast(host, n, a.data(), out.data());
      BOOST_TEST(same_bytes(out.data(), want.data(), sizeof(to) * out.size()));
    };
    casts(float{});
    casts(bf16{});
    casts(double{});

    std::vector<double> parts(static_cast<std::size_t>(rows::sum_squares_partials(n)));
    double squares = 0;
    for (T v : a) squares += wide(v) * wide(v);
    double found = 0;
    rows::sum_squares(host, n, a.data(), parts.data(), &found);
    BOOST_TEST(found == squares, boost::test_tools::tolerance(1e-13));
  });
}

BOOST_AUTO_TEST_CASE(bf16_rounds_as_the_scalar_does) {
  // Every exponent and sign, ties, denormals, infinities and NaN, in vectors and one by one.
  std::vector<float> x;
  for (std::uint32_t high = 0; high < 0x10000; ++high) {
    for (std::uint32_t low : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      const std::uint32_t u = (high << 16) | low;
      float f;
      std::memcpy(&f, &u, sizeof f);
      x.push_back(f);
    }
  }
  x.resize(x.size() - 5); // so that the last ones go one by one
  std::vector<bf16> y(x.size());
  std::size_t wrong = 0;
  // Again with a zero in every vector: some processors' instruction is not used for those.
  for (bool zeros_too : {false, true}) {
    for (std::size_t i = 0; zeros_too && i < x.size(); i += 16) x[i] = 0;
    rows::cast(host, static_cast<int64_t>(x.size()), x.data(), y.data());
    for (std::size_t i = 0; i < x.size(); ++i) {
      wrong += y[i].bits != bf16(x[i]).bits;
      const mc::vec<float, 1> r = mc::round_to<bf16>(mc::vec<float, 1>(x[i]));
      if (x[i] == x[i]) wrong += r.v[0] != static_cast<float>(bf16(x[i]));
    }
  }
  BOOST_TEST(wrong == 0u);
}

BOOST_AUTO_TEST_CASE_TEMPLATE(rope, T, types) {
  for (int64_t half : {1, 3, 8, 16, 32, 33, 64}) {
    numbers from;
    const int64_t tokens = 5, heads = 3, row = heads * 2 * half, stride = row + 7;
    const std::vector<std::int32_t> positions = {0, 1, 999999, 17, 1000000};
    const auto x = from.of<T>(tokens * stride);
    auto y = zeros<T>(tokens * row), back = zeros<T>(tokens * stride);
    auto cos = zeros<G<T>>(tokens * half), sin = cos;
    std::vector<double> w; // as RoPE had them first, and some slowed down
    for (int64_t i = 0; i < half; ++i)
      w.push_back(std::pow(1e4, -static_cast<double>(i) / static_cast<double>(half)) /
                  (i % 3 == 1 ? 8.0 : 1.0));
    mc::build_rope_table(tokens, w, positions.data(), cos.data(), sin.data());
    reference want, original;
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t k = 0; k < row; ++k) {
        const int64_t i = k % half, head = k / (2 * half), first = t * stride + head * 2 * half;
        const double a = wide(x[static_cast<std::size_t>(first + i)]);
        const double b = wide(x[static_cast<std::size_t>(first + half + i)]);
        const long double angle = static_cast<long double>(positions[static_cast<std::size_t>(t)]) *
                                  w[static_cast<std::size_t>(i)];
        const auto c = static_cast<double>(std::cos(angle)),
                   s = static_cast<double>(std::sin(angle));
        want.push_back(k % (2 * half) < half ? a * c - b * s : b * c + a * s);
        original.push_back(wide(x[static_cast<std::size_t>(t * stride + k)]));
      }
    }
    rows::rope(host, tokens, heads, half, stride, row, x.data(),
               static_cast<const std::int32_t*>(nullptr), cos.data(), sin.data(), 1, y.data());
    // In double the angle itself is good to 10^6 * 2^-53.
    close<T>("rope", y, want, 1, sizeof(T) == 8 ? 0x1p20 : 8, 2);

    // The table of all positions, read through `positions`, gives the same.
    auto all_cos = zeros<G<T>>(18 * half), all_sin = all_cos;
    auto again = y;
    mc::build_rope_table(int64_t{18}, w, nullptr, all_cos.data(), all_sin.data());
    const std::vector<std::int32_t> rows_of = {0, 1, 2, 17, 3};
    rows::rope(host, tokens, heads, half, stride, row, x.data(), rows_of.data(), all_cos.data(),
               all_sin.data(), 1, again.data());
    for (int64_t t : {0, 1, 3}) {
      BOOST_TEST(same_bytes(&again[static_cast<std::size_t>(t * row)],
                            &y[static_cast<std::size_t>(t * row)],
                            static_cast<std::size_t>(row) * sizeof(T)));
    }

    // The inverse rotation undoes it, in place too.
    rows::rope(host, tokens, heads, half, row, row, y.data(),
               static_cast<const std::int32_t*>(nullptr), cos.data(), sin.data(), -1, y.data());
    close<T>("rope back", y, original, 1, sizeof(T) == 2 ? 0x1p17 : 8, 4);
  }
}

BOOST_AUTO_TEST_CASE_TEMPLATE(embedding, T, types) {
  for_shapes([](shape s) {
    numbers from;
    const int64_t first = 3, count = 4, n = s.rows * s.width;
    const auto table = from.of<T>(count * s.width), dy = from.of<T>(n);
    std::vector<std::int32_t> ids;
    for (int64_t t = 0; t < s.rows; ++t) ids.push_back(static_cast<std::int32_t>(t * 5 % 9));
    auto y = zeros<T>(n);
    auto dtable = zeros<G<T>>(count * s.width);
    reference want, gradient(dtable.size());
    for (int64_t t = 0; t < s.rows; ++t) {
      const int64_t id = ids[static_cast<std::size_t>(t)] - first;
      for (int64_t j = 0; j < s.width; ++j) {
        const auto at = static_cast<std::size_t>(id * s.width + j);
        const bool here = id >= 0 && id < count;
        want.push_back(here ? wide(table[at]) : 0);
        if (here) gradient[at] += wide(dy[static_cast<std::size_t>(t * s.width + j)]);
      }
    }
    rows::embedding(host, s.rows, s.width, table.data(), first, count, ids.data(), y.data());
    const ordered_tokens in_order(s.rows, ids, first, count);
    rows::embedding_gradient(host, s.rows, in_order.order, s.width, dy.data(),
                             in_order.numbers.data(), dtable.data());
    close<T>("embedding", y, want, 0, 0.01);
    close<G<T>>("embedding_gradient", dtable, gradient, 1, 8, 4);
  });
}

// By sequence, row and token, and behind all others those that have no row.
BOOST_AUTO_TEST_CASE(order_of_tokens) {
  constexpr int64_t tokens = 90, sequence = 30, first = 3, rows_of_table = 5;
  std::vector<std::int32_t> ids;
  for (int64_t t = 0; t < tokens; ++t) ids.push_back(static_cast<std::int32_t>(t * 7 % 11));
  const auto row_of = [&](int64_t t) { return ids[static_cast<std::size_t>(t)] - first; };
  const auto has_row = [&](int64_t t) { return row_of(t) >= 0 && row_of(t) < rows_of_table; };
  std::vector<int64_t> want(static_cast<std::size_t>(tokens));
  std::iota(want.begin(), want.end(), 0);
  std::stable_sort(want.begin(), want.end(), [&](int64_t a, int64_t b) {
    if (!has_row(a) || !has_row(b)) return has_row(a) && !has_row(b);
    return std::pair(a / sequence, row_of(a)) < std::pair(b / sequence, row_of(b));
  });
  const ordered_tokens in_order({tokens, sequence}, ids, first, rows_of_table);
  for (std::size_t k = 0; k < want.size(); ++k) {
    const std::uint64_t number = in_order.numbers[k];
    BOOST_TEST(in_order.order.token_of(number) == want[k]);
    BOOST_TEST((in_order.order.bin_of(number) < in_order.order.bins) == has_row(want[k]));
  }
  const auto fits = [](int64_t n, int64_t of_sequence, int64_t of_table) {
    return rows::token_order({n, of_sequence}, of_table).fits();
  };
  BOOST_TEST(fits(int64_t{1} << 24, int64_t{1} << 24, int64_t{1} << 18));
  BOOST_TEST(fits(int64_t{1} << 24, int64_t{1} << 12, int64_t{1} << 18));
  BOOST_TEST(!fits(int64_t{1} << 24, 1, int64_t{1} << 18));
}

BOOST_AUTO_TEST_CASE_TEMPLATE(dropout, T, types) {
  constexpr double p = 0.1;
  constexpr std::uint64_t key = 0x0123456789abcdefu;
  std::size_t kept = 0, all = 0;
  for_shapes([&](shape s) {
    for (int64_t column : {0, 1, 2, 3}) {
      const int64_t n = s.rows * s.width, global = s.width + 5;
      std::vector<T> x(static_cast<std::size_t>(n), mc::convert<T>(1.5f)), y = x;
      std::vector<std::int32_t> tokens;
      for (int64_t t = 0; t < s.rows; ++t) // counters beyond 32 bits, too
        tokens.push_back(static_cast<std::int32_t>(7 * t + 11 + (t % 2 << 30)));
      rows::dropout(host, s.rows, s.width, global, column, &key, p, tokens.data(), x.data(),
                    y.data());
      reference want;
      for (int64_t k = 0; k < n; ++k) {
        const auto c = static_cast<std::uint64_t>(
            tokens[static_cast<std::size_t>(k / s.width)] * global + column + k % s.width);
        const bool keep = mc::uniform(mc::philox(key, c >> 2)[c & 3]) >= static_cast<float>(p);
        want.push_back(keep ? 1.5 / (1 - p) : 0.0);
        kept += keep, ++all;
      }
      close<T>("dropout", y, want, 1, 2, 0);
      // A shard of the columns is that part of the whole.
      if (column == 3 && s.width > 3) {
        auto whole = zeros<T>(s.rows * global);
        const auto ones = std::vector<T>(whole.size(), mc::convert<T>(1.5f));
        rows::dropout(host, s.rows, global, global, int64_t{0}, &key, p, tokens.data(), ones.data(),
                      whole.data());
        for (int64_t r = 0; r < s.rows; ++r) {
          BOOST_TEST(same_bytes(&whole[static_cast<std::size_t>(r * global + column)],
                                &y[static_cast<std::size_t>(r * s.width)],
                                static_cast<std::size_t>(s.width) * sizeof(T)));
        }
      }
    }
  });
  BOOST_TEST(static_cast<double>(kept) / static_cast<double>(all) == 1 - p,
             boost::test_tools::tolerance(0.005));
}

BOOST_AUTO_TEST_CASE_TEMPLATE(adamw, T, types) {
  for (int64_t n : {1, 17, 4096, 10007}) {
    numbers from;
    auto master = from.of<G<T>>(n);
    auto m = zeros<G<T>>(n), v = m;
    auto weight = zeros<T>(n);
    std::vector<std::uint8_t> broken(static_cast<std::size_t>(mc::blocks_of(n)), 7);
    const double lr = 0.01, b1 = 0.9, b2 = 0.99, eps = 1e-8, decay = 0.1, scale = 0.5;
    reference p = wide(master), first(p.size()), second(p.size());
    for (int t = 1; t <= 5; ++t) {
      const auto grad = from.of<G<T>>(n);
      for (std::size_t i = 0; i < p.size(); ++i) {
        const double g = wide(grad[i]) * scale;
        p[i] *= 1 - lr * decay;
        first[i] = b1 * first[i] + (1 - b1) * g;
        second[i] = b2 * second[i] + (1 - b2) * g * g;
        p[i] -= lr / (1 - std::pow(b1, t)) * first[i] /
                (std::sqrt(second[i]) / std::sqrt(1 - std::pow(b2, t)) + eps);
      }
      const auto factors = rows::adamw_step<G<T>>(t, lr, b1, b2, eps, decay, scale);
      double blocks = 1;
      rows::adamw(host, n, &factors, grad.data(), master.data(), m.data(), v.data(), weight.data(),
                  broken.data(), &blocks);
      BOOST_TEST(blocks == 0);
    }
    close<G<T>>("master", master, p, 1, 24);
    close<T>("weight", weight, p, 1, 24);
    // Master and weight may be one array.
    if constexpr (sizeof(T) == sizeof(G<T>)) {
      const auto grad = from.of<T>(n);
      auto m2 = m, v2 = v, alone = master;
      const auto factors = rows::adamw_step<T>(6, lr, b1, b2, eps, decay, scale);
      double blocks = 1;
      rows::adamw(host, n, &factors, grad.data(), master.data(), m.data(), v.data(), weight.data(),
                  broken.data(), &blocks);
      rows::adamw(host, n, &factors, grad.data(), alone.data(), m2.data(), v2.data(), alone.data(),
                  broken.data(), &blocks);
      BOOST_TEST((alone == master && weight == master));
    }
  }
}

// An update counts the blocks that it leaves infinite or not a number, whatever it is that broke:
// the weight, the moments, or the weight's rounding alone. Numbers near the largest break nothing.
BOOST_AUTO_TEST_CASE_TEMPLATE(adamw_counts_what_breaks, T, types) {
  using F = G<T>;
  constexpr F most = std::numeric_limits<F>::max(), all = std::numeric_limits<F>::infinity(),
              none = std::numeric_limits<F>::quiet_NaN();
  const int64_t n = 5 * mc::flat_block + 3;
  struct start {
    F gradient, master, first, second;
  };
  const auto blocks = [&](start s, std::initializer_list<int64_t> at, double lr) {
    auto grad = zeros<F>(n), master = grad, m = grad, v = grad;
    auto weight = zeros<T>(n);
    for (const int64_t i : at) {
      const auto k = static_cast<std::size_t>(i);
      grad[k] = s.gradient, master[k] = s.master, m[k] = s.first, v[k] = s.second;
    }
    std::vector<std::uint8_t> broken(static_cast<std::size_t>(mc::blocks_of(n)), 7);
    const auto factors = rows::adamw_step<F>(1, lr, 0.9, 0.99, 1e-8, 0, 1);
    double count = -1;
    rows::adamw(host, n, &factors, grad.data(), master.data(), m.data(), v.data(), weight.data(),
                broken.data(), &count);
    return count;
  };
  for (const start& s : {start{0, most, 0, 0}, {0, 0, most, 1}, {0, 1, 0, most}, {1, 1, 1, 1}}) {
    const bool rounds_up = s.master == most && !std::is_same_v<T, F>; // to a bf16 beyond the last
    BOOST_TEST(blocks(s, {0, n - 1}, 0) == (rounds_up ? 2 : 0));
  }
  const F root = std::sqrt(most);
  for (const start& s : {start{none, 0, 0, 0},
                         {0, none, 0, 0},
                         {0, 0, none, 1},
                         {0, 0, 0, none},
                         {0, -all, 0, 0},
                         {F(100) * root, 1, 0, 0},
                         {0, 0, all, 1}})
    for (const int64_t i :
         {int64_t{0}, mc::flat_block - 1, mc::flat_block, 3 * mc::flat_block + 17, n - 1}) {
      BOOST_TEST(blocks(s, {i}, 0.01) == 1, i);
      BOOST_TEST(blocks(s, {2, i}, 0.01) == (i < mc::flat_block ? 1 : 2), i);
    }
}

// A bias chooses experts whose probabilities are nothing beside another's; their normalised weights
// are those of the chosen alone, and so are the gradients.
BOOST_AUTO_TEST_CASE_TEMPLATE(experts_that_a_bias_chooses, T, types) {
  std::vector<T> l, bias;
  for (const float x : {1000.f, 0.f, 1.f, -3.f}) l.push_back(mc::convert<T>(x));
  for (const float x : {0.f, 2.f, 3.f, 0.f}) bias.push_back(mc::convert<T>(x));
  constexpr int k = 2;
  std::vector<G<T>> weights(k), dw{G<T>(1), G<T>(-2)};
  std::vector<std::int32_t> chosen(k);
  std::vector<T> dl(l.size());
  mc::for_rows(
      host, 1,
      rows::route_row<T>{4, k, true, l.data(), bias.data(), weights.data(), chosen.data()});
  BOOST_TEST((chosen == std::vector<std::int32_t>{2, 1}));
  const double first = 1 / (1 + std::exp(-1.0));
  close<G<T>>("weights", weights, reference{first, 1 - first}, 1, 8, 4);
  mc::for_rows(host, 1,
               rows::route_grad_row<T>{4, k, true, dw.data(), l.data(), chosen.data(), dl.data()});
  const double mean = first * 1 + (1 - first) * -2;
  close<T>("gradients", dl, reference{0, (1 - first) * (-2 - mean), first * (1 - mean), 0}, 1, 8,
           4);
}

namespace {

struct copied_body {
  const float* x;
  template <class Team> void operator()(const Team&, int64_t) const {}
};
struct owning_body {
  std::vector<float> x;
  template <class Team> void operator()(const Team&, int64_t) const {}
};

} // namespace

// A device keeps a copy of a body, of which nothing may lie on the host's stack.
BOOST_AUTO_TEST_CASE(a_body_is_a_struct_that_a_device_can_copy) {
  const float number = 1;
  const auto by_reference = [&number](const auto&, int64_t) { static_cast<void>(number); };
  const auto by_value = [number](const auto&, int64_t) { static_cast<void>(number); };
  static_assert(mc::is_row_body<copied_body>);
  static_assert(!mc::is_row_body<owning_body>);
  static_assert(!mc::is_row_body<decltype(by_reference)>);
  static_assert(!mc::is_row_body<decltype(by_value)>);
  by_reference(0, 0), by_value(0, 0);
}
