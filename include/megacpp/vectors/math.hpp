// Elementary functions on vectors.
//
// Float: polynomials of our own, fitted by Remez' exchange to the relative error noted beside them.
// The bits are the same for every vector width and on every machine with fused multiply-add. Errors
// in units in the last place, measured by tests/unit/vec_math.cpp: exp 1, exp2 1, log 1, tanh 2,
// sigmoid 3, erf 2, normal cdf 8, pdf 3. NaN gives NaN; overflow gives infinity; results below the
// normal range are denormal (zero for exp2).
// On a GPU, exp and the functions made of it use the GPU's own approximations of 2^y and 1/x, and
// have other bits. Errors there, with the worst that the PTX ISA allows, by
// tests/unit/gpu_math.cpp: exp 4, tanh 3, sigmoid 8, erf 2, normal cdf 13, pdf 8. portable_exp,
// exp_of_difference, exp2 and log have the same bits there, too.
// Double: libm, lane by lane, since double serves tests alone.
#pragma once

#include <megacpp/vectors/vec.hpp>

#include <limits>

namespace mc {
namespace detail {

/// Evaluates c[0] + c[1] x + ... by Horner's rule.
template <class C, class A, int N, std::size_t Count>
MEGACPP_HD vec<A, N> horner(const C (&c)[Count], vec<A, N> x) {
  vec<A, N> r(c[Count - 1]);
  for (int i = static_cast<int>(Count) - 2; i >= 0; --i) r = fma(r, x, vec<A, N>(c[i]));
  return r;
}

// Adding the shifter, 1.5 * 2^23, to a number leaves the nearest integer in the low bits.
inline constexpr float shifter = 0x1.8p23f;

/// Returns p 2^n for integers -150 <= n <= 128, rounded once; shifted = shifter + n.
template <int N>
MEGACPP_HD vec<float, N> times_power_of_two(vec<float, N> p, vec<float, N> shifted) {
#if !defined(__CUDACC__) && defined(__AVX512F__)
  if constexpr (representation_of<float, N> == representation::native && N == 16) {
    const auto n = shifted - vec<float, N>(shifter);
    return vec<float, N>(_mm512_maskz_scalef_ps(0xffff, p.v, n.v));
  } else if constexpr (representation_of<float, N> == representation::halves) {
    return vec<float, N>(times_power_of_two(p.low, shifted.low),
                         times_power_of_two(p.high, shifted.high));
  }
#endif
  // The product takes two factors, since 2^n alone leaves the range. n comes from bits because a
  // NaN converts to no integer.
  using I = vec<std::int32_t, N>;
  using U = vec<std::uint32_t, N>;
  const I k = as<std::int32_t>(as<std::uint32_t>(shifted) - U(0x4b400000u));
  const I half = shift_right<1>(k);
  const auto factor = [](I e) { return as<float>(shift_left<23>(e + I(127))); };
  return p * factor(half) * factor(k - half);
}

/// Returns e^r of every lane, for |r| <= ln 2 / 2.
template <int N> MEGACPP_HD vec<float, N> exp_near_zero(vec<float, N> r) {
  constexpr float c[] = {0.49999994f, 0.166665211f, 0.041668389f, 0.00836871658f, 0.00138145941f};
  return fma(horner(c, r), r * r, r) + vec<float, N>(1.0f); // 3e-9
}

} // namespace detail

/// Returns e^x with the same bits on every machine, for numbers that decide something, such as
/// scores of experts: 2^n e^r with n the integer nearest to x / ln 2, |r| <= ln 2 / 2.
template <class A, int N> MEGACPP_HD vec<A, N> portable_exp(vec<A, N> x) {
  if constexpr (sizeof(A) == 8) {
    return lane_wise([](A a) { return ::exp(a); }, x);
  } else {
    using V = vec<A, N>;
    // The result is 0 or infinity outside of [-104, 89]. The order of the operands lets a NaN
    // through.
    x = min(V(89.0f), max(V(-104.0f), x));
    const V shifted = fma(x, V(1.44269504f), V(detail::shifter));
    const V n = shifted - V(detail::shifter);
    // ln 2 is the sum of two numbers: the first has nine bits, so that its product with n is exact.
    const V r = fma(n, V(2.12194440e-4f), fma(n, V(-0.693359375f), x));
    return detail::times_power_of_two(detail::exp_near_zero(r), shifted);
  }
}

namespace detail {

/// Returns e^x by a unit whose exp2 is within 2 ulp of 2^y for the rounded y. The rounding of y
/// loses up to 2^-17, which the factor e^rest restores: e^x = 2^y e^rest, and e^rest is 1 + rest.
template <class Unit> MEGACPP_HD float exp_by(float x) {
  // The result is 0 or infinity outside of [-200, 200], and the rest of an infinite y is not a
  // number.
  const float inside = Unit::least(200.0f, Unit::greatest(-200.0f, x)); // a NaN passes
  const float y = inside * 1.44269504f;
  // ln 2 is the sum of these two numbers.
  const float rest = fma_of(y, 1.90465430e-9f, fma_of(y, -0.693147182f, inside));
  return Unit::exp2(y) * (1.0f + rest);
}

#if defined(__CUDA_ARCH__)
/// The approximations of a GPU, with the error bounds that the PTX ISA promises (9.7.3).
struct special_function_unit {
  /// Returns 2^y within 2 ulp, results below the normal range included.
  static __device__ __forceinline__ float exp2(float y) {
    float r;
    asm("ex2.approx.f32 %0, %1;" : "=f"(r) : "f"(y));
    return r;
  }
  /// Returns 1 / x within 1 ulp; 0 where the result would be below the normal range.
  static __device__ __forceinline__ float reciprocal(float x) {
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
  }
  static __device__ __forceinline__ float least(float a, float b) {
    float r;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
    return r;
  }
  static __device__ __forceinline__ float greatest(float a, float b) {
    float r;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
    return r;
  }
};
#endif

} // namespace detail

/// Returns e^x of every lane.
template <class A, int N> MEGACPP_HD vec<A, N> exp(vec<A, N> x) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(A) == 4) {
    for (int i = 0; i < N; ++i) x.v[i] = detail::exp_by<detail::special_function_unit>(x.v[i]);
    return x;
  } else
