// Vectors: errors of the elementary functions in units in the last place, special values, the same
// bits for every number of lanes; reductions over a team in their fixed order.
#define BOOST_TEST_MODULE vec_math
#include <boost/test/unit_test.hpp>

#include <megacpp/vectors/math.hpp>
#include <megacpp/vectors/team.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

namespace {

constexpr float inf = std::numeric_limits<float>::infinity();
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

// |got - want| in units in the last place of want; 0 for equal infinities and for two NaNs.
double ulps(float got, double want) {
  const auto rounded = static_cast<float>(want);
  if (std::isnan(want) || std::isnan(got)) return std::isnan(want) && std::isnan(got) ? 0 : 1e9;
  if (std::isinf(rounded) || std::isinf(got)) {
    return got == rounded || std::fabs(want) > 3.4028235e38 ? 0 : 1e9;
  }
  int exponent;
  std::frexp(rounded, &exponent);
  return std::fabs(got - want) / std::ldexp(1.0, std::max(exponent - 24, -149));
}

bool same(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b) || (a != a && b != b);
}

// The worst error of f over a range, through 16 lanes; every lane must agree with one lane alone.
template <class F, class R> double worst(F f, R want, float low, float high) {
  constexpr int steps = 1 << 18;
  double most = 0;
  for (int k = 0; k < steps; k += 16) {
    float x[16], y[16];
    for (int i = 0; i < 16; ++i) {
      x[i] = low + (high - low) * (static_cast<float>(k + i) / static_cast<float>(steps - 1));
    }
    mc::store(y, mc::lanes<16>{0}, f(mc::load<float>(x, mc::lanes<16>{0})));
    const int one = k / 16 % 16;
    BOOST_REQUIRE(same(f(mc::load<float>(x, mc::lanes<1>{one})).v[0], y[one]));
    for (int i = 0; i < 16; ++i) most = std::max(most, ulps(y[i], want(double{x[i]})));
  }
  return most;
}

template <class F> float at(F f, float x) { return f(mc::vec<float, 1>(x)).v[0]; }

// Without a fused multiply-add, squares in exponents lose their low bits.
constexpr double without_fma = mc::detail::fused ? 1 : 25;

} // namespace

BOOST_AUTO_TEST_CASE(exponential) {
  const auto f = [](auto x) { return mc::exp(x); };
  const auto want = [](double x) { return std::exp(x); };
  BOOST_TEST(worst(f, want, -1, 1) < 1.0);
  BOOST_TEST(worst(f, want, -87.3f, 88.7f) < 1.0);
  BOOST_TEST(worst(f, want, -105, -87) < 1.0); // denormal results
  BOOST_TEST(worst(f, want, 88, 100) < 1.0);   // and infinite ones
  BOOST_TEST(at(f, 0) == 1.0f);
  BOOST_TEST(at(f, inf) == inf);
  BOOST_TEST(same(at(f, -inf), 0.0f));
  BOOST_TEST(std::isnan(at(f, not_a_number)));
  BOOST_TEST(at(f, 88.0f) == static_cast<float>(std::exp(88.0)),
             boost::test_tools::tolerance(1e-7f));
  BOOST_TEST(at(f, -88.0f) == static_cast<float>(std::exp(-88.0)),
             boost::test_tools::tolerance(1e-6f));
  BOOST_TEST(at(f, 1e-45f) == 1.0f);
  BOOST_TEST(at(f, 3e38f) == inf);
  BOOST_TEST(at(f, -3e38f) == 0.0f);
}

// Also where the difference is no number of single precision: its rounding error does not count. The
// second number may come in two pieces.
BOOST_AUTO_TEST_CASE(exponential_of_a_difference) {
  std::uint64_t state = 1;
  const auto draw = [&](double low, double high) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<float>(low + (high - low) * static_cast<double>(state >> 11) * 0x1p-53);
  };
  double most = 0, most_in_pieces = 0;
  for (int k = 0; k < 1 << 18; k += 16) {
    const float high = draw(-40, 40), low = high * draw(-0x1p-24, 0x1p-24);
    float x[16], y[16], z[16];
    for (float& v : x) v = high - draw(0, k % 2 == 0 ? 4 : 40);
    const auto lanes = mc::load<float>(x, mc::lanes<16>{0});
    mc::store(y, mc::exp_of_difference(lanes, high));
    mc::store(z, mc::exp_of_difference(lanes, high, low));
    const int one = k / 16 % 16;
    BOOST_REQUIRE(same(mc::exp_of_difference(mc::vec<float, 1>(x[one]), high).v[0], y[one]));
    for (int i = 0; i < 16; ++i) {
      const double d = double{x[i]} - double{high};
      most = std::max(most, std::fabs(y[i] / std::exp(d) - 1));
      most_in_pieces = std::max(most_in_pieces, std::fabs(z[i] / std::exp(d - double{low}) - 1));
    }
  }
  BOOST_TEST(most < 9e-8);
  BOOST_TEST(most_in_pieces < 9e-8);
  const auto f = [](float x, float high) {
    return mc::exp_of_difference(mc::vec<float, 1>(x), high).v[0];
  };
  for (float x : {0.0f, 17.3f, -1e-3f, 3e38f, -3e38f, 1e-45f}) BOOST_TEST(f(x, x) == 1.0f);
  BOOST_TEST(f(-inf, 3) == 0.0f);
  BOOST_TEST(f(-3e38f, 3e9f) == 0.0f);
  BOOST_TEST(f(-200, 3) == 0.0f);
  BOOST_TEST(std::isnan(f(not_a_number, 3)));
  BOOST_TEST(std::isnan(f(3, not_a_number)));
  BOOST_TEST(f(3, inf) == 0.0f);
  BOOST_TEST(std::isnan(f(inf, inf)));
  const mc::vec<double, 1> x(-0.3);
  BOOST_TEST(mc::exp_of_difference(x, 0.5).v[0] == std::exp(-0.8));
}

