// expect-error: MEGA-S010
// expect-text: : positions holds positions below 16, not indices below 8
//
// A learned table of fewer positions than a sequence has tokens: the later ones would all be zeros
// (karpathy/nanoGPT asserts at run time, https://github.com/karpathy/nanoGPT/blob/master/model.py).
#include "one_layer.hpp"

using namespace mc;

struct learned : gpt {
  constexpr var block(context& c, int kind, var x) const {
#ifdef MEGACPP_EXPECT_ERROR
    const extent rows{dim::elements, 8};
#else
    const extent rows{dim::elements, 16};
#endif
    const var p = position_embedding(c, "own", rows, hidden_extent(), std); // expect-line
    return gpt::block(c, kind, x + p);
  }
};

struct run : small_run {
  static constexpr learned model{small()};
  static constexpr mc::layout layout = sequence_parallel(2);
};
static_assert(program<run>::ok);
