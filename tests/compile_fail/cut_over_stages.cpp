// expect-error: MEGA-P018
// expect-text: parameter(up.weight) over pp
//
// A weight sharded over pipeline stages, which hold different layers: nobody has the other parts.
#include "one_layer.hpp"

using namespace mc;

struct staged : gpt {
  constexpr var block(context& c, int /*kind*/, var x) const {
#ifdef MEGACPP_EXPECT_ERROR
    const axis cut = axis::pp;
#else
    const axis cut = axis::tp;
#endif
    const placement shard = on(cut, S(dim::ffn));
    const extent up = {dim::ffn, ffn};
    const auto init = normal_weights(std);
    const var w = weight(c, "up", "weight", {up, hidden_extent()}, shard, init); // expect-line
    const var h = gelu(linear(to(x, cut, R), w));
    const var down = weight(c, "down", "weight", {hidden_extent(), {dim::ffn, ffn}},
                            on(cut, S(dim::ffn)), normal_weights(std));
    return x + to(linear(h, down), cut, I);
  }
};

struct run : small_run {
  static constexpr staged model{small()};
  static constexpr mc::layout layout = [] {
    mc::layout l = tensor_parallel(2);
    l.pp = 2;
    return l;
  }();
};
static_assert(program<run>::ok);
