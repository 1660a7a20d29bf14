// The rotary position embedding (Su et al., "RoFormer", 2021), rotating halves as GPT-NeoX and
// Hugging Face do.
//
//   o_i       = x_i cos(p w_i) - x_{i+D/2} sin(p w_i)         i < D/2
//   o_{i+D/2} = x_{i+D/2} cos(p w_i) + x_i sin(p w_i)
//
// These hold for every head of a token at position p; w_i are the inverse frequencies, such as
// theta^(-2i/D) (op/rope.hpp). The rotation's adjoint is its inverse: sign = -1.
//
// Angles come from a table that is made once: p w_i, sine and cosine in double by libm, rounded to
// accumulator_t<T>. So positions up to 10^6 lose nothing (the angle's error is below 3e-10), both
// executors read the same numbers, and rows compute no sines.
#pragma once

#include <megacpp/exec/launch.hpp>

namespace mc::rows {

template <class T, class Extent> struct rope_row {
  using G = accumulator_t<T>;
  Extent half; // D / 2
  std::int64_t heads;
  std::int64_t x_stride;         // elements from one token of x to the next
  std::int64_t y_stride;         // elements from one token of y to the next
  const T* x;                    // (T, heads, D)
  const std::int32_t* positions; // (T): rows of the table; null: token t has row t
  const G* cos;                  // (positions, D/2)
  const G* sin;                  // (positions, D/2)
  G sign;                        // 1, or -1 for the inverse
  T* y;                          // (T, heads, D)

  bool aligned() const {
    return rows_aligned<T>(half, x, y, cos, sin) && rows_aligned<T>(x_stride, x) &&
           rows_aligned<T>(y_stride, y);
  }
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

/// Rotates `heads` heads of every token; the strides allow heads within a packed row. sign = -1 is
/// for the backward pass. y may be x.
template <class T, class Extent, class Device>
void rope(Device& on, std::int64_t tokens, std::int64_t heads, Extent half, std::int64_t x_stride,
          std::int64_t y_stride, const T* x, const std::int32_t* positions,
          const accumulator_t<T>* cos, const accumulator_t<T>* sin, int sign, T* y) {
  using G = accumulator_t<T>;
  for_rows(on, tokens,
           rope_row<T, Extent>{half, heads, x_stride, y_stride, x, positions, cos, sin,
                               static_cast<G>(sign), y});
}

} // namespace mc::rows
