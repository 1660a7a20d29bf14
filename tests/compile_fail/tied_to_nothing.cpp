// expect-error: MEGA-C008
// expect-text: tied(lm_head.weight); of its dims there is wte.weight
//
// The head declares its table tied, under a name that the stem does not know: nothing would ever
// write it (NVIDIA-NeMo/Speech#6958: a tied gradient summed over buffers in which it was not,
// https://github.com/NVIDIA-NeMo/Speech/pull/6958).
#include "one_layer.hpp"

using namespace mc;

struct tied_gpt : gpt {
  constexpr var head_table(context& c) const {
#ifdef MEGACPP_EXPECT_ERROR
    return vocabulary_table(c, "lm_head", vocabulary, hidden_extent(), std, true); // expect-line
#else
    return vocabulary_table(c, "wte", vocabulary, hidden_extent(), std, true);
#endif
  }
};

struct run : small_run {
  static constexpr tied_gpt model{small()};
  static constexpr mc::layout layout = tensor_parallel(2);
};
static_assert(program<run>::ok);
