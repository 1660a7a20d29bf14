// SwiGLU (Shazeer, "GLU variants improve transformer", 2020). gate and up are two matrices, or the
// two halves of one (row strides 2 F).
//
//   y = silu(gate) up,   dgate = dy up silu'(gate),   dup = dy silu(gate)
#pragma once

#include <megacpp/kernel/rows/activation.hpp>

namespace mc::rows {

template <class T, class Extent> struct swiglu_row {
  using G = accumulator_t<T>;
  Extent width;        // F
  std::int64_t stride; // elements between rows of gate, and of up
  const T* gate;       // (rows, F)
  const T* up;         // (rows, F)
  T* y;                // (rows, F) without gaps

  std::int64_t row_bytes() const { return std::int64_t{width} * std::int64_t{sizeof(T)}; }
  bool aligned() const {
    return rows_aligned<T>(width, gate, up, y) && rows_aligned<T>(stride, gate);
  }
  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t row) const {
    const std::int64_t in = row * stride, out = row * width;
    team.template each<T>(width, [&](auto i) {
      store(y + out, i, silu::value(load<G>(gate + in, i)) * load<G>(up + in, i));
    });
  }
};

template <class T, class Extent> struct swiglu_backward_row {
  using G = accumulator_t<T>;
  Extent width;        // F
  std::int64_t stride; // elements between rows of gate, up, dgate and dup
  const T* dy;         // (rows, F) without gaps
  const T* gate;       // (rows, F)
  const T* up;         // (rows, F)
  T* dgate;            // (rows, F)
  T* dup;              // (rows, F)

  std::int64_t row_bytes() const { return std::int64_t{width} * std::int64_t{sizeof(T)}; }
  bool aligned() const {
    return rows_aligned<T>(width, dy, gate, up, dgate, dup) && rows_aligned<T>(stride, gate);
  }
  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t row) const {
    const std::int64_t in = row * stride, out = row * width;
    team.template each<T>(width, [&](auto i) {
      const auto g = load<G>(gate + in, i), u = load<G>(up + in, i), d = load<G>(dy + out, i);
      const sigmoid_and_slope<decltype(g + g)> s(g);
      store(dgate + in, i, d * u * fma(g, s.slope, s.value));
      store(dup + in, i, d * (g * s.value));
    });
  }
};

/// Starts swiglu_row. stride: elements from one row of gate (and of up) to the next; F where gate
/// and up are separate.
template <class T, class Extent, class Device> void swiglu(Device& on, std::int64_t rows,
                                                           Extent width, std::int64_t stride,
                                                           const T* gate, const T* up, T* y) {
  for_rows(on, rows, swiglu_row<T, Extent>{width, stride, gate, up, y});
}

/// Starts swiglu_backward_row. dgate and dup have the stride of gate and up, and may be gate and
/// up.
template <class T, class Extent, class Device>
void swiglu_backward(Device& on, std::int64_t rows, Extent width, std::int64_t stride, const T* dy,
                     const T* gate, const T* up, T* dgate, T* dup) {
  for_rows(on, rows, swiglu_backward_row<T, Extent>{width, stride, dy, gate, up, dgate, dup});
}

} // namespace mc::rows
