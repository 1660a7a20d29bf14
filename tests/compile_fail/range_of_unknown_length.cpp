// expect-error: MEGA-P022
// expect-text: gelu(gradient) over dp
//
// A range of the stores that ZeRO cuts over dp: how long a rank's part is, and what of it is
// padding, is known only when the program starts.
#include <megacpp/graph/letters.hpp>
#include <megacpp/op/elementwise.hpp>
#include <megacpp/op/redistribute.hpp>
#include <megacpp/run/report.hpp>

using namespace mc;

constexpr graph end_of_step() {
  builder b{mesh(layout{.tp = 2})};
  placement cut;
  cut[axis::dp] = S(dim::elements);
  const var range = b.input(feed::gradient, "gradient", dtype::f32, {{dim::elements, 1000}}, cut);
#ifdef MEGACPP_EXPECT_ERROR
  const var whole = range;
#else
  const var whole = to(range, axis::dp, I);
#endif
  gelu(whole); // expect-line
  return b.g;
}

struct update {
  static constexpr fault_record wrong = end_of_step().wrong;
};
static_assert(reported<update, update>);
