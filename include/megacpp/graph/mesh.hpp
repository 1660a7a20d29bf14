// The device mesh: its axes and their sizes, and the layout a user writes.
#pragma once

#include <megacpp/graph/fault.hpp>

#include <array>
#include <cstdint>
#include <initializer_list>
#include <numeric>

namespace mc {

/// Axes of the mesh. dp, cp, tp, pp span the dense mesh; edp, ep, etp, pp fold over the same ranks
/// for experts. *Axis* is of the mesh, *dim* of a tensor.
enum class axis : std::uint8_t { dp, cp, tp, pp, edp, ep, etp };
inline constexpr int axes = 7;

constexpr const char* name_of(axis a) {
  constexpr const char* names[] = {"dp", "cp", "tp", "pp", "edp", "ep", "etp"};
  return names[static_cast<int>(a)];
}

/// A set of axes. A *group* is the ranks whose coordinates differ on these axes alone: over {tp}
/// those that share a product, over {ep, etp} those that share a layer's experts, over {} one rank.
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

/// The axes of the one mesh that the other lacks.
inline constexpr axis_set dense_axes{axis::dp, axis::cp, axis::tp},
    expert_axes{axis::edp, axis::ep, axis::etp};
/// Over which ranks have the same weights and other tokens.
inline constexpr axis_set replica_axes{axis::dp, axis::cp, axis::edp};
/// True if one of the meshes has all of these axes: only then are they a group.
constexpr bool on_one_mesh(axis_set s) { return !s.meets(dense_axes) || !s.meets(expert_axes); }

inline constexpr int max_chunks = 16; ///< of a pipeline stage

struct pipeline;
struct slot;
/// What stage `stage` of a pipeline does at position i of a step of so many micro-batches
/// (plan/schedule.hpp has schedules, and the proof that one runs).
using pipeline_schedule = slot (*)(const pipeline& of, int stage, int i, int micros);

/// How the layers are cut into pipeline stages; by default in equal runs.
struct stage_cut {
  int first = 0, last = 0; ///< layers of the first and the last stage; 0: as many as of the others
  bool embedding = false, loss = false;  ///< the stem, and the head, count as a layer
  std::array<std::int16_t, 64> layers{}; ///< or those of each virtual stage, one by one

  constexpr bool listed() const {
    for (int n : layers)
      if (n != 0) return true;
    return false;
  }
  constexpr bool operator==(const stage_cut&) const = default;
};

/// The line on which the braces of a struct of a run's numbers stand. It is no part of the struct's
/// value: all are equal. `layout l;` has no braces, and no such line.
struct written_at {
  source_line line{};

  constexpr written_at(source_line l = {}) : line(l) {}
  /// The line; nothing where it is that of the struct's own header.
  constexpr source_line outside(const char* header) const {
    const char *a = line.file_name(), *b = source_line(0, header).file_name();
    while (*a != 0 && *a == *b) ++a, ++b;
    return *a == *b ? source_line{} : line;
  }
  constexpr bool operator==(const written_at&) const { return true; }
};

/// What a user writes: how one model is laid out over ranks. dp is absent on purpose: it is the
/// world size divided by tp * cp * pp, read at start, so that one binary runs on any number of
/// replicas.
struct layout {
  int tp = 1;                     ///< tensor parallel
  int pp = 1;                     ///< pipeline stages
  int cp = 1;                     ///< context parallel
  int ep = 1;                     ///< expert parallel
  int etp = 0;                    ///< tensor parallel inside experts; 0: 1 when ep > 1, else tp
  bool sequence_parallel = false; ///< the residual stream is sharded over tp along the sequence
  int virtual_stages = 1;         ///< chunks that the layers of a stage are cut into, interleaved
  stage_cut cut{};
  pipeline_schedule schedule = nullptr; ///< nullptr: 1F1B
  int zero = 0; ///< 1: replicas share the optimizer's state (Rajbhandari et al. 2020)
  written_at at = here();

  constexpr source_line line() const { return at.outside(__FILE__); }
  constexpr int expert_tp() const { return etp > 0 ? etp : (ep > 1 ? 1 : tp); }
  constexpr bool operator==(const layout&) const = default;
};

/// Layers of a virtual stage, of which stage s has s, pp + s ..., and the first one of these, of a
/// model of so many.
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

/// Axis sizes; 0 means known only at start (dp, edp), and extents over such an axis are local ones.
struct mesh {
  int size[axes]{0, 1, 1, 1, 0, 1, 1};

  constexpr mesh() = default;
  constexpr bool operator==(const mesh&) const = default;
  /// Of sizes in the order of enum axis.
  constexpr explicit mesh(const int (&sizes)[axes]) {
    for (int a = 0; a < axes; ++a) size[a] = sizes[a];
  }
  static constexpr mesh one_rank() { return mesh({1, 1, 1, 1, 1, 1, 1}); }
  constexpr mesh(const layout& l) : size{0, l.cp, l.tp, l.pp, 0, l.ep, l.expert_tp()} {}
  constexpr int of(axis a) const { return size[static_cast<int>(a)]; }
  /// True when the axis surely has one rank: its states normalise to invariant.
  constexpr bool trivial(axis a) const { return of(a) == 1; }
  constexpr bool sized(axis a) const { return of(a) > 0; }
};

/// Ranks of a group, on a mesh that knows the sizes of its axes.
constexpr int ranks_of(const mesh& m, axis_set over) {
  int n = 1;
  for (int a = 0; a < axes; ++a)
    if (over.has(static_cast<axis>(a))) n *= m.of(static_cast<axis>(a));
  return n;
}
/// Of some axes, those that may have several ranks.
constexpr axis_set of_several_ranks(const mesh& m, axis_set over) {
  axis_set several;
  for (int a = 0; a < axes; ++a)
    if (const auto one = static_cast<axis>(a); over.has(one) && !m.trivial(one))
      several = several.with(one);
  return several;
}

/// The mesh of so many replicas, over whose ranks the experts' folds.
constexpr mesh mesh_of(const layout& l, int dp) {
  mesh m(l);
  m.size[static_cast<int>(axis::dp)] = dp;
  m.size[static_cast<int>(axis::edp)] = dp * l.cp * l.tp / (l.ep * l.expert_tp());
  return m;
}
/// The mesh of the fewest ranks that a layout has: one replica of the model, or more where ranks of
/// several share its experts.
constexpr mesh smallest_mesh(const layout& l) {
  const int dense = l.tp * l.cp, expert = l.ep * l.expert_tp();
  return mesh_of(l, std::lcm(dense, expert) / dense);
}

} // namespace mc
