// A step as data: which graph runs when, in one list of tasks. Functions make the lists of a
// training step and of an evaluation from what a pipeline stage has and from its schedule; the
// executor runs them, and plan/buffers.hpp reads from them how long values live.
#pragma once

#include <megacpp/graph/graph.hpp>
#include <megacpp/plan/list.hpp>
#include <megacpp/plan/schedule.hpp>

#include <span>

namespace mc {

/// What part of a step a use is.
enum class used_as : std::uint8_t { stem, layer, head, totals, update };

/// A graph of a rank's pipeline stage, and the layer it stands for.
struct part_use {
  int part = 0;     ///< 0 the stem, 1 ... kinds the kinds of block, kinds + 1 the head, then others
  int layer = -1;   ///< of the model; -1 the stem, its number of layers the head
  int index = 0;    ///< of this layer among those of its kind on this stage
  int position = 0; ///< in running order; -1: none
  int chunk = 0;    ///< of the stage
  used_as as = used_as::layer;
};

/// f(part_use) for what a stage of a layout's pipeline runs, in running order, one chunk behind the
/// other: the stem is on the first virtual stage, the head on the last. Between chunks a position
/// is left out, since what one gives does not go to the next. kind_of(l) counts the kinds in use.
template <class Kind, class F> constexpr void for_each_use(int layers, int kinds,
                                                           const layout& ranks, int stage,
                                                           Kind kind_of, F f) {
  const pipeline p(ranks);
  int position = 0;
  list<int> seen(kinds);
  for (int chunk = 0; chunk < p.chunks; ++chunk, ++position) {
    const int v = p.number(stage, chunk), first = first_layer_of_stage(ranks, layers, v),
              end = first + layers_of_stage(ranks, layers, v);
    if (v == 0) f(part_use{0, -1, 0, position++, chunk, used_as::stem});
    for (int l = first; l < end; ++l) {
      const int kind = kind_of(l);
      f(part_use{1 + kind, l, seen[kind]++, position++, chunk});
    }
    if (v + 1 == p.virtual_stages())
      f(part_use{kinds + 1, layers, 0, position++, chunk, used_as::head});
  }
}

/// Micro-batches that a step or an evaluation may have: its tasks are counted in int.
inline constexpr int max_micros = (1 << 29) / max_chunks;

/// What a task does. feed: the batch's integers become those of its micro-batch. receive and send:
/// the stream from and to the neighbour stages in the forward pass, its cotangent in the backward
/// pass. What is sent goes while other tasks run; wait: until what was sent before from the same
/// place has gone. clear: what the step adds to becomes zero; which phase does so says what it is:
/// forward the totals, backward the main gradients, epilogue a use's gradients of derived values.
enum class action : std::uint8_t { run, feed, receive, send, wait, clear };
inline constexpr int actions = 6;

struct task {
  action what = action::run;
  phases when = phase::forward; ///< run: which nodes; clear: what; else of which pass
  std::int16_t use = -1;        ///< run, clear: the graph's place in running order
  std::int32_t micro = -1;      ///< the micro-batch; -1: once a step

  constexpr bool operator==(const task&) const = default;
};

/// What a step runs: so many of a stage's uses, in running order, and what comes once behind them.
/// An evaluation has another head than training.
struct step_shape {
  int uses = 0;
  int first = 0;   ///< the number of the first of them
  int head = -1;   ///< what runs in place of the last of them; -1: that itself
  int totals = -1; ///< what makes its totals whole; -1: it has none
  int update = -1; ///< the update; -1: it has none
  pipeline of{};
  int stage = 0;
  int begins[max_chunks]{}; ///< the first use of each chunk
  pipeline_schedule order = &one_forward_one_backward;

