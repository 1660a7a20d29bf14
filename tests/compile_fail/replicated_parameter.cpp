// expect-error: MEGA-P010
// expect-text: gradient(norm.weight) over tp
//
// A parameter stored as replicated: ranks use it differently and its gradient stays a pending sum,
// which the optimizer would apply to each copy on its own (EleutherAI/gpt-neox#1259,
// https://github.com/EleutherAI/gpt-neox/pull/1259).
#include "one_layer.hpp"

using namespace mc;

struct normed : gpt {
  constexpr var block(context& c, int /*kind*/, var x) const {
#ifdef MEGACPP_EXPECT_ERROR
    const var gain =
        weight(c, "norm", "weight", {hidden_extent()}, on(axis::tp, R), ones()); // expect-line
#else
    const var gain = weight(c, "norm", "weight", {hidden_extent()}, {}, ones());
#endif
    const var y = to(rms_norm(x, to(gain, axis::tp, R), eps), axis::tp, R);
    const var h = gelu(column_parallel(c, "mlp.up", y, {{dim::ffn, ffn}}, bias, std));
    return x + row_parallel(c, "mlp.down", h, 1, hidden_extent(), bias, std);
  }
};

struct run : small_run {
  static constexpr normed model{small()};
  static constexpr mc::layout layout = sequence_parallel(2);
};
static_assert(program<run>::ok);
