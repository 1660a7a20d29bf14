// expect-error: MEGA-P005
// expect-text: router_loss(router_statistics@24) over tp
//
// Experts are balanced by how often the tokens of one rank chose them, beside probabilities of all
// tokens: what is a loss of one rank is another loss on many (NVIDIA/Megatron-LM#5047: a balancing
// loss scaled by the tokens of a rank while its group was that of tp and cp,
// https://github.com/NVIDIA/Megatron-LM/pull/5047). Counts of shards are pending sums.
#include <megacpp/graph/letters.hpp>
#include <megacpp/nn/linear.hpp>
#include <megacpp/op/router.hpp>
#include <megacpp/pass/verify.hpp>
#include <megacpp/run/report.hpp>

using namespace mc;

constexpr graph balanced() {
  builder b{mesh(layout{.tp = 2, .sequence_parallel = true})};
  const extent B{dim::batch, 2}, Sq{dim::sequence, 8}, H{dim::hidden, 16}, E{dim::expert, 4};
  const var x = b.input(feed::stream, "x", dtype::f32, {B, Sq, H}, on(axis::tp, S(dim::sequence)));
  const var w = b.parameter("router", "weight", dtype::f32, {E, H}, {}, normal_weights(1));
  const var logits = linear(x, to(w, axis::tp, R));
  const routing chosen = route(logits, {}, 2, true);
  const router_statistics_of sums =
      router_statistics(logits, chosen.experts, balance_scope::micro_batch);
#ifdef MEGACPP_EXPECT_ERROR
  const var counts = sums.counts;
#else
  const var counts = to(sums.counts, axis::tp, R);
#endif
  const var loss = router_loss({sums.probabilities, counts, sums.z}, 0.1, 0.1); // expect-line
  b.g.side_loss = to(loss, axis::tp, I).id;
  return b.g;
}

struct router {
  static constexpr fault_record wrong = balanced().wrong;
};
static_assert(reported<router, router>);
