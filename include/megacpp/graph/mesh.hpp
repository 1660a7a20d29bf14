// The device mesh, which is a number of ranks along each axis, and the layout that a user writes.
#pragma once

#include <megacpp/graph/fault.hpp>

#include <array>
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

inline constexpr int max_chunks = 16; ///< chunks that a pipeline stage may have

struct pipeline;
struct slot;
/// A function that says what a pipeline stage does at position i of a step of `micros`
/// micro-batches (plan/schedule.hpp has schedules, and the proof that one runs).
using pipeline_schedule = slot (*)(const pipeline& of, int stage, int i, int micros);

/// The way in which layers are cut into pipeline stages; by default all have as many layers.
struct stage_cut {
  int first = 0, last = 0; ///< layers of the first and of the last stage; 0: as on the others
  bool embedding = false, loss = false;  ///< the stem, and the head, count as one layer each
  std::array<std::int16_t, 64> layers{}; ///< layers of each virtual stage; all 0: as above

  constexpr bool listed() const {
    for (int n : layers)
      if (n != 0) return true;
    return false;
  }
  constexpr bool operator==(const stage_cut&) const = default;
};

/// The source line where the braces of a struct of a run's numbers stand. It does not count as part
/// of the struct's value, so all compare equal. `layout l;` has no braces, and thus no such line.
struct written_at {
  source_line line{};

  constexpr written_at(source_line l = {}) : line(l) {}
  /// Returns the line, or an empty one if it lies in the struct's own header.
  constexpr source_line outside(const char* header) const {
    const char *a = line.file_name(), *b = source_line(0, header).file_name();
    while (*a != 0 && *a == *b) ++a, ++b;
    return *a == *b ? source_line{} : line;
  }
  constexpr bool operator==(const written_at&) const { return true; }
};

/// The way in which a user lays out a model over ranks. dp is absent on purpose: it is the world
/// size divided by tp * cp * pp, read at start, so that one binary runs on any number of replicas.
struct layout {
  int tp = 1;                     ///< ranks of tensor parallelism
  int pp = 1;                     ///< pipeline stages
  int cp = 1;                     ///< ranks of context parallelism
  int ep = 1;                     ///< ranks of expert parallelism
  int etp = 0;                    ///< tensor parallelism inside experts; 0: 1 when ep > 1, else tp
  bool sequence_parallel = false; ///< the residual stream is sharded over tp along the sequence
  int virtual_stages = 1;         ///< interleaved chunks into which the layers of a stage are cut
  stage_cut cut{};
  pipeline_schedule schedule = nullptr; ///< order of a stage's micro-batches; nullptr: 1F1B
  int zero = 0; ///< 1: replicas share the optimizer's state (ZeRO 1; Rajbhandari et al. 2020)
  written_at at = here();

  constexpr source_line line() const { return at.outside(__FILE__); }
  constexpr int expert_tp() const { return etp > 0 ? etp : (ep > 1 ? 1 : tp); }
  constexpr bool operator==(const layout&) const = default;
};

/// Returns the number of layers of a virtual stage, for a model of `layers` layers. Stage s has the
/// virtual stages s, pp + s, 2 pp + s ...
constexpr int layers_of_stage(const layout& l, int layers, int virtual_stage) {
  const stage_cut& c = l.cut;
  const int stage = virtual_stage % l.pp;
  if (c.listed()) return c.layers[static_cast<unsigned>(virtual_stage)];
  if (c.first > 0 && stage == 0) return c.first / l.virtual_stages;
  if (c.last > 0 && stage + 1 == l.pp) return c.last / l.virtual_stages;
  const int others = l.pp - (c.first > 0 ? 1 : 0) - (c.last > 0 ? 1 : 0);
  const int each = (layers - c.first - c.last + c.embedding + c.loss) / (others * l.virtual_stages);
  const bool is_last = virtual_stage + 1 == l.pp * l.virtual_stages;
  return each - (c.embedding && virtual_stage == 0 ? 1 : 0) - (c.loss && is_last ? 1 : 0);
}
constexpr int first_layer_of_stage(const layout& l, int layers, int virtual_stage) {
  int n = 0;
  for (int v = 0; v < virtual_stage; ++v) n += layers_of_stage(l, layers, v);
  return n;
}

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
