// Elementary functions of doubles as constant expressions, for constants of a model: those of
// <cmath> are none in C++20. The results have the same bits at compile time and at run time.
#pragma once

#include <cstdint>
#include <limits>

namespace mc {

/// Returns the root of x > 0 by Newton's method.
constexpr double square_root(double x) {
  double r = x;
  for (int i = 0; i < 64; ++i) r = (r + x / r) / 2;
  return r;
}

namespace detail {
// A constant of <numbers> would make every unit that nvcc compiles read that header.
inline constexpr double root_of_two = 1.4142135623730951, log_of_two = 0.69314718055994531;

/// Returns 2 artanh t for |t| < 0.18 by its series, whose terms fall by 0.03 each.
constexpr double twice_artanh(double t) {
  constexpr double c[] = {1.0,      1.0 / 3,  1.0 / 5,  1.0 / 7,  1.0 / 9, 1.0 / 11,
                          1.0 / 13, 1.0 / 15, 1.0 / 17, 1.0 / 19, 1.0 / 21};
  const double square = t * t;
  double sum = 0;
  for (int n = 10; n >= 0; --n) sum = sum * square + c[n];
  return 2 * t * sum;
}

} // namespace detail

/// Returns ln x of a normal x > 0. With x = m 2^k and m in [sqrt(1/2), sqrt(2)), it is k ln 2 + 2
/// artanh((m - 1) / (m + 1)).
constexpr double natural_log(double x) {
  const auto bits = __builtin_bit_cast(std::int64_t, x);
  std::int64_t k = (bits >> 52) - 1023;
  double m = __builtin_bit_cast(double, (bits & 0x000f'ffff'ffff'ffff) | 0x3ff0'0000'0000'0000);
  if (m > detail::root_of_two) m /= 2, ++k;
  return static_cast<double>(k) * detail::log_of_two + detail::twice_artanh((m - 1) / (m + 1));
}

/// Returns ln (1 + x) of a finite x >= 0, with full relative accuracy where x is small.
constexpr double natural_log_of_one_plus(double x) {
  return x < 0.4 ? detail::twice_artanh(x / (2 + x)) : natural_log(1 + x);
}

/// Returns e^x. With x = k ln 2 + r and |r| <= ln 2 / 2, it is 2^k times the series of e^r. ln 2 is
/// the sum of two numbers, the first of which times k is exact. Below e^-700 the result is zero,
/// from e^700 on infinite.
constexpr double exponential(double x) {
  if (!(x > -700)) return x == x ? 0 : x;
  if (x >= 700) return std::numeric_limits<double>::infinity();
  constexpr double high = 0x1.62e42feep-1, low = 0x1.a39ef35793c76p-33;
  const double of_two = x * (1 / detail::log_of_two);
  const auto k = static_cast<std::int64_t>(of_two < 0 ? of_two - 0.5 : of_two + 0.5);
  const auto whole = static_cast<double>(k);
  const double r = (x - whole * high) - whole * low;
  double sum = 1;
  for (int n = 14; n >= 1; --n) sum = 1 + sum * r / n;
  return sum * __builtin_bit_cast(double, (k + 1023) << 52);
}

/// Returns the greatest whole number up to x; ceiling_of() returns the least from x on. |x| < 2^62.
constexpr double floor_of(double x) {
  const auto whole = static_cast<double>(static_cast<std::int64_t>(x));
  return whole > x ? whole - 1 : whole;
}
constexpr double ceiling_of(double x) { return -floor_of(-x); }

} // namespace mc
