// expect-error: MEGA-P004
// expect-text: rms_norm(norm.weight, x) over tp
//
// Under sequence parallelism every rank normalises its own tokens, so the gain's gradient is a
// pending sum over tp. Here the gain stays invariant, the sum is missing, and the copies drift
// apart (EleutherAI/gpt-neox#1259, https://github.com/EleutherAI/gpt-neox/pull/1259;
// NVIDIA-NeMo/RL#3716).
#include "one_layer.hpp"

using namespace mc;

struct normed : gpt {
  constexpr var block(context& c, int /*kind*/, var x) const {
    const var gain = weight(c, "norm", "weight", {hidden_extent()}, {}, ones());
#ifdef MEGACPP_EXPECT_ERROR
    const var y = rms_norm(x, gain, eps); // expect-line
#else
    const var y = rms_norm(x, to(gain, axis::tp, beside(c.stream)), eps);
#endif
    const var m = to(y, axis::tp, R);
    const var h = gelu(column_parallel(c, "mlp.up", m, {{dim::ffn, ffn}}, bias, std));
    return x + row_parallel(c, "mlp.down", h, 1, hidden_extent(), bias, std);
  }
};

struct run : small_run {
  static constexpr normed model{small()};
  static constexpr mc::layout layout = sequence_parallel(2);
};
static_assert(program<run>::ok);
