// expect-error: MEGA-C003
// expect-text: the model has no experts to take rows: leave expert_rows out
//
// A bound on the rows of experts for a model that has none.
#include "one_layer.hpp"

struct run {
  static constexpr mc::gpt model = small();
  static constexpr mc::layout layout{};
#ifdef MEGACPP_EXPECT_ERROR
  static constexpr mc::batching batch{2, 16, false, 64};
#else
  static constexpr mc::batching batch{2, 16};
#endif
  using precision = mc::fp32;
};
static_assert(mc::program<run>::ok);
