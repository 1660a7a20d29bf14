// verify_step: walks the tasks of a step, trusting neither their order nor the places of buffers.
// What a task reads must have been written for its micro-batch and not written over since; what it
// adds to must have been cleared, once; every micro-batch's gradients reach every use once, are
// joined and reduced once when they are complete, and are applied after that; totals are made whole
// once, when every micro-batch has added to them.
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
  list<int> holds;   // by buffer and copy: the micro-batch, `once` or `nothing`
  list<int> copy_of; // where a buffer's copies begin among these
  /// Bytes of an arena that a copy of a buffer was written to last.
  struct owned {
    std::int64_t first = 0, end = 0;
    int by = -1; ///< its place in `holds`
  };
  list<list<owned>> owners{list<list<owned>>(arenas)}; // by rising place
  list<char> ran;                                      // by use, phase and micro-batch
  static constexpr int nothing = -2, once = -1;

  constexpr ~step_walk() = default; // spelled out for nvcc
  constexpr step_walk(const buffers& of, const step_shape& s, int m) : b(of), shape(s), micros(m) {
    for (const buffer& x : b.all()) {
      copy_of.push(holds.size());
      holds.resize(holds.size() + x.copies, nothing);
    }
    write(b.of(content::seed), once); // before the step
    write(b.of(content::numbers), once);
    ran.resize(static_cast<int>(b.uses().size()) * step_phases * micros);
  }

  /// Takes over the bytes of a buffer's copy, which are not its own: whatever lay there is gone.
  constexpr void own(const buffer& x, int by, int micro) {
    list<owned>& all = owners[static_cast<int>(arena_for(x.what))];
    const std::int64_t first = x.at(micro < 0 ? 0 : micro), end = first + x.bytes;
    int low = 0, high = all.size(); // the first that ends behind `first`
    while (low < high) {
      const int middle = (low + high) / 2;
      if (all[middle].end > first) high = middle;
      else low = middle + 1;
    }
    for (high = low; high < all.size() && all[high].first < end; ++high)
      holds[all[high].by] = nothing;
    if (high == low) return all.insert(low, {first, end, by});
    all.erase(low + 1, high);
    all[low] = {first, end, by};
  }
  constexpr int place_of(int number, int micro) const {
    const int copies = at[number].copies;
    return copy_of[number] + (copies == 1 || micro < 0 ? 0 : micro % copies);
  }
  constexpr void fail(fault f, const task& t, const char* what) {
    if (wrong.code != fault::none) return;
    wrong.code = f;
    spell(wrong.what, t, b.uses(), shape);
    wrong.what << ": " << what;
  }

  constexpr void write(int number, int micro) {
    const int place = place_of(number, micro);
    if (at[number].bytes > 0 && holds[place] == nothing) own(at[number], place, micro);
    holds[place] = micro;
  }
  constexpr void operands(const task& t) {
    b.for_each_operand(t, [&](int number, const buffers::operand& o) {
      const buffer& x = at[number];
      if (x.what == content::working) return;
      if (x.bytes == 0 && x.what != content::main_gradients) return;
      const int micro = lives_on(x.what) ? once : t.micro;
      const int held = holds[place_of(number, micro)];
      const bool again =
          is_added_to(x.what) || (x.what == content::saved && t.when == backward_pass);
      if (o.reads && (!o.writes || again) && held != micro) fail(fault::T001, t, name_of(x.what));
      if (!o.writes) return;
      if (t.what == action::clear && held == micro)
        fail(fault::T002, t, "it was cleared or added to before");
      write(number, micro);
    });
  }

  constexpr char& has_run(int use, int phase, int micro) {
    return ran[(use * step_phases + phase) * micros + (micro < 0 ? 0 : micro)];
  }
  /// Every use of the step has run a phase for so many micro-batches.
  constexpr bool all_ran(int phase, int times) {
    for (int u = 0; u < shape.uses; ++u)
      if (!all_ran(shape.use(u), phase, times)) return false;
    return true;
  }
  constexpr bool all_ran(int use, int phase, int times) {
    for (int m = 0; m < times; ++m)
      if (has_run(use, phase, m) == 0) return false;
    return true;
  }
  constexpr bool totalled() { return shape.totals < 0 || has_run(shape.totals, 1, -1) != 0; }
  constexpr void order(const task& t) {
    if (t.what != action::run) return;
    const int phase = number_of(t.when);
    if (has_run(t.use, phase, t.micro)++ != 0) fail(fault::T002, t, "it ran before");
    if (t.use == shape.totals && !all_ran(1, micros))
      fail(fault::T002, t, "totals are not complete");
    if (shape.update < 0) return;
    if (t.use == shape.update) {
      if (phase == 0 && !all_ran(3, 1)) fail(fault::T002, t, "gradients are not complete");
      if (phase == 1 && has_run(t.use, 0, -1) == 0)
        fail(fault::T002, t, "gradients are not reduced");
      if (phase == 1 && !totalled()) fail(fault::T002, t, "the totals are not whole");
      if (phase == 3 && has_run(t.use, 1, -1) == 0) fail(fault::T002, t, "the norm is not known");
    } else if (phase == 2 && has_run(t.use, 3, -1) != 0) {
      fail(fault::T002, t, "gradients of derived values have gone back already");
    } else if (phase == 3 && !all_ran(t.use, 2, micros)) {
      fail(fault::T002, t, "gradients of derived values are not complete");
    }
  }
  constexpr void ended() {
    const task last{action::run, phase::epilogue, static_cast<std::int16_t>(shape.update), -1};
    const bool trains = shape.update >= 0;
    if (!all_ran(0, 1) || !all_ran(1, micros) || !totalled() ||
        (trains && has_run(shape.update, 3, -1) == 0))
      fail(fault::T002, last, "something has not run");
  }
};

} // namespace detail

/// MEGA-T001 or T002 for the first task of a step of so many micro-batches that reads what is not
/// there, or uses gradients that are not complete; else no fault.
constexpr fault_record verify_step(std::span<const task> tasks, const step_shape& s,
                                   const buffers& b, int micros) {
  detail::step_walk walk(b, s, micros);
  for (const task& t : tasks) {
    walk.order(t);
    walk.operands(t);
  }
  walk.ended();
  return walk.wrong;
}

/// The same of the training steps of a pipeline stage, or of the evaluations between them. `graphs`
/// are by part (plan/memory.hpp).
constexpr fault_record verify_stage(std::span<const planned_graph> graphs, const stage_shape& s,
                                    bool training, int micros) {
  const buffers b = buffers_of(graphs, s);
  if (training) return verify_step(training_step(s.training, micros), s.training, b, micros);
  return verify_step(evaluation_step(s.evaluation, micros), s.evaluation, b, micros);
}

} // namespace mc
