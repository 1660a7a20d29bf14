// expect-error: MEGA-S011
// expect-text: input(next): nothing feeds it to this part
//
// Labels go to the head. A block that makes an input of them would read from nowhere.
#include "one_layer.hpp"

using namespace mc;

struct told : gpt {
  constexpr var block(context& c, int /*kind*/, var x) const {
    const value v = c.positions.type();
#ifdef MEGACPP_EXPECT_ERROR
    const feed from = feed::labels;
#else
    const feed from = feed::tokens;
#endif
    const var next = c.b->integers(from, integer_kind::indices, "next", {v.dims[0], v.dims[1]},
                                   v.at, vocabulary);
    const var table = weight(c, "t", "weight", {{dim::elements, vocabulary}, hidden_extent()}, {},
                             normal_weights(std));
    return gelu(x + embedding(next, table)); // expect-line
  }
};

struct run : small_run {
  static constexpr told model{small()};
  static constexpr mc::layout layout{};
};
static_assert(program<run>::ok);
