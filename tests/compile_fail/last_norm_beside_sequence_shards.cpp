// expect-error: MEGA-P004
// expect-text: rms_norm(ln_f.weight, x) over tp
//
// The last stage's own norm on a rank's own tokens: its gain's gradient is a pending sum, on a
// pipeline as without one (PaddlePaddle/PaddleNLP#7610: gradients of norms were synchronised under
// sequence parallelism or in a pipeline, not under both,
// https://github.com/PaddlePaddle/PaddleNLP/pull/7610).
#include "one_layer.hpp"

using namespace mc;

struct normed : gpt {
  constexpr var final_norm(context& c, var x) const {
    const var gain = weight(c, "ln_f", "weight", {hidden_extent()}, {}, ones());
#ifdef MEGACPP_EXPECT_ERROR
    return rms_norm(x, gain, eps); // expect-line
#else
    return rms_norm(x, to(gain, axis::tp, beside(x.at(axis::tp))), eps);
#endif
  }
};

struct stages {
  static constexpr fault_record wrong = [] {
    setup s;
    s.ranks = sequence_parallel(2), s.ranks.pp = 2, s.batch = small_run::batch;
    return forward_graph(normed{small()}, s, part_kind::loss, 0).wrong;
  }();
};
static_assert(reported<stages, stages>);
