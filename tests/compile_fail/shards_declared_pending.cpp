// expect-error: MEGA-P003
// expect-text: to(gelu@14) over tp
//
// Slices of one tensor are declared to be parts of a sum, to be reduced by an all-reduce. The
// zero-padding that would make this true exists only as the derived adjoint of replicated to
// sharded.
#include "one_layer.hpp"

using namespace mc;

struct gathered : gpt {
  constexpr var block(context& c, int /*kind*/, var x) const {
    const var in = to(x, axis::tp, R);
    const var h = gelu(column_parallel(c, "up", in, {{dim::ffn, ffn}}, bias, std));
    const var w =
        weight(c, "down", "weight", {hidden_extent(), {dim::ffn, ffn}}, {}, normal_weights(std));
#ifdef MEGACPP_EXPECT_ERROR
    const var whole = to(to(h, axis::tp, P), axis::tp, I); // expect-line
#else
    const var whole = to(h, axis::tp, I);
#endif
    return x + linear(whole, w);
  }
};

struct run : small_run {
  static constexpr gathered model{small()};
  static constexpr mc::layout layout = tensor_parallel(2);
};
static_assert(program<run>::ok);
