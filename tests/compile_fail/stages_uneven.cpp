// expect-error: MEGA-C002
// expect-text: pipeline stages of equally many
//
// Six layers over four stages (NVIDIA/Megatron-LM#468: a floor division silently made the model
// smaller, https://github.com/NVIDIA/Megatron-LM/issues/468).
#include "one_layer.hpp"

constexpr mc::gpt deep() {
  mc::gpt m = small();
  m.layers = 6;
  return m;
}
constexpr mc::layout pipeline(int stages) {
  mc::layout l;
  l.pp = stages;
  return l;
}

struct run : small_run {
  static constexpr mc::gpt model = deep();
#ifdef MEGACPP_EXPECT_ERROR
  static constexpr mc::layout layout = pipeline(4);
#else
  static constexpr mc::layout layout = pipeline(3);
#endif
};
static_assert(mc::program<run>::ok);
