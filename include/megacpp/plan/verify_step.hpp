// verify_step: walks the tasks of a step, trusting neither their order nor the places and sizes of
// buffers. Every buffer lies within its arena and holds all that the nodes of its tasks touch. A
// value that a task reads must have been written for its micro-batch and not overwritten since. A
// sum that it adds to must have been cleared, once. The gradients of every micro-batch reach every
// use that has some once, are joined and reduced once when they are complete, and are applied after
// that. Totals
// are summed over ranks once, when every micro-batch has added to them. A value that is sent stays
// as it is until the step has waited for it. The stage exchanges with its neighbours what its
// schedule says, in that order: verify_schedule proves that all stages can do so together.
#pragma once

#include <megacpp/plan/memory.hpp>

namespace mc {

namespace detail {

struct step_walk {
  const buffers& b;
  const step_shape& shape;
  int micros;
  const buffer* at = b.all().data();
  fault_record wrong{};
  const task* now = nullptr; // task that runs now
  int tasks = 0;             // number of tasks that have run
  /// A copy of a buffer for one micro-batch.
  struct buffer_copy {
    int holds = nothing; ///< micro-batch that it holds; `once`; `before`: an earlier step
    int touched = -1;    ///< task that touched it last
    bool flying = false; ///< whether the copy is being sent
  };
  list<buffer_copy> copies;
  list<int> copy_of; // index in `copies` of the first copy of each buffer
  /// The bytes of an arena that were written last as one copy of a buffer.
  struct owned {
    std::int64_t first = 0, end = 0;
    int number = -1, by = -1; ///< number of the buffer, and of its copy in `copies`
  };
  list<list<owned>> owners{list<list<owned>>(arenas)}; // of each arena, by rising offset
  list<char> ran;                                      // number of runs, by use, phase and
                                                       // micro-batch
  list<char> fed;                                      // number of feeds, by micro-batch
  list<task> exchanges;                                // exchanges of the schedule
  int exchanged = 0;                                   // number of them that ran
  static constexpr int nothing = -2, once = -1, before = -3;

  constexpr ~step_walk() = default; // nvcc needs it written out
  constexpr step_walk(const buffers& of, const step_shape& s, int m) : b(of), shape(s), micros(m) {
    ran.resize(static_cast<int>(b.uses().size()) * step_phases * micros);
    fed.resize(micros);
    begin();
    if (shape.of.stages > 1) find_exchanges();
  }

  /// Checks that every buffer lies within its arena, and that buffers that live on do not overlap.
  constexpr void begin() {
    for (const buffer& x : b.all()) {
      copy_of.push(copies.size());
      if (x.copies < 1) return misplaced(x);
      copies.resize(copies.size() + x.copies);
    }
    for (int i = 0; i < copy_of.size(); ++i) {
      const buffer& x = at[i];
      if (x.first < 0 || x.bytes == 0) continue;
      if (!lies_within(x)) return misplaced(x);
      if (lives_on(x.what)) write(i, before);
    }
    for (const content what : {content::seed, content::numbers}) // the host has written them
      if (at[b.of(what)].first >= 0) copies[copy_of[b.of(what)]].holds = once;
  }
  constexpr bool lies_within(const buffer& x) const {
    return x.offset >= 0 && x.offset + x.size() <= b.bytes(arena_for(x.what)) &&
           x.offset % memory_alignment == 0 && x.bytes % memory_alignment == 0;
  }
  constexpr void misplaced(const buffer& x) {
    if (wrong.code != fault::none) return;
    wrong.code = fault::T004;
    wrong.what << "a buffer of " << name_of(x.what) << ", " << x.copies << " times " << x.bytes
               << " bytes at " << x.offset << " of " << b.bytes(arena_for(x.what));
  }
  /// Gives the bytes of a buffer's copy to it. All other values in these bytes are gone.
  constexpr void own(int number, int by, int micro) {
    const buffer& x = at[number];
    list<owned>& all = owners[static_cast<int>(arena_for(x.what))];
    const std::int64_t first = x.at(micro < 0 ? 0 : micro), end = first + x.bytes;
    int low = 0, high = all.size(); // the first that ends behind `first`
    while (low < high) {
      const int middle = (low + high) / 2;
      if (all[middle].end > first) high = middle;
      else low = middle + 1;
    }
    for (high = low; high < all.size() && all[high].first < end; ++high) {
      buffer_copy& gone = copies[all[high].by];
      const content what = at[all[high].number].what;
      if (gone.flying) fail(fault::T005, "writes over ", what, ", still being sent");
      if (lives_on(what)) fail(fault::T001, "writes over ", what, ", kept for other steps");
      if (gone.touched == tasks) fail(fault::T001, "writes over ", what, ", which it touches");
      gone.holds = nothing;
    }
    if (high == low) return all.insert(low, {first, end, number, by});
    all.erase(low + 1, high);
    all[low] = {first, end, number, by};
  }
  constexpr int copy_at(int number, int micro) const {
    const int copies = at[number].copies;
    return copy_of[number] + (copies == 1 || micro < 0 ? 0 : micro % copies);
  }
  constexpr void fail(fault f, const char* what) {
    if (wrong.code != fault::none) return;
    wrong.code = f;
    if (now != nullptr) {
      spell(wrong.what, *now, b.uses());
      wrong.what << ": ";
    }
    wrong.what << what;
  }
  constexpr void fail(fault f, const char* does, content what, const char* why = "") {
    if (wrong.code != fault::none) return;
    fail(f, does);
    wrong.what << name_of(what) << why;
  }

