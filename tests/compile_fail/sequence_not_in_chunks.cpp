// expect-error: MEGA-C003
// expect-text: the sequence must divide into 2 cp chunks
//
// Fourteen tokens for two context-parallel ranks of two chunks each (NVIDIA/TransformerEngine#1930:
// seven tokens became six, https://github.com/NVIDIA/TransformerEngine/issues/1930).
#include "one_layer.hpp"

struct run : small_run {
  static constexpr mc::gpt model = small();
  static constexpr mc::layout layout = context_parallel(2);
#ifdef MEGACPP_EXPECT_ERROR
  static constexpr mc::batching batch{2, 14};
#else
  static constexpr mc::batching batch{2, 16};
#endif
};
static_assert(mc::program<run>::ok);
