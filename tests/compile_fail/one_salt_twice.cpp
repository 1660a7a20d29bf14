// expect-error: MEGA-C001
// expect-text: dropout(gelu@18): salt 0 is that of the dropout in line 17 too
//
// Two dropouts of one graph with one salt drop the same elements.
#include "one_layer.hpp"

using namespace mc;

struct dropped : gpt {
  constexpr var block(context& c, int /*kind*/, var x) const {
#ifdef MEGACPP_EXPECT_ERROR
    const int other = 0;
#else
    const int other = 1;
#endif
    const var keys = to(c.token_keys, axis::tp, c.stream);
    const var h = mc::dropout(x, keys, 0.1, 0);
    return x + mc::dropout(gelu(h), keys, 0.1, other); // expect-line
  }
};

struct run : small_run {
  static constexpr dropped model{small()};
  static constexpr mc::layout layout{};
};
static_assert(program<run>::ok);
