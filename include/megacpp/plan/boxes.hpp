// The map between the elements of a logical tensor and those that a rank holds. A logical tensor is
// whole, and its elements are in their natural order. A rank holds one box of it, or several where
// a dim is in balanced order. Code that speaks of the whole tensor, as initial values and files do,
// uses this map.
#pragma once

#include <megacpp/graph/graph.hpp>

#include <utility>

namespace mc {

/// The coordinates of a rank on all axes; by default those of the first rank.
using coordinates = std::array<int, axes>;

/// A range along a dim: its first element, and the number of elements.
struct stretch_of_dim {
  std::int64_t first = 0, count = 0;
};
/// Returns the range along dim i of a value's elements that a rank holds, in the order in which
/// ranks hold them: outer axes cut first. Where a range of the stores does not divide, the last
/// ranks have fewer elements, or none.
constexpr stretch_of_dim stretch_of(const mesh& m, const value& v, int i, const coordinates& rank) {
  const extent& e = v.dims[i];
  std::int64_t n = e.n, at = 0, left = e.n;
  for (int level = 0; level < v.at.levels(e.d); ++level)
    for (int a = 0; a < axes; ++a) {
      const place& p = v.at.at[a];
      if (!p.is_shard(e.d) || p.level != level || !m.sized(static_cast<axis>(a))) continue;
      n = sharded_extent(e, n, m.of(static_cast<axis>(a)));
      const std::int64_t before = rank[static_cast<unsigned>(a)] * n;
      at += before;
      left = left <= before ? 0 : left - before < n ? left - before : n;
    }
  return {at, left};
}
/// Returns the first element along dim i of a value that a rank holds.
constexpr std::int64_t origin_of(const mesh& m, const value& v, int i, const coordinates& rank) {
  return stretch_of(m, v, i, rank).first;
}

/// The boxes that one rank holds of a value. An axis whose size is known only at start does not
/// cut: extents over it are one rank's, and so is the logical tensor. For a range of the stores,
/// the mesh must have the sizes known at start. A dim in balanced order divides into two slices for
/// each rank of cp.
class boxes {
public:
  constexpr boxes() = default; ///< makes the boxes of a number
  constexpr boxes(const mesh& m, const value& v, const coordinates& rank) : rank_(v.rank) {
    for (int i = 0; i < rank_; ++i) {
      const extent& e = v.dims[i];
      const std::int64_t slices =
          e.o == order::balanced && m.of(axis::cp) > 1 ? 2 * m.of(axis::cp) : 1;
      const auto [first, count] = stretch_of(m, v, i, rank);
      dims_[i] = {e.n, first, count, slices};
    }
  }

  /// Returns how many elements the rank has. Its memory is as large as that of every rank
  /// (local_size); where a range does not divide, the elements behind these are padding.
  constexpr local_count count() const {
    std::int64_t n = 1;
    for (int i = 0; i < rank_; ++i) n *= dims_[i].local;
    return {n};
  }
  /// Returns whether every rank holds the logical tensor as it is.
  constexpr bool whole() const { return cut() < 0; }

  /// Returns the logical index of the rank's element i.
  constexpr global_count operator[](local_count i) const {
    std::int64_t left = i.n, at = 0, stride = 1;
    for (int k = rank_ - 1; k >= 0; --k) {
      const along& d = dims_[k];
      at += d.logical(d.first + left % d.local) * stride;
      left /= d.local, stride *= d.whole;
    }
    return {at};
  }

  /// Calls f(i, at, n), in order, for contiguous ranges of the rank's elements from, ..., to - 1:
  /// its n elements from i on are the logical elements from `at` on.
  template <class F> constexpr void each_contiguous(local_count from, local_count to, F f) const {
    const int k = cut();
    std::int64_t inner = 1; // number of elements in the dims behind the cut one
    for (int i = k + 1; i < rank_; ++i) inner *= dims_[i].local;
    for (std::int64_t i = from.n; i < to.n;) {
      std::int64_t n = to.n - i;
      if (k >= 0) {
        const along& d = dims_[k];
        const std::int64_t run = d.contiguous(i / inner % d.local) * inner - i % inner;
        n = run < n ? run : n;
      }
      f(local_count{i}, (*this)[{i}], n);
      i += n;
    }
  }

  /// Calls f(i, at, n), in order, for contiguous ranges of the logical elements from, ..., to - 1
  /// that the rank holds: its n elements from i on are the logical elements from `at` on.
  template <class F>
  constexpr void each_contiguous_within(global_count from, global_count to, F f) const {
    const int k = cut();
    for (std::int64_t at = from.n, n = 0; at < to.n; at += n) {
      std::int64_t first = 0, left = at, stride = 1, inner = 1; // inner: elements behind i
      bool held = true;
      n = to.n - at;
      for (int i = rank_ - 1; i >= 0; --i) {
        const along& d = dims_[i];
        const auto [j, run] = d.find(left % d.whole);
        if (j < 0 || i == k) { // the outermost dim without it tells where the next one is
          const std::int64_t here = run * inner - at % inner;
          n = here < to.n - at ? here : to.n - at;
        }
        held = held && j >= 0;
        first += j * stride;
        left /= d.whole, inner *= d.whole, stride *= d.local;
      }
      if (held) f(local_count{first}, global_count{at}, n);
    }
  }

private:
  /// One dim: its logical extent, and the range of the stored order that the rank has.
  struct along {
    std::int64_t whole = 1, first = 0, local = 1;
    std::int64_t slices = 1; ///< slices of the dim that are out of their natural order

    constexpr bool natural() const { return local == whole && slices == 1; }
    /// Returns the logical index of an index in the stored order. Of the slices c = 0, 1, 2 ... in
    /// that order, even ones are c / 2 from the beginning and odd ones c / 2 from the end.
    constexpr std::int64_t logical(std::int64_t stored) const {
      if (slices == 1) return stored;
      const std::int64_t size = whole / slices, c = stored / size;
      return (c % 2 == 0 ? c / 2 : slices - 1 - c / 2) * size + stored % size;
    }
    /// Returns the rank's index of a logical index, or -1 if the rank does not have it, and the
    /// number of logical indices from there on for which this goes on.
    constexpr std::pair<std::int64_t, std::int64_t> find(std::int64_t index) const {
      const std::int64_t size = whole / slices, c = index / size, of_slice = size - index % size;
      const std::int64_t order = 2 * c < slices ? 2 * c : 2 * (slices - 1 - c) + 1;
      const std::int64_t j = (slices == 1 ? index : order * size + index % size) - first;
      if (j < 0) return {-1, -j < of_slice ? -j : of_slice};
      if (j >= local) return {-1, of_slice};
      return {j, local - j < of_slice ? local - j : of_slice};
    }
    /// Returns how many of the rank's elements from j on have neighbouring logical indices.
    constexpr std::int64_t contiguous(std::int64_t j) const {
      const std::int64_t size = whole / slices, of_slice = size - (first + j) % size;
      return of_slice < local - j ? of_slice : local - j;
    }
  };
  /// Returns the last dim that the rank does not hold whole and in order; -1: there is none.
  constexpr int cut() const {
    int k = rank_ - 1;
    while (k >= 0 && dims_[k].natural()) --k;
    return k;
  }

  int rank_ = 0;
  along dims_[max_rank]{};
};

} // namespace mc
