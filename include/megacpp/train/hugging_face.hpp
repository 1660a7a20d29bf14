// Families of models that transformers knows: how their parameters and configurations are called
// there.
#pragma once

#include <megacpp/train/hf_gpt2.hpp>
#include <megacpp/train/hf_qwen3.hpp>

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace mc {

/// What a model folder needs to know of a family.
struct hf_family {
  std::string_view name; ///< of the family, and config.json's model_type
  /// Every tensor of a saved model, once.
  std::vector<hf_tensor> (*tensors)(const program_view&);
  /// The name as tensors() has it for any spelling met in files; "" for what is no weight.
  std::string (*canonical)(std::string_view);
  const char* embedding; ///< the table that a tied head shares
  nlohmann::json (*config)(const program_view&);
  /// Collects the fields in which a folder's model computes something else.
  void (*compare)(const program_view&, hf_comparison&);
};

inline constexpr std::array<hf_family, 2> hf_families{{
    {"gpt2", hf_gpt2::tensors, hf_gpt2::canonical, hf_gpt2::embedding, hf_gpt2::config,
     hf_gpt2::compare},
    {"qwen3", hf_qwen3::tensors, hf_qwen3::canonical, hf_qwen3::embedding, hf_qwen3::config,
     hf_qwen3::compare},
}};

/// Throws mc::error(exit_code::mismatch) for a program of a family without a Hugging Face form.
inline const hf_family& hf_family_of(const program_view& p) {
  for (const hf_family& f : hf_families)
    if (f.name == p.family) return f;
  throw error(exit_code::mismatch,
              fmt::format("{} is of the family \"{}\", which has no Hugging Face form: weights are "
                          "saved and loaded for gpt2 and qwen3",
                          p.name, p.family));
}

/// f(hf_tensor) for every tensor of the model as transformers has it.
template <class F> void for_each_hf_tensor(const program_view& p, F f) {
  for (const hf_tensor& t : hf_family_of(p).tensors(p)) f(t);
}

} // namespace mc
