// expect-error: MEGA-T004
// expect-text: receive forward(layer 1) of micro-batch 0: reaches beyond the stream
//
// What a stage receives has more bytes than there is room for: the size was worked out apart from
// the graphs, as where it forgot an axis of the layout (NVIDIA/Megatron-LM#571,
// https://github.com/NVIDIA/Megatron-LM/pull/571), took a part for the whole (awslabs/slapo#104,
// https://github.com/awslabs/slapo/pull/104), or left out the element type
// (tdrussell/diffusion-pipe#544, https://github.com/tdrussell/diffusion-pipe/pull/544).
#include "one_layer.hpp"

using namespace mc;

using run = staged_run<2>;
struct step {
  static constexpr fault_record wrong = verdict_after<run>(1, 2, [](list<task>&, buffers& b) {
#ifdef MEGACPP_EXPECT_ERROR
    b[b.of(content::stream, 0)].bytes /= 2;
#endif
  });
};
static_assert(reported<step, step>);
