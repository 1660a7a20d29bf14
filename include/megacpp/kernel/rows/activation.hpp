// Activations, element by element.
//
//   y = f(x),  dx = dy f'(x)
//
//   gelu_exact  x cdf(x)                      cdf of the standard normal distribution
//   gelu_tanh   x sigmoid(2u),  u = sqrt(2/pi) (x + 0.044715 x^3);  (1 + tanh u) / 2 = sigmoid(2u)
//   silu        x sigmoid(x)
//
// GELU: Hendrycks, Gimpel, "Gaussian error linear units", 2016.
#pragma once

#include <megacpp/exec/launch.hpp>
#include <megacpp/vectors/math.hpp>

namespace mc::rows {

/// The sigmoid of x and its slope, by one exponential and one division.
template <class V> struct sigmoid_and_slope {
  V value, slope;
  MEGACPP_HD explicit sigmoid_and_slope(V x) {
    using A = typename V::value_type;
    const V e = exp(-abs(x)), inverse = reciprocal(V(A(1)) + e), other = e * inverse;
    value = select(x < V(A(0)), other, inverse);
    slope = other * inverse;
  }
};

struct gelu_exact {
  template <class V> MEGACPP_HD static V value(V x) { return x * normal_at(x).cdf; }
  template <class V> MEGACPP_HD static V slope(V x) {
    const auto n = normal_at(x);
    return fma(x, n.pdf, n.cdf);
  }
};

struct gelu_tanh {
  // linear is 2 sqrt(2/pi), and cubic is that times 0.044715.
  static constexpr double linear = 1.5957691216057308, cubic = 0.071354816272600249;

  template <class V> MEGACPP_HD static V value(V x) {
    using A = typename V::value_type;
    return x * sigmoid(x * fma(x * x, V(A(cubic)), V(A(linear))));
  }
  template <class V> MEGACPP_HD static V slope(V x) {
    using A = typename V::value_type;
    const V x2 = x * x;
    const sigmoid_and_slope<V> s(x * fma(x2, V(A(cubic)), V(A(linear))));
    return fma(x * s.slope, fma(x2, V(A(3 * cubic)), V(A(linear))), s.value);
  }
};

struct silu {
  template <class V> MEGACPP_HD static V value(V x) { return x * sigmoid(x); }
  template <class V> MEGACPP_HD static V slope(V x) {
    const sigmoid_and_slope<V> s(x);
    return fma(x, s.slope, s.value);
  }
};

template <class F, class T> struct activation_block {
  using G = accumulator_t<T>;
  std::int64_t n;
  const T* x; // (n)
  T* y;       // (n)

  bool aligned() const { return rows_aligned<T>(flat_block, x, y); }
  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t block) const {
    each_in_block<T>(team, block, n, [&](auto i) { store(y, i, F::value(load<G>(x, i))); });
  }
};

template <class F, class T> struct activation_dx_block {
  using G = accumulator_t<T>;
  std::int64_t n;
  const T* dy; // (n)
  const T* x;  // (n)
  T* dx;       // (n)

  bool aligned() const { return rows_aligned<T>(flat_block, dy, x, dx); }
  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t block) const {
    each_in_block<T>(team, block, n,
                     [&](auto i) { store(dx, i, load<G>(dy, i) * F::slope(load<G>(x, i))); });
  }
};

/// y = F(x) for n elements; F is gelu_exact, gelu_tanh or silu. y may be x.
template <class F, class T, class Device>
void activation(Device& on, std::int64_t n, const T* x, T* y) {
  for_blocks(on, n, activation_block<F, T>{n, x, y});
}

/// dx = dy F'(x). dx may be dy or x.
template <class F, class T, class Device>
void activation_dx(Device& on, std::int64_t n, const T* dy, const T* x, T* dx) {
  for_blocks(on, n, activation_dx_block<F, T>{n, dy, x, dx});
}

} // namespace mc::rows
