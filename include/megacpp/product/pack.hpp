// The work around the library calls of a product: operands are widened or transposed into plain
// copies, tiles are rounded into bf16 outputs, and rows are computed apart.
#pragma once

#include <megacpp/threads/parallel.hpp>

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>

namespace mc::detail {

/// Copies this thread's range of to(rows, columns) = from(rows, columns), as A.
template <class A, class T> void copy_rows(const T* from, std::int64_t from_stride, A* to,
                                           std::int64_t to_stride, std::int64_t rows,
                                           std::int64_t columns, int thread, int threads) {
  const bool by_rows = rows >= threads;
  const piece_range r(by_rows ? rows : 1, by_rows ? thread : 0, by_rows ? threads : 1);
  const piece_range c(by_rows ? 1 : columns, by_rows ? 0 : thread, by_rows ? 1 : threads);
  const std::int64_t first = by_rows ? 0 : c.begin, count = by_rows ? columns : c.end - c.begin;
  for (std::int64_t i = by_rows ? r.begin : 0; i < (by_rows ? r.end : rows); ++i) {
    const T* const in = from + i * from_stride + first;
    A* const out = to + i * to_stride + first;
    core_team{}.each<T>(count, [=](auto l) { store(out, l, load<A>(in, l)); });
  }
}

/// The lanes of one register. A square block of that many rows is transposed in registers.
template <class A> inline constexpr int block_lanes = register_bytes / static_cast<int>(sizeof(A));

// One step of the transposition by halving (Eklundh 1972), for rows a and a + S: lanes whose index
// has bit S clear come from a, the others from S lanes further on in the other row.
template <int S, class V, int... I>
MEGACPP_HD void exchange(V& a, V& b, std::integer_sequence<int, I...>) {
  constexpr int N = sizeof...(I);
  const auto x = __builtin_shufflevector(a.v, b.v, ((I & S) ? N + I - S : I)...);
  const auto y = __builtin_shufflevector(a.v, b.v, ((I & S) ? N + I : I + S)...);
  a.v = x;
  b.v = y;
}
template <int S, class V, int N> MEGACPP_HD void exchange_rows(V (&r)[N]) {
  if constexpr (S > 0) {
    for (int i = 0; i < N; ++i)
      if (!(i & S)) exchange<S>(r[i], r[i + S], std::make_integer_sequence<int, N>{});
    exchange_rows<S / 2>(r);
  }
}

/// Transposes a tile: to(columns, rows) = from(rows, columns)^T, as A.
template <class A, class T> void transpose_tile(const T* from, std::int64_t from_stride, A* to,
                                                std::int64_t to_stride, std::int64_t rows,
                                                std::int64_t columns) {
  constexpr int N = block_lanes<A>;
  const std::int64_t full_rows = rows / N * N, full_columns = columns / N * N;
  for (std::int64_t j = 0; j < full_columns; j += N) {
    for (std::int64_t i = 0; i < full_rows; i += N) {
      vec<A, N> block[N];
      for (int k = 0; k < N; ++k) block[k] = load<A>(from + (i + k) * from_stride, lanes<N>{j});
      exchange_rows<N / 2>(block);
      for (int k = 0; k < N; ++k) store(to + (j + k) * to_stride, lanes<N>{i}, block[k]);
    }
  }
  const auto rest = [&](std::int64_t i0, std::int64_t i1, std::int64_t j0, std::int64_t j1) {
    for (std::int64_t i = i0; i < i1; ++i)
      for (std::int64_t j = j0; j < j1; ++j)
        to[j * to_stride + i] = convert<A>(from[i * from_stride + j]);
  };
  rest(full_rows, rows, 0, columns);
  rest(0, full_rows, full_columns, columns);
}

/// Transposes this thread's range of to(columns, rows) = from(rows, columns)^T, by tiles of 64 x
/// 64: the first-level TLB holds 64 pages, and a tile reads and writes whole cache lines.
template <class A, class T> void transpose(const T* from, std::int64_t from_stride, A* to,
                                           std::int64_t to_stride, std::int64_t rows,
                                           std::int64_t columns, int thread, int threads) {
  constexpr std::int64_t side = 64;
  const std::int64_t down = (rows + side - 1) / side, across = (columns + side - 1) / side;
  const piece_range mine(down * across, thread, threads);
  for (std::int64_t t = mine.begin; t < mine.end; ++t) {
    const std::int64_t i = t % down * side, j = t / down * side;
    transpose_tile(from + i * from_stride + j, from_stride, to + j * to_stride + i, to_stride,
                   std::min(side, rows - i), std::min(side, columns - j));
  }
}

/// Writes a tile of sums to an output, times a factor, plus a bias (columns) where there is one,
/// rounded once to nearest even. `accumulate`: the tile is added to the output.
template <class A, class Out, class Bias>
void round_tile(const A* tile, std::int64_t tile_stride, Out* out, std::int64_t stride,
                std::int64_t rows, std::int64_t columns, bool accumulate, A factor = 1,
                const Bias* bias = nullptr) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const A* const in = tile + r * tile_stride;
    Out* const to = out + r * stride;
    core_team{}.each<Out>(columns, [=](auto l) {
      auto x = load<A>(in, l) * factor;
      if (bias) x = x + load<A>(bias, l);
      store(to, l, accumulate ? load<A>(to, l) + x : x);
    });
  }
}