// For softmax: of numbers up to 0, and of differences of scores that are not finite.
BOOST_AUTO_TEST_CASE(power_of_two) {
  const auto f = [](auto x) { return mc::exp2(x); };
  const auto want = [](double x) { return std::exp2(x); };
  BOOST_TEST(worst(f, want, -126, 0) <= (mc::detail::fused ? 1 : 1.3));
  BOOST_TEST(worst(f, want, 0, 127.9f) <= 1.3);
  BOOST_TEST(at(f, 0) == 1.0f);
  BOOST_TEST(at(f, -126.5f) == 0.0f);
  BOOST_TEST(at(f, -inf) == 0.0f);
  BOOST_TEST(std::isnan(at(f, not_a_number)));
  const mc::vec<double, 1> x(-0.3);
  BOOST_TEST(mc::exp2(x).v[0] == std::exp2(-0.3));
}

BOOST_AUTO_TEST_CASE(logarithm) {
  const auto f = [](auto x) { return mc::log(x); };
  const auto want = [](double x) { return std::log(x); };
  BOOST_TEST(worst(f, want, 0.5f, 1.5f) < 1.0);
  BOOST_TEST(worst(f, want, 0, 100) < 1.0);
  BOOST_TEST(worst(f, want, 1, 3.4e38f) < 1.0);
  BOOST_TEST(worst(f, want, 0, 1e-37f) < 1.0); // denormal arguments
  BOOST_TEST(same(at(f, 1), 0.0f));
  BOOST_TEST(at(f, 0) == -inf);
  BOOST_TEST(at(f, -0.0f) == -inf);
  BOOST_TEST(at(f, inf) == inf);
  BOOST_TEST(std::isnan(at(f, -1)));
  BOOST_TEST(std::isnan(at(f, -inf)));
  BOOST_TEST(std::isnan(at(f, not_a_number)));
}

BOOST_AUTO_TEST_CASE(sigmoids) {
  const auto tanh = [](auto x) { return mc::tanh(x); };
  const auto want_tanh = [](double x) { return std::tanh(x); };
  BOOST_TEST(worst(tanh, want_tanh, -1, 1) < 2.0);
  BOOST_TEST(worst(tanh, want_tanh, -20, 20) < 2.0);
  BOOST_TEST(worst(tanh, want_tanh, -1e-38f, 1e-38f) < 1.0);
  BOOST_TEST(same(at(tanh, -0.0f), -0.0f));
  BOOST_TEST(at(tanh, inf) == 1.0f);
  BOOST_TEST(at(tanh, -inf) == -1.0f);
  BOOST_TEST(std::isnan(at(tanh, not_a_number)));
  const auto sigmoid = [](auto x) { return mc::sigmoid(x); };
  const auto want = [](double x) { return 1 / (1 + std::exp(-x)); };
  BOOST_TEST(worst(sigmoid, want, -20, 20) < 3.0);
  BOOST_TEST(worst(sigmoid, want, -110, 110) < 3.0);
  BOOST_TEST(at(sigmoid, 0) == 0.5f);
  BOOST_TEST(at(sigmoid, inf) == 1.0f);
  BOOST_TEST(at(sigmoid, -inf) == 0.0f);
  BOOST_TEST(std::isnan(at(sigmoid, not_a_number)));
}

