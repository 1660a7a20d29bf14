// expect-error: MEGA-C005
//
// An extent by a division that contradiction() does not look at.
#include "one_layer.hpp"

using namespace mc;

struct plain : gpt {
  int groups = 2;
  static constexpr auto members = gpt::members + member_list<&plain::groups>{};
  constexpr plain() : gpt(small()) {
#ifdef MEGACPP_EXPECT_ERROR
    groups = 0;
#endif
  }
  constexpr var block(context& c, int /*kind*/, var x) const {
    const var m = to(layer_norm(c, "norm", x, bias, eps), axis::tp, R);
    const var up = column_parallel(c, "up", m, {{dim::ffn, ffn / groups}}, bias, std);
    return x + row_parallel(c, "down", gelu(up), 1, hidden_extent(), bias, std);
  }
};

struct run : small_run {
  static constexpr plain model{};
  static constexpr mc::layout layout{};
};
static_assert(program<run>::ok);
