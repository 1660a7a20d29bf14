// expect-error: MEGA-C001
// expect-text: heads must divide hidden
//
// 16 columns do not divide into 3 heads.
#include "one_layer.hpp"

constexpr mc::gpt three_heads() {
  mc::gpt m = small();
#ifdef MEGACPP_EXPECT_ERROR
  m.heads = 3;
#else
  m.heads = 4;
#endif
  return m;
}

struct run : small_run {
  static constexpr mc::gpt model = three_heads();
  static constexpr mc::layout layout{}; // expect-line
};
static_assert(mc::program<run>::ok);
