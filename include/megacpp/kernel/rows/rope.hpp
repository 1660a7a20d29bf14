// Rotary position embedding (Su et al., "RoFormer", 2021), rotating halves as GPT-NeoX and Hugging
// Face do.
//
//   o_i       = x_i cos(p w_i) - x_{i+D/2} sin(p w_i)         i < D/2
//   o_{i+D/2} = x_{i+D/2} cos(p w_i) + x_i sin(p w_i)
//
// for every head of a token at position p; w_i are the inverse frequencies, as theta^(-2i/D)
// (op/rope.hpp). The rotation's adjoint is its inverse: sign = -1.
//
// Angles come from a table made once: p w_i, sine and cosine in double by libm, rounded to
// accumulator_t<T>. So positions to 10^6 lose nothing (the angle's error is below 3e-10), both
// executors read the same numbers, and rows do no transcendental work.
#pragma once

#include <megacpp/exec/parallel.hpp>

#include <cmath>
#include <span>

namespace mc::rows {

/// cos and sin, both (count, w.size()): row t holds position positions[t], or t where positions is
/// null.
template <class G> void build_rope_table(std::int64_t count, std::span<const double> w,
                                         const std::int32_t* positions, G* cos, G* sin) {
  const auto half = static_cast<std::int64_t>(w.size());
  parallel_for(count, [=](std::int64_t t) {
    const double p =
        positions == nullptr ? static_cast<double>(t) : static_cast<double>(positions[t]);
    for (std::int64_t i = 0; i < half; ++i) {
      const double angle = p * w[static_cast<std::size_t>(i)];
      cos[t * half + i] = static_cast<G>(std::cos(angle));
      sin[t * half + i] = static_cast<G>(std::sin(angle));
    }
  });
}

template <class T, class Extent> struct rope_row {
  using G = accumulator_t<T>;
  Extent half; // D / 2
  std::int64_t heads;
  std::int64_t x_stride;         // elements from one token of x to the next
  std::int64_t y_stride;         // likewise of y
  const T* x;                    // (T, heads, D)
  const std::int32_t* positions; // (T): rows of the table; null: token t has row t
  const G* cos;                  // (positions, D/2)
  const G* sin;                  // (positions, D/2)
  G sign;                        // 1, or -1 for the inverse
  T* y;                          // (T, heads, D)

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t token) const {
    const std::int64_t h = half, row = positions == nullptr ? token : positions[token];
    const G *c = cos + row * h, *s = sin + row * h;
    const T* in = x + token * x_stride;
    T* out = y + token * y_stride;
    team.template each_of<T>(heads, half, [&](std::int64_t head, auto i) {
      const std::int64_t first = head * 2 * h, second = first + h;
      const auto a = load<G>(in + first, i), b = load<G>(in + second, i);
      const auto cosine = load<G>(c, i), sine = load<G>(s, i) * sign;
      store(out + first, i, a * cosine - b * sine);
      store(out + second, i, b * cosine + a * sine);
    });
  }
};

/// Rotates `heads` heads of every token; strides allow heads inside a packed row. sign = -1 is the
/// backward. y may be x.
template <class T, class Extent>
void rope(std::int64_t tokens, std::int64_t heads, Extent half, std::int64_t x_stride,
          std::int64_t y_stride, const T* x, const std::int32_t* positions,
          const accumulator_t<T>* cos, const accumulator_t<T>* sin, int sign, T* y) {
  using G = accumulator_t<T>;
  for_rows(tokens, rope_row<T, Extent>{half, heads, x_stride, y_stride, x, positions, cos, sin,
                                       static_cast<G>(sign), y});
}

} // namespace mc::rows
