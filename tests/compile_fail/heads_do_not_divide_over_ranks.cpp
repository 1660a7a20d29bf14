// expect-error: MEGA-S001
// expect-text: parameter(attn.q.weight: heads 4 over 3 ranks; 2 or 4 divide it), layout at heads_do_not_divide_over_ranks.cpp:11
//
// Four heads over three tensor-parallel ranks (pytorch/torchtitan#2577,
// https://github.com/pytorch/torchtitan/pull/2577).
#include "one_layer.hpp"

struct run : small_run {
  static constexpr mc::gpt model = small();
#ifdef MEGACPP_EXPECT_ERROR
  static constexpr mc::layout layout{.tp = 3};
#else
  static constexpr mc::layout layout{.tp = 2};
#endif
  static constexpr std::int64_t device_memory = std::int64_t{1}
                                                << 30; // no other error is added by it
};
static_assert(mc::program<run>::ok && mc::memory<run>().total() > 0);
