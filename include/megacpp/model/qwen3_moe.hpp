// Qwen3-MoE (Qwen3 technical report, 2025): Qwen3 whose MLPs, in all or some layers, are mixtures
// of experts.
#pragma once

#include <megacpp/model/decoder.hpp>
#include <megacpp/nn/experts.hpp>
#include <megacpp/recipe/layer_set.hpp>
#include <megacpp/recipe/lora.hpp>

namespace mc {

template <> inline constexpr bool told_by_kinds<layer_set> = true;

/// A Qwen3-MoE, as its numbers. Extents: layers L, hidden H, heads A, kv_heads K, head_dim D, ffn F
/// of dense layers, expert_ffn F of an expert, experts E, experts_per_token k, vocabulary V.
struct qwen3_moe {
  int layers = 48;               ///< number of blocks
  int hidden = 2048;             ///< width of the residual stream
  int heads = 32;                ///< heads of queries
  int kv_heads = 4;              ///< heads of keys and values; they divide heads
  int head_dim = 128;            ///< width of a head, even
  int ffn = 6144;                ///< width inside the MLP of layers without experts
  int expert_ffn = 768;          ///< width inside an expert
  int experts = 128;             ///< experts in a layer
  int experts_per_token = 8;     ///< experts that a token goes to
  int vocabulary = 151936;       ///< distinct tokens
  int positions = 40960;         ///< tokens of the longest sequence
  bool norm_topk = true;         ///< the weights of a token's experts add up to 1
  int sparse_step = 1;           ///< every sparse_step-th layer has experts
  layer_set mlp_only{};          ///< layers without experts all the same, by number from 0
  bool tied = false;             ///< head and token embedding are one table
  double aux_loss = 0.001;       ///< coefficient of the load-balancing loss
  bool aux_per_sequence = false; ///< balanced over each sequence; else over the micro-batch
  bool aux_global = false;       ///< balanced over the micro-batches of all replicas
  double router_z_loss = 0;      ///< coefficient of the router's z-loss
  double bias_rate = 0;          ///< step of a bias that balances the load without a loss
  /// The capacity of an expert, as a multiple of its average of a micro-batch; 0: no limit.
  double capacity = 0;
  int shared_ffn = 0;          ///< width of an expert that every token goes to; 0: none
  double eps = 1e-6;           ///< small number added to the mean square in norms
  double rope_theta = 1e6;     ///< base of the rotary angles
  rope_stretch rope_scaling{}; ///< stretch of the angles beyond the positions of the first training
  double std = 0.02;           ///< standard deviation of initial weights
  int window = 0;              ///< sliding window in tokens; 0: none
  double z_loss = 0;           ///< factor of logsumexp^2 of the logits in the loss; 0: none

  static constexpr member_list<
      &qwen3_moe::layers, &qwen3_moe::hidden, &qwen3_moe::heads, &qwen3_moe::kv_heads,
      &qwen3_moe::head_dim, &qwen3_moe::ffn, &qwen3_moe::expert_ffn, &qwen3_moe::experts,
      &qwen3_moe::experts_per_token, &qwen3_moe::vocabulary, &qwen3_moe::positions,
      &qwen3_moe::norm_topk, &qwen3_moe::sparse_step, &qwen3_moe::mlp_only, &qwen3_moe::tied,
      &qwen3_moe::aux_loss, &qwen3_moe::aux_per_sequence, &qwen3_moe::aux_global,
      &qwen3_moe::router_z_loss, &qwen3_moe::bias_rate, &qwen3_moe::capacity,
      &qwen3_moe::shared_ffn, &qwen3_moe::eps, &qwen3_moe::rope_theta, &qwen3_moe::rope_scaling,
      &qwen3_moe::std, &qwen3_moe::window, &qwen3_moe::z_loss>
      members{};
  static constexpr family_name<qwen3_moe> family{"qwen3_moe"};
  /// transformers joins the gate and up matrices of all experts in memory.
  static constexpr published_layers published{
      {{"mlp.experts.gate_proj", "mlp.experts.gate_up_proj"},
       {"mlp.experts.up_proj", "mlp.experts.gate_up_proj"}}};
  static constexpr bool qk_norm = true;
  constexpr decoder_biases biases() const { return {}; }
  static constexpr int kinds = 2; // 0: a layer with experts, 1: one with a dense MLP
  constexpr int kind_of(int layer) const {
    const bool sparse = sparse_step > 0 && (layer + 1) % sparse_step == 0;
    return sparse && !mlp_only.holds(layer) ? 0 : 1;
  }
  constexpr extent hidden_extent() const { return {dim::hidden, hidden}; }

  constexpr const char* contradiction() const {
    if (const char* why = decoder_contradiction(*this)) return why;
    if (expert_ffn < 1 || experts < 1 || experts_per_token < 1 || sparse_step < 1)
      return "expert_ffn, experts, experts_per_token and sparse_step must be positive";
    if (experts_per_token > experts) return "a token goes to more experts than there are";
    if (aux_per_sequence && aux_global)
      return "a load is balanced over each sequence (aux_per_sequence) or over all replicas "
             "(aux_global), not both";
    if (mlp_only.last() >= layers) return "mlp_only names a layer that does not exist";
    const bool positive = aux_loss >= 0 && router_z_loss >= 0 && bias_rate >= 0 && capacity >= 0;
    if (!positive || shared_ffn < 0)
      return "coefficients, capacity and shared_ffn must not be negative";
    return nullptr;
  }

  constexpr var stem(context& c, var tokens) const {
    return token_embedding(c, tokens, decoder_table(c, *this, true));
  }
  /// Computes h = x + attention,   y = h + mlp(h') or h + experts(h') [+ shared(h')].
  constexpr var block(context& c, int kind, var x) const {
    const var h = decoder_attention(c, *this, x);
    return kind == 0 ? sparse_mlp(c, h) : decoder_mlp(c, *this, h);
  }
  constexpr var final_norm(context& c, var x) const { return rms_norm(c, "model.norm", x, eps); }
  constexpr var head_table(context& c) const { return decoder_table(c, *this, false); }

private:
  constexpr balance_scope balanced_over() const {
    if (aux_per_sequence) return balance_scope::sequence;
    return aux_global ? balance_scope::replicas : balance_scope::micro_batch;
  }
  constexpr var sparse_mlp(context& c, var h) const {
    const var n = rms_norm(c, "post_attention_layernorm", h, eps);
    var y = h;
    if (shared_ffn > 0) {
      const extent F{dim::ffn, shared_ffn};
      const var m = to(n, axis::tp, replicate);
      const var gate = column_parallel(c, "mlp.shared_expert.gate_proj", m, {F}, false, std);
      const var up = column_parallel(c, "mlp.shared_expert.up_proj", m, {F}, false, std);
      y = y + row_parallel(c, "mlp.shared_expert.down_proj", swiglu(gate, up), 1, hidden_extent(),
                           false, std);
    }
    const expert_sizes s{.experts = {dim::expert, experts},
                         .ffn = {dim::ffn, expert_ffn},
                         .per_token = experts_per_token,
                         .normalise = norm_topk,
                         .balance = aux_loss,
                         .z_loss = router_z_loss,
                         .balanced_over = balanced_over(),
                         .bias_rate = bias_rate,
                         .capacity = capacity};
    return y + mixture_of_experts(c,
                                  {"mlp.gate", "mlp.experts.gate_proj", "mlp.experts.up_proj",
                                   "mlp.experts.down_proj"},
                                  n, s, std);
  }
};

} // namespace mc
