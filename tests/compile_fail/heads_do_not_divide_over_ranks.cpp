// expect-error: MEGA-S001
// expect-text: parameter(attn.q.weight: heads 4 over 3 ranks)
//
// Four heads over three tensor-parallel ranks (pytorch/torchtitan#2577,
// https://github.com/pytorch/torchtitan/pull/2577).
#include "one_layer.hpp"

struct run : small_run {
  static constexpr mc::gpt model = small();
#ifdef MEGACPP_EXPECT_ERROR
  static constexpr mc::layout layout = tensor_parallel(3);
#else
  static constexpr mc::layout layout = tensor_parallel(2);
#endif
};
static_assert(mc::program<run>::ok);
