// expect-error: MEGA-T005
// expect-text: forward(layer 1) of micro-batch 1: writes over the stream's cotangent
//
// The cotangent that a stage sends back shares its place with a stream of the next micro-batch, as
// in a pipeline with a buffer too few, which received where it was still sending from
// (deepspeedai/DeepSpeed#2800, https://github.com/deepspeedai/DeepSpeed/issues/2800), and where
// what a collective reads was taken for free (deepspeedai/DeepSpeed#7965,
// https://github.com/deepspeedai/DeepSpeed/pull/7965; pytorch/pytorch#108811,
// https://github.com/pytorch/pytorch/pull/108811).
#include "one_layer.hpp"

using namespace mc;

using run = staged_run<2>;
struct step {
  static constexpr fault_record wrong = verdict_after<run>(1, 2, [](list<task>&, buffers& b) {
#ifdef MEGACPP_EXPECT_ERROR
    b[b.of(content::stream, 1)].offset = b[b.of(content::d_stream, 0)].offset;
#endif
  });
};
static_assert(reported<step, step>);
