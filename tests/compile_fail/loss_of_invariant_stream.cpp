// expect-error: MEGA-P004
// expect-text: vocabulary_partial(x, head.weight) over tp
//
// A vocabulary-parallel loss reads the stream without the conversion: every rank's part of the
// vocabulary gives a part of the stream's gradient, and nobody adds them (modelscope/ms-swift#9947:
// shards that do not own the target get no gradient,
// https://github.com/modelscope/ms-swift/pull/9947).
#include <megacpp/graph/letters.hpp>
#include <megacpp/nn/head.hpp>
#include <megacpp/pass/verify.hpp>
#include <megacpp/run/report.hpp>

using namespace mc;

constexpr graph head() {
  builder b{mesh(layout{2})};
  const extent batch{dim::batch, 2}, sequence{dim::sequence, 8}, hidden{dim::hidden, 16},
      words{dim::vocabulary, 64};
  const var x = b.input(feed::stream, "x", dtype::f32, {batch, sequence, hidden}, {});
  const var labels =
      b.integers(feed::labels, integer_kind::labels, "labels", {batch, sequence}, {}, words.n);
  const var w = b.parameter("head", "weight", dtype::f32, {words, hidden},
                            on(axis::tp, S(dim::vocabulary)), normal_weights(1));
#ifdef MEGACPP_EXPECT_ERROR
  const auto part = vocabulary_partial(x, w, labels, 64); // expect-line
#else
  const auto part = vocabulary_partial(to(x, axis::tp, R), w, labels, 64);
#endif
  const auto loss =
      cross_entropy({to(part.local_lse, axis::tp, I), to(part.target, axis::tp, I)}, labels, 0);
  b.g.outputs = {loss.sum.id, loss.count.id};
  return b.g;
}

struct loss {
  static constexpr fault_record wrong = head().wrong;
};
static_assert(reported<loss, loss>);