/// Returns elements [k, K) of a row, as A, in the first lanes; the other lanes are zero.
template <class A, int N, class T>
MEGACPP_HD vec<A, N> load_rest(const T* row, std::int64_t k, std::int64_t K) {
  A rest[N] = {};
  for (std::int64_t i = k; i < K; ++i) rest[i - k] = convert<A>(row[i]);
  return load<A>(rest, lanes<N>{0});
}

/// R rows of X by C rows of W: y[r * y_stride + c]. Each sum is one chain of fma over groups of
/// lanes, then a pairwise tree over the lanes, whatever R and C are. Loops over sums are unrolled,
/// so that the sums stay in registers.
template <int R, int C, class T, class Out>
MEGACPP_HD void dot_tile(const T* x, std::int64_t x_stride, const T* w, const T* bias, Out* y,
                         std::int64_t y_stride, std::int64_t K, accumulator_t<T> factor) {
  using A = accumulator_t<T>;
  constexpr int N = block_lanes<A>;
  using V = vec<A, N>;
  V sum[R][C];
  const auto each = [&](auto&& f) __attribute__((always_inline)) {
    unroll<R>([&](auto r) __attribute__((always_inline)) {
      unroll<C>([&](auto c) __attribute__((always_inline)) { f(r, c); });
    });
  };
  each([&](auto r, auto c) __attribute__((always_inline)) { sum[r][c] = V(A(0)); });
  const auto step = [&](auto&& group) __attribute__((always_inline)) {
    V row[C], in[R];
    unroll<C>([&](auto c) __attribute__((always_inline)) { row[c] = group(w + c * K); });
    unroll<R>([&](auto r) __attribute__((always_inline)) { in[r] = group(x + r * x_stride); });
    each([&](auto r, auto c)
             __attribute__((always_inline)) { sum[r][c] = fma(in[r], row[c], sum[r][c]); });
  };
  const std::int64_t full = K / N * N;
  for (std::int64_t k = 0; k < full; k += N)
    step([k](const T* p) { return load<A>(p, lanes<N>{k}); });
  if (full < K) step([full, K](const T* p) { return load_rest<A, N>(p, full, K); });
  each([&](auto r, auto c) __attribute__((always_inline)) {
    const A total = sum_across(sum[r][c]) * factor;
    y[r * y_stride + c] = convert<Out>(bias ? total + convert<A>(bias[c]) : total);
  });
}

/// Computes this thread's range of Y(M,N) = factor X(M,K) W(N,K)^T + bias, every element by itself:
/// its bits depend only on its row of X and its row of W. W is read once, in blocks that stay in
/// the core's cache for all rows of X.
template <class T, class Out> void dot_rows(const T* x, std::int64_t x_stride, const T* w,
                                            const T* bias, Out* y, std::int64_t y_stride,
                                            std::int64_t M, std::int64_t N, std::int64_t K,
                                            accumulator_t<T> factor, int thread, int threads) {
  constexpr int side = register_bytes >= 64 ? 4 : 2; // side * side sums fit in the registers
  constexpr std::int64_t block_bytes = 256 << 10;
  const std::int64_t block = std::max<std::int64_t>(
      block_bytes / (K * static_cast<std::int64_t>(sizeof(T))) / side * side, side);
  const piece_range mine(N, thread, threads);
  for (std::int64_t from = mine.begin; from < mine.end; from += block) {
    const std::int64_t to = std::min(from + block, mine.end);
    const auto columns = [&](auto rows, std::int64_t m) {
      constexpr int R = decltype(rows)::value, C = R == 1 ? 2 * side : side;
      const auto tile = [&](auto width, std::int64_t n) {
        dot_tile<R, decltype(width)::value>(x + m * x_stride, x_stride, w + n * K,
                                            bias ? bias + n : nullptr, y + m * y_stride + n,
                                            y_stride, K, factor);
      };
      std::int64_t n = from;
      for (; n + C <= to; n += C) tile(std::integral_constant<int, C>{}, n);
      for (; n < to; ++n) tile(std::integral_constant<int, 1>{}, n);
    };
    std::int64_t m = 0;
    for (; m + side <= M; m += side) columns(std::integral_constant<int, side>{}, m);
    for (; m < M; ++m) columns(std::integral_constant<int, 1>{}, m);
  }
}

} // namespace mc::detail
