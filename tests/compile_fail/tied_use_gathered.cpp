// expect-error: MEGA-P002
// expect-text: tied(wte.weight) over cp
//
// The table is stored in slices over cp, and each use gathers it: the head's gradient would collect
// in another form than the one that the stem's epilogue reduces (NVIDIA-NeMo/Speech#6958: a tied
// sum ran on buffers that the gradients were not in,
// https://github.com/NVIDIA-NeMo/Speech/pull/6958).
#include "one_layer.hpp"

using namespace mc;

struct tied_gpt : gpt {
  constexpr var table(context& c, place over_cp, bool again) const {
    parameter_info info = normal_weights(std);
    info.tied = again;
    const extent words{dim::vocabulary, vocabulary};
    return weight(c, "wte", "weight", {words, hidden_extent()}, on(axis::cp, over_cp), info);
  }
#ifdef MEGACPP_EXPECT_ERROR
  constexpr var stem(context& c, var tokens) const {
    return token_embedding(c, tokens, table(c, S(dim::vocabulary), false));
  }
  constexpr var head_table(context& c) const { return table(c, S(dim::vocabulary), true); }
#else
  constexpr var stem(context& c, var tokens) const {
    return token_embedding(c, tokens, table(c, I, false));
  }
  constexpr var head_table(context& c) const { return table(c, I, true); }
#endif
};

struct run : small_run {
  static constexpr tied_gpt model{small()};
  static constexpr mc::layout layout = context_parallel(2);
};
static_assert(program<run>::ok);
