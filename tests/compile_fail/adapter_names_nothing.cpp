// expect-error: MEGA-C010
// expect-text: adapter(q_proj)
//
// A run adapts a layer by the name that another family has for it. Were the name not
// refused, nothing would be learned there, and nobody told.
#include "one_layer.hpp"

using namespace mc;

struct run : small_run {
  static constexpr gpt model = small();
  static constexpr mc::layout layout{.tp = 2};
#ifdef MEGACPP_EXPECT_ERROR
  static constexpr mc::lora adapter{.rank = 2, .alpha = 4, .targets = { "q_proj", "c_fc" }};
#else
  static constexpr mc::lora adapter{.rank = 2, .alpha = 4, .targets = {"mlp.c_fc", "c_proj"}};
#endif
};
static_assert(program<run>::ok);