BOOST_AUTO_TEST_CASE(error_function) {
  const auto f = [](auto x) { return mc::erf(x); };
  const auto want = [](double x) { return std::erf(x); };
  BOOST_TEST(worst(f, want, -1.5f, 1.5f) < 2.0);
  BOOST_TEST(worst(f, want, -12, 12) < 2.0);
  BOOST_TEST(worst(f, want, -1e-38f, 1e-38f) < 2.0);
  BOOST_TEST(same(at(f, -0.0f), -0.0f));
  BOOST_TEST(at(f, inf) == 1.0f);
  BOOST_TEST(at(f, -inf) == -1.0f);
  BOOST_TEST(std::isnan(at(f, not_a_number)));
  const auto cdf = [](auto x) { return mc::normal_at(x).cdf; };
  const auto want_cdf = [](double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); };
  BOOST_TEST(worst(cdf, want_cdf, -6, 6) < 8.0 * without_fma);
  BOOST_TEST(worst(cdf, want_cdf, -15, -6) < 8.0 * without_fma);
  BOOST_TEST(at(cdf, -inf) == 0.0f);
  BOOST_TEST(at(cdf, inf) == 1.0f);
  BOOST_TEST(std::isnan(at(cdf, not_a_number)));
  const auto pdf = [](auto x) { return mc::normal_at(x).pdf; };
  const auto want_pdf = [](double x) {
    return std::exp(-x * x / 2) / std::sqrt(2 * std::acos(-1.0));
  };
  BOOST_TEST(worst(pdf, want_pdf, -12, 12) < 3.0 * without_fma);
}

BOOST_AUTO_TEST_CASE(minimum_and_maximum_take_the_second_of_a_nan) {
  const mc::vec<float, 16> x(not_a_number), y(1.0f);
  const auto sum = [](auto v) { return mc::sum_across(v); };
  BOOST_TEST(sum(max(x, y)) == 16.0f);
  BOOST_TEST(sum(min(x, y)) == 16.0f);
  BOOST_TEST(std::isnan(sum(max(y, x))));
  BOOST_TEST(std::isnan(sum(min(y, x))));
  BOOST_TEST(max(mc::vec<float, 1>(not_a_number), mc::vec<float, 1>(1.0f)).v[0] == 1.0f);
}

// The order that team.hpp states, written out.
BOOST_AUTO_TEST_CASE(sums_have_the_stated_order) {
  std::vector<float> x(200);
  std::uint32_t state = 1;
  for (float& v : x) {
    state = state * 1664525u + 1013904223u;
    v = static_cast<float>(state) * 0x1p-32f;
  }
  for (std::int64_t n = 0; n <= 200; ++n) {
    float acc[2][16] = {};
    const std::int64_t groups = n / 16;
    for (std::int64_t g = 0; g < groups; ++g) {
      for (int i = 0; i < 16; ++i) acc[g % 2][i] += x[static_cast<std::size_t>(16 * g + i)];
    }
    for (std::int64_t i = 16 * groups; i < n; ++i) {
      acc[0][i - 16 * groups] += x[static_cast<std::size_t>(i)];
    }
    for (int i = 0; i < 16; ++i) acc[0][i] += acc[1][i];
    for (int half = 8; half > 0; half /= 2) {
      for (int i = 0; i < half; ++i) acc[0][i] += acc[0][i + half];
    }
    const auto value = [&](auto i) { return mc::load<float>(x.data(), i); };
    BOOST_TEST(mc::core_team{}.sum<float>(n, value) == acc[0][0]);
    const auto both = mc::core_team{}.sum_two<float>(n, [&](auto i) {
      const auto v = value(i);
      return mc::two<decltype(v + v)>{v, v + v};
    });
    BOOST_TEST(both.first == acc[0][0]);
    BOOST_TEST(both.second == 2 * acc[0][0]);
    const float greatest = n == 0 ? -inf : *std::max_element(x.begin(), x.begin() + n);
    BOOST_TEST(mc::core_team{}.max<float>(n, value) == greatest);
  }
}

BOOST_AUTO_TEST_CASE(every_element_is_visited_once) {
  for (std::int64_t n = 0; n < 300; ++n) {
    std::vector<int> seen(300), wide(300), parts(900);
    const auto count = [](std::vector<int>& in, std::int64_t first, int lanes) {
      for (int k = 0; k < lanes; ++k) ++in[static_cast<std::size_t>(first + k)];
    };
    const mc::core_team team;
    team.each<float>(n, [&](auto i) { count(seen, i.first, decltype(i)::count); });
    team.each_wide<float>(n, [&](auto i) { count(wide, i.first, decltype(i)::count); });
    team.each_of<float>(std::int64_t{3}, n, [&](std::int64_t o, auto i) {
      count(parts, o * 300 + i.first, decltype(i)::count);
    });
    for (std::int64_t i = 0; i < 300; ++i) {
      const auto at = static_cast<std::size_t>(i);
      BOOST_REQUIRE(seen[at] == (i < n));
      BOOST_REQUIRE(wide[at] == (i < n));
      for (std::size_t o = 0; o < 3; ++o) BOOST_REQUIRE(parts[o * 300 + at] == (i < n));
    }
  }
}
