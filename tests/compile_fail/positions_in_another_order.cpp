// expect-error: MEGA-P012
// expect-text: rope(linear@17, slots)
//
// Causal context parallelism gives each rank an early and a late chunk of the sequence; positions
// counted along a contiguous cut are those of other tokens (NVIDIA/Megatron-LM#4977: a RoPE table
// of the local length, https://github.com/NVIDIA/Megatron-LM/pull/4977; #1612: positions cut by the
// wrong dim).
#include "one_layer.hpp"

using namespace mc;

struct rotary : gpt {
  constexpr var block(context& c, int /*kind*/, var x) const {
    const attention_sizes s{
        {dim::heads, heads}, {dim::kv_heads, heads}, {dim::head_dim, head_dim()}};
    const placement cut = on(axis::tp, S(dim::heads));
    const var q = linear(x, weight(c, "q", "weight", {s.heads, s.head_dim, hidden_extent()}, cut,
                                   normal_weights(std)));
    const var k = kv_projection(c, "k", x, s, bias, std);
    const var v = kv_projection(c, "v", x, s, bias, std);
#ifdef MEGACPP_EXPECT_ERROR
    const var contiguous = c.b->integers(feed::positions, integer_kind::positions, "slots",
                                         {x.type().dims[0],
                                          { dim::sequence,
                                            16 }},
                                         stream_placement(I), 16);
    const var turned = rope(q, contiguous, 1e4); // expect-line
#else
    const var turned = rope(q, c.positions, 1e4);
#endif
    const var o = context_parallel_attention(c, turned, k, v, {});
    return x + row_parallel(c, "o", o, 2, hidden_extent(), bias, std);
  }
};

struct run : small_run {
  static constexpr rotary model{small()};
  static constexpr mc::layout layout = context_parallel(2);
};
static_assert(program<run>::ok);
