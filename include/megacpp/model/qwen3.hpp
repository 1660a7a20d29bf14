// Qwen3, dense (Qwen3 technical report, 2025): RMSNorm, grouped-query attention with QK-norm and
// RoPE, SwiGLU, no biases.
#pragma once

#include <megacpp/model/description.hpp>
#include <megacpp/nn/attention.hpp>
#include <megacpp/nn/head.hpp>

namespace mc {

/// A Qwen3 as data. Extents: layers L, hidden H, heads A, kv_heads K, head_dim D, ffn F, vocabulary
/// V.
struct qwen3 {
  int layers = 28;
  int hidden = 1024;
  int heads = 16;
  int kv_heads = 8;
  int head_dim = 128;
  int ffn = 3072;
  int vocabulary = 151936;
  int positions = 40960; ///< longest sequence
  bool tied = true;
  double eps = 1e-6;
  double rope_theta = 1e6;
  double std = 0.02;
  int window = 0; ///< sliding window in tokens; 0: none
  double z_loss = 0;

  static constexpr const char* family = "qwen3";
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

  /// For files that describe the model.
  constexpr std::array<model_number, 13> description() const {
    return {{{"layers", layers},
             {"hidden", hidden},
             {"heads", heads},
             {"kv_heads", kv_heads},
             {"head_dim", head_dim},
             {"ffn", ffn},
             {"vocabulary", vocabulary},
             {"positions", positions},
             {"tied", tied},
             {"eps", eps},
             {"rope_theta", rope_theta},
             {"std", std},
             {"window", window}}};
  }

  constexpr var stem(context& c, var tokens) const {
    return token_embedding(
        c, tokens,
        vocabulary_table(c, "model.embed_tokens", vocabulary, hidden_extent(), std, false));
  }

  /// h = x + o(attention(rope(qnorm(q)), rope(knorm(k)), v)),   y = h + down(silu(gate) * up)
  constexpr var block(context& c, int /*kind*/, var x) const {
    const attention_sizes s{
        {dim::heads, heads}, {dim::kv_heads, kv_heads}, {dim::head_dim, head_dim}};
    const var a = to(rms_norm(c, "input_layernorm", x, eps), axis::tp, R);
    const var q = column_parallel(c, "self_attn.q_proj", a, {s.heads, s.head_dim}, false, std);
    const var k = kv_projection(c, "self_attn.k_proj", a, s, false, std);
    const var v = kv_projection(c, "self_attn.v_proj", a, s, false, std);
    const var rq = rope(rms_norm(c, "self_attn.q_norm", q, eps), c.positions, rope_theta);
    const var rk = rope(rms_norm(c, "self_attn.k_norm", k, eps), c.positions, rope_theta);
    attention_options options;
    options.window = window;
    const var o = context_parallel_attention(c, rq, rk, v, options);
    const var h = x + row_parallel(c, "self_attn.o_proj", o, 2, hidden_extent(), false, std);
    const var m = to(rms_norm(c, "post_attention_layernorm", h, eps), axis::tp, R);
    const var gate = column_parallel(c, "mlp.gate_proj", m, {{dim::ffn, ffn}}, false, std);
    const var up = column_parallel(c, "mlp.up_proj", m, {{dim::ffn, ffn}}, false, std);
    return h + row_parallel(c, "mlp.down_proj", swiglu(gate, up), 1, hidden_extent(), false, std);
  }

  constexpr var final_norm(context& c, var x) const { return rms_norm(c, "model.norm", x, eps); }
  constexpr var head_table(context& c) const {
    return vocabulary_table(c, tied ? "model.embed_tokens" : "lm_head", vocabulary, hidden_extent(),
                            std, tied);
  }
};

} // namespace mc
