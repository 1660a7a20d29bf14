// Products of tiles that stay in cache, by the vector registers of one core, with an explicit order
// of every sum and no library. Attention is built of these.
#pragma once

#include <megacpp/vectors/vec.hpp>

namespace mc::tile {

/// c[m][n] = sum over k of a(m, k) b[k][n], k ascending, one chain of fma per element.
/// a(m, k) = a[m * a_row + k * a_depth]; b (depth, columns) and c (rows, columns) in rows of b_row
/// and c_row elements, columns a multiple of register_lanes<G>.
template <class G> struct operands {
  const G* a;
  std::int64_t a_stride; // stride of the index of a that is not contiguous
  const G* b;
  std::int64_t b_row;
  G* c;
  std::int64_t c_row;
};

/// The index of the factor a that has stride one.
enum class contiguous { depth, row };
/// The number from which the sums of a product start: zero, or c.
enum class start { zero, c };

// The rows of c in a block, for N registers of columns: enough chains to hide the latency of fma,
// few enough for c, one row of b and one element of a to stay in registers.
inline constexpr bool many_registers = mc::detail::register_count >= 32;
constexpr int block_columns = many_registers ? 4 : 2;
constexpr int block_rows(int columns) {
  if (!many_registers) return columns == 2 ? 4 : 8;
  return columns == 4 ? 4 : columns == 3 ? 4 : columns == 2 ? 8 : 16;
}

namespace detail {
template <class G, int M, int N, contiguous A>
MEGACPP_HD void block(const operands<G>& p, std::int64_t m, std::int64_t n, std::int64_t depth,
                      start from) {
  using V = register_of<G>;
  constexpr int w = V::count;
  V sum[M][N];
  G* const c = p.c + m * p.c_row + n;
  if (from == start::zero)
    unroll<M * N>([&](auto i) __attribute__((always_inline)) { sum[i / N][i % N] = V(G(0)); });
  else
    unroll<M * N>([&](auto i) __attribute__((always_inline)) {
      sum[i / N][i % N] = load<V>(c + (i / N) * p.c_row + (i % N) * w);
    });
  const G* a = p.a + (A == contiguous::depth ? m * p.a_stride : m);
  const G* b = p.b + n;
  for (std::int64_t k = 0; k < depth; ++k, b += p.b_row) {
    V row[N];
    unroll<N>([&](auto j) __attribute__((always_inline)) { row[j] = load<V>(b + j * w); });
    unroll<M>([&](auto i) __attribute__((always_inline)) {
      const V x(A == contiguous::depth ? a[i * p.a_stride] : a[i]);
      unroll<N>([&](auto j)
                    __attribute__((always_inline)) { sum[i][j] = fma(x, row[j], sum[i][j]); });
    });
    a += A == contiguous::depth ? 1 : p.a_stride;
  }
  unroll<M * N>([&](auto i) __attribute__((always_inline)) {
    store(c + (i / N) * p.c_row + (i % N) * w, sum[i / N][i % N]);
  });
}

template <class G, int N, contiguous A>
[[gnu::noinline]] void panel(const operands<G>& p, std::int64_t rows, std::int64_t n,
                             std::int64_t depth, start from) {
  constexpr int m = block_rows(N);
  std::int64_t r = 0;
  for (; r + m <= rows; r += m) block<G, m, N, A>(p, r, n, depth, from);
  if constexpr (m >= 8)
    for (; r + m / 4 <= rows; r += m / 4) block<G, m / 4, N, A>(p, r, n, depth, from);
  for (; r < rows; ++r) block<G, 1, N, A>(p, r, n, depth, from);
}
} // namespace detail

/// Computes the product of `operands` (above) for all rows and columns.
template <contiguous A, class G> void multiply(const operands<G>& p, std::int64_t rows,
                                               std::int64_t columns, std::int64_t depth,
                                               start from) {
  constexpr int w = register_lanes<G>;
  for (std::int64_t n = 0; n < columns;) {
    // Panels have nearly equal width: five registers are cut into 3 + 2, not 4 + 1.
    const std::int64_t left = (columns - n) / w;
    const std::int64_t panels = (left + block_columns - 1) / block_columns;
    const std::int64_t width = (left + panels - 1) / panels;
    if constexpr (block_columns == 4) {
      if (width == 4) detail::panel<G, 4, A>(p, rows, n, depth, from);
      if (width == 3) detail::panel<G, 3, A>(p, rows, n, depth, from);
    }
    if (width == 2) detail::panel<G, 2, A>(p, rows, n, depth, from);
    if (width == 1) detail::panel<G, 1, A>(p, rows, n, depth, from);
    n += width * w;
  }
}

} // namespace mc::tile