  constexpr void write(int number, int micro) {
    const int by = copy_at(number, micro);
    if (copies[by].flying) fail(fault::T005, "writes over ", at[number].what, ", still being sent");
    if (at[number].bytes > 0 && copies[by].holds == nothing) own(number, by, micro);
    copies[by].holds = micro;
  }
  constexpr void operands(const task& t) {
    b.for_each_operand(t, [&](int number, const buffers::operand& o) {
      const buffer& x = at[number];
      if (x.first < 0) return misplaced(x);
      if (o.end > x.bytes) fail(fault::T004, "reaches beyond ", x.what);
      if (x.what == content::working) return;
      if (x.bytes == 0 && x.what != content::main_gradients) return;
      const int micro = lives_on(x.what) ? once : t.micro;
      if (t.what == action::wait) return landed(number, micro);
      buffer_copy& here = copies[copy_at(number, micro)];
      const int held = here.holds;
      here.touched = tasks;
      const bool again = is_added_to(x.what) || (x.what == content::saved && is_backward(t.when));
      if (o.reads && (!o.writes || again) && held != micro) fail(fault::T001, name_of(x.what));
      here.flying = here.flying || t.what == action::send;
      if (!o.writes) return;
      if (t.what == action::clear && held == micro)
        fail(fault::T002, "it was cleared or added to before");
      write(number, micro);
    });
  }
  /// Marks values that were sent as landed: those of a micro-batch, or with -1 those of all.
  constexpr void landed(int number, int micro) {
    if (micro >= 0) copies[copy_at(number, micro)].flying = false;
    for (int k = 0; micro < 0 && k < at[number].copies; ++k)
      copies[copy_of[number] + k].flying = false;
  }

  /// Lists the exchanges of the schedule: a pass receives its input; before it writes its output,
  /// the earlier one has been sent; then it sends the output.
  constexpr void find_exchanges() {
    const int all = shape.of.virtual_stages();
    for (int i = 0; i < shape.positions(micros); ++i) {
      const chunk_pass x = shape.at(i, micros);
      const int v = shape.of.number(shape.stage, x.chunk);
      if (x.backward && v < shape.lowest_stage) continue; // no gradient is needed there
      const bool from = x.backward ? v + 1 < all : v > 0,
                 to = x.backward ? v > shape.lowest_stage : v + 1 < all;
      const int low = shape.use(shape.begin(x.chunk)),
                high = shape.use(shape.begin(x.chunk + 1) - 1);
      const phases when = x.backward ? backward_pass : phases(phase::forward);
      const auto adds = [&](action what, int use) {
        exchanges.push(other_task(what, when, x.micro, use));
      };
      if (from) adds(action::receive, x.backward ? high : low);
      if (to) adds(action::wait, x.backward ? low : high), adds(action::send, exchanges.back().use);
    }
  }
  /// Checks that a task is the next exchange of the schedule. When all are done, further waits do
  /// no harm.
  constexpr void exchange(const task& t) {
    if (t.what == action::wait && t.micro < 0 && exchanged == exchanges.size()) return;
    const bool follows = exchanged < exchanges.size() && exchanges[exchanged] == t;
    ++exchanged;
    if (!follows) fail(fault::T005, "the schedule has another exchange next");
  }

