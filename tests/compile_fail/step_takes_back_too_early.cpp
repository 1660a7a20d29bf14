// expect-error: MEGA-T002
// expect-text: epilogue(layer 0): gradients of derived values are not complete
//
// A step that takes the gradients of what a layer's prologue derives back to its parameters before
// the last micro-batch has added to them.
#include "one_layer.hpp"

using namespace mc;

using run = staged_run<1>;
struct step {
  static constexpr fault_record wrong = verdict_after<run>(0, 1, [](list<task>& tasks, buffers&) {
#ifdef MEGACPP_EXPECT_ERROR
    for (int i = tasks.size() - 1; i > 0; --i)
      if (tasks[i].when == phase::epilogue && tasks[i].use == 1) {
        const task early = tasks[i];
        tasks.erase(i, i + 1);
        tasks.insert(i - 4, early);
        break;
      }
#endif
  });
};
static_assert(reported<step, step>);
