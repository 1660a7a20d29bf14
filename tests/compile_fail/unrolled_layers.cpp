// expect-error: MEGA-S004
// expect-text: gelu(gelu@17)
//
// Layers as part of the graph instead of a loop over one: the graph is full.
#include "one_layer.hpp"

using namespace mc;

struct unrolled : gpt {
  constexpr var block(context& c, int /*kind*/, var x) const {
#ifdef MEGACPP_EXPECT_ERROR
    const int times = 600;
#else
    const int times = 3;
#endif
    var y = layer_norm(c, "norm", x, bias, eps);
    for (int i = 0; i < times; ++i) y = gelu(y); // expect-line
    return x + y;
  }
};

struct run : small_run {
  static constexpr unrolled model{small()};
  static constexpr mc::layout layout{};
};
static_assert(program<run>::ok);
