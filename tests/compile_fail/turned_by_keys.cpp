// expect-error: MEGA-S010
// expect-text: : token_keys holds keys of dropout, not positions
//
// Keys of dropout number the tokens of all steps, and RoPE reads its table of positions by them:
// far behind its end.
#include "one_layer.hpp"

using namespace mc;

struct rotary : gpt {
  constexpr var block(context& c, int /*kind*/, var x) const {
    const attention_sizes s{
        {dim::heads, heads}, {dim::kv_heads, heads}, {dim::head_dim, head_dim()}};
    const var q = column_parallel(c, "q", x, {s.heads, s.head_dim}, bias, std);
    const var k = kv_projection(c, "k", x, s, bias, std),
              v = kv_projection(c, "v", x, s, bias, std);
#ifdef MEGACPP_EXPECT_ERROR
    const var by = c.token_keys;
#else
    const var by = c.positions;
#endif
    const var turned = rope(q, by, 1e4); // expect-line
    const var o = context_parallel_attention(c, turned, k, v, {});
    return x + row_parallel(c, "o", o, 2, hidden_extent(), bias, std);
  }
};

struct run : small_run {
  static constexpr rotary model{small()};
  static constexpr mc::layout layout{};
};
static_assert(program<run>::ok);
