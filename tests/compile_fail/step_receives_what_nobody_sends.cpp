// expect-error: MEGA-T005
// expect-text: receive backward(layer 0) of micro-batch 0: the schedule has another exchange next
//
// A stage that waits for two cotangents where its neighbour sends one (deepspeedai/DeepSpeed#5518,
// https://github.com/deepspeedai/DeepSpeed/pull/5518).
#include "one_layer.hpp"

using namespace mc;

using run = staged_run<2>;
struct step {
  static constexpr fault_record wrong = verdict_after<run>(0, 2, [](list<task>& tasks, buffers&) {
#ifdef MEGACPP_EXPECT_ERROR
    for (int i = 0; i < tasks.size(); ++i)
      if (tasks[i].what == action::receive) {
        const task again = tasks[i];
        tasks.insert(i, again);
        break;
      }
#endif
  });
};
static_assert(reported<step, step>);
