// The one reader of config.json: whatever its model_type, a model, for import and for programs.
#pragma once

#include <megacpp/hf/gpt2_config.hpp>
#include <megacpp/hf/qwen3_config.hpp>
#include <megacpp/hf/qwen3_moe_config.hpp>

#include <variant>

namespace mc {

/// A model of any family that transformers has too.
using hf_model = std::variant<gpt, qwen3, qwen3_moe>;

/// The model of a configuration. Throws mc::error of the file's class (model) naming the field that
/// is missing, of another type, out of range, contradicted by another, not supported or unknown.
inline hf_model read_hf_model(const json_value& config, hf_use use) {
  hf_reader r(config);
  const std::string type = config.field<std::string>("model_type");
  const auto complete = [&](const char* architecture, auto m) -> hf_model {
    read_hf_generals(r, architecture);
    r.refuse_unknown();
    if (const char* why = m.contradiction()) throw config.fault(why);
    return m;
  };
  if (type == gpt::family.text) return complete(hf_gpt2::architecture, hf_gpt2::read(r, use));
  if (type == qwen3::family.text) return complete(hf_qwen3::architecture, hf_qwen3::read(r, use));
  if (type == qwen3_moe::family.text)
    return complete(hf_qwen3_moe::architecture, hf_qwen3_moe::read(r, use));
  throw r.refuse("model_type", "megacpp has gpt2, qwen3 and qwen3_moe");
}

/// The numbers of a model, by member.
inline std::vector<model_number> numbers_of(const hf_model& model) {
  return std::visit(
      [](const auto& m) {
        const auto numbers = m.description();
        return std::vector<model_number>(numbers.begin(), numbers.end());
      },
      model);
}

namespace detail {
inline std::string_view cpp_name(const gpt&) { return "gpt"; }
inline std::string_view cpp_name(const qwen3&) { return "qwen3"; }
inline std::string_view cpp_name(const qwen3_moe&) { return "qwen3_moe"; }

/// Members that are no numbers and stand behind the one named.
template <class Model> std::string members_behind(const Model&, std::string_view) { return ""; }
inline std::string members_behind(const qwen3_moe& m, std::string_view member) {
  std::string layers;
  for (int l = 0; l <= m.mlp_only.last(); ++l)
    if (m.mlp_only.holds(l)) layers += fmt::format("{}{}", layers.empty() ? "" : ", ", l);
  return member == "sparse_step" && !layers.empty()
             ? fmt::format(",\n    .mlp_only = {{{}}}", layers)
             : "";
}
} // namespace detail

/// The model as C++: `inline constexpr qwen3 NAME{.layers = 2, ...};`
inline std::string hf_model_text(const hf_model& model, std::string_view name) {
  return std::visit(
      [&](const auto& m) {
        std::string members;
        for (const model_number& n : m.description())
          members += fmt::format("{}.{} = {}{}", members.empty() ? "" : ",\n    ", n.name,
                                 member_text(n), detail::members_behind(m, n.name));
        return fmt::format("inline constexpr {} {}{{\n    {}}};\n", detail::cpp_name(m), name,
                           members);
      },
      model);
}

} // namespace mc
