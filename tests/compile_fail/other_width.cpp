// expect-error: MEGA-S002
// expect-text: linear(gelu@14, mlp.down.weight)
//
// Two projections of one MLP disagree about its width.
#include "one_layer.hpp"

using namespace mc;

struct mlp : gpt {
  constexpr var block(context& c, int /*kind*/, var x) const {
    const var norm = to(layer_norm(c, "norm", x, bias, eps), axis::tp, R);
    const placement cut = on(axis::tp, S(dim::ffn));
    const var up = column_parallel(c, "mlp.up", norm, {{dim::ffn, ffn}}, bias, std);
    const var h = gelu(up);
#ifdef MEGACPP_EXPECT_ERROR
    const extent width{dim::ffn, 4 * hidden};
#else
    const extent width{dim::ffn, ffn};
#endif
    const var w =
        weight(c, "mlp.down", "weight", {hidden_extent(), width}, cut, normal_weights(std));
    const var y = linear(h, w); // expect-line
    return x + to(y, axis::tp, c.stream);
  }
};

struct run : small_run {
  static constexpr mlp model{small()};
  static constexpr mc::layout layout = tensor_parallel(2);
};
static_assert(program<run>::ok);
