// A step as data: one list of tasks that says which graph runs when. Functions make the lists of a
// training step and of an evaluation from the uses of a pipeline stage and from its schedule. The
// executor runs the tasks, and plan/buffers.hpp reads from them how long values live.
#pragma once

#include <megacpp/graph/graph.hpp>
#include <megacpp/plan/list.hpp>
#include <megacpp/plan/schedule.hpp>

#include <span>

namespace mc {

/// The role of a use in a step.
enum class used_as : std::uint8_t { stem, layer, head, totals, update };

/// A use of a graph on a rank's pipeline stage: the graph, and the layer for which it runs.
struct part_use {
  /// Number of the graph: 0 the stem, 1 ... kinds the kinds of block, kinds + 1 the head, then
  /// others.
  int part = 0;
  int layer = -1;   ///< layer of the model; -1 for the stem, the number of layers for the head
  int index = 0;    ///< number of this layer among those of its kind on this stage
  int position = 0; ///< position in running order; -1: none
  int chunk = 0;    ///< chunk of the stage
  used_as as = used_as::layer;
};

/// Calls f(part_use) for the uses of a stage of a layout's pipeline, in running order, one chunk
/// behind the other. The stem is on the first virtual stage, the head on the last. Between chunks a
/// position is left out, since the result of one chunk is not the input of the next. kind_of(l)
/// counts the kinds in use.
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

/// The most micro-batches of a step or an evaluation, since tasks are counted in int.
inline constexpr int max_micros = (1 << 29) / max_chunks;

/// The action of a task. run: nodes of a graph. feed: gives the integers of the batch for its
/// micro-batch. receive and send: the stream from and to the neighbour stages in the forward pass,
/// its cotangent in the backward pass; what is sent goes while other tasks run. wait: until the
/// value sent before from the same place has gone. clear: sets sums of the step to zero, which its
/// phase selects: forward the totals, backward the main gradients, epilogue a use's gradients of
/// derived values.
enum class action : std::uint8_t { run, feed, receive, send, wait, clear };
inline constexpr int actions = 6;

struct task {
  action what = action::run;
  phases when = phase::forward; ///< run: phases of the nodes; clear: which sums; else which pass
  std::int16_t use = -1;        ///< run, clear: number of the use; -1: none
  std::int32_t micro = -1;      ///< number of the micro-batch; -1: the task runs once a step

  constexpr bool operator==(const task&) const = default;
};

/// The shape of a step: uses of a stage in running order, and graphs that run once behind them. An
/// evaluation has another head than training.
struct step_shape {
  int uses = 0;
  int first = 0;   ///< number of the first of these uses
  int head = -1;   ///< use that runs in place of the last of them; -1: none
  int totals = -1; ///< use that makes the totals whole; -1: none
  int update = -1; ///< use of the update; -1: none
  pipeline of{};
  int stage = 0;
  int begins[max_chunks]{}; ///< first use of each chunk
  /// The lowest use of the model in which something is trained. The backward pass ends there, and
  /// sends nothing further.
  int lowest_stage = 0; ///< number of its virtual stage
  int lowest = -1;      ///< its number among these uses; -1: it is the stem, or in another stage
  pipeline_schedule order = &one_forward_one_backward;

