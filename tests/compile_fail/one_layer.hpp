// What the cases share: a small GPT whose block or numbers a case replaces, and the rest of a run.
#pragma once

#include <megacpp/graph/letters.hpp>
#include <megacpp/model/gpt.hpp>
#include <megacpp/plan/verify_step.hpp>
#include <megacpp/run/program.hpp>

constexpr mc::gpt small() {
  mc::gpt m;
  m.layers = 2, m.hidden = 16, m.heads = 4, m.ffn = 32, m.vocabulary = 64, m.positions = 32;
  return m;
}

struct small_run {
  static constexpr mc::batching batch{2, 16};
  using precision = mc::fp32;
};

constexpr mc::layout tensor_parallel(int ranks) {
  mc::layout l;
  l.tp = ranks;
  return l;
}
constexpr mc::layout sequence_parallel(int ranks) {
  mc::layout l = tensor_parallel(ranks);
  l.sequence_parallel = true;
  return l;
}
constexpr mc::layout context_parallel(int ranks) {
  mc::layout l;
  l.cp = ranks;
  return l;
}

/// A run of so many pipeline stages.
template <int Stages> struct staged_run : small_run {
  static constexpr mc::gpt model = small();
  static constexpr mc::layout layout{.pp = Stages};
};
/// The verdict of verify_step on the training step of one stage, after change(tasks, buffers).
template <class Run, class Change>
constexpr mc::fault_record verdict_after(int stage, int micro_batches, Change change) {
  using program = mc::program<Run>;
  const mc::stage_shape s = program::stage(stage);
  mc::buffers b = mc::buffers_of(program::whole::now.planned, s);
  mc::list<mc::task> tasks = mc::training_step(s.training, micro_batches);
  change(tasks, b);
  return mc::verify_step(tasks, s.training, b, micro_batches);
}
