// expect-error: MEGA-T002
// expect-text: feed forward of micro-batch 1: it ran before
//
// A stage that takes a batch twice: what it computes is of one batch, and its labels are of the
// next (deepspeedai/DeepSpeed#5729, https://github.com/deepspeedai/DeepSpeed/issues/5729).
#include "one_layer.hpp"

#include <megacpp/plan/verify_step.hpp>

using namespace mc;

struct run : small_run {
  static constexpr gpt model = small();
  static constexpr mc::layout layout{.pp = 2};
};

struct step {
  static constexpr fault_record wrong = [] {
    using program = mc::program<run>;
    const stage_shape s = program::stage(1);
    const buffers b = buffers_of(program::planned, s);
    list<task> tasks = training_step(s.training, 2);
#ifdef MEGACPP_EXPECT_ERROR
    for (int i = 0; i < tasks.size(); ++i)
      if (tasks[i].what == action::feed && tasks[i].micro == 1) {
        const task again = tasks[i];
        tasks.insert(i, again);
        break;
      }
#endif
    return verify_step(tasks, s.training, b, 2);
  }();
};
static_assert(reported<step, step>);
