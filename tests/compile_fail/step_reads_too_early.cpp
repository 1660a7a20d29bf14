// expect-error: MEGA-T001
// expect-text: forward(layer 1) of micro-batch 0: the stream
//
// A step whose layers run in another order than the stream goes.
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
    for (int i = 0; i + 1 < tasks.size(); ++i)
      if (tasks[i].when == phase::forward && tasks[i].use == 1) {
        const task first = tasks[i];
        tasks[i] = tasks[i + 1], tasks[i + 1] = first;
        break;
      }
#endif
    return verify_step(tasks, s.training, b, 1);
  }();
};
static_assert(reported<step, step>);
