// Sums, scales, casts and fills of flat ranges, and the addition of a bias to rows. Results are
// computed in accumulator_t and rounded once. Outputs may be inputs of the same type.
#pragma once

#include <megacpp/exec/launch.hpp>

namespace mc::rows {

/// y = a + b.
template <class T> struct add_block {
  using G = accumulator_t<T>;
  std::int64_t n;
  const T* a; // (n)
  const T* b; // (n)
  T* y;       // (n)

  bool aligned() const { return rows_aligned<T>(flat_block, a, b, y); }
  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t block) const {
    each_in_block<T>(team, block, n, [&](auto i) { store(y, i, load<G>(a, i) + load<G>(b, i)); });
  }
};

/// y = x factor.
template <class T> struct scale_block {
  using G = accumulator_t<T>;
  std::int64_t n;
  G factor;
  const T* x; // (n)
  T* y;       // (n)

  bool aligned() const { return rows_aligned<T>(flat_block, x, y); }
  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t block) const {
    each_in_block<T>(team, block, n, [&](auto i) { store(y, i, load<G>(x, i) * factor); });
  }
};

/// y = x, rounded to nearest even.
template <class From, class To> struct cast_block {
  using A = accumulator_t<From>;
  using wider = std::conditional_t<(sizeof(To) > sizeof(From)), To, From>;
  std::int64_t n;
  const From* x; // (n)
  To* y;         // (n)

  bool aligned() const { return rows_aligned<wider>(flat_block, x, y); }
  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t block) const {
    each_in_block<wider>(team, block, n, [&](auto i) { store(y, i, load<A>(x, i)); });
  }
};

/// y = x, bit for bit.
template <class T> struct copy_block {
  std::int64_t n;
  const T* x; // (n)
  T* y;       // (n)

  bool aligned() const { return rows_aligned<T>(flat_block, x, y); }
  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t block) const {
    each_in_block<T>(team, block, n, [&](auto i) { copy(y, x, i); });
  }
};

/// y = value.
template <class T> struct fill_block {
  using G = accumulator_t<T>;
  std::int64_t n;
  G value;
  T* y; // (n)

  bool aligned() const { return rows_aligned<T>(flat_block, y); }
  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t block) const {
    each_in_block<T>(team, block, n,
                     [&](auto i) { store(y, i, vec<G, decltype(i)::count>(value)); });
  }
};

/// y = x + bias.
template <class T, class Extent> struct bias_add_row {
  using G = accumulator_t<T>;
  Extent width;
  const T* x;    // (rows, width)
  const T* bias; // (width)
  T* y;          // (rows, width)

  std::int64_t row_bytes() const { return std::int64_t{width} * std::int64_t{sizeof(T)}; }
  bool aligned() const { return rows_aligned<T>(width, x, bias, y); }
  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t row) const {
    const std::int64_t at = row * width;
    team.template each<T>(width,
                          [&](auto i) { store(y + at, i, load<G>(x + at, i) + load<G>(bias, i)); });
  }
};

/// Adds one number to a total.
template <class T> struct add_to_total {
  const T* x;    // ()
  double* total; // ()

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t) const {
    if (team.leader()) *total += convert<double>(*x);
  }
};

template <class T, class Device>
void add(Device& on, std::int64_t n, const T* a, const T* b, T* y) {
  for_blocks(on, n, add_block<T>{n, a, b, y});
}

template <class T, class Device>
void scale(Device& on, std::int64_t n, accumulator_t<T> factor, const T* x, T* y) {
  for_blocks(on, n, scale_block<T>{n, factor, x, y});
}

template <class From, class To, class Device>
void cast(Device& on, std::int64_t n, const From* x, To* y) {
  for_blocks(on, n, cast_block<From, To>{n, x, y});
}

template <class T, class Device>
void fill(Device& on, std::int64_t n, accumulator_t<T> value, T* y) {
  for_blocks(on, n, fill_block<T>{n, value, y});
}

template <class T, class Extent, class Device>
void bias_add(Device& on, std::int64_t rows, Extent width, const T* x, const T* bias, T* y) {
  for_rows(on, rows, bias_add_row<T, Extent>{width, x, bias, y});
}

} // namespace mc::rows