#endif
    return portable_exp(x);
}

/// Returns 1 / x of every lane, for x >= 1.
template <class A, int N> MEGACPP_HD vec<A, N> reciprocal(vec<A, N> x) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(A) == 4) {
    for (int i = 0; i < N; ++i) x.v[i] = detail::special_function_unit::reciprocal(x.v[i]);
    return x;
  } else
#endif
    return vec<A, N>(A(1)) / x;
}
/// Returns a / b of every lane, for b >= 1.
template <class A, int N> MEGACPP_HD vec<A, N> quotient(vec<A, N> a, vec<A, N> b) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(A) == 4) return a * reciprocal(b);
  else
#endif
    return a / b;
}

/// Returns e^(x - high - low) for x <= high and |low| up to an ulp of high: within 9e-8 of the
/// exact value, relatively, and 1 where x is high and low is 0. The rounded x - high is off by half
/// an ulp, 1e-6 at 16, which would be the relative error of the result; the error of the difference
/// (Knuth's two-sum) goes into r instead.
template <class A, int N> MEGACPP_HD vec<A, N> exp_of_difference(vec<A, N> x, A high, A low = 0) {
  using V = vec<A, N>;
  const V h(high), d = x - h;
  if constexpr (sizeof(A) == 8) {
    return exp(d - V(low));
  } else {
    const V back = d - x, error = (x - (d - back)) - (h + back) - V(low);
    const V shifted = fma(d, V(1.44269504f), V(detail::shifter));
    const V n = shifted - V(detail::shifter);
    const V r = fma(n, V(-0.693359375f), d) + fma(n, V(2.12194440e-4f), error); // as in exp
    const V e = detail::times_power_of_two(detail::exp_near_zero(r), shifted);
    return select(d < V(-104.0f), V(0.0f), e); // a NaN passes
  }
}

