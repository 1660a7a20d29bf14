// The layers that Llama, Qwen2, Qwen3 and Qwen3-MoE share: RMSNorm, grouped-query attention with
// RoPE and, depending on the family, norms of queries and keys or biases; SwiGLU. A model that
// uses them has the members of mc::llama (model/llama.hpp), qk_norm and biases() among them.
#pragma once

#include <megacpp/model/description.hpp>
#include <megacpp/model/rope_scaling.hpp>
#include <megacpp/nn/attention.hpp>
#include <megacpp/nn/head.hpp>

namespace mc {

/// The linear layers of a block that have biases.
struct decoder_biases {
  bool qkv = false, out = false, mlp = false;
};

/// Computes h = x + o(attention(rope(qnorm(q)), rope(knorm(k)), v)).
template <class Model> constexpr var decoder_attention(context& c, const Model& m, var x) {
  const attention_sizes s{
      {dim::heads, m.heads}, {dim::kv_heads, m.kv_heads}, {dim::head_dim, m.head_dim}};
  const decoder_biases bias = m.biases();
  const op::rope_attributes angles =
      rope_angles(m.rope_theta, m.rope_scaling, m.head_dim, m.positions);
  const var a = to(rms_norm(c, "input_layernorm", x, m.eps), axis::tp, replicate);
  const var q = column_parallel(c, "self_attn.q_proj", a, {s.heads, s.head_dim}, bias.qkv, m.std);
  const var k = kv_projection(c, "self_attn.k_proj", a, s, bias.qkv, m.std);
  const var v = kv_projection(c, "self_attn.v_proj", a, s, bias.qkv, m.std);
  const var nq = m.qk_norm ? rms_norm(c, "self_attn.q_norm", q, m.eps) : q;
  const var rq = rope(nq, c.positions, angles);
  const var nk = m.qk_norm ? rms_norm(c, "self_attn.k_norm", k, m.eps) : k;
  const var rk = rope(nk, c.positions, angles);
  attention_options options;
  options.window = m.window, options.scale = score_scale(m.rope_scaling, m.head_dim);
  const var o = context_parallel_attention(c, rq, rk, v, options);
  return x + row_parallel(c, "self_attn.o_proj", o, 2, m.hidden_extent(), bias.out, m.std);
}

/// Computes y = h + down(silu(gate h') * up h').
template <class Model> constexpr var decoder_mlp(context& c, const Model& m, var h) {
  const bool bias = m.biases().mlp;
  const extent F{dim::ffn, m.ffn};
  const var n = to(rms_norm(c, "post_attention_layernorm", h, m.eps), axis::tp, replicate);
  const var gate = column_parallel(c, "mlp.gate_proj", n, {F}, bias, m.std);
  const var up = column_parallel(c, "mlp.up_proj", n, {F}, bias, m.std);
  return h + row_parallel(c, "mlp.down_proj", swiglu(gate, up), 1, m.hidden_extent(), bias, m.std);
}

/// Returns the table of the stem (`in_stem`) or of the head; they are one parameter when they are
/// tied.
template <class Model> constexpr var decoder_table(context& c, const Model& m, bool in_stem) {
  const bool tied = m.tied && !in_stem;
  return vocabulary_table(c, in_stem || tied ? "model.embed_tokens" : "lm_head", m.vocabulary,
                          m.hidden_extent(), m.std, tied);
}

/// Returns a sentence if the numbers of a model contradict each other, or null.
template <class Model> constexpr const char* decoder_contradiction(const Model& m) {
  if (m.layers < 1 || m.hidden < 1 || m.heads < 1 || m.kv_heads < 1 || m.head_dim < 2 ||
      m.ffn < 1 || m.vocabulary < 2 || m.positions < 1)
    return "layers, hidden, heads, kv_heads, head_dim, ffn, vocabulary and positions must be "
           "positive";
  if (m.heads % m.kv_heads != 0) return "kv_heads must divide heads";
  if (m.head_dim % 2 != 0) return "head_dim must be even";
  return m.rope_scaling.contradiction(m.rope_theta);
}

} // namespace mc
