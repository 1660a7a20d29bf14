// expect-error: MEGA-T003
// expect-text: position 1 of stage 0, the forward pass of micro-batch 0 of 3 micro-batches
//
// A schedule of one's own: 1F1B with two entries of the first stage swapped. The second one receives
// micro-batch 0 first, which is not sent before that one has taken micro-batch 1.
#include "one_layer.hpp"

constexpr mc::gpt deep() {
  mc::gpt m = small();
  m.layers = 3;
  return m;
}
constexpr mc::chunk_pass swapped(const mc::pipeline& p, int stage, int i, int micros) {
#ifdef MEGACPP_EXPECT_ERROR
  if (stage == 0 && i < 2) i = 1 - i;
#endif
  return mc::one_forward_one_backward(p, stage, i, micros);
}

struct run : small_run {
  static constexpr mc::gpt model = deep();
  static constexpr mc::layout layout{.pp = 3, .schedule = &swapped};
};
static_assert(mc::program<run>::ok);
