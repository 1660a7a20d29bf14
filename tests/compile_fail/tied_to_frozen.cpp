// expect-error: MEGA-C004
// expect-text: tied(wte.weight)
//
// The stem freezes its table, and the head, which shares it, does not say so: the gradient that the
// head collects would go nowhere.
#include "one_layer.hpp"

using namespace mc;

struct tied_gpt : gpt {
  constexpr var table(context& c, bool frozen, bool again) const {
    parameter_info info = normal_weights(std);
    info.frozen = frozen, info.tied = again;
    const extent words{dim::vocabulary, vocabulary};
    return weight(c, "wte", "weight", {words, hidden_extent()}, {}, info); // expect-line
  }
  constexpr var stem(context& c, var tokens) const {
    return token_embedding(c, tokens, table(c, true, false));
  }
  constexpr var head_table(context& c) const {
#ifdef MEGACPP_EXPECT_ERROR
    return table(c, false, true);
#else
    return table(c, true, true);
#endif
  }
};

struct run : small_run {
  static constexpr tied_gpt model{small()};
  static constexpr mc::layout layout{};
};
static_assert(program<run>::ok);
