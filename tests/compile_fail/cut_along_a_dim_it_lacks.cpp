// expect-error: MEGA-S003
// expect-text: parameter(mlp.down.bias: no ffn)
//
// The bias of a row-parallel layer is cut like its weight; but it has the outputs' dim, not the
// inputs'.
#include "one_layer.hpp"

using namespace mc;

struct mlp : gpt {
  constexpr var block(context& c, int /*kind*/, var x) const {
    const var norm = to(layer_norm(c, "norm", x, bias, eps), axis::tp, R);
    const var h = gelu(column_parallel(c, "mlp.up", norm, {{dim::ffn, ffn}}, bias, std));
    const var y = row_parallel(c, "mlp.down", h, 1, hidden_extent(), false, std);
#ifdef MEGACPP_EXPECT_ERROR
    const placement stored = on(axis::tp, S(dim::ffn));
#else
    const placement stored{};
#endif
    const var b = weight(c, "mlp.down", "bias", {hidden_extent()}, stored, zeros()); // expect-line
    return x + add_bias(y, b);
  }
};

struct run : small_run {
  static constexpr mlp model{small()};
  static constexpr mc::layout layout = tensor_parallel(2);
};
static_assert(program<run>::ok);
