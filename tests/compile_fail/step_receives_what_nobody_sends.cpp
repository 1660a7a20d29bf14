// expect-error: MEGA-T005
// expect-text: receive backward(layer 0) of micro-batch 0: the schedule has another exchange next
//
// A stage that waits for two cotangents where its neighbour sends one (deepspeedai/DeepSpeed#5518,
// https://github.com/deepspeedai/DeepSpeed/pull/5518).
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
    const stage_shape s = program::stage(0);
    const buffers b = buffers_of(program::planned, s);
    list<task> tasks = training_step(s.training, 2);
#ifdef MEGACPP_EXPECT_ERROR
    for (int i = 0; i < tasks.size(); ++i)
      if (tasks[i].what == action::receive) {
        const task again = tasks[i];
        tasks.insert(i, again);
        break;
      }
#endif
    return verify_step(tasks, s.training, b, 2);
  }();
};
static_assert(reported<step, step>);
