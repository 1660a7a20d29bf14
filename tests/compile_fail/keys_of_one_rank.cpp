// expect-error: MEGA-P007
// expect-text: over cp
// expect-text: attention(
//
// Under context parallelism a rank holds a slice of the sequence. Queries that see their own rank's
// keys alone are another model (the hook of huggingface/accelerate#4177 likewise leaves a mask
// behind, https://github.com/huggingface/accelerate/pull/4177).
#include "one_layer.hpp"

using namespace mc;

struct local_attention : gpt {
  constexpr var block(context& c, int /*kind*/, var x) const {
    const attention_sizes s{
        {dim::heads, heads}, {dim::kv_heads, heads}, {dim::head_dim, head_dim()}};
    const var q = column_parallel(c, "q", x, {s.heads, s.head_dim}, bias, std);
    const var k = kv_projection(c, "k", x, s, bias, std);
    const var v = kv_projection(c, "v", x, s, bias, std);
#ifdef MEGACPP_EXPECT_ERROR
    attention_masks m;
    m.q_order = m.k_order = c.order;
    const var o = attention(q, k, v, m, {}); // expect-line
#else
    const var o = context_parallel_attention(c, q, k, v, {});
#endif
    return x + row_parallel(c, "o", o, 2, hidden_extent(), bias, std);
  }
};

struct run : small_run {
  static constexpr local_attention model{small()};
  static constexpr mc::layout layout = context_parallel(2);
};
static_assert(program<run>::ok);
