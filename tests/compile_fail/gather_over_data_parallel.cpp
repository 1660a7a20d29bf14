// expect-error: MEGA-P011
// expect-text: to(gelu@14) over dp
//
// The batch of all replicas in one tensor: how many there are is known only when the program
// starts, so this tensor has no extent.
#include "one_layer.hpp"

using namespace mc;

struct whole_batch : gpt {
  constexpr var block(context& c, int /*kind*/, var x) const {
    const var in = to(x, axis::tp, R);
    const var up = column_parallel(c, "up", in, {{dim::ffn, ffn}}, bias, std);
    const var h = gelu(up);
#ifdef MEGACPP_EXPECT_ERROR
    const var all = to(h, axis::dp, R); // expect-line
#else
    const var all = h;
#endif
    return x + row_parallel(c, "down", all, 1, hidden_extent(), bias, std);
  }
};

struct run : small_run {
  static constexpr whole_batch model{small()};
  static constexpr mc::layout layout = tensor_parallel(2);
};
static_assert(program<run>::ok);
