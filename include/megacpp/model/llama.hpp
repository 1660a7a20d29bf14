// Llama, 1 to 3 (Touvron et al. 2023, Grattafiori et al. 2024): RMSNorm, grouped-query attention
// with RoPE, SwiGLU.
#pragma once

#include <megacpp/model/decoder.hpp>

namespace mc {

/// A Llama, as its numbers. Extents: layers L, hidden H, heads A, kv_heads K, head_dim D, ffn F,
/// vocabulary V.
struct llama {
  int layers = 32;             ///< number of blocks
  int hidden = 4096;           ///< width of the residual stream
  int heads = 32;              ///< heads of queries
  int kv_heads = 8;            ///< heads of keys and values; they divide heads
  int head_dim = 128;          ///< width of a head, even
  int ffn = 14336;             ///< width inside the MLP
  int vocabulary = 128256;     ///< distinct tokens
  int positions = 8192;        ///< tokens of the longest sequence
  bool tied = false;           ///< head and token embedding are one table
  bool attention_bias = false; ///< the four linear layers of attention have biases
  bool mlp_bias = false;       ///< the three linear layers of the MLP have biases
  double eps = 1e-5;           ///< small number added to the mean square in norms
  double rope_theta = 5e5;     ///< base of the rotary angles
  rope_stretch rope_scaling{}; ///< stretch of the angles beyond the positions of the first training
  double std = 0.02;           ///< standard deviation of initial weights
  double z_loss = 0;           ///< factor of logsumexp^2 of the logits in the loss; 0: none

  static constexpr member_list<&llama::layers, &llama::hidden, &llama::heads, &llama::kv_heads,
                               &llama::head_dim, &llama::ffn, &llama::vocabulary, &llama::positions,
                               &llama::tied, &llama::attention_bias, &llama::mlp_bias, &llama::eps,
                               &llama::rope_theta, &llama::rope_scaling, &llama::std,
                               &llama::z_loss>
      members{};
  static constexpr family_name<llama> family{"llama"};
  static constexpr int window = 0;       ///< sliding window in tokens; 0: none
  static constexpr bool qk_norm = false; ///< queries and keys are normed, each head
  constexpr decoder_biases biases() const { return {attention_bias, attention_bias, mlp_bias}; }
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
