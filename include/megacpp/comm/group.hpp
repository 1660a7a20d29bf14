// Groups of ranks that talk to each other: numbers of ranks, their coordinates, and groups.
//
// Ranks are numbered as in Megatron-LM: tp varies fastest, then cp, dp and pp. The expert mesh
// folds over the same ranks: etp varies fastest, then ep, edp and pp.
#pragma once

#include <megacpp/plan/boxes.hpp>

namespace mc {

/// The axes of the dense mesh and of the expert mesh, the one that varies fastest first.
inline constexpr axis axes_by_rank[2][4] = {{axis::tp, axis::cp, axis::dp, axis::pp},
                                            {axis::etp, axis::ep, axis::edp, axis::pp}};

/// All ranks.
inline constexpr axis_set everyone{axis::dp, axis::cp, axis::tp, axis::pp};

/// Returns the number of ranks of a mesh whose sizes are all known.
constexpr int ranks_of(const mesh& m) {
  int n = 1;
  for (axis a : axes_by_rank[0]) n *= m.of(a);
  return n;
}
/// Returns whether every size is known and both meshes fold over the same ranks.
constexpr bool is_whole(const mesh& m) {
  for (int n : m.size)
    if (n < 1) return false;
  return m.of(axis::edp) * m.of(axis::ep) * m.of(axis::etp) * m.of(axis::pp) == ranks_of(m);
}

constexpr coordinates coordinates_of(const mesh& m, int rank) {
  coordinates at{};
  for (const auto& fastest_first : axes_by_rank) {
    int left = rank;
    for (axis a : fastest_first) at[static_cast<unsigned>(a)] = left % m.of(a), left /= m.of(a);
  }
  return at;
}

/// Returns the number of a rank in its group over axes of one mesh whose sizes are known.
constexpr int number_in_group(const mesh& m, axis_set over, const coordinates& at) {
  int n = 0, size = 1;
  for (axis a : axes_by_rank[over.meets(expert_axes)])
    if (over.has(a)) n += at[static_cast<unsigned>(a)] * size, size *= m.of(a);
  return n;
}

/// A group is the ranks whose coordinates differ from one rank's on some axes alone, in the order
/// of their numbers. The shards of a tensor along one axis are in this order, too.
class group {
public:
  /// The group of `rank` over axes of one mesh.
  constexpr group(const mesh& m, axis_set over, int rank) {
    const coordinates at = coordinates_of(m, rank);
    int stride = 1;
    first_ = rank, rank_ = number_in_group(m, over, at);
    for (axis a : axes_by_rank[over.meets(expert_axes)]) {
      if (over.has(a)) {
        const int mine = at[static_cast<unsigned>(a)];
        first_ -= mine * stride;
        counts_[levels_] = m.of(a), strides_[levels_++] = stride;
        size_ *= m.of(a);
      }
      stride *= m.of(a);
    }
  }
  constexpr int size() const { return size_; }
  /// The number of this rank in the group.
  constexpr int rank() const { return rank_; }
  /// Returns the number in the run of the group's rank i.
  constexpr int operator[](int i) const {
    int r = first_;
    for (int k = 0; k < levels_; ++k) r += i % counts_[k] * strides_[k], i /= counts_[k];
    return r;
  }

private:
  int size_ = 1, rank_ = 0, first_ = 0, levels_ = 0;
  int counts_[4]{}, strides_[4]{};
};

} // namespace mc
