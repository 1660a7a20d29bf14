// expect-error: MEGA-P004
// expect-text: linear(mlp.up.lora_A, layer_norm@18) over tp
//
// Under sequence parallelism the first factor of a column-parallel layer, which is whole on every
// rank, reads that rank's tokens: its gradient is a pending sum over tp. Were it not summed, each
// rank would train a factor of its own, and export that of rank 0 (modelscope/mcore-bridge#173,
// https://github.com/modelscope/mcore-bridge/pull/173).
#include "one_layer.hpp"

using namespace mc;

struct adapted_by_hand : gpt {
  constexpr var block(context& c, int /*kind*/, var x) const {
    constexpr extent rank{dim::adapter, 2}, outputs{dim::ffn, 32};
    const var a = weight(c, "mlp.up", "lora_A", {rank, hidden_extent()}, {}, normal_weights(std));
    const var b =
        weight(c, "mlp.up", "lora_B", {outputs, rank}, on(axis::tp, S(dim::ffn)), zeros());
    const var y = layer_norm(c, "norm", x, bias, eps);
#ifdef MEGACPP_EXPECT_ERROR
    const var narrow = linear(y, a); // expect-line
#else
    const var narrow = linear(y, to(a, axis::tp, R));
#endif
    const var wide = column_parallel(c, "mlp.up", to(y, axis::tp, R), {outputs}, bias, std);
    const var h = gelu(wide + linear(to(narrow, axis::tp, R), b));
    return x + row_parallel(c, "mlp.down", h, 1, hidden_extent(), bias, std);
  }
};

struct run : small_run {
  static constexpr adapted_by_hand model{small()};
  static constexpr mc::layout layout = sequence_parallel(2);
};
static_assert(program<run>::ok);
