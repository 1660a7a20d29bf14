// expect-error: MEGA-T002
// expect-text: feed forward of micro-batch 1: it ran before
//
// A stage that takes a batch twice: what it computes is of one batch, and its labels are of the
// next (deepspeedai/DeepSpeed#5729, https://github.com/deepspeedai/DeepSpeed/issues/5729).
#include "one_layer.hpp"

using namespace mc;

using run = staged_run<2>;
struct step {
  static constexpr fault_record wrong = verdict_after<run>(1, 2, [](list<task>& tasks, buffers&) {
#ifdef MEGACPP_EXPECT_ERROR
    for (int i = 0; i < tasks.size(); ++i)
      if (tasks[i].what == action::feed && tasks[i].micro == 1) {
        const task again = tasks[i];
        tasks.insert(i, again);
        break;
      }
#endif
  });
};
static_assert(reported<step, step>);
