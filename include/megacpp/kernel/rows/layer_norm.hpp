// LayerNorm (Ba, Kiros, Hinton: "Layer normalization", 2016), alone and after the residual
// addition.
//
//   mean = mean_j x_j,  rstd = 1 / sqrt(mean_j (x_j - mean)^2 + eps)   per row, in accumulator_t<T>
//   y_j  = round((x_j - mean) rstd gain_j + bias_j)                    bias may be absent (null)
//   xhat = (x - mean) rstd,  g = dy gain
//   dx_j = rstd (g_j - mean_k g_k - xhat_j mean_k(g_k xhat_k))
//   dgain_j += sum over rows of dy_j xhat_j,  dbias_j += sum over rows of dy_j
//
// The variance is taken around the mean in a second visit of the row (no cancellation). The second
// and the third visit read the row that a team of a GPU has kept (rms_norm.hpp). Fused forms round
// where the separate kernels would: s = round(x + a), y = norm(s); dx = round(round(norm's dx) +
// ds). Outputs may be the inputs of the same shape.
#pragma once

#include <megacpp/kernel/rows/rms_norm.hpp>

namespace mc::rows {
namespace detail {

// Computes y = norm(s), given the row's sum. s is a row that the team keeps.
template <class T, class Team, class Extent, class G, class Row>
MEGACPP_HD void layer_finish(const Team& team, Extent width, G total, G eps, const Row& s,
                             const T* gain, const T* bias, T* y, G* mean, G* rstd) {
  const G n = static_cast<G>(std::int64_t{width}), m = total / n;
  const G squares = team.template sum<T>(width, [&](auto i) {
    const auto v = load<G>(s, i) - m;
    return v * v;
  });
  const G r = reciprocal_root(squares / n + eps);
  if (team.leader()) *mean = m, *rstd = r;
  if (bias != nullptr) {
    team.template each<T>(width, [&](auto i) {
      store(y, i, fma((load<G>(s, i) - m) * r, load<G>(gain, i), load<G>(bias, i)));
    });
  } else {
    team.template each<T>(width,
                          [&](auto i) { store(y, i, (load<G>(s, i) - m) * r * load<G>(gain, i)); });
  }
}

} // namespace detail

template <class T, class Extent> struct layer_norm_row {
  using G = accumulator_t<T>;
  Extent width;
  G eps;
  const T* x;    // (rows, width)
  const T* gain; // (width)
  const T* bias; // (width) or null
  T* y;          // (rows, width)
  G* mean;       // (rows)
  G* rstd;       // (rows)

  static constexpr int keeps = detail::vectors_of_norm;
  std::int64_t row_bytes() const { return std::int64_t{width} * std::int64_t{sizeof(T)}; }
  bool aligned() const { return rows_aligned<T>(width, x, gain, bias, y); }
  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t row) const {
    const auto in = team.template keep<T>(width, x + row * width);
    const G total = team.template sum<T>(width, [&](auto i) { return load<G>(in, i); });
    detail::layer_finish(team, width, total, eps, in, gain, bias, y + row * width, mean + row,
                         rstd + row);
  }
};

/// s = x + a, y = norm(s).
template <class T, class Extent> struct add_layer_norm_row {
  using G = accumulator_t<T>;
  Extent width;
  G eps;
  const T* x;    // (rows, width)
  const T* a;    // (rows, width)
  const T* gain; // (width)
  const T* bias; // (width) or null
  T* s;          // (rows, width)
  T* y;          // (rows, width)
  G* mean;       // (rows)
  G* rstd;       // (rows)

  static constexpr int keeps = detail::vectors_of_norm;
  std::int64_t row_bytes() const { return std::int64_t{width} * std::int64_t{sizeof(T)}; }
  bool aligned() const { return rows_aligned<T>(width, x, a, gain, bias, s, y); }
  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t row) const {
    const std::int64_t at = row * width;
    const auto in = team.template keep<T>(width, x + at),
               branch = team.template keep<T>(width, a + at);
    auto sum = team.template keep_stored<T>(width, s + at);
    const G total = team.template sum<T>(width, [&](auto i) {
      const auto v = round_to<T>(load<G>(in, i) + load<G>(branch, i));
      store(sum, i, v);
      return v;
    });
    detail::layer_finish(team, width, total, eps, sum, gain, bias, y + at, mean + row, rstd + row);
  }
};

