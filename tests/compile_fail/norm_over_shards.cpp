// expect-error: MEGA-P007
// expect-text: rms_norm(linear@13) over tp
//
// The mean over a dim of which a rank holds a slice is not the mean (NVIDIA/Megatron-LM#737: the
// mean of label smoothing taken over a shard of the vocabulary,
// https://github.com/NVIDIA/Megatron-LM/issues/737).
#include "one_layer.hpp"

using namespace mc;

struct inner_norm : gpt {
  constexpr var block(context& c, int /*kind*/, var x) const {
    const var h = column_parallel(c, "up", to(x, axis::tp, R), {{dim::ffn, ffn}}, bias, std);
    const var gain = to(weight(c, "norm", "weight", {{dim::ffn, ffn}}, {}, ones()), axis::tp, R);
#ifdef MEGACPP_EXPECT_ERROR
    const var y = rms_norm(h, gain, eps); // expect-line
#else
    const var y = to(rms_norm(to(h, axis::tp, R), gain, eps), axis::tp, S(dim::ffn));
#endif
    return x + row_parallel(c, "down", y, 1, hidden_extent(), bias, std);
  }
};

struct run : small_run {
  static constexpr inner_norm model{small()};
  static constexpr mc::layout layout = tensor_parallel(2);
};
static_assert(program<run>::ok);
