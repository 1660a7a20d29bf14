// expect-error: MEGA-T003
// expect-text: it keeps every micro-batch of a step
//
// GPipe keeps every micro-batch of a step, and nothing says how many those are.
#include "one_layer.hpp"

constexpr mc::gpt deep() {
  mc::gpt m = small();
  m.layers = 2;
  return m;
}

struct run : small_run {
  static constexpr mc::gpt model = deep();
  static constexpr mc::layout layout{.pp = 2, .schedule = &mc::gpipe};
#ifdef MEGACPP_EXPECT_ERROR
  static constexpr mc::batching batch{.micro = 2, .sequence = 16};
#else
  static constexpr mc::batching batch{.micro = 2, .sequence = 16, .micro_batches = 4};
#endif
};
static_assert(mc::program<run>::ok);
