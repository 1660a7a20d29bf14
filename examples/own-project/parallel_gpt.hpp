// GPT with a block of one's own: attention and MLP side by side, behind one norm.
#include <megacpp/graph/letters.hpp>
#include <megacpp/megacpp.hpp>

struct parallel_gpt : mc::gpt {
  /// y = x + proj(attention(q, k, v of n)) + down(gelu(up(n))),   n = ln x
  constexpr mc::var block(mc::context& c, int /*kind*/, mc::var x) const {
    const mc::attention_sizes s{
        {mc::dim::heads, heads}, {mc::dim::kv_heads, heads}, {mc::dim::head_dim, head_dim()}};
    const mc::var n = to(layer_norm(c, "ln", x, bias, eps), mc::axis::tp, mc::R);
    const mc::var q = column_parallel(c, "attn.q", n, {s.heads, s.head_dim}, bias, std);
    const mc::var k = kv_projection(c, "attn.k", n, s, bias, std);
    const mc::var v = kv_projection(c, "attn.v", n, s, bias, std);
    const mc::var o = context_parallel_attention(c, q, k, v, {});
    const mc::var u = gelu(column_parallel(c, "mlp.up", n, {{mc::dim::ffn, ffn}}, bias, std));
    return x + row_parallel(c, "attn.proj", o, 2, hidden_extent(), bias, std) +
           row_parallel(c, "mlp.down", u, 1, hidden_extent(), bias, std);
  }
};

struct my_parallel_gpt {
  static constexpr parallel_gpt model{
      {.layers = 4, .hidden = 128, .heads = 4, .ffn = 512, .vocabulary = 256, .positions = 128}};
  static constexpr mc::layout layout{};
  static constexpr mc::batching batch{.micro = 8, .sequence = 128};
  using precision = mc::fp32;
};
