// expect-error: MEGA-S005
// expect-text: parameter(wte.weight) of the head and parameter(wte.weight) of the stem
//
// The head takes the stem's table and forgets to say that it is tied: two tables of one name would
// train apart, and a file could keep one of them.
#include "one_layer.hpp"

using namespace mc;

struct tied_gpt : gpt {
  constexpr var head_table(context& c) const {
#ifdef MEGACPP_EXPECT_ERROR
    const bool again = false;
#else
    const bool again = true;
#endif
    return vocabulary_table(c, "wte", vocabulary, hidden_extent(), std, again); // expect-line
  }
};

struct run : small_run {
  static constexpr tied_gpt model{small()};
  static constexpr mc::layout layout{};
};
static_assert(program<run>::ok);
