// Elementary functions as a GPU computes them: exp and reciprocal take the GPU's approximations, for
// which the PTX ISA (9.7.3, rcp and ex2) promises bounds and no bits. Here a number stands in for float
// whose exp and reciprocal are those of vectors/math.hpp over approximations that are as far off as they may
// be, to either side or as chance has it; all that is made of them is the code that nvcc compiles. What
// nvcc compiles in the place of exp, reciprocal and quotient is repeated here; nvcc_registers only shows
// that it compiles.
#define BOOST_TEST_MODULE gpu_math
#include <boost/test/unit_test.hpp>

#include "../../bench/gpu/approximations.hpp"

#include <megacpp/kernel/rows/activation.hpp>
#include <megacpp/vectors/math.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

namespace test {

constexpr float inf = std::numeric_limits<float>::infinity();
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

/// Of the approximations that PTX allows, one.
struct allowed_unit {
  enum { low = -1, exact = 0, high = 1, any = 2 };
  static inline int of_exp2 = exact, of_reciprocal = exact;
  static inline std::uint64_t state = 1;

  static float off_by(float rounded, int most, int way) {
    if (std::isinf(rounded)) return rounded;
    state = state * 6364136223846793005u + 1442695040888963407u;
    const int ulps =
        way == any ? static_cast<int>(state >> 33) % (2 * most + 1) - most : way * most;
    for (int k = 0; k < std::abs(ulps); ++k) rounded = std::nextafter(rounded, ulps < 0 ? 0 : inf);
    return rounded;
  }
  static float exp2(float y) {
    if (y == 0) return 1; // as the table of special values has it
    return off_by(static_cast<float>(std::exp2(double{y})), 2, of_exp2);
  }
  static float reciprocal(float x) {
    if (std::fabs(x) < 0x1p-126f) return std::copysign(inf, x);
    const float r = off_by(static_cast<float>(1 / double{x}), 1, of_reciprocal);
    return std::fabs(r) < 0x1p-126f ? std::copysign(0.0f, x) : r;
  }
  static float least(float a, float b) { return a != a || b != b ? not_a_number : std::min(a, b); }
  static float greatest(float a, float b) {
    return a != a || b != b ? not_a_number : std::max(a, b);
  }
};

/// A float of a GPU.
struct of_gpu {
  float x;
  of_gpu() = default;
  template <class N> constexpr of_gpu(N n) : x(static_cast<float>(n)) {}
  friend of_gpu operator+(of_gpu a, of_gpu b) { return a.x + b.x; }
  friend of_gpu operator-(of_gpu a, of_gpu b) { return a.x - b.x; }
  friend of_gpu operator*(of_gpu a, of_gpu b) { return a.x * b.x; }
  friend of_gpu operator/(of_gpu a, of_gpu b) { return a.x / b.x; }
  friend of_gpu operator-(of_gpu a) { return -a.x; }
  friend bool operator<(of_gpu a, of_gpu b) { return a.x < b.x; }
  friend bool operator>(of_gpu a, of_gpu b) { return a.x > b.x; }
  friend of_gpu fma_of(of_gpu a, of_gpu b, of_gpu c) { return std::fma(a.x, b.x, c.x); }
};
using V = mc::vec<of_gpu, 1>;

// Overloads of the functions that nvcc compiles otherwise.
inline V exp(V x) { return V(of_gpu(mc::detail::exp_by<allowed_unit>(x.v[0].x))); }
inline V reciprocal(V x) {
  if (x.v[0].x < 1) BOOST_ERROR("the reciprocal of " << x.v[0].x << " is asked for");
  return V(of_gpu(allowed_unit::reciprocal(x.v[0].x)));
}
inline V quotient(V a, V b) { return a * reciprocal(b); }

/// f(way of exp2, way of reciprocal) for all that the approximations may do.
template <class F> void each_way(F f) {
  for (const int e : {-1, 0, 1, 2})
    for (const int r : {-1, 0, 1, 2}) {
      allowed_unit::of_exp2 = e, allowed_unit::of_reciprocal = r;
      f();
    }
}

/// |got - want| in ulp of want or, where that is larger, of `least`. What is infinite lies one step
/// behind the largest number.
double ulps(double got, double want, double least = 0) {
  if (std::isnan(got) || std::isnan(want)) return std::isnan(got) && std::isnan(want) ? 0 : inf;
  got = std::min(got, 0x1p128), want = std::min(want, 0x1p128);
  int exponent;
  std::frexp(std::max(std::fabs(want), least), &exponent);
  return std::fabs(got - want) / std::ldexp(1.0, std::max(std::min(exponent, 128) - 24, -149));
}
/// The most ulps between f and `want`, which is in double, or the same for a float of a CPU; of numbers
/// evenly between low and high, and of results below `least` in its ulps.
template <class F, class R> double worst(F f, R want, float low, float high, double least = 0) {
  constexpr int steps = 1 << 16;
  double most = 0;
  each_way([&] {
    for (int k = 0; k <= steps; ++k) {
      const float x = low + (high - low) * (static_cast<float>(k) / static_cast<float>(steps));
      const float got = f(V(of_gpu(x))).v[0].x;
      double exact = 0;
      if constexpr (requires { want(mc::vec<float, 1>(x)).v[0]; })
        exact = double{want(mc::vec<float, 1>(x)).v[0]};
      else exact = want(double{x});
      most = std::max(most, ulps(double{got}, exact, least));
    }
  });
  return most;
}
template <class F> float at(F f, float x) { return f(V(of_gpu(x))).v[0].x; }

const auto power_of_e = [](auto x) { return exp(x); };
const auto sigmoid_of = [](auto x) { return mc::sigmoid(x); };
const auto cdf_of = [](auto x) { return mc::normal_at(x).cdf; };
const auto tanh_of = [](auto x) { return mc::tanh(x); };
const auto erf_of = [](auto x) { return mc::erf(x); };
const auto power_of_e_on_cpu = [](mc::vec<float, 1> x) { return mc::exp(x); };
const auto pdf_of = [](auto x) { return mc::normal_at(x).pdf; };
double cdf(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }
double e_to(double x) { return std::exp(x); }
double pdf(double x) { return std::exp(-x * x / 2) / std::sqrt(2 * std::acos(-1.0)); }
double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

} // namespace test

