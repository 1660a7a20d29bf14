// expect-error: MEGA-S003
// expect-text: +(x, gelu@13)
//
// The branch comes back before its last projection; its width happens to be that of the stream.
#include "one_layer.hpp"

using namespace mc;

struct mlp : gpt {
  constexpr var block(context& c, int /*kind*/, var x) const {
    const var norm = layer_norm(c, "norm", x, bias, eps);
    const var up = column_parallel(c, "mlp.up", norm, {{dim::ffn, hidden}}, bias, std);
    const var h = gelu(up);
#ifdef MEGACPP_EXPECT_ERROR
    return x + h; // expect-line
#else
    return x + row_parallel(c, "mlp.down", h, 1, hidden_extent(), bias, std);
#endif
  }
};

struct run : small_run {
  static constexpr mlp model{small()};
  static constexpr mc::layout layout{};
};
static_assert(program<run>::ok);
