// expect-error: MEGA-S004
// expect-text: parameter(up.weight: more than 2^48 elements)
//
// Bytes of so large a parameter are beyond a 64-bit integer: a plan would be one of small or negative
// sizes.
#include "one_layer.hpp"

using namespace mc;

struct vast : gpt {
  constexpr var block(context& c, int /*kind*/, var x) const {
#ifdef MEGACPP_EXPECT_ERROR
    const extent F{dim::ffn, std::int64_t{1} << 61};
#else
    const extent F{dim::ffn, 32};
#endif
    const var m = to(layer_norm(c, "norm", x, bias, eps), axis::tp, R);
    const var up = column_parallel(c, "up", m, {F}, bias, std);
    return x + row_parallel(c, "down", gelu(up), 1, hidden_extent(), bias, std);
  }
};

struct run : small_run {
  static constexpr vast model{small()};
  static constexpr mc::layout layout{};
};
static_assert(program<run>::ok);
