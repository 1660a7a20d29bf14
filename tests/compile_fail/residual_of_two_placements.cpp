// expect-error: MEGA-P002
// expect-text: +(x, linear@16) over tp
//
// The branch is reduced to the whole sequence, as without sequence parallelism, and added to a
// stream that holds a slice of it: token i of one is not token i of the other.
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
    return x + to(y, axis::tp, I); // expect-line
#else
    return x + to(y, axis::tp, c.stream);
#endif
  }
};

struct run : small_run {
  static constexpr mlp model{small()};
  static constexpr mc::layout layout = sequence_parallel(2);
};
static_assert(program<run>::ok);
