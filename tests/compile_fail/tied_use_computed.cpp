// expect-error: MEGA-C007
// expect-text: gelu(wte.weight)
//
// The stem takes rows of gelu(table), the tied head the table itself: the epilogue brings the
// gradient of gelu(table) back to the table's own place, where the head's has joined by then, and
// would overwrite it.
#include "one_layer.hpp"

using namespace mc;

struct tied_gpt : gpt {
  constexpr var stem(context& c, var tokens) const {
    const var table = vocabulary_table(c, "wte", vocabulary, hidden_extent(), std, false);
#ifdef MEGACPP_EXPECT_ERROR
    return token_embedding(c, tokens, gelu(table)); // expect-line
#else
    return gelu(token_embedding(c, tokens, table));
#endif
  }
};

struct run : small_run {
  static constexpr tied_gpt model{small()};
  static constexpr mc::layout layout{};
};
static_assert(program<run>::ok);
