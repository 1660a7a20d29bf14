// expect-error: MEGA-S012
// expect-text: rope(x)
//
// A base of RoPE in the attributes of a dropout: a probability of ten thousand would have been its
// base, and the salt its direction.
#include "one_layer.hpp"

using namespace mc;

struct turned : gpt {
  constexpr var block(context& c, int /*kind*/, var x) const {
#ifdef MEGACPP_EXPECT_ERROR
    const op::dropout_attributes told{1e4, 1};
#else
    const op::rope_attributes told{1e4, 1};
#endif
    return {x.b, x.b->emit(op::rope, {x.id, c.positions.id}, here(), told)}; // expect-line
  }
};

struct run : small_run {
  static constexpr turned model{small()};
  static constexpr mc::layout layout{};
};
static_assert(program<run>::ok);
