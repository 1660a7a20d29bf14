// This header reads config.json of Qwen3ForCausalLM as mc::qwen3.
#pragma once

#include <megacpp/hf/decoder_config.hpp>
#include <megacpp/model/qwen3.hpp>

namespace mc::hf_qwen3 {

inline constexpr const char* architecture = "Qwen3ForCausalLM";
inline constexpr auto fields =
    std::tuple_cat(hf_decoder::fields<qwen3>, hf_decoder::window_field<qwen3>);

/// Reads config.json of a Qwen3 model. Throws mc::error of the file's class that names the field.
inline qwen3 read(hf_reader& r, hf_use use) {
  qwen3 m;
  hf_decoder::read_shared(r, use, m, {.head_dim = 128});
  r.require("attention_bias", false, false, "projections of attention have no biases");
  m.window = hf_decoder::read_window(r, m.layers);
  return m;
}

} // namespace mc::hf_qwen3
