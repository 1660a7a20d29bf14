// expect-error: MEGA-B002
// expect-text: using device
//
// A run for a device that nothing runs on.
#include "one_layer.hpp"

struct accelerator;

struct run : small_run {
  static constexpr mc::gpt model = small();
  static constexpr mc::layout layout{};
#ifdef MEGACPP_EXPECT_ERROR
  using device = accelerator;
#else
  using device = mc::cpu;
#endif
};
static_assert(mc::program<run>::ok);
