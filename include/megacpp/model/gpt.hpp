// GPT: learned positions, pre-LayerNorm, GELU, tied head (Radford et al. 2019; the Megatron
// papers).
#pragma once

#include <megacpp/model/description.hpp>
#include <megacpp/nn/attention.hpp>
#include <megacpp/nn/head.hpp>
#include <megacpp/num/elementary.hpp>
#include <megacpp/recipe/lora.hpp>

namespace mc {

/// A GPT, as its numbers. Extents: layers L, hidden H, heads A, ffn F, vocabulary V, positions P.
struct gpt {
  int layers = 12;        ///< number of blocks
  int hidden = 768;       ///< width of the residual stream; heads divide it
  int heads = 12;         ///< attention heads, each hidden / heads wide
  int ffn = 3072;         ///< width inside the MLP
  int vocabulary = 50257; ///< number of tokens; 256 for bytes
  int positions = 1024;   ///< tokens of the longest sequence
  bool bias = true;       ///< linear layers and norms have biases
  bool tied = true;       ///< head and token embedding are one table
  double eps = 1e-5;      ///< small number added to the variance in norms
  double dropout = 0;     ///< probability of dropout, for embeddings and residual branches
  /// The standard deviation of initial weights; projections back to the stream: std / sqrt(2 L).
  double std = 0.02;
  double z_loss = 0; ///< factor of logsumexp^2 of the logits in the loss; 0: none

  static constexpr member_list<&gpt::layers, &gpt::hidden, &gpt::heads, &gpt::ffn, &gpt::vocabulary,
                               &gpt::positions, &gpt::bias, &gpt::tied, &gpt::eps, &gpt::dropout,
                               &gpt::std, &gpt::z_loss>
      members{};
  static constexpr family_name<gpt> family{"gpt2"};
  static constexpr published_layers published{{{"attn.q", "attn.c_attn"},
                                               {"attn.k", "attn.c_attn"},
                                               {"attn.v", "attn.c_attn"},
                                               {"attn.proj", "attn.c_proj"},
                                               {"mlp.fc", "mlp.c_fc"},
                                               {"mlp.proj", "mlp.c_proj"}}};
  static constexpr int kinds = 1;
  constexpr int kind_of(int /*layer*/) const { return 0; }
  constexpr int head_dim() const { return hidden / heads; }
  constexpr extent hidden_extent() const { return {dim::hidden, hidden}; }

  /// Returns a sentence if the numbers contradict each other, or null.
  constexpr const char* contradiction() const {
    if (layers < 1 || hidden < 1 || heads < 1 || ffn < 1 || vocabulary < 2 || positions < 1)
      return "layers, hidden, heads, ffn, vocabulary and positions must be positive";
    if (hidden % heads != 0) return "heads must divide hidden";
    if (!(dropout >= 0 && dropout < 1)) return "dropout must be in [0, 1)";
    return nullptr;
  }

  /// Computes x0 = wte[token] + wpe[position].
  constexpr var stem(context& c, var tokens) const {
    const var table = vocabulary_table(c, "wte", vocabulary, hidden_extent(), std, false);
    const var token = token_embedding(c, tokens, table); // statements fix the order of parameters
    const var position =
        position_embedding(c, "wpe", {dim::position, positions}, hidden_extent(), std);
    return stream_dropout(c, token + position, dropout);
  }

  /// Computes h = x + proj(attention(q, k, v of ln_1 x)),   y = h + proj(gelu(fc(ln_2 h))).
  constexpr var block(context& c, int /*kind*/, var x) const {
    const attention_sizes s{
        {dim::heads, heads}, {dim::kv_heads, heads}, {dim::head_dim, head_dim()}};
    const double out_std = std / square_root(2.0 * layers);
    const var a = to(layer_norm(c, "ln_1", x, bias, eps), axis::tp, replicate);
    const var q = column_parallel(c, "attn.q", a, {s.heads, s.head_dim}, bias, std);
    const var k = kv_projection(c, "attn.k", a, s, bias, std);
    const var v = kv_projection(c, "attn.v", a, s, bias, std);
    const var o = context_parallel_attention(c, q, k, v, {});
    const var h =
        x + stream_dropout(c, row_parallel(c, "attn.proj", o, 2, hidden_extent(), bias, out_std),
                           dropout);
    const var m = to(layer_norm(c, "ln_2", h, bias, eps), axis::tp, replicate);
    const var u = gelu(column_parallel(c, "mlp.fc", m, {{dim::ffn, ffn}}, bias, std));
    return h + stream_dropout(c, row_parallel(c, "mlp.proj", u, 1, hidden_extent(), bias, out_std),
                              dropout);
  }

  constexpr var final_norm(context& c, var x) const { return layer_norm(c, "ln_f", x, bias, eps); }
  constexpr var head_table(context& c) const {
    return vocabulary_table(c, tied ? "wte" : "lm_head", vocabulary, hidden_extent(), std, tied);
  }
};

} // namespace mc
