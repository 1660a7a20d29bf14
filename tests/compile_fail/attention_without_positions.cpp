// expect-error: MEGA-S008
// expect-text: attention(
//
// Causal attention without positions would count the tokens of its own rank: right on one rank, and
// another mask under context parallelism, where a rank holds an early and a late chunk.
#include "one_layer.hpp"

using namespace mc;

struct counting_attention : gpt {
  constexpr var block(context& c, int /*kind*/, var x) const {
    const attention_sizes s{
        {dim::heads, heads}, {dim::kv_heads, heads}, {dim::head_dim, head_dim()}};
    const var q = column_parallel(c, "q", x, {s.heads, s.head_dim}, bias, std);
    const var k = to(kv_projection(c, "k", x, s, bias, std), axis::cp, R);
    const var v = to(kv_projection(c, "v", x, s, bias, std), axis::cp, R);
    attention_masks m;
#ifdef MEGACPP_EXPECT_ERROR
#else
    m.q_order = c.order, m.k_order = to(c.order, axis::cp, R);
#endif
    const var o = attention(q, k, v, m, {}); // expect-line
    return x + row_parallel(c, "o", o, 2, hidden_extent(), bias, std);
  }
};

struct run : small_run {
  static constexpr counting_attention model{small()};
  static constexpr mc::layout layout = context_parallel(2);
};
static_assert(program<run>::ok);
