// Qwen3ForCausalLM of transformers. Parameters have its names, but for "model." before "layers.",
// and its layouts: linear weights (out, in) with heads and head dim merged.
#pragma once

#include <megacpp/train/hf_config.hpp>
#include <megacpp/train/hf_tensor.hpp>

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
  for (const auto& [name, r] : parameters.left())
    all.push_back(hf_as_stored(r.layer < 0 ? name : "model." + name, r));
  return all;
}

inline std::string canonical(std::string_view name) { return std::string(name); }

/// The table that a tied head shares.
inline constexpr const char* embedding = "model.embed_tokens.weight";

/// In the spelling of transformers 4.51, which later versions read too.
inline nlohmann::json config(const program_view& p) {
  const bool published = p.vocabulary > end_of_turn;
  const bool window = p.number("window") > 0;
  return {{"architectures", nlohmann::json::array({"Qwen3ForCausalLM"})},
          {"model_type", "qwen3"},
          {"attention_bias", false},
          {"attention_dropout", 0.0},
          {"hidden_act", "silu"},
          {"initializer_range", p.number("std")},
          {"rms_norm_eps", p.number("eps")},
          {"num_hidden_layers", hf_integer(p.number("layers"))},
          {"hidden_size", hf_integer(p.number("hidden"))},
          {"num_attention_heads", hf_integer(p.number("heads"))},
          {"num_key_value_heads", hf_integer(p.number("kv_heads"))},
          {"head_dim", hf_integer(p.number("head_dim"))},
          {"intermediate_size", hf_integer(p.number("ffn"))},
          {"max_position_embeddings", hf_integer(p.number("positions"))},
          {"vocab_size", hf_integer(p.number("vocabulary"))},
          {"rope_theta", p.number("rope_theta")},
          {"rope_scaling", nullptr},
          {"use_sliding_window", window},
          {"sliding_window", window ? hf_integer(p.number("window")) : nlohmann::json()},
          {"max_window_layers", window ? nlohmann::json(0) : hf_integer(p.number("layers"))},
          {"bos_token_id", published ? nlohmann::json(end_of_text) : nlohmann::json()},
          {"eos_token_id", published ? nlohmann::json(end_of_turn) : nlohmann::json()},
          {"tie_word_embeddings", p.number("tied") != 0},
          {"use_cache", true}};
}

/// RoPE: transformers 4 has rope_theta and rope_scaling, 5 has both in rope_parameters.
inline void compare_rope(const program_view& p, hf_comparison& c) {
  const json_value& file = c.config();
  const bool five = file.has("rope_parameters");
  const double theta = file.field_or<double>("rope_theta", 10000.0);
  if (five)
    c.number_in(file.field<json_value>("rope_parameters"), "rope_theta", p.number("rope_theta"),
                theta);
  else c.number("rope_theta", p.number("rope_theta"), 10000.0);
  for (const char* name : {"rope_parameters", "rope_scaling"}) {
    if (!file.has(name)) continue;
    const json_value rope = file.field<json_value>(name);
    const std::string type =
        rope.field_or<std::string>("rope_type", rope.field_or<std::string>("type", "default"));
    if (type != "default") c.differs(fmt::format("{}.rope_type", name), printable(type), "default");
  }
}

/// Layers below max_window_layers see everything; transformers 5 lists the layers instead.
inline void compare_window(const program_view& p, hf_comparison& c) {
  const json_value& file = c.config();
  const double ours = p.number("window");
  const bool used = file.field_or<bool>("use_sliding_window", false) &&
                    (!file.raw().contains("sliding_window") || file.has("sliding_window"));
  const double width = file.field_or<double>("sliding_window", 4096);
  const double first = file.field_or<double>("max_window_layers", 28);
  const auto listed = file.field_or<std::vector<std::string>>("layer_types", {});
  if (!listed.empty() && listed.size() != static_cast<std::size_t>(p.layers)) {
    c.differs("the number of layer_types", std::to_string(listed.size()), std::to_string(p.layers));
    return;
  }
  for (int l = 0; l < p.layers; ++l) {
    const bool slides = listed.empty() ? used && l >= first
                                       : listed[static_cast<unsigned>(l)] == "sliding_attention";
    const double theirs = slides ? width : 0;
    const bool known =
        listed.empty() || slides || listed[static_cast<unsigned>(l)] == "full_attention";
    const auto text = [](double w) { return w > 0 ? fmt::format("{}", w) : std::string("none"); };
    if (known && theirs == ours) continue;
    c.differs(fmt::format("the attention window of layer {}", l),
              known ? text(theirs) : printable(listed[static_cast<unsigned>(l)]), text(ours));
    return;
  }
}

/// Dropout and initializer_range say how a model was trained, not what it computes: they may
/// differ.
inline void compare(const program_view& p, hf_comparison& c) {
  c.number("num_hidden_layers", p.number("layers"));
  c.number("hidden_size", p.number("hidden"));
  c.number("num_attention_heads", p.number("heads"));
  c.number("num_key_value_heads", p.number("kv_heads"));
  c.number("head_dim", p.number("head_dim"), 128);
  c.number("intermediate_size", p.number("ffn"));
  c.number("vocab_size", p.number("vocabulary"));
  c.number("max_position_embeddings", p.number("positions"));
  c.number("rms_norm_eps", p.number("eps"), 1e-6);
  compare_rope(p, c);
  compare_window(p, c);
  c.text("hidden_act", {"silu", "swish"}, "silu");
  c.flag("attention_bias", false, false);
  c.flag("tie_word_embeddings", p.number("tied") != 0, false);
}

} // namespace mc::hf_qwen3
