// This header reads config.json of Qwen3MoeForCausalLM as mc::qwen3_moe, as transformers 4
// (num_experts) or 5 (num_local_experts) spells it. decoder_config.hpp reads the fields that dense
// models have, too.
#pragma once

#include <megacpp/hf/decoder_config.hpp>
#include <megacpp/model/qwen3_moe.hpp>

#include <tuple>

namespace mc::hf_qwen3_moe {

inline constexpr const char* architecture = "Qwen3MoeForCausalLM";

/// own_fields is the table of fields that dense models do not have. decoder_sparse_step and
/// mlp_only_layers, which say which layers have experts, are not in it: functions below read, write
/// and compare them.
inline constexpr std::tuple own_fields{
    hf_field{"num_experts", &qwen3_moe::experts},
    hf_field{"num_experts_per_tok", &qwen3_moe::experts_per_token, hf_limits::experts},
    hf_field{"moe_intermediate_size", &qwen3_moe::expert_ffn, hf_limits::hidden},
    hf_field{"norm_topk_prob", &qwen3_moe::norm_topk, false}};
inline constexpr auto fields =
    std::tuple_cat(hf_decoder::fields<qwen3_moe>, hf_decoder::window_field<qwen3_moe>, own_fields);

/// Returns the width of the sliding window of attention in all layers, or 0 for none. transformers
/// 5 gives the window to every layer, and 4 to layers from max_window_layers on. Throws where the
/// two differ.
inline int read_window(hf_reader& r) {
  const bool used = r.flag("use_sliding_window", false);
  const int width = r.extent("sliding_window", hf_limits::positions, 4096);
  const bool set = !r.config().raw().contains("sliding_window") || r.has("sliding_window");
  const int first = r.has("max_window_layers")
                        ? r.config().field<int>("max_window_layers", 0, hf_limits::positions)
                        : 0;
  if (!used || !set) return 0;
  if (first > 0)
    throw r.refuse("max_window_layers",
                   "transformers 4 and 5 disagree on which layers of this model_type then have the "
                   "sliding window: set it to 0 if all have, or use_sliding_window to false");
  return width;
}

inline void read_dense_layers(hf_reader& r, qwen3_moe& m) {
  r.refuse_null("decoder_sparse_step");
  m.sparse_step = r.extent("decoder_sparse_step", hf_limits::layers, 1);
  if (!r.has("mlp_only_layers")) return;
  for (const int l : r.config().field<std::vector<int>>("mlp_only_layers")) {
    if (l < 0 || l >= m.layers)
      throw r.contradiction(
          fmt::format("\"mlp_only_layers\" has layer {} and "
                      "\"num_hidden_layers\" is {}; layers count from 0",
                      l, m.layers));
    if (l > layer_set::greatest)
      throw r.contradiction(
          fmt::format("\"mlp_only_layers\" has layer {}, but such a list can "
                      "have layers up to {} alone",
                      l, layer_set::greatest));
    m.mlp_only.insert(l);
  }
}

/// Reads config.json of a Qwen3-MoE model. Throws mc::error of the file's class that names the
/// field.
inline qwen3_moe read(hf_reader& r, hf_use use) {
  qwen3_moe m;
  hf_decoder::read_shared(r, use, m, {});
  r.require("attention_bias", false, false, "projections of attention have no biases");
  // Qwen3-Coder's files have qkv_bias; transformers does not read it for this model_type.
  r.require("qkv_bias", false, false, "projections of attention have no biases");
  r.require("use_qk_norm", true, true, "queries and keys are normalised");
  if (r.number("shared_expert_intermediate_size", 0, hf_limits::ffn, 0) != 0)
    throw r.refuse("shared_expert_intermediate_size", "there is no expert that all tokens share");
  r.require_same("num_experts", "num_local_experts");
  m.experts = r.extent(r.has("num_local_experts") ? "num_local_experts" : "num_experts",
                       hf_limits::experts);
  r.read(m, own_fields);
  if (m.experts_per_token > m.experts)
    throw r.contradiction(fmt::format("\"num_experts_per_tok\" is {}, but there are {} experts",
                                      m.experts_per_token, m.experts));
  read_dense_layers(r, m);
  m.window = read_window(r);
  r.ignore({"output_router_logits"}); // The field sets an output of transformers' forward.
  if (use == hf_use::program) m.aux_loss = r.number("router_aux_loss_coef", 0, 1e6, 0.001);
  else r.ignore({"router_aux_loss_coef"});
  return m;
}

} // namespace mc::hf_qwen3_moe
