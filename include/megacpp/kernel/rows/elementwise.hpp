// Sums, scales, casts and fills of flat ranges, and the addition of a bias to rows. Computed in
// accumulator_t, rounded once. Outputs may be inputs of the same type.
#pragma once

#include <megacpp/exec/parallel.hpp>

namespace mc::rows {

/// y = a + b.
template <class T> struct add_block {
  using G = accumulator_t<T>;
  std::int64_t n;
  const T* a; // (n)
  const T* b; // (n)
  T* y;       // (n)

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

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t block) const {
    each_in_block<wider>(team, block, n, [&](auto i) { store(y, i, load<A>(x, i)); });
  }
};

/// y = value.
template <class T> struct fill_block {
  using G = accumulator_t<T>;
  std::int64_t n;
  G value;
  T* y; // (n)

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

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t row) const {
    const std::int64_t at = row * width;
    team.template each<T>(width,
                          [&](auto i) { store(y + at, i, load<G>(x + at, i) + load<G>(bias, i)); });
  }
};

template <class T> void add(std::int64_t n, const T* a, const T* b, T* y) {
  for_blocks(n, add_block<T>{n, a, b, y});
}

template <class T> void scale(std::int64_t n, accumulator_t<T> factor, const T* x, T* y) {
  for_blocks(n, scale_block<T>{n, factor, x, y});
}

template <class From, class To> void cast(std::int64_t n, const From* x, To* y) {
  for_blocks(n, cast_block<From, To>{n, x, y});
}

template <class T> void fill(std::int64_t n, accumulator_t<T> value, T* y) {
  for_blocks(n, fill_block<T>{n, value, y});
}

template <class T, class Extent>
void bias_add(std::int64_t rows, Extent width, const T* x, const T* bias, T* y) {
  for_rows(rows, bias_add_row<T, Extent>{width, x, bias, y});
}

} // namespace mc::rows
