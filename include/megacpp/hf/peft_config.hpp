// adapter_config.json of PEFT, as it is read.
#pragma once

#include <megacpp/hf/name_expression.hpp>
#include <megacpp/io/json_file.hpp>
#include <megacpp/recipe/lora.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace mc {

/// The layouts of the factors of experts in a file.
enum class adapter_layout { peft, peft_0_18, vllm };

/// Returns the layout that a flag names; nothing for "".
inline std::optional<adapter_layout> adapter_layout_named(std::string_view name) {
  if (name == "peft") return adapter_layout::peft;
  if (name == "peft-0.18") return adapter_layout::peft_0_18;
  if (name == "vllm") return adapter_layout::vllm;
  return std::nullopt;
}

/// Tells whether the name of a tensor or a target has the number of an expert.
inline bool names_one_expert(std::string_view name) {
  constexpr std::string_view before = "experts.";
  const std::size_t at = name.find(before);
  return at != std::string_view::npos && at + before.size() < name.size() &&
         name[at + before.size()] >= '0' && name[at + before.size()] <= '9';
}

/// A number of layers, by an expression of their names (rank_pattern, alpha_pattern).
template <class T> struct named_number {
  name_expression layers;
  T value;
};

/// The adapter of an adapter_config.json, as far as its numbers depend on it.
struct adapter_config {
  json_value at; ///< the file, for messages
  std::int64_t r = 0;
  double alpha = 0;
  bool rslora = false;
  double dropout = 0; ///< of the training before
  std::vector<named_number<std::int64_t>> rs{};
  std::vector<named_number<double>> alphas{};
  std::vector<std::string> modules{}; ///< ends of the names of layers
  bool all_linear = false;            ///< all linear layers are meant, in place of `modules`
  std::optional<name_expression> expression{}; ///< of whole names, in place of `modules`
  std::vector<std::string> parameters{};       ///< ends of the names of experts' matrices
  std::vector<std::string> saved{};            ///< ends of the names of modules_to_save
  bool some = false;                           ///< fields beside `modules` choose among the layers
  std::optional<adapter_layout> layout{}; ///< the layout of the version of PEFT that wrote the file

  /// Returns the rank of a layer, by its whole name, such as model.layers.0.self_attn.q_proj.
  /// Throws mc::error of the file's class where expressions give it several.
  std::int64_t r_of(const std::string& layer) const { return number_of(rs, layer, r); }
  /// Returns the factor of B A x of a layer.
  double scale_of(const std::string& layer) const {
    const lora of{.rank = static_cast<int>(r_of(layer)),
                  .alpha = number_of(alphas, layer, alpha),
                  .rslora = rslora};
    return of.scale();
  }
  /// Tells whether a layer has a rank or a scale that others have not.
  bool has_own_numbers(const std::string& layer) const {
    return r_of(layer) != r || scale_of(layer) != scale_of("");
  }
  /// Returns the number of the expression that means a layer. PEFT takes the first of several;
  /// their order is not kept by all that write JSON, so that several numbers are refused.
  template <class T>
  T number_of(const std::vector<named_number<T>>& all, const std::string& layer, T other) const {
    const named_number<T>* found = nullptr;
    for (const auto& one : all)
      if (one.layers.matches(layer)) {
        if (found != nullptr && found->value != one.value)
          throw at.fault(
              fmt::format("gives {} two numbers, by \"{}\" and by \"{}\"; let one "
                          "expression mean it",
                          layer, printable(found->layers.text()), printable(one.layers.text())));
        found = &one;
      }
    return found == nullptr ? other : found->value;
  }
  /// Returns whether the configuration names a layer by its whole name, or a matrix of experts, if
  /// it is in one of the blocks that other fields choose.
  bool names(const std::string& layer, bool of_experts) const {
    if (!of_experts && all_linear) return !names_one_expert(layer);
    if (!of_experts && expression) return expression->matches(layer);
    return std::ranges::any_of(of_experts ? parameters : modules, [&](const std::string& target) {
      return names_layer(target, layer, false);
    });
  }
  /// Returns whether the configuration names the module of a tensor to be saved as a whole.
  bool saves(std::string_view tensor) const {
    const std::string_view module = tensor.substr(0, tensor.rfind('.'));
    return std::ranges::any_of(
        saved, [&](const std::string& name) { return names_layer(name, module, false); });
  }
  /// Returns whether the configuration names a layer for certain.
  bool means(const std::string& layer, bool of_experts) const {
    return !some && names(layer, of_experts);
  }
};

