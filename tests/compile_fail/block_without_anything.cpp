// expect-error: MEGA-S009
// expect-text: block(x)
//
// Layers of one kind hand the stream on as it came.
#include "one_layer.hpp"

using namespace mc;

struct sparse : gpt {
  static constexpr int kinds = 2;
  constexpr int kind_of(int layer) const { return layer % 2; }
  constexpr var block(context& c, int kind, var x) const {
#ifdef MEGACPP_EXPECT_ERROR
    if (kind == 1) return x;
#endif
    return gpt::block(c, kind, x);
  }
};

struct run : small_run {
  static constexpr sparse model{small()};
  static constexpr mc::layout layout{};
};
static_assert(program<run>::ok);
