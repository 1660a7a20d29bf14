// Qwen3ForCausalLM of transformers. Parameters have its names, but for "model." before "layers.",
// and its layouts: linear weights (out, in) with heads and head dim merged.
#pragma once

#include <megacpp/hf/qwen3_config.hpp>
#include <megacpp/hf/tensor.hpp>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace mc::hf_qwen3 {

/// Of the vocabulary of 151,936 rows that Qwen published: <|endoftext|>, <|im_end|>.
inline constexpr std::int64_t end_of_text = 151643, end_of_turn = 151645;

inline std::vector<hf_tensor> tensors(const program_view& p) {
  hf_parameters parameters(p);
  std::vector<hf_tensor> all;
  for (const std::string& name : parameters.names()) {
    const parameter_ref r = parameters.take(name);
    all.push_back(hf_as_stored(r.layer < 0 ? name : "model." + name, r));
  }
  return all;
}

/// The tensors of tensors() that a stored one holds.
inline std::vector<hf_piece> pieces(const tensor_view& stored) {
  return {hf_whole(std::string(stored.name), stored)};
}

/// The table that a tied head shares.
inline constexpr const char* embedding = "model.embed_tokens.weight";

/// In the spelling of transformers 4.51, which later versions read too.
template <class Model> nlohmann::json config(const program_view& p) {
  const Model& m = p.model_as<Model>();
  const bool published = m.vocabulary > end_of_turn, window = m.window > 0;
  nlohmann::json c = hf_written(m, fields<Model>);
  c.update({{"architectures", nlohmann::json::array({architecture})},
            {"model_type", Model::family.text},
            {"attention_bias", false},
            {"attention_dropout", 0.0},
            {"hidden_act", "silu"},
            {"initializer_range", m.std},
            {"rope_scaling", nullptr},
            {"use_sliding_window", window},
            {"max_window_layers", window ? 0 : m.layers},
            {"bos_token_id", published ? nlohmann::json(end_of_text) : nlohmann::json()},
            {"eos_token_id", published ? nlohmann::json(end_of_turn) : nlohmann::json()},
            {"use_cache", true}});
  if (!window) c["sliding_window"] = nullptr;
  return c;
}

} // namespace mc::hf_qwen3
