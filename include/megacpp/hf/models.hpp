// read_hf_model reads config.json of every family that transformers has, too, and makes a model.
#pragma once

#include <megacpp/hf/gpt2_config.hpp>
#include <megacpp/hf/llama_config.hpp>
#include <megacpp/hf/qwen2_config.hpp>
#include <megacpp/hf/qwen3_config.hpp>
#include <megacpp/hf/qwen3_moe_config.hpp>

#include <string>
#include <variant>
#include <vector>

namespace mc {

/// hf_model is a model of any family that transformers has, too.
using hf_model = std::variant<gpt, llama, qwen2, qwen3, qwen3_moe>;

/// Returns the model of a configuration. Throws mc::error of the file's class (model) that names
/// the field that is missing, of another type, out of range, contradicted by another, not supported
/// or unknown. Sentences about fields that transformers treats otherwise, and that are not refused,
/// are added to `told`.
inline hf_model read_hf_model(const json_value& config, hf_use use,
                              std::vector<std::string>* told = nullptr) {
  hf_reader r(config);
  const std::string type = config.field<std::string>("model_type");
  const auto complete = [&](const char* architecture, auto m) -> hf_model {
    read_hf_generals(r, architecture);
    r.refuse_unknown();
    if (const char* why = m.contradiction()) throw config.fault(why);
    if (told) told->insert(told->end(), r.told().begin(), r.told().end());
    return m;
  };
  if (type == gpt::family.text) return complete(hf_gpt2::architecture, hf_gpt2::read(r, use));
  if (type == llama::family.text) return complete(hf_llama::architecture, hf_llama::read(r, use));
  if (type == qwen2::family.text) return complete(hf_qwen2::architecture, hf_qwen2::read(r, use));
  if (type == qwen3::family.text) return complete(hf_qwen3::architecture, hf_qwen3::read(r, use));
  if (type == qwen3_moe::family.text)
    return complete(hf_qwen3_moe::architecture, hf_qwen3_moe::read(r, use));
  throw r.refuse("model_type", "megacpp has gpt2, llama, qwen2, qwen3 and qwen3_moe");
}

/// Returns the layers of a set in braces, such as "{0, 3}".
inline std::string member_text(const layer_set& set) {
  std::string layers;
  for (int l = 0; l <= set.last(); ++l)
    if (set.holds(l)) layers += fmt::format("{}{}", layers.empty() ? "" : ", ", l);
  return "{" + layers + "}";
}

/// Returns a model as C++ source, such as `inline constexpr qwen3 NAME{.layers = 2, ...};`.
inline std::string hf_model_text(const hf_model& model, std::string_view name) {
  return std::visit(
      [&]<class Model>(const Model& m) {
        std::string members;
        Model::members.each(m, [&](std::string_view member, const auto& value) {
          members += fmt::format("{}.{} = {}", members.empty() ? "" : ",\n    ", member,
                                 member_text(value));
        });
        return fmt::format("inline constexpr {} {}{{\n    {}}};\n",
                           detail::short_type_name<Model>(), name, members);
      },
      model);
}

} // namespace mc
