// expect-error: MEGA-C003
// expect-text: the sequence is longer than the model's positions
//
// 64 tokens, 32 learned positions.
#include "one_layer.hpp"

struct run : small_run {
  static constexpr mc::gpt model = small();
  static constexpr mc::layout layout{};
#ifdef MEGACPP_EXPECT_ERROR
  static constexpr mc::batching batch{2, 64}; // expect-line
#else
  static constexpr mc::batching batch{2, 32};
#endif
};
static_assert(mc::program<run>::ok);
