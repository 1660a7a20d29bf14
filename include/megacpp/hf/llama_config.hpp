// config.json of LlamaForCausalLM as mc::llama.
#pragma once

#include <megacpp/hf/decoder_config.hpp>
#include <megacpp/model/llama.hpp>

namespace mc::hf_llama {

inline constexpr const char* architecture = "LlamaForCausalLM";
inline constexpr std::tuple own_fields{hf_field{"attention_bias", &llama::attention_bias, false},
                                       hf_field{"mlp_bias", &llama::mlp_bias, false}};
inline constexpr auto fields = std::tuple_cat(hf_decoder::fields<llama>, own_fields);

/// Throws mc::error of the file's class, naming the field.
inline llama read(hf_reader& r, hf_use use) {
  llama m;
  hf_decoder::read_shared(r, use, m, {.kv_heads_needed = false});
  r.read(m, own_fields);
  r.ignore({"pretraining_tp"}); // of the same sums in pieces
  return m;
}

} // namespace mc::hf_llama
