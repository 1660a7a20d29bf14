// expect-error: MEGA-T005
// expect-text: forward(layer 0) of micro-batch 1: writes over the stream, still being sent
//
// A stage that computes the next micro-batch where the one before lies, which it is still sending:
// nothing waits in between. So did a pipeline that handed back the memory of an output while it was
// sent (NVIDIA/Megatron-LM#4047, https://github.com/NVIDIA/Megatron-LM/pull/4047), and a bucket of
// gradients that was filled again while it was reduced (deepspeedai/DeepSpeed#5545,
// https://github.com/deepspeedai/DeepSpeed/issues/5545; deepspeedai/DeepSpeed#5606,
// https://github.com/deepspeedai/DeepSpeed/pull/5606).
#include "one_layer.hpp"

using namespace mc;

using run = staged_run<2>;
struct step {
  static constexpr fault_record wrong = verdict_after<run>(0, 2, [](list<task>& tasks, buffers&) {
#ifdef MEGACPP_EXPECT_ERROR
    for (int i = 0; i < tasks.size(); ++i)
      if (tasks[i].what == action::wait && tasks[i].micro == 1) {
        tasks.erase(i, i + 1);
        break;
      }
#endif
  });
};
static_assert(reported<step, step>);
