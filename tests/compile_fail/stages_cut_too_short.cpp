// expect-error: MEGA-C002
// expect-text: stages have 7 layers, and the model 8
//
// A list of layers that leaves one out (NVIDIA/Megatron-LM#468,
// https://github.com/NVIDIA/Megatron-LM/issues/468: 80 layers became 64).
#include "one_layer.hpp"

constexpr mc::gpt deep() {
  mc::gpt m = small();
  m.layers = 8;
  return m;
}

struct run : small_run {
  static constexpr mc::gpt model = deep();
#ifdef MEGACPP_EXPECT_ERROR
  static constexpr mc::layout layout{.pp = 4, .cut = {.layers = { 1, 3, 2, 1 } }};
#else
  static constexpr mc::layout layout{.pp = 4, .cut = {.layers = {1, 3, 3, 1}}};
#endif
};
static_assert(mc::program<run>::ok);
