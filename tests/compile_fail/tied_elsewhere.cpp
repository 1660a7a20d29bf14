// expect-error: MEGA-P002
// expect-text: tied(wte.weight) over tp
//
// The stem stores the table whole, the head, which shares it, cuts it over tp: the one parameter
// would be reduced and updated by two rules (uw-syfi/piper#13: gradients of the two uses never
// summed, https://github.com/uw-syfi/piper/pull/13; NVIDIA/Megatron-LM#6500: slices of other
// elements summed).
#include "one_layer.hpp"

using namespace mc;

struct tied_gpt : gpt {
  constexpr var stem(context& c, var tokens) const {
#ifdef MEGACPP_EXPECT_ERROR
    const extent words{dim::vocabulary, vocabulary};
    const var table = weight(c, "wte", "weight", {words, hidden_extent()}, {}, normal_weights(std));
    return embedding(tokens, table);
#else
    const var table = vocabulary_table(c, "wte", vocabulary, hidden_extent(), std, false);
    return token_embedding(c, tokens, table);
#endif
  }
};

struct run : small_run {
  static constexpr tied_gpt model{small()};
  static constexpr mc::layout layout = tensor_parallel(2);
};
static_assert(program<run>::ok);
