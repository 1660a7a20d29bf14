// Qwen3, dense (Qwen3 technical report, 2025): RMSNorm, grouped-query attention with QK-norm and
// RoPE, SwiGLU, no biases.
#pragma once

#include <megacpp/model/decoder.hpp>

namespace mc {

/// A Qwen3, as its numbers. Extents: layers L, hidden H, heads A, kv_heads K, head_dim D, ffn F,
/// vocabulary V.
struct qwen3 {
  int layers = 28;             ///< number of blocks
  int hidden = 1024;           ///< width of the residual stream
  int heads = 16;              ///< heads of queries
  int kv_heads = 8;            ///< heads of keys and values; they divide heads
  int head_dim = 128;          ///< width of a head, even
  int ffn = 3072;              ///< width inside the MLP
  int vocabulary = 151936;     ///< distinct tokens
  int positions = 40960;       ///< tokens of the longest sequence
  bool tied = true;            ///< head and token embedding are one table
  double eps = 1e-6;           ///< small number added to the mean square in norms
  double rope_theta = 1e6;     ///< base of the rotary angles
  rope_stretch rope_scaling{}; ///< stretch of the angles beyond the positions of the first training
  double std = 0.02;           ///< standard deviation of initial weights
  int window = 0;              ///< sliding window in tokens; 0: none
  double z_loss = 0;           ///< factor of logsumexp^2 of the logits in the loss; 0: none

  static constexpr member_list<&qwen3::layers, &qwen3::hidden, &qwen3::heads, &qwen3::kv_heads,
                               &qwen3::head_dim, &qwen3::ffn, &qwen3::vocabulary, &qwen3::positions,
                               &qwen3::tied, &qwen3::eps, &qwen3::rope_theta, &qwen3::rope_scaling,
                               &qwen3::std, &qwen3::window, &qwen3::z_loss>
      members{};
  static constexpr family_name<qwen3> family{"qwen3"};
  static constexpr bool qk_norm = true; ///< queries and keys are normed, each head
  constexpr decoder_biases biases() const { return {}; }
  static constexpr int kinds = 1;
  constexpr int kind_of(int /*layer*/) const { return 0; }
  constexpr extent hidden_extent() const { return {dim::hidden, hidden}; }
  constexpr const char* contradiction() const { return decoder_contradiction(*this); }

  constexpr var stem(context& c, var tokens) const {
    return token_embedding(c, tokens, decoder_table(c, *this, true));
  }
  constexpr var block(context& c, int /*kind*/, var x) const {
    return decoder_mlp(c, *this, decoder_attention(c, *this, x));
  }
  constexpr var final_norm(context& c, var x) const { return rms_norm(c, "model.norm", x, eps); }
  constexpr var head_table(context& c) const { return decoder_table(c, *this, false); }
};

} // namespace mc
