// expect-error: MEGA-C001
// expect-text: : capacity is nan, not at least 0 (none) and below 1e30
//
// What no arithmetic can round is refused before any.
#include "one_layer.hpp"

#include <megacpp/nn/experts.hpp>

#include <limits>

using namespace mc;

struct own_mixture : gpt {
  constexpr var block(context& c, int /*kind*/, var x) const {
    expert_sizes s{.experts = {dim::expert, 4}, .ffn = {dim::ffn, 24}, .capacity = 1.5};
#ifdef MEGACPP_EXPECT_ERROR
    s.capacity = std::numeric_limits<double>::quiet_NaN();
#endif
    return x + mixture_of_experts(c, {"router", "gate", "up", "down"}, x, s, std); // expect-line
  }
};

struct run : small_run {
  static constexpr own_mixture model{small()};
  static constexpr mc::layout layout{};
};
static_assert(program<run>::ok);
