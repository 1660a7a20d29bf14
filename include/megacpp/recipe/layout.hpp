// The layout that a user writes: how a model lies over ranks, and how its layers are cut into
// pipeline stages.
#pragma once

#include <megacpp/recipe/source_line.hpp>

#include <array>
#include <cstdint>

namespace mc {

inline constexpr int max_chunks = 16; ///< chunks that a pipeline stage may have

struct pipeline;
struct chunk_pass;
/// A function that says what a pipeline stage does at position i of a step of `micros`
/// micro-batches (plan/schedule.hpp has schedules, and the proof that one runs).
using pipeline_schedule = chunk_pass (*)(const pipeline& of, int stage, int i, int micros);

/// The way in which layers are cut into pipeline stages; by default all have as many layers.
struct stage_cut {
  int first = 0, last = 0; ///< layers of the first and of the last stage; 0: as on the others
  bool embedding = false, loss = false; ///< the stem, and the head, count as one layer each
  /// Layers of each virtual stage; all 0: the members above decide.
  std::array<std::int16_t, 64> layers{};

  constexpr bool listed() const {
    for (int n : layers)
      if (n != 0) return true;
    return false;
  }
  constexpr bool operator==(const stage_cut&) const = default;
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

} // namespace mc
