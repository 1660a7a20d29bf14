// expect-error: MEGA-P009
// expect-text: to(x) over cp
//
// The sequence is cut over cp and then over tp, and gathered over cp first: the parts come together
// in another order than they were cut in, [0,1,2,3] as [0,1,0,1] (NVIDIA/Megatron-LM#7452, finding
// 7: scattered over one group, gathered over another,
// https://github.com/NVIDIA/Megatron-LM/issues/7452).
#include "one_layer.hpp"

using namespace mc;

struct gathered : gpt {
  constexpr var block(context& c, int /*kind*/, var x) const {
#ifdef MEGACPP_EXPECT_ERROR
    const var whole = to(to(x, axis::cp, I), axis::tp, I); // expect-line
#else
    const var whole = to(to(x, axis::tp, I), axis::cp, I);
#endif
    const var h = gelu(whole);
    return x + to(to(h, axis::cp, S(dim::sequence)), axis::tp, S(dim::sequence));
  }
};

struct run : small_run {
  static constexpr gathered model{small()};
  static constexpr mc::layout layout{2, 1, 2, 1, 0, true}; // tp 2, cp 2, sequence parallel
};
static_assert(program<run>::ok);
