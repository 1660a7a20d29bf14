// transformers knows several families of models. This header has a table with a family's names of
// tensors and its configuration.
#pragma once

#include <megacpp/hf/decoder.hpp>
#include <megacpp/hf/gpt2.hpp>
#include <megacpp/hf/models.hpp>
#include <megacpp/hf/qwen3_moe.hpp>

#include <array>
#include <string>
#include <string_view>
#include <type_traits>
#include <typeinfo>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace mc {

/// hf_family has what is needed to read and write a folder of a family's model.
struct hf_family {
  const std::type_info* type; ///< The struct of the family, and none that derives from it.
  std::string_view name;      ///< The name of the family, which is model_type in config.json.
  /// Returns every tensor of a saved model once, in the order of the model.
  std::vector<hf_tensor> (*tensors)(const program_view&);
  /// Returns the tensors of that list that a tensor of a file holds, in any spelling known from
  /// published files; none if the tensor is no weight.
  std::vector<hf_slice> (*slices)(const file_tensor&);
  const char* embedding;      ///< The name of the table of embeddings, which a tied head shares.
  const char* layer_prefix;   ///< The text before the number of a layer in a tensor's name.
  published_layers published; ///< The linear layers that have other names in the program.
  bool conv1d;                ///< Linear weights are stored as (in, out).
  nlohmann::json (*config)(const program_view&); ///< Returns the config.json of a program.
  /// Returns the fields in which a model of the family differs from the program's, or "".
  std::string (*difference)(const hf_model& theirs, const program_view& ours);
};

namespace detail {
template <class Model, const auto& Fields>
std::string difference_of(const hf_model& theirs, const program_view& ours) {
  const Model &a = std::get<Model>(theirs), &b = ours.model_as<Model>();
  std::string found = hf_difference(Fields, a, b);
  if constexpr (std::is_same_v<Model, qwen3_moe>)
    if (found.empty()) found = hf_qwen3_moe::difference_of_layers(a, b);
  return found;
}
template <class Model, const auto& Fields, const auto& Architecture>
nlohmann::json config_of(const program_view& p) {
  return hf_decoder::config<Model>(p, Architecture, Fields);
}
/// `dense` is the row of a family that hf/decoder.hpp names and lays out.
template <class Model, const auto& Fields, const auto& Architecture>
inline constexpr hf_family dense{&typeid(Model),
                                 Model::family.text,
                                 hf_decoder::tensors,
                                 hf_decoder::slices,
                                 hf_decoder::embedding,
                                 hf_decoder::layer_prefix,
                                 published_of<Model>(),
                                 false,
                                 config_of<Model, Fields, Architecture>,
                                 difference_of<Model, Fields>};
} // namespace detail

inline constexpr std::array<hf_family, 5> hf_families{{
    {&typeid(gpt), gpt::family.text, hf_gpt2::tensors, hf_gpt2::slices, hf_gpt2::embedding,
     hf_gpt2::layer_prefix, gpt::published, true, hf_gpt2::config,
     detail::difference_of<gpt, hf_gpt2::fields>},
    detail::dense<llama, hf_llama::fields, hf_llama::architecture>,
    detail::dense<qwen2, hf_qwen2::fields, hf_qwen2::architecture>,
    detail::dense<qwen3, hf_qwen3::fields, hf_qwen3::architecture>,
    {&typeid(qwen3_moe), qwen3_moe::family.text, hf_qwen3_moe::tensors, hf_qwen3_moe::slices,
     hf_decoder::embedding, hf_decoder::layer_prefix, qwen3_moe::published, false,
     hf_qwen3_moe::config, detail::difference_of<qwen3_moe, hf_qwen3_moe::fields>},
}};

/// Returns the row of a program's family, or null. The struct must be the family's own: a user's
/// struct with the same name may compute something else.
inline const hf_family* find_hf_family(const program_view& p) {
  for (const hf_family& f : hf_families)
    if (*f.type == *p.family.type) return &f;
  return nullptr;
}
/// Returns the row of a program's family. Throws mc::error(exit_code::mismatch) for a family that
/// transformers does not have.
inline const hf_family& hf_family_of(const program_view& p) {
  if (const hf_family* f = find_hf_family(p)) return *f;
  throw error(
      exit_code::mismatch,
      fmt::format("{} is of the family \"{}\", which has no Hugging Face form: nothing can be "
                  "exported, and start_request::load takes only the states that train "
                  "loop_request::save writes",
                  p.name, p.family.name));
}

/// Tells whether Hugging Face's transformers has the family of a program, and a name for each of
/// its model's parameters and numbers.
inline bool transformers_has(const program_view& p) {
  const hf_family* f = find_hf_family(p);
  const parameter_info* const encoded = encoded_parameter(p);
  if (f == nullptr || (encoded != nullptr && encoded->encoding->encode_matrix == nullptr))
    return false;
  try {
    static_cast<void>(f->tensors(p));
    static_cast<void>(f->config(p));
    return true;
  } catch (const error&) {
    return false;
  }
}
/// Tells whether a folder of transformers holds all parameters of a program.
inline bool is_hugging_face_model(const program_view& p) {
  return p.numbers.adapter.rank == 0 && transformers_has(p);
}

/// Throws mc::error of the file's class unless a configuration is of a model that computes what the
/// program computes. The error names all fields that differ, with both values.
inline void require_same_model(const json_value& config, const program_view& p) {
  const hf_family& family = hf_family_of(p);
  const auto other = [&](std::string_view difference) {
    return config.fault(
        fmt::format("this is another model than {} was built for: {}; give the "
                    "folder of such a model, or build a preset of this one",
                    p.name, difference));
  };
  const auto type = config.field<std::string>("model_type");
  if (type != family.name)
    throw other(
        fmt::format("model_type is {} there and {} in the program", printable(type), family.name));
  const hf_model theirs = read_hf_model(config, hf_use::weights);
  if (const std::string found = family.difference(theirs, p); !found.empty()) throw other(found);
}

} // namespace mc
