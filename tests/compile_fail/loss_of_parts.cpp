// expect-error: MEGA-P007
// expect-text: cross_entropy(vocabulary_partial@25) over tp
//
// Each rank takes the logarithm of the sum over its part of the vocabulary for that over all of it
// (NVIDIA/Megatron-LM#7452, finding 2: a vocabulary-parallel loss that adds log(tp) to what is
// whole already, https://github.com/NVIDIA/Megatron-LM/issues/7452; #737: statistics of a
// vocabulary shard).
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
  const placement cut = on(axis::tp, S(dim::vocabulary));
  const var w = b.parameter("head", "weight", dtype::f32, {words, hidden}, cut, normal_weights(1));
  const var all = to(x, axis::tp, R);
  const auto part = vocabulary_partial(all, w, labels, 64);
  const var target = to(part.target, axis::tp, I);
#ifdef MEGACPP_EXPECT_ERROR
  const auto loss = cross_entropy({part.local_lse, target}, labels, 0); // expect-line
#else
  const auto loss = cross_entropy({to(part.local_lse, axis::tp, I), target}, labels, 0);
#endif
  b.g.outputs = {loss.sum.id, loss.count.id};
  return b.g;
}

struct loss {
  static constexpr fault_record wrong = head().wrong;
};
static_assert(reported<loss, loss>);
