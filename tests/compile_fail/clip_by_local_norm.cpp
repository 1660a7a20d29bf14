// expect-error: MEGA-P005
// expect-text: clip_factor(sum_of_squares@27, sum_of_squares@26) over tp
//
// The gradient is clipped by the norm of one rank's shards: another factor on every rank
// (pytorch/torchtitan#596, https://github.com/pytorch/torchtitan/pull/596;
// deepspeedai/DeepSpeed#8478, NVIDIA/Megatron-LM#5916). Of a replicated gradient there is no
// pending sum, so it counts once.
#include <megacpp/graph/letters.hpp>
#include <megacpp/op/optimizer.hpp>
#include <megacpp/op/redistribute.hpp>
#include <megacpp/op/totals.hpp>
#include <megacpp/run/report.hpp>

using namespace mc;

constexpr var flat(builder& b, const char* name, place over_tp) {
  placement p;
  p[axis::tp] = over_tp;
  return b.input(feed::gradient, name, dtype::f32, {{dim::elements, 64}}, p);
}

constexpr graph end_of_step() {
  builder b{mesh(layout{2})};
  const var count = total_input(b, step_total::whole_tokens);
  const var whole{
      &b, b.emit(op::sum_of_squares, {flat(b, "norms", I).id}, here(), op::share_attributes{})};
  const var cut{&b, b.emit(op::sum_of_squares, {flat(b, "matrices", S(dim::elements)).id}, here(),
                           op::share_attributes{})};
#ifdef MEGACPP_EXPECT_ERROR
  const var all = cut;
#else
  const var all = to(cut, axis::tp, I);
#endif
  b.emit(op::clip_factor, {count.id, count.id, whole.id, all.id}, here()); // expect-line
  return b.g;
}

struct update {
  static constexpr fault_record wrong = end_of_step().wrong;
};
static_assert(reported<update, update>);
