// expect-error: MEGA-P002
// expect-text: side loss(
//
// A loss of the model's own is made whole over context parallel ranks before it joins the one loss,
// whose sum over them is pending: it would count once a rank, or be divided once more
// (NVIDIA/Megatron-LM#3943: a side loss scaled by cp beside one that was not,
// https://github.com/NVIDIA/Megatron-LM/issues/3943).
#include "one_layer.hpp"

#include <megacpp/nn/experts.hpp>

using namespace mc;

struct penalised : gpt {
  constexpr var block(context& c, int /*kind*/, var x) const {
    const extent experts{dim::expert, 4};
    const var router =
        weight(c, "router", "weight", {experts, hidden_extent()}, {}, normal_weights(std));
    const var logits = linear(x, router);
    const routing r = route(logits, {}, 1, true);
    const router_statistics_of sums = router_statistics(logits, r.experts, balance_scope::sequence);
    const var counts = to(sums.counts, axis::cp, R);
    const var loss = router_loss({sums.probabilities, counts, sums.z}, 0.1, 0.1);
#ifdef MEGACPP_EXPECT_ERROR
    c.add_side_loss(to(loss, axis::cp, I)); // expect-line
#else
    c.add_side_loss(loss);
#endif
    return x + gpt::block(c, 0, x);
  }
};

struct block {
  static constexpr fault_record wrong = [] {
    setup s;
    s.ranks = context_parallel(2), s.batch = small_run::batch;
    return forward_graph(penalised{small()}, s, part_kind::block, 0).wrong;
  }();
};
static_assert(reported<block, block>);
