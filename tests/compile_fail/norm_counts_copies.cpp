// expect-error: MEGA-P003
// expect-text: to(sum_of_squares@
//
// The squares of a gradient that every rank of tp holds whole are summed over tp with those of
// shards: it counts as often as it has copies (NVIDIA-NeMo/RL#3788: replicated gradients counted tp
// times in the norm, https://github.com/NVIDIA-NeMo/RL/pull/3788).
#include <megacpp/graph/letters.hpp>
#include <megacpp/op/optimizer.hpp>
#include <megacpp/op/redistribute.hpp>
#include <megacpp/op/totals.hpp>
#include <megacpp/run/report.hpp>

using namespace mc;

constexpr graph end_of_step() {
  builder b{mesh(layout{2})};
  const var count = total_input(b, step_total::whole_tokens),
            loss = total_input(b, step_total::whole_loss);
  const auto squares = [&](const char* name, place over_tp) {
    placement p;
    p[axis::tp] = over_tp;
    const var range = b.input(feed::gradient, name, dtype::f32, {{dim::elements, 64}}, p);
    return var{&b, b.emit(op::sum_of_squares, {range.id}, here(), op::share_attributes{})};
  };
  const var cut = to(squares("matrices", S(dim::elements)), axis::tp, I);
  const var whole = squares("norms", I);
#ifdef MEGACPP_EXPECT_ERROR
  const var all = to(to(whole, axis::tp, P), axis::tp, I); // expect-line
#else
  const var all = whole;
#endif
  b.emit(op::clip_factor, {count.id, loss.id, cut.id, all.id}, here());
  return b.g;
}

struct update {
  static constexpr fault_record wrong = end_of_step().wrong;
};
static_assert(reported<update, update>);
