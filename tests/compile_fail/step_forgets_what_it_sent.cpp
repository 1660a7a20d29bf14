// expect-error: MEGA-T005
// expect-text: epilogue(the update): nobody waits for what was sent
//
// A step that ends while it is still sending from memory that the next one writes: nobody waits for
// the handle (NVIDIA/TensorRT-LLM#3688, https://github.com/NVIDIA/TensorRT-LLM/pull/3688).
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
    int last = tasks.size() - 1;
    while (tasks[last].what != action::wait) --last;
    tasks.erase(last, last + 1);
#endif
    return verify_step(tasks, s.training, b, 2);
  }();
};
static_assert(reported<step, step>);