  constexpr int use(int u) const { return u + 1 == uses && head >= 0 ? head : first + u; }
  constexpr int begin(int chunk) const { return chunk < of.chunks ? begins[chunk] : uses; }
  /// Positions of the schedule, and what is at one.
  constexpr int positions(int micros) const { return (update >= 0 ? 2 : 1) * micros * of.chunks; }
  constexpr slot at(int i, int micros) const { return slot_at(order, of, stage, i, micros); }
};

/// Writes a task to a text: "backward(layer 3) of micro-batch 1". `uses`: those of the step.
template <class Text>
constexpr void spell(Text& out, const task& t, std::span<const part_use> uses) {
  constexpr const char* names[] = {"run", "feed", "receive", "send", "wait", "clear"};
  constexpr const char* passes[] = {"prologue", "forward", "backward", "backward", "epilogue"};
  if (t.what != action::run) out << names[static_cast<int>(t.what)] << " ";
  out << passes[static_cast<int>(t.when.first)];
  if (t.use >= 0) {
    const part_use& u = uses[static_cast<unsigned>(t.use)];
    constexpr const char* once[] = {"(stem)", "", // a layer has its number instead
                                    "(head)", "(the totals)", "(the update)"};
    if (u.as == used_as::layer) out << "(layer " << u.layer << ")";
    else out << once[static_cast<int>(u.as)];
  }
  if (t.micro >= 0) out << " of micro-batch " << t.micro;
}

/// A graph's nodes of some phases.
constexpr task run_task(int use, phases when, int micro = -1) {
  return {action::run, when, static_cast<std::int16_t>(use), micro};
}
/// Any other task. `use`: the one that reads what is received, or makes what is sent.
constexpr task other_task(action what, phases when, int micro, int use = -1) {
  return {what, when, static_cast<std::int16_t>(use), micro};
}
/// Zeros, before the first micro-batch.
constexpr task clear_task(phases when, int use = -1) {
  return {action::clear, when, static_cast<std::int16_t>(use), -1};
}

/// f(task) for the forward pass of a micro-batch through a chunk.
template <class F>
constexpr void for_each_forward_task(const step_shape& s, int micro, int chunk, F f) {
  const int v = s.of.number(s.stage, chunk), begin = s.begin(chunk), end = s.begin(chunk + 1);
  if (chunk == 0) f(other_task(action::feed, phase::forward, micro));
  if (v > 0) f(other_task(action::receive, phase::forward, micro, s.use(begin)));
  const bool sends = v + 1 < s.of.virtual_stages();
  for (int u = begin; u < end; ++u) {
    if (sends && u + 1 == end) f(other_task(action::wait, phase::forward, micro, s.use(u)));
    f(run_task(s.use(u), phase::forward, micro));
  }
  if (sends) f(other_task(action::send, phase::forward, micro, s.use(end - 1)));
}
template <class F>
constexpr void for_each_backward_task(const step_shape& s, int micro, int chunk, F f) {
  const int v = s.of.number(s.stage, chunk), begin = s.begin(chunk), end = s.begin(chunk + 1);
  if (v + 1 < s.of.virtual_stages())
    f(other_task(action::receive, backward_pass, micro, s.use(end - 1)));
  for (int u = end - 1; u >= begin; --u) {
    if (v > 0 && u == begin) f(other_task(action::wait, backward_pass, micro, s.use(u)));
    f(run_task(s.use(u), backward_pass, micro));
  }
  if (v > 0) f(other_task(action::send, backward_pass, micro, s.use(begin)));
}
/// f(task) for the end of everything that was sent.
template <class F> constexpr void for_each_final_wait(const step_shape& s, F f) {
  for (int chunk = 0; chunk < s.of.chunks; ++chunk) {
    const int v = s.of.number(s.stage, chunk);
    if (v + 1 < s.of.virtual_stages())
      f(other_task(action::wait, phase::forward, -1, s.use(s.begin(chunk + 1) - 1)));
    if (v > 0 && s.update >= 0)
      f(other_task(action::wait, backward_pass, -1, s.use(s.begin(chunk))));
  }
}
/// f(task) before the first micro-batch of a step or an evaluation: zeros, and what is derived of
/// parameters.
template <class F> constexpr void for_each_first_task(const step_shape& s, F f) {
  if (s.totals >= 0) f(clear_task(phase::forward));
  if (s.update >= 0) {
    f(clear_task(backward_pass));
    for (int u = 0; u < s.uses; ++u) f(clear_task(phase::epilogue, s.use(u)));
  }
  for (int u = 0; u < s.uses; ++u) f(run_task(s.use(u), phase::prologue));
}
/// f(task) behind the last one: the totals.
template <class F> constexpr void for_each_last_task(const step_shape& s, F f) {
  if (s.totals >= 0) f(run_task(s.totals, phase::forward));
}
/// f(task) for the passes of so many micro-batches.
template <class F> constexpr void for_each_pass_task(const step_shape& s, int micros, const F& f) {
  for (int i = 0; i < s.positions(micros); ++i) {
    const slot at = s.at(i, micros);
    if (at.backward) for_each_backward_task(s, at.micro, at.chunk, f);
    else for_each_forward_task(s, at.micro, at.chunk, f);
  }
}
/// f(task) for what completes the gradients of so many micro-batches: after their passes, those of
/// derived values go back to their parameters', tied ones join those, and all are reduced.
template <class F>
constexpr void for_each_gradient_task(const step_shape& s, int micros, const F& f) {
  for_each_first_task(s, f);
  for_each_pass_task(s, micros, f);
  for_each_last_task(s, f);
  for (int u = 0; u < s.uses; ++u) f(run_task(s.use(u), phase::epilogue));
  f(run_task(s.update, phase::prologue));
  for_each_final_wait(s, f);
}
/// f(task) for what applies them: the norm, then the update.
template <class F> constexpr void for_each_updating_task(const step_shape& s, F f) {
  f(run_task(s.update, phase::forward));
  f(run_task(s.update, phase::epilogue));
}
/// f(task) for an evaluation of so many micro-batches.
template <class F>
constexpr void for_each_evaluation_task(const step_shape& s, int micros, const F& f) {
  for_each_first_task(s, f);
  for_each_pass_task(s, micros, f);
  for_each_last_task(s, f);
  for_each_final_wait(s, f);
}

/// The tasks of a training step.
constexpr list<task> training_step(const step_shape& s, int micros) {
  list<task> tasks;
  const auto add = [&](const task& t) { tasks.push(t); };
  for_each_gradient_task(s, micros, add);
  for_each_updating_task(s, add);
  return tasks;
}
/// Those of an evaluation.
constexpr list<task> evaluation_step(const step_shape& s, int micros) {
  list<task> tasks;
  for_each_evaluation_task(s, micros, [&](const task& t) { tasks.push(t); });
  return tasks;
}

} // namespace mc
