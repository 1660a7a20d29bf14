// Pipeline schedules: functions that say what each stage does at each position, and a proof that
// all stages can follow them.
// The layers are divided among the virtual stages in order. A stage has every pp-th virtual stage
// as its chunks 0, 1 ... A micro-batch goes forward through all virtual stages in order, and back.
#pragma once

#include <megacpp/graph/fault.hpp>
#include <megacpp/graph/mesh.hpp>
#include <megacpp/plan/list.hpp>

namespace mc {

/// A pipeline: its stages, and the chunks that the layers of each stage are cut into.
struct pipeline {
  int stages = 1, chunks = 1;

  constexpr pipeline() = default;
  constexpr pipeline(int number_of_stages, int chunks_of_each = 1)
      : stages(number_of_stages), chunks(chunks_of_each) {}
  constexpr pipeline(const layout& l) : stages(l.pp), chunks(l.virtual_stages) {}

  constexpr int virtual_stages() const { return stages * chunks; }
  /// Returns the number of the virtual stage that a stage's chunk is.
  constexpr int number(int stage, int chunk) const { return chunk * stages + stage; }
};

/// The work of a stage at one position of its schedule: the forward or the backward pass of a
/// micro-batch through the layers of a chunk.
struct chunk_pass {
  bool backward = false;
  int micro = 0;
  int chunk = 0;
};
/// The micro-batch that a schedule gives for a number of micro-batches that it cannot run.
inline constexpr int no_such_step = -1;

/// Returns the k-th pass where all micro-batches go forward: the chunks one after another, for as
/// many micro-batches at a time as there are stages.
constexpr chunk_pass forward_only(const pipeline& p, int /*stage*/, int k, int micros) {
  const int round = k / p.virtual_stages(), first = round * p.stages, left = micros - first,
            n = left < p.stages ? left : p.stages, at = k - round * p.virtual_stages();
  return {false, first + at % n, at / n};
}
/// Returns the k-th pass where all micro-batches go back, with the last chunk first.
constexpr chunk_pass backward_only(const pipeline& p, int stage, int k, int micros) {
  const chunk_pass s = forward_only(p, stage, k, micros);
  return {true, s.micro, p.chunks - 1 - s.chunk};
}

/// GPipe (Huang et al. 2019): all micro-batches go forward, then all go back.
constexpr chunk_pass gpipe(const pipeline& p, int stage, int i, int micros) {
  const int passes = micros * p.chunks;
  return i < passes ? forward_only(p, stage, i, micros)
                    : backward_only(p, stage, i - passes, micros);
}

/// 1F1B (Narayanan et al. 2021), with several chunks interleaved: as many forward passes as fill
/// the pipeline, then one backward pass for each further forward pass. With several chunks the
/// number of micro-batches is a multiple of the stages.
constexpr chunk_pass one_forward_one_backward(const pipeline& p, int stage, int i, int micros) {
  if (p.chunks > 1 && micros % p.stages != 0) return {false, no_such_step};
  const int passes = micros * p.chunks, behind = p.stages - stage - 1;
  const int fill = p.chunks == 1 ? behind : 2 * behind + (p.chunks - 1) * p.stages,
            ahead = fill < passes ? fill : passes;
  if (i < ahead) return forward_only(p, stage, i, micros);
  const int steady = i - ahead, pairs = passes - ahead;
  if (steady >= 2 * pairs) return backward_only(p, stage, i - passes, micros);
  return steady % 2 == 0 ? forward_only(p, stage, ahead + steady / 2, micros)
                         : backward_only(p, stage, steady / 2, micros);
}

/// Returns the schedule of a layout.
constexpr pipeline_schedule schedule_of(const layout& l) {
  return l.schedule != nullptr ? l.schedule : &one_forward_one_backward;
}
/// Returns the name of a layout's schedule: "1F1B", "GPipe", "a schedule of its own".
constexpr const char* name_of_schedule(const layout& l) {
  const pipeline_schedule s = schedule_of(l);
  if (s == &one_forward_one_backward) return l.virtual_stages > 1 ? "interleaved 1F1B" : "1F1B";
  return s == &gpipe ? "GPipe" : "a schedule of its own";
}

/// Returns the pass at a position of a step. One micro-batch alone goes through all chunks, and
/// back, whatever the schedule is.
constexpr chunk_pass pass_at(pipeline_schedule order, const pipeline& p, int stage, int i,
                             int micros) {
  return micros == 1 ? gpipe(p, stage, i, 1) : order(p, stage, i, micros);
}

/// Returns the most micro-batches that are between two of their passes on a stage, both included.
/// `ways`: 1 for a step that only goes forward.
constexpr int in_flight(pipeline_schedule order, const pipeline& p, int stage,
                        const chunk_pass& from, const chunk_pass& to, int micros, int ways = 2) {
  int most = 0, now = 0;
  for (int i = 0; i < ways * micros * p.chunks; ++i) {
    const chunk_pass s = pass_at(order, p, stage, i, micros);
    now += s.backward == from.backward && s.chunk == from.chunk;
    if (now > most) most = now;
    now -= s.backward == to.backward && s.chunk == to.chunk;
  }
  return most;
}

/// Returns MEGA-T003 for the first position of a schedule whose pass the step does not have, that
/// runs a pass again, or a backward pass before its forward pass, that waits for something that is
/// never sent or for a neighbour that never receives (a deadlock), or that receives in another
/// order than the neighbour sends; else no fault. A pass receives, waits until the earlier value in
/// its place has been sent, and sends: verify_step checks this for the tasks of a stage. `ways`: 1
/// for a step that only goes forward.
constexpr fault_record verify_schedule(pipeline_schedule order, const pipeline& p, int micros,
                                       int ways = 2) {
  fault_record wrong;
  const int n = ways * micros * p.chunks, all = p.virtual_stages();
  list<chunk_pass> passes(p.stages * n);
  for (int stage = 0; stage < p.stages; ++stage)
    for (int i = 0; i < n; ++i) passes[stage * n + i] = order(p, stage, i, micros);
  const auto refuse = [&](int stage, int i, const char* why) {
    const chunk_pass& s = passes[stage * n + i];
    wrong.code = fault::T003;
    if (s.micro == no_such_step) {
      wrong.what << "it does not run " << micros << " micro-batches";
      return wrong;
    }
    wrong.what << "position " << i << " of stage " << stage << ", the "
               << (s.backward ? "backward" : "forward") << " pass of micro-batch " << s.micro;
    if (p.chunks > 1) wrong.what << " through chunk " << s.chunk;
    wrong.what << " of " << micros << " micro-batches: " << why;
    return wrong;
  };
  list<char> done(2 * all * micros); // which passes ran, by direction, virtual stage and
                                     // micro-batch
  const auto ran = [&](bool backward, int v, int micro) -> char& {
    return done[((backward ? 1 : 0) * all + v) * micros + micro];
  };
  list<int> sent(2 * all, -1); // micro-batch sent last, by direction and virtual stage
  list<int> at(p.stages);      // next position of each stage
  for (bool moved = true; moved;) {
    moved = false;
    for (int stage = 0; stage < p.stages; ++stage)
      for (; at[stage] < n; ++at[stage], moved = true) {
        const chunk_pass& s = passes[stage * n + at[stage]];
        if (s.micro < 0 || s.micro >= micros || s.chunk < 0 || s.chunk >= p.chunks)
          return refuse(stage, at[stage], "the step has no such pass");
        const int v = p.number(stage, s.chunk);
        if (ran(s.backward, v, s.micro) != 0) return refuse(stage, at[stage], "it ran before");
        if (s.backward && ran(false, v, s.micro) == 0)
          return refuse(stage, at[stage], "its forward pass has not run");
        const int from = s.backward ? v + 1 : v - 1, to = s.backward ? v - 1 : v + 1;
        int& before = sent[(s.backward ? 1 : 0) * all + v];
        if (from >= 0 && from < all && ran(s.backward, from, s.micro) == 0) break;
        if (to >= 0 && to < all) {
          if (before >= 0 && ran(s.backward, to, before) == 0) break; // not received yet
          before = s.micro;
        }
        ran(s.backward, v, s.micro) = 1;
      }
  }
  for (int stage = 0; stage < p.stages; ++stage)
    if (at[stage] < n) return refuse(stage, at[stage], "what it waits for never comes");
  // A stage takes what its neighbour sends in one direction in the order in which that is sent.
  for (int stage = 0; stage < p.stages; ++stage)
    for (const bool backward : {false, true}) {
      const int other = (stage + (backward ? p.stages - 1 : 1)) % p.stages;
      int j = 0; // next position of the other stage
      for (int i = 0; i < n; ++i) {
        const chunk_pass& s = passes[stage * n + i];
        const int to = p.number(stage, s.chunk) + (backward ? -1 : 1);
        if (s.backward != backward || to < 0 || to >= all) continue;
        const auto receives = [&](const chunk_pass& o) {
          const int w = p.number(other, o.chunk);
          return o.backward == backward && (backward ? w + 1 < all : w > 0);
        };
        while (!receives(passes[other * n + j])) ++j; // all passes have run
        const chunk_pass& o = passes[other * n + j++];
        if (o.micro != s.micro || p.number(other, o.chunk) != to)
          return refuse(stage, i, "the neighbour takes another one first");
      }
    }
  return wrong;
}

/// Returns the number of micro-batches of a step by which a stage's buffers are laid out: the most
/// that the step may have, or one from which on no more are in flight.
constexpr int micros_to_lay_out(const pipeline& p, int most) {
  if (most == 0) return 2 * p.stages;
  return p.chunks == 1 || most < p.stages ? most : most / p.stages * p.stages;
}
/// Returns MEGA-T003 for a schedule that keeps ever more micro-batches in flight where their number
/// is not bounded (`most`; 0: any number).
constexpr fault_record verify_flights(pipeline_schedule order, const pipeline& p, int most) {
  fault_record wrong;
  if (most > 0) return wrong;
  const auto kept = [&](int rounds) {
    return in_flight(order, p, 0, {false}, {true}, rounds * p.stages);
  };
  if (kept(2) == kept(3)) return wrong;
  wrong.code = fault::T003;
  wrong.what << "it keeps every micro-batch of a step: say how many there are at most, by "
                "batching{.micro_batches}";
  return wrong;
}

} // namespace mc
