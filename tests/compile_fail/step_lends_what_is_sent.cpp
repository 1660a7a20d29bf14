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

#include <megacpp/plan/verify_step.hpp>

using namespace mc;

struct run : small_run {
  static constexpr gpt model = small();
  static constexpr mc::layout layout{.pp = 2};
};

struct step {
  static constexpr fault_record wrong = [] {
    using program = mc::program<run>;
    const stage_shape s = program::stage(1);
    buffers b = buffers_of(program::planned, s);
    const list<task> tasks = training_step(s.training, 2);
#ifdef MEGACPP_EXPECT_ERROR
    b[b.of(content::stream, 1)].offset = b[b.of(content::d_stream, 0)].offset;
#endif
    return verify_step(tasks, s.training, b, 2);
  }();
};
static_assert(reported<step, step>);
