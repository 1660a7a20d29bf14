// expect-error: MEGA-C001
// expect-text: : window is -3, not 0 (none) or a number of tokens
//
// A number that an op cannot take is named, with what it must be.
#include "one_layer.hpp"

using namespace mc;

struct windowed : gpt {
  constexpr var block(context& c, int /*kind*/, var x) const {
    const attention_sizes s{
        {dim::heads, heads}, {dim::kv_heads, heads}, {dim::head_dim, head_dim()}};
    const var a = to(layer_norm(c, "norm", x, bias, eps), axis::tp, R);
    const var q = column_parallel(c, "q", a, {s.heads, s.head_dim}, bias, std);
    const var k = kv_projection(c, "k", a, s, bias, std),
              v = kv_projection(c, "v", a, s, bias, std);
    attention_options options;
#ifdef MEGACPP_EXPECT_ERROR
    options.window = -3;
#endif
    const var o = context_parallel_attention(c, q, k, v, options); // expect-line
    return x + row_parallel(c, "o", o, 2, hidden_extent(), bias, std);
  }
};

struct run : small_run {
  static constexpr windowed model{small()};
  static constexpr mc::layout layout{};
};
static_assert(program<run>::ok);
