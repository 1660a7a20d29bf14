// A tile of numbers that the threads of a team hold between them, and products of matrices that are
// added to it. Attention by tiles is made of these.
//
//   team_tile<T, M, N, Team> x(team)  M x N accumulators of T, which are zero at first
//   x.each(f)                         f(row, column, number) for each number that the thread holds
//   x.each_with(y, f)                 f(row, column, number of x, number of y) for each
//   x.add_product(a, b, depth)        x(i, j) += sum over k < depth of a(i, k) b(j, k)
//
// A thread holds the same numbers of all tiles with the same T, M and N. No function of a tile is a
// barrier. All threads can read the memory of a and b.
//
// A team may copy rows that several threads read often into memory that it shares:
//
//   carry_rows<W>(team, rows, width, aligned, at, to)
//                              to[i * carried_stride<T, W> + k] = element k of the `width`, at most
//                              W, from at(i) on, for each row i < rows
//
// The rows are there behind team.carried() and a barrier.
#pragma once

#include <megacpp/vectors/team.hpp>

#include <cstdint>
#include <type_traits>

namespace mc {

/// A matrix in memory. Element (i, k) is at[i * stride + k], or at[k * stride + i] if the matrix is
/// Turned. Rows from `rows` on are zeros.
template <class X, bool Turned = false> struct tile_rows {
  const X* at;
  std::int64_t stride;
  int rows;
  MEGACPP_HD const X* element(int i, int k) const {
    return Turned ? at + k * stride + i : at + i * stride + k;
  }
};

namespace detail {

/// A tile computed without tensor cores. Each sum is one chain of fma, k ascending: the same bits
/// for every team.
template <class T, int M, int N, class Team> class plain_tile {
public:
  using G = accumulator_t<T>;

  MEGACPP_HD explicit plain_tile(const Team& team)
      : first_(team.index() / across),
        stride_(team.count() / across),
        column_(team.index() % across) {}

  template <class F> MEGACPP_HD void each(F f) {
    MEGACPP_UNROLL
    for (int i = 0; i < rows; ++i) {
      if (!all_held && row(i) >= M) break;
      MEGACPP_UNROLL
      for (int j = 0; j < columns; ++j) f(row(i), column(j), x_[i][j]);
    }
  }
  template <class F> MEGACPP_HD void each_with(const plain_tile& y, F f) {
    MEGACPP_UNROLL
    for (int i = 0; i < rows; ++i) {
      if (!all_held && row(i) >= M) break;
      MEGACPP_UNROLL
      for (int j = 0; j < columns; ++j) f(row(i), column(j), x_[i][j], y.x_[i][j]);
    }
  }
  template <class A, class B, bool Turned>
  MEGACPP_HD void add_product(const tile_rows<A>& a, const tile_rows<B, Turned>& b, int depth) {
    constexpr int bytes = static_cast<int>(sizeof(A) > sizeof(B) ? sizeof(A) : sizeof(B)),
                  together = Turned ? 1 : 16 / bytes;
    int k = 0;
    for (; k + together <= depth; k += together) add_steps<together>(a, b, k);
    if constexpr (together > 1)
      for (; k < depth; ++k) add_steps<1>(a, b, k);
  }

private:
  // The threads of a team stand in rows of 16. A thread holds every stride_-th row of the tile from
  // first_ on, and of these every 16th number.
  static constexpr int across = Team::threads == 1 ? 1 : 16;
  static constexpr int least = Team::least_threads < across ? across : Team::least_threads;
  static constexpr int rows = M * across / least, columns = N / across;
  static constexpr bool all_held = Team::threads == Team::least_threads;
  static_assert(N % across == 0 && M * across % least == 0);

  MEGACPP_HD int row(int i) const { return first_ + i * stride_; }
  MEGACPP_HD int column(int j) const { return column_ + j * across; }
  /// Reads elements k, k + 1, ... of row i of a matrix; zeros where there is no row i.
  template <int W, class X, bool Turned>
  MEGACPP_HD static void read(const tile_rows<X, Turned>& m, int i, int k, G (&to)[W]) {
    if (i < m.rows) store(to, lanes<W>{0}, load<G>(m.element(i, k), lanes<W>{0}));
    else
      for (int w = 0; w < W; ++w) to[w] = 0;
  }
  template <int W, class A, class B, bool Turned>
  MEGACPP_HD void add_steps(const tile_rows<A>& a, const tile_rows<B, Turned>& b, int k) {
    G of_b[columns][W];
    MEGACPP_UNROLL
    for (int j = 0; j < columns; ++j) read(b, column(j), k, of_b[j]);
    MEGACPP_UNROLL
    for (int i = 0; i < rows; ++i) {
      if (row(i) >= a.rows || (!all_held && row(i) >= M)) break;
      G of_a[W];
      read(a, row(i), k, of_a);
      MEGACPP_UNROLL
      for (int j = 0; j < columns; ++j) {
        MEGACPP_UNROLL
        for (int w = 0; w < W; ++w) x_[i][j] = multiplied_added()(of_a[w], of_b[j][w], x_[i][j]);
      }
    }
  }

  G x_[rows][columns] = {};
  int first_, stride_, column_;
};

/// A tile computed by tensor cores, which round numbers of other types to bf16 first. Each of four
/// warps has 16 rows, or all four have 16 rows together, of which each warp has every fourth group
/// of 8 columns. Their threads hold the fragments of mma.m16n8k16 (PTX ISA, "Matrix Fragments for
/// mma.m16n8k16 with floating point type").
template <int M, int N, class Team> class tensor_tile {
public:
  MEGACPP_HD explicit tensor_tile(const Team& team) : team_(team) {
    const int lane = team.index() % 32, warp = team.index() / 32;
    row_ = warp / across * 16 + lane / 4, pair_ = lane % 4 * 2, column_ = lane / 4;
    first_ = warp % across * 8;
  }
  template <class F> MEGACPP_HD void each(F f) {
    MEGACPP_UNROLL
    for (int n = 0; n < held; ++n) {
      MEGACPP_UNROLL
      for (int e = 0; e < 4; ++e) f(row(e), column(n, e), x_[n][e]);
    }
  }
  template <class F> MEGACPP_HD void each_with(const tensor_tile& y, F f) {
    MEGACPP_UNROLL
    for (int n = 0; n < held; ++n) {
      MEGACPP_UNROLL
      for (int e = 0; e < 4; ++e) f(row(e), column(n, e), x_[n][e], y.x_[n][e]);
    }
  }
  template <class A, class B, bool Turned>
  MEGACPP_HD void add_product(const tile_rows<A>& a, const tile_rows<B, Turned>& b, int depth) {
    const bool whole = in_pairs(a, depth) && in_pairs(b, depth);
    for (int k = pair_; k - pair_ < depth; k += 16) {
      const std::uint32_t of_a[4] = {
          two_of(a, row_, k, depth, whole), two_of(a, row_ + 8, k, depth, whole),
          two_of(a, row_, k + 8, depth, whole), two_of(a, row_ + 8, k + 8, depth, whole)};
      MEGACPP_UNROLL
      for (int n = 0; n < held; ++n) {
        const int i = group(n) + column_;
        const std::uint32_t of_b[2] = {two_of(b, i, k, depth, whole),
                                       two_of(b, i, k + 8, depth, whole)};
        team_.multiply(x_[n], of_a, of_b);
      }
    }
  }

private:
  static constexpr int across = 64 / M;       // number of warps that share 16 rows
  static constexpr int held = N / 8 / across; // number of groups of 8 columns that a thread holds
  static_assert((M == 64 || M == 16) && N % (8 * across) == 0);

  MEGACPP_HD int row(int e) const { return row_ + (e < 2 ? 0 : 8); }
  MEGACPP_HD int group(int n) const { return 8 * across * n + first_; }
  MEGACPP_HD int column(int n, int e) const { return group(n) + pair_ + e % 2; }

  MEGACPP_HD static std::uint32_t bits(bf16 x) { return x.bits; }
  MEGACPP_HD static std::uint32_t bits(float x) { return bf16(x).bits; }
  /// Returns true if elements k and k + 1 of a matrix are 4 aligned bytes of memory, for every even
  /// k below depth.
  template <class X, bool Turned>
  MEGACPP_HD static bool in_pairs(const tile_rows<X, Turned>& m, int depth) {
    if (depth % 2 != 0) return false;
    return Turned || sizeof(X) != 2 ||
           (m.stride % 2 == 0 && (reinterpret_cast<std::uintptr_t>(m.at) & 3) == 0);
  }
  /// Returns elements k and k + 1 of row i, the first in the lower half; zeros beyond the rows and
  /// the depth. `whole`: in_pairs() of both matrices.
  template <class X, bool Turned>
  MEGACPP_HD static std::uint32_t two_of(const tile_rows<X, Turned>& m, int i, int k, int depth,
                                         bool whole) {
    if (i >= m.rows || k >= depth) return 0;
    const X* const at = m.element(i, k);
    if constexpr (sizeof(X) == 2 && !Turned)
      if (whole) {
        std::uint32_t both;
        __builtin_memcpy(&both, __builtin_assume_aligned(at, 4), 4);
        return both;
      }
    return bits(*at) | (whole || k + 1 < depth ? bits(*m.element(i, k + 1)) << 16 : 0);
  }

  Team team_;
  float x_[held][4] = {};
  int row_, pair_, column_, first_;
};

} // namespace detail

/// The distance from a carried row to the next: rows at this distance lie in different banks of
/// shared memory.
template <class T, int W>
inline constexpr int carried_stride = W + 16 / static_cast<int>(sizeof(T));

/// Copies rows into shared memory. `aligned`: every row begins at a multiple of 16 bytes, and
/// `width` elements are a whole number of 16 bytes.
template <int W, class Team, class T, class At>
MEGACPP_HD void carry_rows(const Team& team, int rows, int width, bool aligned, At at, T* to) {
  constexpr int together = 16 / static_cast<int>(sizeof(T)), groups = W / together;
  static_assert(W % together == 0);
  for (int group = team.index(); group < rows * groups; group += team.count()) {
    const int i = group / groups, k = group % groups * together;
    if (k >= width) continue;
    T* const there = to + i * carried_stride<T, W> + k;
    const auto* const from = at(i) + k;
    if (aligned) team.carry(there, from);
    else
      for (int e = 0; e < together && k + e < width; ++e) there[e] = from[e];
  }
}

template <class T, int M, int N, class Team> using team_tile =
    std::conditional_t<Team::multiplies && std::is_same_v<T, bf16>, detail::tensor_tile<M, N, Team>,
                       detail::plain_tile<T, M, N, Team>>;

} // namespace mc
