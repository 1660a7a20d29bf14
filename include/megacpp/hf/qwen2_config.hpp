// This header reads config.json of Qwen2ForCausalLM, which is Qwen2.5's class, too, as mc::qwen2.
#pragma once

#include <megacpp/hf/decoder_config.hpp>
#include <megacpp/model/qwen2.hpp>

namespace mc::hf_qwen2 {

inline constexpr const char* architecture = "Qwen2ForCausalLM";
inline constexpr auto fields =
    std::tuple_cat(hf_decoder::fields<qwen2>, hf_decoder::window_field<qwen2>);

/// Reads config.json of a Qwen2 model. Throws mc::error of the file's class that names the field.
inline qwen2 read(hf_reader& r, hf_use use) {
  qwen2 m;
  hf_decoder::read_shared(r, use, m, {});
  r.require("use_mrope", false, false, "a token has one position");
  m.window = hf_decoder::read_window(r, m.layers);
  return m;
}

} // namespace mc::hf_qwen2
