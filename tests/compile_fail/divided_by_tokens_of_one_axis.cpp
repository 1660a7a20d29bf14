// expect-error: MEGA-P005
// expect-text: clip_factor(tokens
//
// Gradients are divided by the tokens of the replicas, while ranks of cp have parts of the same
// sequences: the count is a pending sum still (NVIDIA/Megatron-LM#906: a loss multiplied by cp whose
// gradients were divided by dp alone, https://github.com/NVIDIA/Megatron-LM/issues/906;
// deepspeedai/DeepSpeed#5555: a mean over ranks that hold parts of one sample). A loss is a sum and a
// count: both are reduced over what is pending, and then divided.
#include <megacpp/graph/letters.hpp>
#include <megacpp/op/optimizer.hpp>
#include <megacpp/op/redistribute.hpp>
#include <megacpp/op/totals.hpp>
#include <megacpp/run/report.hpp>

using namespace mc;

constexpr graph end_of_step() {
  builder b{mesh(layout{.cp = 2})};
  const var of_replicas = to(total_input(b, step_total::tokens), axis::dp, I);
#ifdef MEGACPP_EXPECT_ERROR
  const var count = of_replicas;
#else
  const var count = to(to(of_replicas, axis::cp, I), axis::pp, I);
#endif
  const var loss = total_input(b, step_total::whole_loss);
  const var range =
      b.input(feed::gradient, "gradient", dtype::f32, {{dim::elements, 64}}, placement{});
  const value_id squares = b.emit(op::sum_of_squares, {range.id}, here(), op::share_attributes{});
  b.emit(op::clip_factor, {count.id, loss.id, squares}, here()); // expect-line
  return b.g;
}

struct update {
  static constexpr fault_record wrong = end_of_step().wrong;
};
static_assert(reported<update, update>);