/// Reads an adapter_config.json. PEFT adds fields that change what an adapter computes, so a field
/// that is not known must have the value of nothing asked for; the sentence names all others.
/// Throws mc::error of the file's class.
inline adapter_config read_adapter_config(const json_value& config) {
  static const std::set<std::string_view> read{"r",
                                               "lora_alpha",
                                               "use_rslora",
                                               "peft_type",
                                               "target_modules",
                                               "peft_version",
                                               "target_parameters",
                                               "modules_to_save",
                                               "rank_pattern",
                                               "alpha_pattern"},
      choosing{"exclude_modules", "layers_to_transform", "layers_pattern"},
      // These change no result: the last step of training, names, and what loading already shows.
      harmless{"task_type",      "auto_mapping",  "base_model_name_or_path", "revision",
               "inference_mode", "megatron_core", "ensure_weight_tying",     "qalora_group_size",
               "fan_in_fan_out", "lora_dropout"};
  adapter_config c{config};
  std::vector<std::string> other;
  for (const auto& [name, value] : config.raw().items()) {
    const bool nothing = value.is_null() || value == false || value == 0 || value.empty() ||
                         (name == "bias" && value == "none") ||
                         (name == "init_lora_weights" &&
                          (value == true || value == "gaussian" || value == "orthogonal"));
    c.some = c.some || (choosing.contains(name) && !nothing);
    if (!nothing && !read.contains(name) && !choosing.contains(name) && !harmless.contains(name))
      other.push_back(fmt::format("{} {}", printable(name), printable(value.dump())));
  }
  if (const auto type = config.field<std::string>("peft_type"); type != "LORA")
    other.insert(other.begin(), "peft_type " + printable(type));
  if (!other.empty())
    throw config.fault(
        fmt::format("the adapter has {}, which change what it computes and which "
                    "megacpp does not have; train one without",
                    fmt::join(other, ", ")));
  c.r = config.field<std::int64_t>("r", 1, 4096);
  c.alpha = config.field<double>("lora_alpha");
  if (!(c.alpha > 0 && c.alpha < 1e9))
    throw config.fault(fmt::format("field \"lora_alpha\" is {}, but must be above 0", c.alpha));
  c.rslora = config.has("use_rslora") && config.field<bool>("use_rslora");
  for (const char* const field : {"rank_pattern", "alpha_pattern"})
    if (config.has(field)) {
      const auto pattern = config.field<json_value>(field);
      for (const auto& item : pattern.raw().items()) {
        auto layers = name_expression::read(item.key(), true);
        if (!layers)
          throw pattern.fault(
              fmt::format("field \"{}\" has \"{}\", which is no expression that is read", field,
                          printable(item.key())));
        if (std::string_view(field) == "rank_pattern")
          c.rs.push_back({std::move(*layers), pattern.field<std::int64_t>(item.key(), 1, 4096)});
        else c.alphas.push_back({std::move(*layers), pattern.field<double>(item.key(), 1e-9, 1e9)});
      }
    }
  if (config.has("lora_dropout")) c.dropout = config.field<double>("lora_dropout", 0, 1);
  const auto names = [&](const char* field) {
    return config.has(field) ? config.field<std::vector<std::string>>(field)
                             : std::vector<std::string>{};
  };
  if (config.has("target_modules") && config.raw().at("target_modules").is_string()) {
    const auto text = config.field<std::string>("target_modules");
    c.all_linear = std::ranges::equal(text, std::string_view("all-linear"), {}, [](char x) {
      return x >= 'A' && x <= 'Z' ? static_cast<char>(x - 'A' + 'a') : x;
    });
    if (!c.all_linear && !(c.expression = name_expression::read(text)))
      throw config.fault(
          fmt::format("field \"target_modules\" is \"{}\", which is no expression "
                      "that is read; give the names of the layers",
                      printable(text)));
  } else c.modules = names("target_modules");
  c.saved = names("modules_to_save"), c.parameters = names("target_parameters");
  if (config.has("peft_version")) {
    int major = 0, minor = 0, patch = 0;
    const auto version = config.field<std::string>("peft_version");
    if (std::sscanf(version.c_str(), "%d.%d.%d", &major, &minor, &patch) >= 2)
      c.layout = std::tuple(major, minor, patch) >= std::tuple(0, 19, 1)
                     ? adapter_layout::peft
                     : adapter_layout::peft_0_18;
  }
  return c;
}

/// Returns the keys of a build that has an adapter like that of a file.
inline std::string build_keys_of(const adapter_config& c) {
  std::vector<std::string> targets = c.modules;
  if (std::erase_if(targets, names_one_expert) > 0) targets.push_back("experts");
  targets.insert(targets.end(), c.parameters.begin(), c.parameters.end());
  return fmt::format("lora={} lora-alpha={:.6g}{}{}{}{}", c.r, c.alpha, c.rslora ? " rslora=1" : "",
                     targets.empty() ? "" : " lora-targets=",
                     printable(fmt::format("{}", fmt::join(targets, ","))),
                     c.saved.empty()
                         ? ""
                         : printable(fmt::format(" modules-to-save={}", fmt::join(c.saved, ","))));
}

} // namespace mc
