// expect-error: MEGA-S001
// expect-text: parameter(k.weight: kv_heads 2 over 4 ranks; kv_projection repeats them)
//
// Two key/value heads over four tensor-parallel ranks: the cut would go through a head
// (huggingface/transformers#48307, https://github.com/huggingface/transformers/issues/48307;
// pytorch/torchtitan#2577; hiyouga/LlamaFactory#10794). kv_projection repeats them instead.
#include "one_layer.hpp"

using namespace mc;

struct grouped : gpt {
  constexpr var block(context& c, int /*kind*/, var x) const {
    const attention_sizes s{{dim::heads, heads}, {dim::kv_heads, 2}, {dim::head_dim, head_dim()}};
    const var in = to(x, axis::tp, R);
    const var q = column_parallel(c, "q", in, {s.heads, s.head_dim}, false, std);
#ifdef MEGACPP_EXPECT_ERROR
    const var k = column_parallel(c, "k", in, {s.kv_heads, s.head_dim}, false, std); // expect-line
#else
    const var k = kv_projection(c, "k", in, s, false, std);
#endif
    const var v = kv_projection(c, "v", in, s, false, std);
    const var o = context_parallel_attention(c, q, k, v, {});
    return x + row_parallel(c, "o", o, 2, hidden_extent(), false, std);
  }
};

struct run : small_run {
  static constexpr grouped model{small()};
  static constexpr mc::layout layout = tensor_parallel(4);
};
static_assert(program<run>::ok);
