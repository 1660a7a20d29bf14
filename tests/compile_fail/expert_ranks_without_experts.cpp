// expect-error: MEGA-C002
// expect-text: ep and etp cut experts, which the model lacks: leave them out
//
// Ranks for experts of a dense model: each would hold and compute the same.
#include "one_layer.hpp"

constexpr mc::layout spread() {
  mc::layout l = tensor_parallel(2);
#ifdef MEGACPP_EXPECT_ERROR
  l.ep = 2;
#endif
  return l;
}

struct run : small_run {
  static constexpr mc::gpt model = small();
  static constexpr mc::layout layout = spread();
};
static_assert(mc::program<run>::ok);
