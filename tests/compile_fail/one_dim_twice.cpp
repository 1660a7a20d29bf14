// expect-error: MEGA-S003
// expect-text: parameter(mix.weight: hidden twice, call one of the two otherwise)
//
// Cut along hidden: its rows or its columns? Tensors have every name once, so that a placement
// means one thing (hpcaitech/ColossalAI#817: a fused matrix cut as one block,
// https://github.com/hpcaitech/ColossalAI/issues/817).
#include "one_layer.hpp"

using namespace mc;

struct mixer : gpt {
  constexpr var block(context& c, int /*kind*/, var x) const {
    const var in = to(layer_norm(c, "norm", x, bias, eps), axis::tp, R);
#ifdef MEGACPP_EXPECT_ERROR
    const extent inner = hidden_extent();
#else
    const extent inner{dim::ffn, hidden};
#endif
    const placement cut = on(axis::tp, S(inner.d));
    const parameter_info info = normal_weights(std);
    const var w = weight(c, "mix", "weight", {inner, hidden_extent()}, cut, info); // expect-line
    return x + row_parallel(c, "out", gelu(linear(in, w)), 1, hidden_extent(), bias, std);
  }
};

struct run : small_run {
  static constexpr mixer model{small()};
  static constexpr mc::layout layout = tensor_parallel(2);
};
static_assert(program<run>::ok);
