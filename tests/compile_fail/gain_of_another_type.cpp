// expect-error: MEGA-S007
// expect-text: rms_norm(gain.weight)
//
// A gain kept in fp32 beside values in bf16: the kernel would read every other half of a number.
#include "one_layer.hpp"

using namespace mc;

struct wide_gain : gpt {
  constexpr var block(context& c, int /*kind*/, var x) const {
#ifdef MEGACPP_EXPECT_ERROR
    const dtype type = dtype::f32;
#else
    const dtype type = c.precision.weight;
#endif
    const var gain = c.b->parameter("gain", "weight", type, {hidden_extent()}, {}, ones());
    return x + rms_norm(x, to(to(gain, axis::dp, R), axis::cp, R), eps); // expect-line
  }
};

struct run : small_run {
  static constexpr wide_gain model{small()};
  static constexpr mc::layout layout{};
  using precision = mc::bf16_mixed;
};
static_assert(program<run>::ok);