/// 2^x for x < 128. float: x = n + r with |r| <= 1/2; 2^r by the polynomial of least relative error
/// among those of degree 6 with constant term 1 (Remez; 2.6e-9); n is added to the exponent; 0
/// below 2^-126. The error is within 1 ulp for x <= 0, 1.3 where fma rounds twice. Softmax uses it,
/// since exp costs twice as much.
template <class A, int N> MEGACPP_HD vec<A, N> exp2(vec<A, N> x) {
  if constexpr (sizeof(A) == 8) {
    return lane_wise([](A a) { return ::exp2(a); }, x);
  } else {
    using V = vec<A, N>;
    using U = vec<std::uint32_t, N>;
    const auto below = x < V(-126.0f);
    const V y = select(below, V(-126.0f), x); // a NaN passes
    const V shifted = y + V(detail::shifter);
    const V r = y - (shifted - V(detail::shifter));
    constexpr float c[] = {1.0f,
                           6.931472150e-1f,
                           2.402265278e-1f,
                           5.550310551e-2f,
                           9.617692975e-3f,
                           1.340664391e-3f,
                           1.559467767e-4f};
    const U p = as<std::uint32_t>(detail::horner(c, r));
    const V e = as<float>(p + shift_left<23>(as<std::uint32_t>(shifted)));
    return select(below, V(0.0f), e);
  }
}

/// ln x: x = 2^n m with sqrt(1/2) <= m < sqrt(2), f = m - 1, ln m = f - f^2/2 + f^3 P(f).
template <class A, int N> MEGACPP_HD vec<A, N> log(vec<A, N> x) {
  if constexpr (sizeof(A) == 8) {
    return lane_wise([](A a) { return ::log(a); }, x);
  } else {
    using V = vec<A, N>;
    using I = vec<std::int32_t, N>;
    using U = vec<std::uint32_t, N>;
    constexpr float infinite = std::numeric_limits<float>::infinity();
    const auto tiny = x < V(0x1p-126f);
    const V y = select(tiny, x * V(0x1p23f), x);
    // The bits of y minus those of sqrt(1/2), rounded down to a whole exponent.
    const U bits = as<std::uint32_t>(y);
    const I exponent = shift_right<23>(as<std::int32_t>(bits - U(0x3f3504f3u)));
    const V m = as<float>(bits - shift_left<23>(as<std::uint32_t>(exponent)));
    const V n = to<float>(exponent) - select(tiny, V(23.0f), V(0.0f));
    const V f = m - V(1.0f), f2 = f * f;
    constexpr float c[] = {0.333333135f,  -0.250000089f, 0.200021192f,  -0.166679963f, 0.142195553f,
                           -0.124055892f, 0.118881449f,  -0.116756402f, 0.0674666315f}; // 8e-10
    const V small = fma(detail::horner(c, f) * f, f2, fma(V(-0.5f), f2, n * V(-2.12194440e-4f)));
    const V r = fma(n, V(0.693359375f), f + small);
    const V zero_or_negative =
        select(x < V(0.0f), V(std::numeric_limits<float>::quiet_NaN()), V(-infinite));
    const V finite = select(V(0.0f) < x, r, select(x == x, zero_or_negative, x));
    return select(x == V(infinite), x, finite);
  }
}

/// tanh x: an odd polynomial below 0.625, above it 1 - 2 / (e^2x + 1).
template <class A, int N> MEGACPP_HD vec<A, N> tanh(vec<A, N> x) {
  if constexpr (sizeof(A) == 8) {
    return lane_wise([](A a) { return ::tanh(a); }, x);
  } else {
    using V = vec<A, N>;
    using I = vec<std::int32_t, N>;
    const V a = abs(x), x2 = x * x;
    constexpr float c[] = {-0.333332837f, 0.133314908f, -0.0537434965f, 0.0206505843f,
                           -0.0057170419f}; // 4e-9
    const V small = fma(detail::horner(c, x2), x2 * a, a);
    const V large = V(1.0f) - V(2.0f) / (exp(a + a) + V(1.0f));
    const I sign = as<std::int32_t>(x) & I(std::numeric_limits<std::int32_t>::min());
    return as<A>(as<std::int32_t>(select(a < V(0.625f), small, large)) | sign);
  }
}

