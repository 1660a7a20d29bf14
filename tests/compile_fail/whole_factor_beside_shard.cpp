// expect-error: MEGA-P001
// expect-text: linear(gelu@13, mlp.down.weight) over tp
//
// The second factor of a row-parallel product is not cut along the summed dim: every rank would
// multiply its slice of the inputs with a weight of all of them.
#include "one_layer.hpp"

using namespace mc;

struct mlp : gpt {
  constexpr var block(context& c, int /*kind*/, var x) const {
    const var norm = to(layer_norm(c, "norm", x, bias, eps), axis::tp, R);
    const var h = gelu(column_parallel(c, "mlp.up", norm, {{dim::ffn, ffn}}, bias, std));
#ifdef MEGACPP_EXPECT_ERROR
    const placement stored{};
#else
    const placement stored = on(axis::tp, S(dim::ffn));
#endif
    const var w = weight(c, "mlp.down", "weight", {hidden_extent(), {dim::ffn, ffn}}, stored,
                         normal_weights(std));
    const var y = linear(h, w); // expect-line
    return x + to(y, axis::tp, c.stream);
  }
};

struct run : small_run {
  static constexpr mlp model{small()};
  static constexpr mc::layout layout = tensor_parallel(2);
};
static_assert(program<run>::ok);
