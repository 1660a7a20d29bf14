// expect-error: MEGA-P004
// expect-text: linear(gate.weight, x) over tp
//
// A weight that is whole on every rank, as a router's, scores that rank's tokens only: its gradient
// is a pending sum over tp that nobody reduces (NVIDIA/Megatron-LM#619: router weights under
// sequence parallelism, https://github.com/NVIDIA/Megatron-LM/pull/619; pytorch/torchtitan#2416).
#include "one_layer.hpp"

using namespace mc;

struct gated : gpt {
  constexpr var block(context& c, int /*kind*/, var x) const {
    const var up =
        weight(c, "gate", "weight", {{dim::ffn, ffn}, hidden_extent()}, {}, normal_weights(std));
    const var down =
        weight(c, "out", "weight", {hidden_extent(), {dim::ffn, ffn}}, {}, normal_weights(std));
#ifdef MEGACPP_EXPECT_ERROR
    const var h = linear(x, up); // expect-line
#else
    const var h = linear(x, to(up, axis::tp, R));
#endif
    return x + linear(gelu(h), to(down, axis::tp, R));
  }
};

struct run : small_run {
  static constexpr gated model{small()};
  static constexpr mc::layout layout = sequence_parallel(2);
};
static_assert(program<run>::ok);
