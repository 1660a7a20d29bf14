// expect-error: MEGA-P010
// expect-text: gradient(mlp.skip.weight)
//
// A parameter that no output depends on gets no gradient and would only decay
// (NVIDIA-NeMo/Automodel#2995: experts without a gradient,
// https://github.com/NVIDIA-NeMo/Automodel/pull/2995).
#include "one_layer.hpp"

using namespace mc;

struct mlp : gpt {
  constexpr var block(context& c, int /*kind*/, var x) const {
    const var norm = to(layer_norm(c, "norm", x, bias, eps), axis::tp, R);
    const var h = gelu(column_parallel(c, "mlp.up", norm, {{dim::ffn, ffn}}, bias, std));
    const var skip = weight(c, "mlp.skip", "weight", {hidden_extent()}, {}, ones()); // expect-line
    const var y = row_parallel(c, "mlp.down", h, 1, hidden_extent(), bias, std);
#ifdef MEGACPP_EXPECT_ERROR
    const var scaled = x;
    (void)skip;
#else
    const var scaled = rms_norm(x, skip, eps);
#endif
    return scaled + y;
  }
};

struct run : small_run {
  static constexpr mlp model{small()};
  static constexpr mc::layout layout = tensor_parallel(2);
};
static_assert(program<run>::ok);
