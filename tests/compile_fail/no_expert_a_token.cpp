// expect-error: MEGA-C001
// expect-text: : the number of experts a token is 0, not positive and within the experts
//
// A mixture whose tokens go to no expert is one sentence, also where a loss would balance them.
#include "one_layer.hpp"

#include <megacpp/nn/experts.hpp>

using namespace mc;

struct own_mixture : gpt {
  constexpr var block(context& c, int /*kind*/, var x) const {
    expert_sizes s{
        .experts = {dim::expert, 4}, .ffn = {dim::ffn, 24}, .per_token = 2, .balance = 0.1};
#ifdef MEGACPP_EXPECT_ERROR
    s.per_token = 0;
#endif
    return x + mixture_of_experts(c, {"router", "gate", "up", "down"}, x, s, std); // expect-line
  }
};

struct run : small_run {
  static constexpr own_mixture model{small()};
  static constexpr mc::layout layout{};
};
static_assert(program<run>::ok);
