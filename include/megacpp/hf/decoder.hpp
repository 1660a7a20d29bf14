// This header names and lays out parameters as LlamaForCausalLM, Qwen2ForCausalLM and
// Qwen3ForCausalLM of transformers do. Their names are the program's with "model." before
// "layers.". Linear weights are (out, in), with heads and head dim merged.
#pragma once

#include <megacpp/hf/decoder_config.hpp>
#include <megacpp/hf/tensor.hpp>

#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace mc::hf_decoder {

inline std::vector<hf_tensor> tensors(const program_view& p) {
  hf_parameters parameters(p);
  std::vector<hf_tensor> all;
  for (const std::string& name : parameters.names()) {
    const parameter_ref r = parameters.take(name);
    all.push_back(hf_as_stored(r.layer < 0 ? name : "model." + name, r));
  }
  return all;
}

/// Returns the name that a stored tensor has in tensors(). Files that AutoModel saved, such as
/// those of Qwen3-Embedding, lack "model." in their names.
inline std::string full_name(std::string_view stored) {
  if (stored.starts_with("model.") || stored == "lm_head.weight") return std::string(stored);
  return fmt::format("model.{}", stored);
}

/// Returns the tensors of tensors() that a stored tensor holds. Files of the first Llamas also
/// store the inverse frequencies of RoPE, which are no weights.
inline std::vector<hf_slice> slices(const file_tensor& stored) {
  if (stored.name.ends_with(".self_attn.rotary_emb.inv_freq")) return {};
  return {hf_whole(full_name(stored.name), stored)};
}

/// `embedding` names the table of token embeddings, which a tied head shares.
inline constexpr const char *embedding = "model.embed_tokens.weight",
                            *layer_prefix = "model.layers.";

/// hf_ends has the ids of the tokens that begin and end a text in a published vocabulary. A
/// vocabulary is taken for the published one if it has an id above `greatest`.
struct hf_ends {
  int greatest;
  std::int64_t begin, end;
};
inline constexpr hf_ends qwen_ends{151645, 151643, 151645}, llama3_ends{128255, 128000, 128001};

/// Returns config.json of a program, as transformers 4.51 spells it; later versions read it, too.
template <class Model, class Fields>
nlohmann::json config(const program_view& p, const char* architecture, const Fields& fields) {
  const Model& m = p.model_as<Model>();
  constexpr bool slides = requires(Model x) { x.window = 1; };
  const hf_ends ends = slides ? qwen_ends : llama3_ends;
  const bool published = m.vocabulary > ends.greatest;
  nlohmann::json c = hf_written(m, fields);
  c.update({{"architectures", nlohmann::json::array({architecture})},
            {"model_type", Model::family.text},
            {"attention_dropout", 0.0},
            {"hidden_act", "silu"},
            {"initializer_range", m.std},
            {"bos_token_id", published ? nlohmann::json(ends.begin) : nlohmann::json()},
            {"eos_token_id", published ? nlohmann::json(ends.end) : nlohmann::json()},
            {"use_cache", true}});
  if constexpr (slides) {
    c["use_sliding_window"] = m.window > 0;
    c["max_window_layers"] = m.window > 0 ? 0 : m.layers;
    if (m.window == 0) c["sliding_window"] = nullptr;
  }
  if constexpr (Model::qk_norm) c["attention_bias"] = false;
  return c;
}

} // namespace mc::hf_decoder
