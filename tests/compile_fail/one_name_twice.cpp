// expect-error: MEGA-S005
// expect-text: parameter(ln_1.weight)
//
// A copied line: two norms under one name, of which a checkpoint would keep one
// (NVIDIA/Megatron-LM#7452, finding 12: names that are not unique over stages,
// https://github.com/NVIDIA/Megatron-LM/issues/7452).
#include "one_layer.hpp"

using namespace mc;

struct sandwich : gpt {
  constexpr var block(context& c, int /*kind*/, var x) const {
    const var a = layer_norm(c, "ln_1", x, false, eps);
#ifdef MEGACPP_EXPECT_ERROR
    return x + layer_norm(c, "ln_1", gelu(a), false, eps); // expect-line
#else
    return x + layer_norm(c, "ln_2", gelu(a), false, eps);
#endif
  }
};

struct run : small_run {
  static constexpr sandwich model{small()};
  static constexpr mc::layout layout{};
};
static_assert(program<run>::ok);