using namespace test;

BOOST_AUTO_TEST_CASE(exponential) {
  BOOST_TEST(worst(power_of_e, e_to, -1, 1) < 4);
  BOOST_TEST(worst(power_of_e, e_to, -87.3f, 88.7f) < 4);
  BOOST_TEST(worst(power_of_e, e_to, -110, -87) < 4); // denormal results
  BOOST_TEST(worst(power_of_e, e_to, 88, 100) < 4);   // and infinite ones
  each_way([] {
    BOOST_TEST(at(power_of_e, 0) == 1);
    BOOST_TEST(at(power_of_e, 1e-45f) == 1, boost::test_tools::tolerance(4e-7f));
    for (const float x : {inf, 3e38f, 89.0f, 100.0f, 201.0f}) BOOST_TEST(at(power_of_e, x) == inf);
    for (const float x : {-inf, -3e38f, -201.0f}) {
      BOOST_TEST(at(power_of_e, x) >= 0);
      BOOST_TEST(at(power_of_e, x) <= 0x1p-148f);
    }
    BOOST_TEST(std::isnan(at(power_of_e, not_a_number)));
  });
}

BOOST_AUTO_TEST_CASE(what_is_made_of_it) {
  BOOST_TEST(worst(sigmoid_of, sigmoid, -20, 20) < 8);
  BOOST_TEST(worst(sigmoid_of, sigmoid, -110, 110) < 8);
  BOOST_TEST(worst(cdf_of, cdf, -6, 6) < 13);
  BOOST_TEST(worst(cdf_of, cdf, -15, -6) < 13);
  BOOST_TEST(worst(pdf_of, pdf, -12, 12) < 8);
  BOOST_TEST(worst(
                 tanh_of, [](double x) { return std::tanh(x); }, -20, 20) < 3);
  BOOST_TEST(worst(
                 erf_of, [](double x) { return std::erf(x); }, -12, 12) < 2);
  each_way([] {
    for (const auto& [x, one] : {std::pair{inf, 1.0f}, std::pair{-inf, 0.0f}}) {
      BOOST_TEST(std::fabs(at(sigmoid_of, x) - one) <= 0x1p-23f);
      BOOST_TEST(std::fabs(at(cdf_of, x) - one) <= 0x1p-23f);
    }
    BOOST_TEST(std::isnan(at(sigmoid_of, not_a_number)));
    BOOST_TEST(std::isnan(at(cdf_of, not_a_number)));
  });
}

// Beside those of a CPU, by which bench/gpu judges a GPU: values by their own size, slopes by 1 where they
// are smaller.
BOOST_AUTO_TEST_CASE(as_on_a_cpu_within_bounds) {
  BOOST_TEST(worst(power_of_e, power_of_e_on_cpu, -88, 88) <= gpu::ulps_of_exp);
  const auto near = [](auto f) {
    using F = decltype(f);
    const auto value = [](auto x) { return F::value(x); };
    const auto slope = [](auto x) { return F::slope(x); };
    BOOST_TEST(worst(value, value, -gpu::most_activated, gpu::most_activated) <=
               gpu::ulps_of_activation);
    BOOST_TEST(worst(slope, slope, -gpu::most_activated, gpu::most_activated, 1) <=
               gpu::ulps_of_slope);
  };
  near(mc::rows::gelu_exact{}), near(mc::rows::gelu_tanh{}), near(mc::rows::silu{});
}