/// 1 / (1 + e^-x), accurate on both sides: e^-|x| never overflows.
template <class A, int N> MEGACPP_HD vec<A, N> sigmoid(vec<A, N> x) {
  using V = vec<A, N>;
  const V e = exp(-abs(x));
  return quotient(select(x < V(A(0)), e, V(A(1))), V(A(1)) + e);
}

namespace detail {

/// e^(-k x^2) for k = 1 or 1/2 and 0 <= x <= 15; the rounding error of x^2 is added back.
template <class A, int N> MEGACPP_HD vec<A, N> bell(vec<A, N> x, float k) {
  using V = vec<A, N>;
  const V square = x * x, error = fma(x, x, -square), e = exp(V(-k) * square);
  return fma(V(-k) * error, e, e);
}

/// e^(z^2) erfc(z) for 0 <= z <= 10.6 as t R(t), t = 1 / (1 + 3 z / 8), after Hastings
/// ("Approximations for digital computers", 1955) with R of degree 8 (2e-8).
template <class A, int N> MEGACPP_HD vec<A, N> scaled_erfc(vec<A, N> z) {
  using V = vec<A, N>;
  const V t = reciprocal(fma(z, V(0.375f), V(1.0f)));
  constexpr float c[] = {0.211609766f,  0.210713983f, 0.204843968f,  0.123387642f, 0.269181043f,
                         -0.222641677f, 0.426298857f, -0.284286946f, 0.0608933382f};
  return t * horner(c, t);
}

} // namespace detail

/// The error function: an odd polynomial below 1, above it 1 - erfc(x).
template <class A, int N> MEGACPP_HD vec<A, N> erf(vec<A, N> x) {
  if constexpr (sizeof(A) == 8) {
    return lane_wise([](A a) { return ::erf(a); }, x);
  } else {
    using V = vec<A, N>;
    using I = vec<std::int32_t, N>;
    const V a = abs(x), x2 = x * x;
    constexpr float c[] = {0.128379166f,   -0.37612626f,     0.112836003f,   -0.0268544443f,
                           0.00518953521f, -0.000802084047f, 7.88911784e-05f}; // 1e-9
    const V small = fma(detail::horner(c, x2), x, x);
    const V z = min(V(10.6f), a); // erfc is 0 beyond, in single precision
    const V large = V(1.0f) - detail::scaled_erfc(z) * detail::bell(z, 1.0f);
    const I sign = as<std::int32_t>(x) & I(std::numeric_limits<std::int32_t>::min());
    return select(a < V(1.0f), small, as<A>(as<std::int32_t>(large) | sign));
  }
}

/// The standard normal distribution: cdf(x) = erfc(-x / sqrt 2) / 2, pdf(x) = e^(-x^2/2) / sqrt(2
/// pi).
template <class A, int N> struct normal { vec<A, N> cdf, pdf; };

/// Returns the standard normal cdf and pdf of every lane, by one exponential. Below zero the cdf
/// keeps its relative accuracy.
template <class A, int N> MEGACPP_HD normal<A, N> normal_at(vec<A, N> x) {
  using V = vec<A, N>;
  if constexpr (sizeof(A) == 8) {
    return {lane_wise([](A a) { return 0.5 * ::erfc(-0.70710678118654752440 * a); }, x),
            lane_wise([](A a) { return 0.39894228040143267794 * ::exp(-0.5 * a * a); }, x)};
  } else {
    const V a = min(V(14.9f), abs(x)), density = detail::bell(a, 0.5f);
    const V tail = V(0.5f) * detail::scaled_erfc(a * V(0.707106781f)) * density;
    return {select(x < V(0.0f), tail, V(1.0f) - tail), V(0.39894228f) * density};
  }
}

} // namespace mc
