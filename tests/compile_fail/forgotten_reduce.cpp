// expect-error: MEGA-P005
// expect-text: +(linear@17, x) over tp
//
// The sum after a row-parallel layer is lost: each rank adds its own part to the residual stream
// (NVIDIA/Megatron-LM#5338: _reduce returned the unreduced tensor,
// https://github.com/NVIDIA/Megatron-LM/pull/5338).
#include "one_layer.hpp"

using namespace mc;

struct mlp : gpt {
  constexpr var block(context& c, int /*kind*/, var x) const {
    const var norm = to(layer_norm(c, "norm", x, bias, eps), axis::tp, R);
    const var h = gelu(column_parallel(c, "mlp.up", norm, {{dim::ffn, ffn}}, bias, std));
    const var w = weight(c, "mlp.down", "weight", {hidden_extent(), {dim::ffn, ffn}},
                         on(axis::tp, S(dim::ffn)), normal_weights(std));
    const var y = linear(h, w);
#ifdef MEGACPP_EXPECT_ERROR
    return x + y; // expect-line
#else
    return x + to(y, axis::tp, c.stream);
#endif
  }
};

struct run : small_run {
  static constexpr mlp model{small()};
  static constexpr mc::layout layout = tensor_parallel(2);
};
static_assert(program<run>::ok);
