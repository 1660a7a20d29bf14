// The device mesh: a number of ranks along each axis.
#pragma once

#include <megacpp/recipe/layout.hpp>

#include <cstdint>
#include <initializer_list>
#include <numeric>

namespace mc {

/// The axes of the mesh. dp, cp, tp and pp span the dense mesh. edp, ep, etp and pp arrange the
/// same ranks for experts. A mesh has axes, and a tensor has dims.
enum class axis : std::uint8_t { dp, cp, tp, pp, edp, ep, etp };
inline constexpr int axes = 7;

constexpr const char* name_of(axis a) {
  constexpr const char* names[] = {"dp", "cp", "tp", "pp", "edp", "ep", "etp"};
  return names[static_cast<int>(a)];
}

/// A set of axes. A group is the ranks whose coordinates differ on these axes alone: over {tp} the
/// ranks that share a product, over {ep, etp} those that share a layer's experts, over {} one rank.
struct axis_set {
  std::uint8_t bits = 0;

  constexpr axis_set() = default;
  constexpr axis_set(axis a) : bits(bit(a)) {}
  constexpr axis_set(std::initializer_list<axis> all) {
    for (axis a : all) bits = static_cast<std::uint8_t>(bits | bit(a));
  }
  constexpr bool has(axis a) const { return (bits & bit(a)) != 0; }
  constexpr bool meets(axis_set o) const { return (bits & o.bits) != 0; }
  constexpr bool empty() const { return bits == 0; }
  constexpr axis_set with(axis a) const { return of_bits(bits | bit(a)); }
  constexpr axis_set also_in(axis_set o) const { return of_bits(bits & o.bits); }
  constexpr axis_set without(axis_set o) const { return of_bits(bits & ~o.bits); }
  constexpr bool operator==(const axis_set&) const = default;

  static constexpr axis_set of_bits(int all) {
    axis_set s;
    s.bits = static_cast<std::uint8_t>(all);
    return s;
  }

private:
  static constexpr std::uint8_t bit(axis a) {
    return static_cast<std::uint8_t>(1u << static_cast<int>(a));
  }
};

/// The axes that only the dense mesh has, and those that only the expert mesh has.
inline constexpr axis_set dense_axes{axis::dp, axis::cp, axis::tp},
    expert_axes{axis::edp, axis::ep, axis::etp};
/// The axes whose ranks hold the same weights and read other tokens.
inline constexpr axis_set replica_axes{axis::dp, axis::cp, axis::edp};
/// Returns whether one of the two meshes has all axes of s. Only then are there groups over s.
constexpr bool on_one_mesh(axis_set s) { return !s.meets(dense_axes) || !s.meets(expert_axes); }

/// The sizes of all axes. Size 0 (dp, edp) means known only at start; extents over such an axis are
/// those of one rank.
struct mesh {
  int size[axes]{0, 1, 1, 1, 0, 1, 1};

  constexpr mesh() = default;
  constexpr bool operator==(const mesh&) const = default;
  /// Makes a mesh from sizes in the order of enum axis.
  constexpr explicit mesh(const int (&sizes)[axes]) {
    for (int a = 0; a < axes; ++a) size[a] = sizes[a];
  }
  static constexpr mesh one_rank() { return mesh({1, 1, 1, 1, 1, 1, 1}); }
  constexpr mesh(const layout& l) : size{0, l.cp, l.tp, l.pp, 0, l.ep, l.expert_tp()} {}
  constexpr int of(axis a) const { return size[static_cast<int>(a)]; }
  /// Returns whether the axis has one rank for sure. Every state on it becomes invariant.
  constexpr bool trivial(axis a) const { return of(a) == 1; }
  constexpr bool sized(axis a) const { return of(a) > 0; }
};

/// Returns the number of ranks of a group, on a mesh that knows the sizes of its axes.
constexpr int ranks_of(const mesh& m, axis_set over) {
  int n = 1;
  for (int a = 0; a < axes; ++a)
    if (over.has(static_cast<axis>(a))) n *= m.of(static_cast<axis>(a));
  return n;
}
/// Returns those of the axes `over` that may have several ranks.
constexpr axis_set of_several_ranks(const mesh& m, axis_set over) {
  axis_set several;
  for (int a = 0; a < axes; ++a)
    if (const auto one = static_cast<axis>(a); over.has(one) && !m.trivial(one))
      several = several.with(one);
  return several;
}

/// Returns the mesh of dp replicas, and with it edp, since experts are spread over the same ranks.
constexpr mesh mesh_of(const layout& l, int dp) {
  mesh m(l);
  m.size[static_cast<int>(axis::dp)] = dp;
  m.size[static_cast<int>(axis::edp)] = dp * l.cp * l.tp / (l.ep * l.expert_tp());
  return m;
}
/// Returns the mesh of the fewest ranks that a layout can have: one replica of the model, or
/// several where their ranks share experts.
constexpr mesh smallest_mesh(const layout& l) {
  const int dense = l.tp * l.cp, expert = l.ep * l.expert_tp();
  return mesh_of(l, std::lcm(dense, expert) / dense);
}

} // namespace mc
