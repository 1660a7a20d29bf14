// expect-error: MEGA-C005
//
// A width that is known only when the program runs.
#include "one_layer.hpp"

using namespace mc;

#ifdef MEGACPP_EXPECT_ERROR
int width() { return 8; }
#else
constexpr int width() { return 8; }
#endif

struct plain : gpt {
  constexpr var block(context& c, int /*kind*/, var x) const {
    const var m = to(layer_norm(c, "norm", x, bias, eps), axis::tp, R);
    const var up =
        column_parallel(c, "up", m, {{dim::ffn, positions > 0 ? width() : 8}}, bias, std);
    return x + row_parallel(c, "down", gelu(up), 1, hidden_extent(), bias, std);
  }
};

struct run : small_run {
  static constexpr plain model{small()};
  static constexpr mc::layout layout{};
};
static_assert(program<run>::ok);
