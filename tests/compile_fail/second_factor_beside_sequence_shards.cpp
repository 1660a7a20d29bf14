// expect-error: MEGA-P004
// expect-text: linear(mlp.down.lora_B, linear@21) over tp
//
// Under sequence parallelism the first factor of a row-parallel layer leaves every rank the sums of
// its own tokens, so the second one, which is whole on every rank, has a gradient that is a pending
// sum over tp. Were it not summed, the factor of the last layer on the rank that is exported could
// stay zero, as it did (modelscope/mcore-bridge#173,
// https://github.com/modelscope/mcore-bridge/pull/173).
#include "one_layer.hpp"

using namespace mc;

struct adapted_by_hand : gpt {
  constexpr var block(context& c, int /*kind*/, var x) const {
    constexpr extent rank{dim::adapter, 2}, inputs{dim::ffn, 32};
    const var a = weight(c, "mlp.down", "lora_A", {rank, inputs}, on(axis::tp, S(dim::ffn)),
                         normal_weights(std));
    const var b = weight(c, "mlp.down", "lora_B", {hidden_extent(), rank}, {}, zeros());
    const var y = to(layer_norm(c, "norm", x, bias, eps), axis::tp, R);
    const var h = gelu(column_parallel(c, "mlp.up", y, {inputs}, bias, std));
    const var narrow = to(linear(h, a), axis::tp, c.stream);
#ifdef MEGACPP_EXPECT_ERROR
    const var added = linear(narrow, b); // expect-line
#else
    const var added = linear(narrow, to(b, axis::tp, R));
#endif
    return x + row_parallel(c, "mlp.down", h, 1, hidden_extent(), bias, std) + added;
  }
};

struct run : small_run {
  static constexpr adapted_by_hand model{small()};
  static constexpr mc::layout layout = sequence_parallel(2);
};
static_assert(program<run>::ok);
