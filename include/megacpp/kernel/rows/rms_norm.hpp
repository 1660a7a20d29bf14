// RMSNorm (Zhang, Sennrich: "Root mean square layer normalization", NeurIPS 2019), alone and after
// the residual addition.
//
//   rstd = 1 / sqrt(mean_j x_j^2 + eps)           per row, in accumulator_t<T>
//   y_j  = round(round(x_j rstd) gain_j)          rounded to T twice, as Hugging Face's models do
//   dx_j = rstd (g_j - xhat_j mean_k(g_k xhat_k)),  g = dy gain, xhat = x rstd
//   dgain_j += sum over rows of dy_j xhat_j
//
// Fused forms round where the separate kernels would, so both give the same bits:
//   s = round(x + a), y = norm(s);  dx = round(round(norm's dx) + ds).
// On a core the second reading of a row hits the first-level cache. A team of a GPU keeps an
// aligned row of up to 16 KiB in registers, and reads longer rows again. Outputs may be the inputs
// of the same shape.
#pragma once

#include <megacpp/kernel/rows/columns.hpp>

namespace mc::rows {
namespace detail {

/// The number of 16-byte vectors of a norm's row that a thread keeps: a warp keeps 4 KiB, and
/// 128 threads keep 16 KiB. Three rows take 96 registers, so that a multiprocessor has 384 threads,
/// each with all its loads on their way.
inline constexpr int vectors_of_norm = 8;

template <class G> MEGACPP_HD G reciprocal_root(G x) { return G(1) / mc::detail::root_of(x); }

// Computes y = norm(s), given the row's sum of squares. s is a row that the team keeps.
template <class T, class Team, class Extent, class G, class Row>
MEGACPP_HD void rms_finish(const Team& team, Extent width, G squares, G eps, const Row& s,
                           const T* gain, T* y, G* rstd) {
  const G r = reciprocal_root(squares / static_cast<G>(std::int64_t{width}) + eps);
  if (team.leader()) *rstd = r;
  team.template each<T>(
      width, [&](auto i) { store(y, i, round_to<T>(load<G>(s, i) * r) * load<G>(gain, i)); });
}

} // namespace detail

template <class T, class Extent> struct rms_norm_row {
  using G = accumulator_t<T>;
  Extent width;
  G eps;
  const T* x;    // (rows, width)
  const T* gain; // (width)
  T* y;          // (rows, width)
  G* rstd;       // (rows)

  static constexpr int keeps = detail::vectors_of_norm;
  std::int64_t row_bytes() const { return std::int64_t{width} * std::int64_t{sizeof(T)}; }
  bool aligned() const { return rows_aligned<T>(width, x, gain, y); }
  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t row) const {
    const auto in = team.template keep<T>(width, x + row * width);
    const G squares = team.template sum<T>(width, [&](auto i) {
      const auto v = load<G>(in, i);
      return v * v;
    });
    detail::rms_finish(team, width, squares, eps, in, gain, y + row * width, rstd + row);
  }
};

/// s = x + a, y = norm(s).
template <class T, class Extent> struct add_rms_norm_row {
  using G = accumulator_t<T>;
  Extent width;
  G eps;
  const T* x;    // (rows, width)
  const T* a;    // (rows, width)
  const T* gain; // (width)
  T* s;          // (rows, width)
  T* y;          // (rows, width)
  G* rstd;       // (rows)

  static constexpr int keeps = detail::vectors_of_norm;
  std::int64_t row_bytes() const { return std::int64_t{width} * std::int64_t{sizeof(T)}; }
  bool aligned() const { return rows_aligned<T>(width, x, a, gain, s, y); }
  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t row) const {
    const std::int64_t at = row * width;
    const auto in = team.template keep<T>(width, x + at),
               branch = team.template keep<T>(width, a + at);
    auto sum = team.template keep_stored<T>(width, s + at);
    const G squares = team.template sum<T>(width, [&](auto i) {
      const auto v = round_to<T>(load<G>(in, i) + load<G>(branch, i));
      store(sum, i, v);
      return v * v;
    });
    detail::rms_finish(team, width, squares, eps, sum, gain, y + at, rstd + row);
  }
};

/// dx = norm's dx, plus ds if Add.
template <class T, class Extent, bool Add> struct rms_norm_dx_row {
  using G = accumulator_t<T>;
  Extent width;
  const T* dy;   // (rows, width)
  const T* x;    // (rows, width): the input of the norm
  const T* gain; // (width)
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
    const G r = rstd[row];
    const G product = team.template sum<T>(
        width, [&](auto i) { return load<G>(of_y, i) * load<G>(gain, i) * (load<G>(in, i) * r); });
    const G mean = product / static_cast<G>(std::int64_t{width});
    team.template each<T>(width, [&](auto i) {
      const auto xhat = load<G>(in, i) * r;
      auto d = (load<G>(of_y, i) * load<G>(gain, i) - xhat * mean) * r;
      if constexpr (Add) d = round_to<T>(d) + load<G>(added, i);
      store(dx + at, i, d);
    });
  }
};

template <class T> struct rms_norm_gain_slab {
  using G = accumulator_t<T>;
  std::int64_t width;
  summed_rows rows;
  std::int64_t columns;
  const T* dy;   // (rows, width)
  const T* x;    // (rows, width)
  const G* rstd; // (rows)
  G* dgain;      // (width)

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t index) const {
    add_rows<T>(team, slab(index, columns, width), rows, dgain, [&](std::int64_t r, auto i) {
      return load<G>(dy + r * width, i) * (load<G>(x + r * width, i) * rstd[r]);
    });
  }
};

template <class T, class Extent, class Device>
void rms_norm(Device& on, std::int64_t rows, Extent width, const T* x, const T* gain,
              accumulator_t<T> eps, T* y, accumulator_t<T>* rstd) {
  for_rows(on, rows, rms_norm_row<T, Extent>{width, eps, x, gain, y, rstd});
}

template <class T, class Extent, class Device>
void add_rms_norm(Device& on, std::int64_t rows, Extent width, const T* x, const T* a,
                  const T* gain, accumulator_t<T> eps, T* s, T* y, accumulator_t<T>* rstd) {
  for_rows(on, rows, add_rms_norm_row<T, Extent>{width, eps, x, a, gain, s, y, rstd});
}

template <class T, class Extent, class Device>
void rms_norm_dx(Device& on, std::int64_t rows, Extent width, const T* dy, const T* x,
                 const T* gain, const accumulator_t<T>* rstd, T* dx) {
  for_rows(on, rows, rms_norm_dx_row<T, Extent, false>{width, dy, x, gain, rstd, nullptr, dx});
}

template <class T, class Extent, class Device>
void add_rms_norm_dx(Device& on, std::int64_t rows, Extent width, const T* dy, const T* s,
                     const T* gain, const accumulator_t<T>* rstd, const T* ds, T* dx) {
  for_rows(on, rows, rms_norm_dx_row<T, Extent, true>{width, dy, s, gain, rstd, ds, dx});
}

template <class T, class Device>
void rms_norm_dgain(Device& on, summed_rows rows, std::int64_t width, const T* dy, const T* x,
                    const accumulator_t<T>* rstd, accumulator_t<T>* dgain,
                    std::byte* sums = nullptr) {
  for_slabs(on, rms_norm_gain_slab<T>{width, rows, 0, dy, x, rstd, dgain}, sums);
}

} // namespace mc::rows
