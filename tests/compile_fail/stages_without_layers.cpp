// expect-error: MEGA-C002
// expect-text: pipeline stages of equally many
//
// Two layers over four stages (NVIDIA/Megatron-LM#468: a floor division silently made the model
// smaller, https://github.com/NVIDIA/Megatron-LM/issues/468).
#include "one_layer.hpp"

struct run : small_run {
  static constexpr mc::gpt model = small();
#ifdef MEGACPP_EXPECT_ERROR
  static constexpr mc::layout layout{.pp = 4}; // expect-line
#else
  static constexpr mc::layout layout{.pp = 2};
#endif
};
static_assert(mc::program<run>::ok);
