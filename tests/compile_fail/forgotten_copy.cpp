// expect-error: MEGA-P004
// expect-text: linear(layer_norm@19, mlp.up.weight) over tp
//
// The copy into the tensor-parallel region is forgotten: each rank has only its columns' part of
// the gradient of the MLP's input, and that part is taken for the whole (pytorch/torchtitan#1805:
// to_local without grad_placements, https://github.com/pytorch/torchtitan/pull/1805).
#include "one_layer.hpp"

using namespace mc;

// [case]
struct mlp : gpt {
  constexpr var column(context& c, var x) const {
    const var w = weight(c, "mlp.up", "weight", {{dim::ffn, ffn}, hidden_extent()},
                         on(axis::tp, S(dim::ffn)), normal_weights(std));
    return linear(x, w); // expect-line
  }
  constexpr var block(context& c, int /*kind*/, var x) const {
    const var norm = layer_norm(c, "norm", x, bias, eps);
#ifdef MEGACPP_EXPECT_ERROR
    const var y = gelu(column(c, norm));
#else
    const var y = gelu(column(c, to(norm, axis::tp, R)));
#endif
    return x + row_parallel(c, "mlp.down", y, 1, hidden_extent(), bias, std);
  }
};
// [/case]

struct run : small_run {
  static constexpr mlp model{small()};
  static constexpr mc::layout layout = tensor_parallel(2);
};
#if !defined(MEGACPP_INTERPRETED) // tests/laws/own_op.cpp asks the interpreter
static_assert(program<run>::ok);
#endif
