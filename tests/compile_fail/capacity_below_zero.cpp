// expect-error: MEGA-C001
// expect-text: : capacity is -1.5, not at least 0 (none) and below 1e30
//
// A number that no arithmetic should round is refused before any. (Of a number that is none, nvcc says
// itself that it cannot be compared.)
#include "one_layer.hpp"

#include <megacpp/nn/experts.hpp>

using namespace mc;

struct own_mixture : gpt {
  constexpr var block(context& c, int /*kind*/, var x) const {
    expert_sizes s{.experts = {dim::expert, 4}, .ffn = {dim::ffn, 24}, .capacity = 1.5};
#ifdef MEGACPP_EXPECT_ERROR
    s.capacity = -1.5;
#endif
    return x + mixture_of_experts(c, {"router", "gate", "up", "down"}, x, s, std); // expect-line
  }
};

struct run : small_run {
  static constexpr own_mixture model{small()};
  static constexpr mc::layout layout{};
};
static_assert(program<run>::ok);
