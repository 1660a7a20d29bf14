// expect-error: MEGA-T005
// expect-text: receive backward(layer 0) of micro-batch 0: the schedule has another exchange next
//
// A stage that receives a cotangent before it sends a stream, and a neighbour that waits for that
// stream before it sends: where each waits for the other, both do so without end
// (pytorch/pytorch#109401, https://github.com/pytorch/pytorch/issues/109401;
// NVIDIA/Megatron-LM#5100, https://github.com/NVIDIA/Megatron-LM/issues/5100;
// NVIDIA/Megatron-LM#1450, https://github.com/NVIDIA/Megatron-LM/issues/1450).
#include "one_layer.hpp"

using namespace mc;

using run = staged_run<2>;
struct step {
  static constexpr fault_record wrong = verdict_after<run>(0, 2, [](list<task>& tasks, buffers&) {
#ifdef MEGACPP_EXPECT_ERROR
    for (int i = 0; i < tasks.size(); ++i)
      if (tasks[i].what == action::send && tasks[i].micro == 1) {
        const task first = tasks[i];
        tasks[i] = tasks[i + 1], tasks[i + 1] = first;
        break;
      }
#endif
  });
};
static_assert(reported<step, step>);
