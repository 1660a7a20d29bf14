// A family of one's own: RMSNorm, RoPE, the MLP of own_layer.hpp; every second layer sees a window.
#pragma once

// [family]
#include "own_layer.hpp"

#include <megacpp/graph/letters.hpp>
#include <megacpp/model/description.hpp>
#include <megacpp/nn/attention.hpp>
#include <megacpp/nn/head.hpp>

namespace own {

/// Extents: layers L, hidden H, heads A, ffn F, adapter r, vocabulary V; window, positions in
/// tokens.
struct decoder {
  int layers = 4, hidden = 128, heads = 4, ffn = 512, adapter = 16, vocabulary = 256;
  int window = 64, positions = 1024;
  double eps = 1e-6, theta = 1e4, std = 0.02, z_loss = 0;

  /// What `describe` shows, and what a program must agree in with a saved state to take it.
  static constexpr mc::member_list<&decoder::layers, &decoder::hidden, &decoder::heads,
                                   &decoder::ffn, &decoder::adapter, &decoder::vocabulary,
                                   &decoder::window, &decoder::positions, &decoder::eps,
                                   &decoder::theta, &decoder::std, &decoder::z_loss>
      members{};
  static constexpr mc::family_name<decoder> family{"decoder"};
  static constexpr int kinds = 2; // 0: all earlier tokens, 1: the last `window` of them
  constexpr int kind_of(int layer) const { return layer % 2; }
  constexpr mc::extent hidden_extent() const { return {mc::dim::hidden, hidden}; }

  constexpr const char* contradiction() const {
    if (layers < 1 || hidden < 1 || heads < 1 || ffn < 1 || adapter < 1 || vocabulary < 2 ||
        window < 1)
      return "layers, extents and window must be positive";
    if (hidden % (2 * heads) != 0) return "2 heads must divide hidden";
    return nullptr;
  }

  constexpr mc::var stem(mc::context& c, mc::var tokens) const {
    return token_embedding(c, tokens, table(c, false));
  }
  /// h = x + o(attention(rope q, rope k, v)),   y = h + adapted_mlp(h')
  constexpr mc::var block(mc::context& c, int kind, mc::var x) const {
    const mc::extent A{mc::dim::heads, heads}, D{mc::dim::head_dim, hidden / heads};
    const mc::attention_sizes s{A, {mc::dim::kv_heads, heads}, D};
    const mc::var a = to(rms_norm(c, "attn_norm", x, eps), mc::axis::tp, mc::R);
    const mc::var q = rope(column_parallel(c, "q", a, {A, D}, false, std), c.positions, theta);
    const mc::var k = rope(kv_projection(c, "k", a, s, false, std), c.positions, theta);
    const mc::var v = kv_projection(c, "v", a, s, false, std);
    mc::attention_options options;
    options.window = kind == 1 ? window : 0;
    const mc::var o = context_parallel_attention(c, q, k, v, options);
    const mc::var h = x + row_parallel(c, "o", o, 2, hidden_extent(), false, std);
    return h + adapted_mlp(c, rms_norm(c, "mlp_norm", h, eps), ffn, adapter, std);
  }
  constexpr mc::var final_norm(mc::context& c, mc::var x) const {
    return rms_norm(c, "norm", x, eps);
  }
  constexpr mc::var head_table(mc::context& c) const { return table(c, true); }

  /// The stem declares the table, the head ties to it.
  constexpr mc::var table(mc::context& c, bool tied) const {
    return vocabulary_table(c, "embedding", vocabulary, hidden_extent(), std, tied);
  }
};

} // namespace own
// [/family]
