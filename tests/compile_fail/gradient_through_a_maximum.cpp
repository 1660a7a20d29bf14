// expect-error: MEGA-P023
// expect-text: gradient(peak@
//
// Elements are divided by the largest of all ranks, as scales for narrow types are found. The
// gradient of a maximum belongs to the rank that has it; the dual of a pending sum would give it to
// all of them.
#include "../peak.hpp"

#include <megacpp/run/report.hpp>

using namespace mc;

#ifdef MEGACPP_EXPECT_ERROR
inline constexpr op_info the_peak = mc_test::trained_peak;
#else
inline constexpr op_info the_peak = mc_test::peak;
#endif

struct divided_by_peak {
  static constexpr graph forward = mc_test::graph_with_peak(the_peak, dtype::f32, [](var m) {
    return to(m, axis::tp, R); // expect-line
  });
  static constexpr fault_record wrong = forward.wrong;
};
static_assert(reported<divided_by_peak, divided_by_peak>);
