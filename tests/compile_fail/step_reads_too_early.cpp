// expect-error: MEGA-T001
// expect-text: forward(layer 1) of micro-batch 0: the stream
//
// A step whose layers run in another order than the stream goes.
#include "one_layer.hpp"

using namespace mc;

using run = staged_run<1>;
struct step {
  static constexpr fault_record wrong = verdict_after<run>(0, 1, [](list<task>& tasks, buffers&) {
#ifdef MEGACPP_EXPECT_ERROR
    for (int i = 0; i + 1 < tasks.size(); ++i)
      if (tasks[i].when == phase::forward && tasks[i].use == 1) {
        const task first = tasks[i];
        tasks[i] = tasks[i + 1], tasks[i + 1] = first;
        break;
      }
#endif
  });
};
static_assert(reported<step, step>);
