// expect-error: MEGA-P008
// expect-text: swiglu(linear@15, linear@13) over tp
//
// One factor is of the region where ranks differ, the other is not: is the gradient of the second a
// sum over ranks or the same on all of them? (pytorch/pytorch#175867: from_local(Replicate) sums
// it, whichever was meant, https://github.com/pytorch/pytorch/pull/175867.)
#include "one_layer.hpp"

using namespace mc;

struct shared_gate : gpt {
  constexpr var block(context& c, int /*kind*/, var x) const {
    const var gate = linear(to(x, axis::tp, R),
                            to(matrix(c, "gate", {dim::ffn, ffn}, hidden_extent()), axis::tp, R));
    const var up = linear(x, matrix(c, "up", {dim::ffn, ffn}, hidden_extent()));
#ifdef MEGACPP_EXPECT_ERROR
    const var h = swiglu(gate, up); // expect-line
#else
    const var h = swiglu(gate, to(up, axis::tp, R));
#endif
    return x + row_parallel(c, "down", to(h, axis::tp, S(dim::ffn)), 1, hidden_extent(), bias, std);
  }
  constexpr var matrix(context& c, const char* scope, extent out, extent in) const {
    return weight(c, scope, "weight", {out, in}, {}, normal_weights(std));
  }
};

struct run : small_run {
  static constexpr shared_gate model{small()};
  static constexpr mc::layout layout = tensor_parallel(2);
};
static_assert(program<run>::ok);