  constexpr char& executed(int use, int phase, int micro) {
    return ran[(use * step_phases + phase) * micros + (micro < 0 ? 0 : micro)];
  }
  /// Returns whether every use of the step has run a phase for so many micro-batches.
  constexpr bool all_ran(int phase, int times) {
    for (int u = 0; u < shape.uses; ++u)
      if (!all_ran(shape.use(u), phase, times)) return false;
    return true;
  }
  constexpr bool all_ran(int use, int phase, int times) {
    for (int m = 0; m < times; ++m)
      if (executed(use, phase, m) == 0) return false;
    return true;
  }
  constexpr bool totalled() { return shape.totals < 0 || executed(shape.totals, 1, -1) != 0; }
  constexpr void order(const task& t) {
    if (t.what == action::receive || t.what == action::send || t.what == action::wait)
      return exchange(t);
    if (t.what == action::feed && fed[t.micro]++ != 0) fail(fault::T002, "it ran before");
    if (t.what != action::run) return;
    const int phase = number_of(is_backward(t.when) ? backward_pass : t.when);
    if (executed(t.use, phase, t.micro)++ != 0) fail(fault::T002, "it ran before");
    if (t.use == shape.totals && !all_ran(1, micros)) fail(fault::T002, "totals are not complete");
    if (shape.update < 0) return;
    if (t.use == shape.update) {
      if (phase == 0 && !all_ran(3, 1)) fail(fault::T002, "gradients are not complete");
      if (phase == 1 && executed(t.use, 0, -1) == 0) fail(fault::T002, "gradients are not reduced");
      if (phase == 1 && !totalled()) fail(fault::T002, "the totals are not whole");
      if (phase == 3 && executed(t.use, 1, -1) == 0) fail(fault::T002, "the norm is not known");
    } else if (phase == 2 && executed(t.use, 3, -1) != 0) {
      fail(fault::T002, "gradients of derived values have gone back already");
    } else if (phase == 3 && b.graph_of(t.use).has_gradients() && !all_ran(t.use, 2, micros)) {
      fail(fault::T002, "gradients of derived values are not complete");
    }
  }
  /// Returns whether the step can have such a task: its use and its micro-batch exist.
  constexpr bool has(const task& t) const {
    const bool by_micro =
        t.what == action::feed || t.what == action::receive || t.what == action::send;
    return t.use >= (t.what == action::feed || t.what == action::clear ? -1 : 0) &&
           t.use < static_cast<int>(b.uses().size()) && t.micro >= (by_micro ? 0 : -1) &&
           t.micro < micros;
  }
  constexpr void check(const task& t) {
    now = &t;
    if (!has(t)) {
      wrong.code = fault::T002;
      wrong.what << "the step has no use " << int{t.use} << " or micro-batch " << t.micro;
      return;
    }
    order(t);
    operands(t);
    ++tasks;
  }
  constexpr void ended() {
    const task last{action::run, phase::epilogue, static_cast<std::int16_t>(shape.update), -1};
    now = &last;
    const bool trains = shape.update >= 0;
    bool all = all_ran(0, 1) && all_ran(1, micros) && totalled();
    for (const char one : fed) all = all && one != 0;
    if (!all || (trains && executed(shape.update, 3, -1) == 0))
      fail(fault::T002, "something has not run");
    if (exchanged < exchanges.size()) fail(fault::T005, "the schedule has another exchange");
    for (const buffer_copy& p : copies)
      if (p.flying) fail(fault::T005, "nobody waits for what was sent");
  }
};

} // namespace detail

/// Returns MEGA-T001, T002, T004 or T005 for the first task of a step of so many micro-batches that
/// reads a value that is not there, uses incomplete gradients, touches more bytes than its buffers
/// have, or makes a wrong exchange with other stages; else no fault.
constexpr fault_record verify_step(std::span<const task> tasks, const step_shape& s,
                                   const buffers& b, int micros) {
  detail::step_walk walk(b, s, micros);
  for (const task& t : tasks)
    if (walk.wrong.code == fault::none) walk.check(t);
  if (walk.wrong.code == fault::none) walk.ended();
  return walk.wrong;
}

/// Verifies the training steps of a pipeline stage, or the evaluations between them. `graphs` are
/// by part (plan/memory.hpp).
constexpr fault_record verify_stage(std::span<const planned_graph> graphs, const stage_shape& s,
                                    bool training, int micros) {
  const buffers b = buffers_of(graphs, s);
  if (training) return verify_step(training_step(s.training, micros), s.training, b, micros);
  return verify_step(evaluation_step(s.evaluation, micros), s.evaluation, b, micros);
}

} // namespace mc
