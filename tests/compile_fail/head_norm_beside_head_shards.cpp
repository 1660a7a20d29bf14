// expect-error: MEGA-P004
// expect-text: rms_norm(q_norm.weight, linear@22) over tp
//
// One gain for all heads, which tp cuts: each rank has the gain's gradient of its own heads, and
// nobody adds them (NVIDIA/Megatron-LM#7452, finding 11: copies of such a gain drifted apart
// without sequence parallelism, https://github.com/NVIDIA/Megatron-LM/issues/7452).
#include "one_layer.hpp"

using namespace mc;

struct normed : gpt {
  constexpr var block(context& c, int /*kind*/, var x) const {
    const attention_sizes s{
        {dim::heads, heads}, {dim::kv_heads, heads}, {dim::head_dim, head_dim()}};
    const var a = to(x, axis::tp, R);
    const var gain = weight(c, "q_norm", "weight", {s.head_dim}, {}, ones());
#ifdef MEGACPP_EXPECT_ERROR
    const var of_heads = gain;
#else
    const var of_heads = to(gain, axis::tp, R);
#endif
    const var wide = column_parallel(c, "q", a, {s.heads, s.head_dim}, false, std);
    const var q = rms_norm(wide, of_heads, eps); // expect-line
    const var k = kv_projection(c, "k", a, s, false, std);
    const var v = kv_projection(c, "v", a, s, false, std);
    const var o = context_parallel_attention(c, q, k, v, {});
    return x + row_parallel(c, "o", o, 2, hidden_extent(), false, std);
  }
};

struct run : small_run {
  static constexpr normed model{small()};
  static constexpr mc::layout layout = tensor_parallel(2);
};
static_assert(program<run>::ok);
