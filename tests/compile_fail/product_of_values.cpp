// expect-error: MEGA-S013
// expect-text: *(linear@
//
// Two values multiplied as numbers are.
#include "one_layer.hpp"

using namespace mc;

struct plain : gpt {
  constexpr var block(context& c, int /*kind*/, var x) const {
    const var m = to(layer_norm(c, "norm", x, bias, eps), axis::tp, R);
    const var gate = column_parallel(c, "gate", m, {{dim::ffn, ffn}}, bias, std),
              up = column_parallel(c, "up", m, {{dim::ffn, ffn}}, bias, std);
#ifdef MEGACPP_EXPECT_ERROR
    const var y = gate * up; // expect-line
#else
    const var y = swiglu(gate, up);
#endif
    return x + row_parallel(c, "down", y, 1, hidden_extent(), bias, std);
  }
};

struct run : small_run {
  static constexpr plain model{small()};
  static constexpr mc::layout layout{};
};
static_assert(program<run>::ok);
