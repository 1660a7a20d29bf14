// expect-error: MEGA-T005
// expect-text: epilogue(the update): nobody waits for what was sent
//
// A step that ends while it is still sending from memory that the next one writes: nobody waits for
// the handle (NVIDIA/TensorRT-LLM#3688, https://github.com/NVIDIA/TensorRT-LLM/pull/3688).
#include "one_layer.hpp"

using namespace mc;

using run = staged_run<2>;
struct step {
  static constexpr fault_record wrong = verdict_after<run>(0, 2, [](list<task>& tasks, buffers&) {
#ifdef MEGACPP_EXPECT_ERROR
    int last = tasks.size() - 1;
    while (tasks[last].what != action::wait) --last;
    tasks.erase(last, last + 1);
#endif
  });
};
static_assert(reported<step, step>);
