// expect-error: MEGA-P003
// expect-text: to(layer_norm@13) over tp
//
// Back from replicated to invariant: the ranks may have used the value differently, and declaring
// them equal leaves out their gradients' sum (NVIDIA-NeMo/Automodel#3822: duplicated or disjoint
// work decides between no reduction and a sum, https://github.com/NVIDIA-NeMo/Automodel/pull/3822).
#include "one_layer.hpp"

using namespace mc;

struct two_branches : gpt {
  constexpr var block(context& c, int /*kind*/, var x) const {
    const var norm = layer_norm(c, "norm", x, bias, eps);
    const var inner = to(norm, axis::tp, R);
    const var h = gelu(column_parallel(c, "mlp.up", inner, {{dim::ffn, ffn}}, bias, std));
    const var y = row_parallel(c, "mlp.down", h, 1, hidden_extent(), bias, std);
#ifdef MEGACPP_EXPECT_ERROR
    return to(inner, axis::tp, I) + y; // expect-line
#else
    return norm + y;
#endif
  }
};

struct run : small_run {
  static constexpr two_branches model{small()};
  static constexpr mc::layout layout = tensor_parallel(2);
};
static_assert(program<run>::ok);