  constexpr int use(int u) const { return u + 1 == uses && head >= 0 ? head : first + u; }
  constexpr int begin(int chunk) const { return chunk < of.chunks ? begins[chunk] : uses; }
  /// Returns the number of positions of the schedule; at() returns the pass at one.
  constexpr int positions(int micros) const { return (update >= 0 ? 2 : 1) * micros * of.chunks; }
  constexpr chunk_pass at(int i, int micros) const { return pass_at(order, of, stage, i, micros); }
};

/// Writes a task: "backward(layer 3) of micro-batch 1". `uses` are those of the step.
template <class Text>
constexpr void spell(Text& out, const task& t, std::span<const part_use> uses) {
  constexpr const char* names[] = {"run", "feed", "receive", "send", "wait", "clear"};
  constexpr const char* passes[] = {"prologue", "forward",  "backward",
                                    "backward", "backward", "epilogue"};
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

/// Makes a task that runs a graph's nodes of some phases.
constexpr task graph_task(int use, phases when, int micro = -1) {
  return {action::run, when, static_cast<std::int16_t>(use), micro};
}
/// Makes any other task. `use` reads the value that is received, or makes the value that is sent.
constexpr task other_task(action what, phases when, int micro, int use = -1) {
  return {what, when, static_cast<std::int16_t>(use), micro};
}
/// Makes a task that clears sums, before the first micro-batch.
constexpr task clear_task(phases when, int use = -1) {
  return {action::clear, when, static_cast<std::int16_t>(use), -1};
}

/// Calls f(task) for the forward pass of a micro-batch through a chunk.
template <class F>
constexpr void for_each_forward_task(const step_shape& s, int micro, int chunk, F f) {
  const int v = s.of.number(s.stage, chunk), begin = s.begin(chunk), end = s.begin(chunk + 1);
  if (chunk == 0) f(other_task(action::feed, phase::forward, micro));
  if (v > 0) f(other_task(action::receive, phase::forward, micro, s.use(begin)));
  const bool sends = v + 1 < s.of.virtual_stages();
  for (int u = begin; u < end; ++u) {
    if (sends && u + 1 == end) f(other_task(action::wait, phase::forward, micro, s.use(u)));
    f(graph_task(s.use(u), phase::forward, micro));
  }
  if (sends) f(other_task(action::send, phase::forward, micro, s.use(end - 1)));
}
template <class F>
constexpr void for_each_backward_task(const step_shape& s, int micro, int chunk, F f) {
  const int v = s.of.number(s.stage, chunk), begin = s.begin(chunk), end = s.begin(chunk + 1);
  if (v < s.lowest_stage) return;
  const bool sends = v > s.lowest_stage;
  if (v + 1 < s.of.virtual_stages())
    f(other_task(action::receive, backward_pass, micro, s.use(end - 1)));
  for (int u = end - 1; u >= begin && u >= s.lowest; --u) {
    if (sends && u == begin) f(other_task(action::wait, backward_pass, micro, s.use(u)));
    f(graph_task(s.use(u), u == s.lowest ? lowest_backward_pass : backward_pass, micro));
  }
  if (sends) f(other_task(action::send, backward_pass, micro, s.use(begin)));
}
/// Calls f(task) for the waits for all that was sent, at the end of a step.
template <class F> constexpr void for_each_final_wait(const step_shape& s, F f) {
  for (int chunk = 0; chunk < s.of.chunks; ++chunk) {
    const int v = s.of.number(s.stage, chunk);
    if (v + 1 < s.of.virtual_stages())
      f(other_task(action::wait, phase::forward, -1, s.use(s.begin(chunk + 1) - 1)));
    if (v > s.lowest_stage && s.update >= 0)
      f(other_task(action::wait, backward_pass, -1, s.use(s.begin(chunk))));
  }
}
/// Calls f(task) for the tasks before the first micro-batch of a step or an evaluation: they clear
/// sums and derive values from parameters.
template <class F> constexpr void for_each_first_task(const step_shape& s, F f) {
  if (s.totals >= 0) f(clear_task(phase::forward));
  if (s.update >= 0) {
    f(clear_task(backward_pass));
    for (int u = 0; u < s.uses; ++u) f(clear_task(phase::epilogue, s.use(u)));
  }
  for (int u = 0; u < s.uses; ++u) f(graph_task(s.use(u), phase::prologue));
}
/// Calls f(task) for the task behind the last micro-batch, which makes the totals whole.
template <class F> constexpr void for_each_last_task(const step_shape& s, F f) {
  if (s.totals >= 0) f(graph_task(s.totals, phase::forward));
}
/// Calls f(task) for the passes of so many micro-batches.
template <class F> constexpr void for_each_pass_task(const step_shape& s, int micros, const F& f) {
  for (int i = 0; i < s.positions(micros); ++i) {
    const chunk_pass at = s.at(i, micros);
    if (at.backward) for_each_backward_task(s, at.micro, at.chunk, f);
    else for_each_forward_task(s, at.micro, at.chunk, f);
  }
}
/// Calls f(task) for the tasks that make the gradients of so many micro-batches: after the passes,
/// gradients of derived values are taken back to their parameters, tied ones are added, and all are
/// reduced.
template <class F>
constexpr void for_each_gradient_task(const step_shape& s, int micros, const F& f) {
  for_each_first_task(s, f);
  for_each_pass_task(s, micros, f);
  for_each_last_task(s, f);
  for (int u = 0; u < s.uses; ++u) f(graph_task(s.use(u), phase::epilogue));
  f(graph_task(s.update, phase::prologue));
  for_each_final_wait(s, f);
}
/// Calls f(task) for the tasks that apply the gradients: the norm, then the update.
template <class F> constexpr void for_each_updating_task(const step_shape& s, F f) {
  f(graph_task(s.update, phase::forward));
  f(graph_task(s.update, phase::epilogue));
}
/// Calls f(task) for an evaluation of so many micro-batches.
template <class F>
constexpr void for_each_evaluation_task(const step_shape& s, int micros, const F& f) {
  for_each_first_task(s, f);
  for_each_pass_task(s, micros, f);
  for_each_last_task(s, f);
  for_each_final_wait(s, f);
}

/// Returns the tasks of a training step.
constexpr list<task> training_step(const step_shape& s, int micros) {
  list<task> tasks;
  const auto add = [&](const task& t) { tasks.push(t); };
  for_each_gradient_task(s, micros, add);
  for_each_updating_task(s, add);
  return tasks;
}
/// Returns the tasks of an evaluation.
constexpr list<task> evaluation_step(const step_shape& s, int micros) {
  list<task> tasks;
  for_each_evaluation_task(s, micros, [&](const task& t) { tasks.push(t); });
  return tasks;
}

} // namespace mc
