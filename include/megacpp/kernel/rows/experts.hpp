// Rows between tokens and experts (op/experts.hpp). A round holds the rows [base, base + rows) of a
// rank; row[t k + j] says where choice j of token t lies, -1 if it was dropped.
#pragma once

#include <megacpp/exec/parallel.hpp>

namespace mc::rows {

/// One token: its values to the rows of its choices.
template <class T, class Extent> struct dispatch_token {
  Extent width; // H
  int k;
  std::int64_t base, rows;
  const T* x;              // (tokens, H)
  const std::int32_t* row; // (tokens, k)
  T* to;                   // (rows, H)

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t t) const {
    using G = accumulator_t<T>;
    for (int j = 0; j < k; ++j) {
      const std::int64_t at = row[t * k + j] - base;
      if (row[t * k + j] < 0 || at < 0 || at >= rows) continue;
      team.template each<T>(width,
                            [&](auto i) { store(to + at * width, i, load<G>(x + t * width, i)); });
    }
  }
};

/// One token: what its rows of this round add up to, added to y.
template <class T, class Extent> struct combine_token {
  Extent width; // H
  int k;
  std::int64_t base, rows;
  const T* from;           // (rows, H)
  const std::int32_t* row; // (tokens, k)
  T* y;                    // (tokens, H)

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t t) const {
    using G = accumulator_t<T>;
    team.template each<T>(width, [&](auto i) {
      auto sum = load<G>(y + t * width, i);
      for (int j = 0; j < k; ++j) {
        const std::int64_t at = row[t * k + j] - base;
        if (row[t * k + j] < 0 || at < 0 || at >= rows) continue;
        sum = sum + load<G>(from + at * width, i);
      }
      store(y + t * width, i, sum);
    });
  }
};

template <class T, class Extent> struct scale_row {
  using G = accumulator_t<T>;
  Extent width;
  const T* x; // (rows, F)
  const G* w; // (rows)
  T* y;       // (rows, F)

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t row) const {
    team.template each<T>(width, [&](auto i) {
      const auto v = load<G>(x + row * width, i);
      store(y + row * width, i, v * decltype(v)(w[row]));
    });
  }
};

template <class T, class Extent> struct scale_weight_grad_row {
  using G = accumulator_t<T>;
  Extent width;
  const T* dy; // (rows, F)
  const T* x;  // (rows, F)
  G* dw;       // (rows)

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t row) const {
    const G sum = team.template sum<T>(
        width, [&](auto i) { return load<G>(dy + row * width, i) * load<G>(x + row * width, i); });
    if (team.leader()) dw[row] = sum;
  }
};

} // namespace mc::rows
