// This header reads config.json of LlamaForCausalLM as mc::llama.
#pragma once

#include <megacpp/hf/decoder_config.hpp>
#include <megacpp/model/llama.hpp>

namespace mc::hf_llama {

inline constexpr const char* architecture = "LlamaForCausalLM";
inline constexpr std::tuple own_fields{hf_field{"attention_bias", &llama::attention_bias, false},
                                       hf_field{"mlp_bias", &llama::mlp_bias, false}};
inline constexpr auto fields = std::tuple_cat(hf_decoder::fields<llama>, own_fields);

/// Reads config.json of a Llama model. Throws mc::error of the file's class that names the field.
inline llama read(hf_reader& r, hf_use use) {
  llama m;
  hf_decoder::read_shared(r, use, m, {.kv_heads_needed = false});
  r.read(m, own_fields);
  // pretraining_tp only divides sums into several; transformers does not read the other two fields
  // for this model_type.
  r.ignore({"pretraining_tp", "is_llama_config", "max_sequence_length"});
  r.require("rope_interleaved", false, false, "RoPE turns the halves of a head, not neighbours");
  r.require("use_sliding_window", false, false, "this model_type has no sliding window");
  if (r.has("use_sliding_window"))
    r.ignore({"sliding_window", "max_window_layers"}); // A window that is not used has no effect.
  return m;
}

} // namespace mc::hf_llama
