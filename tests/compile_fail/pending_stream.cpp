// expect-error: MEGA-P005
// expect-text: block(linear@20) over tp
//
// As forgotten_reduce, without a residual that would meet the pending sum: it leaves the block, and
// the next layer would take it for the stream.
#include "one_layer.hpp"

using namespace mc;

struct plain : gpt {
  constexpr var block(context& c, int /*kind*/, var x) const {
    const var h = gelu(column_parallel(c, "up", to(x, axis::tp, R), {{dim::ffn, ffn}}, bias, std));
#ifdef MEGACPP_EXPECT_ERROR
    const place goal = h.at(axis::dp).s == state::shard ? P : I;
#else
    const place goal = c.stream;
#endif
    const var w = weight(c, "down", "weight", {hidden_extent(), {dim::ffn, ffn}},
                         on(axis::tp, S(dim::ffn)), normal_weights(std));
    return to(linear(h, w), axis::tp, goal); // expect-line
  }
};

struct run : small_run {
  static constexpr plain model{small()};
  static constexpr mc::layout layout = tensor_parallel(2);
};
static_assert(program<run>::ok);
