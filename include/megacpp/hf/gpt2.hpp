// This header names and lays out parameters as GPT2LMHeadModel of transformers does. Its linear
// layers are Conv1D: weights are (in, out), the transpose of ours, and c_attn is Q | K | V side by
// side.
//
//   ours                               theirs, after "transformer."
//   wte.weight (V, H), wpe.weight      wte.weight, wpe.weight
//   layers.i.attn.{q,k,v}.weight       h.i.attn.c_attn.weight (H, 3 H)
//   layers.i.attn.{q,k,v}.bias         h.i.attn.c_attn.bias (3 H)
//   layers.i.attn.proj                 h.i.attn.c_proj (H, H)
//   layers.i.mlp.fc, mlp.proj          h.i.mlp.c_fc (H, F), mlp.c_proj (F, H)
//   layers.i.ln_1, ln_2, ln_f          h.i.ln_1, ln_2, ln_f
//   lm_head.weight, where not tied     lm_head.weight, without the prefix
//
// transformers has no GPT-2 without biases. Biases that a program lacks are written as zeros, which
// compute the same.
#pragma once

#include <megacpp/hf/gpt2_config.hpp>
#include <megacpp/hf/tensor.hpp>

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace mc::hf_gpt2 {

/// end_of_text is the id of <|endoftext|> in the vocabulary that OpenAI published for GPT-2.
inline constexpr std::int64_t end_of_text = 50256;

inline std::vector<hf_tensor> tensors(const program_view& p) {
  hf_parameters parameters(p);
  std::vector<hf_tensor> all;
  const auto as_stored = [&](const std::string& name, const std::string& ours) {
    all.push_back(hf_as_stored(name, parameters.take(ours)));
  };
  // conv1d(name, ours, in) adds a weight (in, out) that holds our weights side by side.
  const auto conv1d = [&](const std::string& name, std::initializer_list<std::string> ours,
                          std::int64_t in) {
    hf_tensor t;
    t.name = name;
    std::int64_t out = 0;
    for (const std::string& each : ours) {
      const parameter_ref r = parameters.take(each);
      const std::int64_t columns = global_size(*r.v).n / in;
      t.sources.push_back({r, {}, {1, columns, in}, {0, in}, {}, out});
      out += columns;
    }
    for (hf_tensor::source& each : t.sources) each.strides = {0, 1, out};
    t.shape = {in, out};
    all.push_back(std::move(t));
  };
  const auto bias = [&](const std::string& name, std::initializer_list<std::string> ours,
                        std::int64_t n) {
    hf_tensor t;
    t.name = name, t.shape = {n};
    for (const std::string& each : ours) {
      if (!parameters.has(each)) continue;
      const parameter_ref r = parameters.take(each);
      t.append(r, {}, global_size(*r.v).n);
    }
    all.push_back(std::move(t));
  };
  const gpt& m = p.model_as<gpt>();
  const std::int64_t hidden = m.hidden, ffn = m.ffn;
  as_stored("transformer.wte.weight", "wte.weight");
  as_stored("transformer.wpe.weight", "wpe.weight");
  for (int l = 0; l < p.layers; ++l) {
    const std::string theirs = fmt::format("transformer.h.{}.", l);
    const std::string ours = fmt::format("layers.{}.", l);
    for (const char* norm : {"ln_1", "ln_2"}) {
      as_stored(theirs + norm + ".weight", ours + norm + ".weight");
      bias(theirs + norm + ".bias", {ours + norm + ".bias"}, hidden);
    }
    conv1d(theirs + "attn.c_attn.weight",
           {ours + "attn.q.weight", ours + "attn.k.weight", ours + "attn.v.weight"}, hidden);
    bias(theirs + "attn.c_attn.bias",
         {ours + "attn.q.bias", ours + "attn.k.bias", ours + "attn.v.bias"}, 3 * hidden);
    conv1d(theirs + "attn.c_proj.weight", {ours + "attn.proj.weight"}, hidden);
    bias(theirs + "attn.c_proj.bias", {ours + "attn.proj.bias"}, hidden);
    conv1d(theirs + "mlp.c_fc.weight", {ours + "mlp.fc.weight"}, hidden);
    bias(theirs + "mlp.c_fc.bias", {ours + "mlp.fc.bias"}, ffn);
    conv1d(theirs + "mlp.c_proj.weight", {ours + "mlp.proj.weight"}, ffn);
    bias(theirs + "mlp.c_proj.bias", {ours + "mlp.proj.bias"}, hidden);
  }
  as_stored("transformer.ln_f.weight", "ln_f.weight");
  bias("transformer.ln_f.bias", {"ln_f.bias"}, hidden);
  if (!m.tied) as_stored("lm_head.weight", "lm_head.weight");
  parameters.require_all_taken();
  return all;
}

/// Returns the tensors of tensors() that a stored tensor holds. Files of the first release lack the
/// prefix "transformer." and store the causal mask of every layer, which is no weight.
inline std::vector<hf_slice> slices(const file_tensor& stored) {
  std::string full(stored.name);
  if (!full.starts_with("transformer.") && full != "lm_head.weight") full = "transformer." + full;
  const bool mask = full.ends_with(".attn.bias") || full.ends_with(".attn.masked_bias");
  if (full.starts_with("transformer.h.") && mask) return {};
  return {hf_whole(std::move(full), stored)};
}

/// `embedding` names the table of token embeddings, which a tied head shares.
inline constexpr const char *embedding = "transformer.wte.weight", *layer_prefix = "transformer.h.";

inline nlohmann::json config(const program_view& p) {
  const gpt& m = p.model_as<gpt>();
  const bool published = m.vocabulary > end_of_text;
  nlohmann::json c = hf_written(m, fields);
  c.update({{"architectures", nlohmann::json::array({architecture})},
            {"model_type", gpt::family.text},
            {"activation_function", "gelu_new"},
            {"attn_pdrop", 0.0},
            {"embd_pdrop", m.dropout},
            {"resid_pdrop", m.dropout},
            {"initializer_range", m.std},
            {"bos_token_id", published ? nlohmann::json(end_of_text) : nlohmann::json()},
            {"eos_token_id", published ? nlohmann::json(end_of_text) : nlohmann::json()},
            {"scale_attn_weights", true},
            {"scale_attn_by_inverse_layer_idx", false},
            {"reorder_and_upcast_attn", false},
            {"add_cross_attention", false},
            {"use_cache", true}});
  return c;
}

} // namespace mc::hf_gpt2