/// dx = norm's dx, plus ds if Add.
template <class T, class Extent, bool Add> struct layer_norm_dx_row {
  using G = accumulator_t<T>;
  Extent width;
  const T* dy;   // (rows, width)
  const T* x;    // (rows, width): the input of the norm
  const T* gain; // (width)
  const G* mean; // (rows)
  const G* rstd; // (rows)
  const T* ds;   // (rows, width), only if Add
  T* dx;         // (rows, width)

  static constexpr int keeps = detail::vectors_of_norm;
  std::int64_t row_bytes() const { return std::int64_t{width} * std::int64_t{sizeof(T)}; }
  bool aligned() const { return rows_aligned<T>(width, dy, x, gain, ds, dx); }
  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t row) const {
    const std::int64_t at = row * width;
    const auto of_y = team.template keep<T>(width, dy + at),
               in = team.template keep<T>(width, x + at);
    const auto added =
        team.template keep<T>(Add ? std::int64_t{width} : 0, Add ? ds + at : nullptr);
    const G m = mean[row], r = rstd[row], n = static_cast<G>(std::int64_t{width});
    const auto sums = team.template sum_two<T>(width, [&](auto i) {
      const auto g = load<G>(of_y, i) * load<G>(gain, i);
      return two<decltype(g + g)>{g, g * ((load<G>(in, i) - m) * r)};
    });
    const G mean_g = sums.first / n, mean_gx = sums.second / n;
    team.template each<T>(width, [&](auto i) {
      const auto xhat = (load<G>(in, i) - m) * r;
      auto d = (load<G>(of_y, i) * load<G>(gain, i) - mean_g - xhat * mean_gx) * r;
      if constexpr (Add) d = round_to<T>(d) + load<G>(added, i);
      store(dx + at, i, d);
    });
  }
};

template <class T> struct layer_norm_gain_slab {
  using G = accumulator_t<T>;
  std::int64_t width;
  summed_rows rows;
  std::int64_t columns;
  const T* dy;   // (rows, width)
  const T* x;    // (rows, width)
  const G* mean; // (rows)
  const G* rstd; // (rows)
  G* dgain;      // (width)
  G* dbias;      // (width) or null

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t index) const {
    const slab s(index, columns, width);
    const auto xhat = [&](std::int64_t r, auto i) {
      return (load<G>(x + r * width, i) - mean[r]) * rstd[r];
    };
    if (dbias == nullptr) {
      add_rows<T>(team, s, rows, dgain,
                  [&](std::int64_t r, auto i) { return load<G>(dy + r * width, i) * xhat(r, i); });
    } else {
      add_rows<T>(team, s, rows, dgain, dbias, [&](std::int64_t r, auto i) {
        const auto d = load<G>(dy + r * width, i);
        return two<decltype(d + d)>{d * xhat(r, i), d};
      });
    }
  }
};

/// Starts layer_norm_row; bias null: no bias is added.
template <class T, class Extent, class Device>
void layer_norm(Device& on, std::int64_t rows, Extent width, const T* x, const T* gain,
                const T* bias, accumulator_t<T> eps, T* y, accumulator_t<T>* mean,
                accumulator_t<T>* rstd) {
  for_rows(on, rows, layer_norm_row<T, Extent>{width, eps, x, gain, bias, y, mean, rstd});
}

template <class T, class Extent, class Device>
void add_layer_norm(Device& on, std::int64_t rows, Extent width, const T* x, const T* a,
                    const T* gain, const T* bias, accumulator_t<T> eps, T* s, T* y,
                    accumulator_t<T>* mean, accumulator_t<T>* rstd) {
  for_rows(on, rows, add_layer_norm_row<T, Extent>{width, eps, x, a, gain, bias, s, y, mean, rstd});
}

template <class T, class Extent, class Device>
void layer_norm_dx(Device& on, std::int64_t rows, Extent width, const T* dy, const T* x,
                   const T* gain, const accumulator_t<T>* mean, const accumulator_t<T>* rstd,
                   T* dx) {
  for_rows(on, rows,
           layer_norm_dx_row<T, Extent, false>{width, dy, x, gain, mean, rstd, nullptr, dx});
}

template <class T, class Extent, class Device>
void add_layer_norm_dx(Device& on, std::int64_t rows, Extent width, const T* dy, const T* s,
                       const T* gain, const accumulator_t<T>* mean, const accumulator_t<T>* rstd,
                       const T* ds, T* dx) {
  for_rows(on, rows, layer_norm_dx_row<T, Extent, true>{width, dy, s, gain, mean, rstd, ds, dx});
}

/// Starts layer_norm_gain_slab; dbias null: only the gain's gradient is computed.
template <class T, class Device>
void layer_norm_dgain_dbias(Device& on, summed_rows rows, std::int64_t width, const T* dy,
                            const T* x, const accumulator_t<T>* mean, const accumulator_t<T>* rstd,
                            accumulator_t<T>* dgain, accumulator_t<T>* dbias,
                            std::byte* sums = nullptr) {
  for_slabs(on, layer_norm_gain_slab<T>{width, rows, 0, dy, x, mean, rstd, dgain, dbias}, sums);
}

} // namespace mc::rows
