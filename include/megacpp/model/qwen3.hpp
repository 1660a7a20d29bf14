// Qwen3, dense (Qwen3 technical report, 2025): RMSNorm, grouped-query attention with QK-norm and
// RoPE, SwiGLU, no biases.
#pragma once

#include <megacpp/model/description.hpp>
#include <megacpp/nn/attention.hpp>
#include <megacpp/nn/head.hpp>

namespace mc {

/// h = x + o(attention(rope(qnorm(q)), rope(knorm(k)), v)), for any model with Qwen3's numbers.
template <class Model> constexpr var qwen3_attention(context& c, const Model& m, var x) {
  const attention_sizes s{
      {dim::heads, m.heads}, {dim::kv_heads, m.kv_heads}, {dim::head_dim, m.head_dim}};
  const var a = to(rms_norm(c, "input_layernorm", x, m.eps), axis::tp, replicate);
  const var q = column_parallel(c, "self_attn.q_proj", a, {s.heads, s.head_dim}, false, m.std);
  const var k = kv_projection(c, "self_attn.k_proj", a, s, false, m.std);
  const var v = kv_projection(c, "self_attn.v_proj", a, s, false, m.std);
  const var rq = rope(rms_norm(c, "self_attn.q_norm", q, m.eps), c.positions, m.rope_theta);
  const var rk = rope(rms_norm(c, "self_attn.k_norm", k, m.eps), c.positions, m.rope_theta);
  attention_options options;
  options.window = m.window;
  const var o = context_parallel_attention(c, rq, rk, v, options);
  return x + row_parallel(c, "self_attn.o_proj", o, 2, m.hidden_extent(), false, m.std);
}

/// y = h + down(silu(gate h') * up h')
template <class Model> constexpr var qwen3_mlp(context& c, const Model& m, var h) {
  const var n = to(rms_norm(c, "post_attention_layernorm", h, m.eps), axis::tp, replicate);
  const var gate = column_parallel(c, "mlp.gate_proj", n, {{dim::ffn, m.ffn}}, false, m.std);
  const var up = column_parallel(c, "mlp.up_proj", n, {{dim::ffn, m.ffn}}, false, m.std);
  return h + row_parallel(c, "mlp.down_proj", swiglu(gate, up), 1, m.hidden_extent(), false, m.std);
}

/// The table of the stem (`in_stem`) or of the head: one parameter when they are tied.
template <class Model> constexpr var qwen3_table(context& c, const Model& m, bool in_stem) {
  const bool tied = m.tied && !in_stem;
  return vocabulary_table(c, in_stem || tied ? "model.embed_tokens" : "lm_head", m.vocabulary,
                          m.hidden_extent(), m.std, tied);
}

/// A Qwen3 as data. Extents: layers L, hidden H, heads A, kv_heads K, head_dim D, ffn F, vocabulary
/// V.
struct qwen3 {
  int layers = 28;         ///< blocks
  int hidden = 1024;       ///< width of the residual stream
  int heads = 16;          ///< of queries
  int kv_heads = 8;        ///< of keys and values; they divide heads
  int head_dim = 128;      ///< width of a head, even
  int ffn = 3072;          ///< width inside the MLP
  int vocabulary = 151936; ///< tokens
  int positions = 40960;   ///< tokens of the longest sequence
  bool tied = true;        ///< head and token embedding are one table
  double eps = 1e-6;       ///< added to the mean square in norms
  double rope_theta = 1e6; ///< base of the rotary angles
  double std = 0.02;       ///< of initial weights
  int window = 0;          ///< sliding window in tokens; 0: none
  double z_loss = 0;       ///< factor of logsumexp^2 of the logits in the loss; 0: none

  static constexpr member_list<&qwen3::layers, &qwen3::hidden, &qwen3::heads, &qwen3::kv_heads,
                               &qwen3::head_dim, &qwen3::ffn, &qwen3::vocabulary, &qwen3::positions,
                               &qwen3::tied, &qwen3::eps, &qwen3::rope_theta, &qwen3::std,
                               &qwen3::window, &qwen3::z_loss>
      members{};
  static constexpr family_name<qwen3> family{"qwen3"};
  static constexpr int kinds = 1;
  constexpr int kind_of(int /*layer*/) const { return 0; }
  constexpr extent hidden_extent() const { return {dim::hidden, hidden}; }

  constexpr const char* contradiction() const {
    if (layers < 1 || hidden < 1 || heads < 1 || kv_heads < 1 || head_dim < 2 || ffn < 1 ||
        vocabulary < 2)
      return "layers, hidden, heads, kv_heads, head_dim, ffn and vocabulary must be positive";
    if (heads % kv_heads != 0) return "kv_heads must divide heads";
    if (head_dim % 2 != 0) return "head_dim must be even";
    return nullptr;
  }

  constexpr var stem(context& c, var tokens) const {
    return token_embedding(c, tokens, qwen3_table(c, *this, true));
  }
  constexpr var block(context& c, int /*kind*/, var x) const {
    return qwen3_mlp(c, *this, qwen3_attention(c, *this, x));
  }
  constexpr var final_norm(context& c, var x) const { return rms_norm(c, "model.norm", x, eps); }
  constexpr var head_table(context& c) const { return qwen3_table(c, *this, false); }
};

} // namespace mc
