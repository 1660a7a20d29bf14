// expect-error: MEGA-T002
// expect-text: epilogue(layer 0): gradients of derived values are not complete
//
// A step that takes the gradients of what a layer's prologue derives back to its parameters before
// the last micro-batch has added to them.
#include "one_layer.hpp"

#include <megacpp/plan/verify_step.hpp>

using namespace mc;

struct run : small_run {
  static constexpr gpt model = small();
  static constexpr mc::layout layout{};
};

struct step {
  static constexpr fault_record wrong = [] {
    using program = mc::program<run>;
    const stage_shape s = program::stage(0);
    const buffers b = buffers_of(program::planned, s);
    list<task> tasks = training_step(s.training, 1);
#ifdef MEGACPP_EXPECT_ERROR
    for (int i = tasks.size() - 1; i > 0; --i)
      if (tasks[i].when == phase::epilogue && tasks[i].use == 1) {
        const task early = tasks[i];
        tasks.erase(i, i + 1);
        tasks.insert(i - 4, early);
        break;
      }
#endif
    return verify_step(tasks, s.training, b, 1);
  }();
};
static_assert(reported<step, step>);
