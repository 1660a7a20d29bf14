// adapter_config.json of PEFT, as it is read.
#pragma once

#include <megacpp/hf/name_expression.hpp>
#include <megacpp/io/json_file.hpp>
#include <megacpp/recipe/lora.hpp>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
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

/// Returns the number of the block of a layer by its name, such as 3 for layers.3.mlp.up_proj; -1
/// for a name without one.
inline std::int64_t layer_number_in(std::string_view name) {
  for (std::size_t at = name.find('.'); at != std::string_view::npos; at = name.find('.', at + 1)) {
    std::int64_t number = -1;
    const char* const end = name.data() + name.size();
    const auto read = std::from_chars(name.data() + at + 1, end, number);
    if (read.ec == std::errc() && read.ptr != end && *read.ptr == '.' && number >= 0)
      return name.substr(0, at).ends_with("experts") ? -1 : number;
  }
  return -1;
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
  std::vector<std::string> excluded{}; ///< ends of names of layers that are not meant after all
  std::optional<name_expression> excluded_expression{}; ///< of whole names, in place of `excluded`
  std::vector<std::int64_t> layers{}; ///< the blocks that have the adapter; none: all
  /// The names before a block's number, of which one must be there for `layers`; none: any.
  std::vector<name_expression> before_number{};
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
  /// Returns a field by which only the layers of a model tell which of them are meant, or null.
  const char* needs_model() const {
    const auto has_number = [](const std::string& name) { // "0.self_attn.q_proj", too
      return layer_number_in("." + name) >= 0;
    };
    return expression || std::ranges::any_of(modules, has_number)             ? "target_modules"
           : excluded_expression || std::ranges::any_of(excluded, has_number) ? "exclude_modules"
           : std::ranges::any_of(parameters, has_number)                      ? "target_parameters"
           : before_number.empty()                                            ? nullptr
                                                                              : "layers_pattern";
  }
  /// Tells whether some of the layers that have names of target_modules may not be meant.
  bool chooses() const { return needs_model() != nullptr || !excluded.empty() || !layers.empty(); }
  /// Returns whether the configuration names a layer by its whole name, or a matrix of experts, for
  /// which PEFT looks at target_parameters alone (peft/tuners/tuners_utils.py,
  /// check_target_module_exists).
  bool names(const std::string& layer, bool of_experts) const {
    const auto among = [&](const std::vector<std::string>& ends) {
      return std::ranges::any_of(
          ends, [&](const std::string& end) { return names_layer(end, layer, false); });
    };
    if (of_experts) return among(parameters);
    if (excluded_expression ? excluded_expression->matches(layer) : among(excluded)) return false;
    if (all_linear) return !names_one_expert(layer);
    if (expression) return expression->matches(layer);
    return std::ranges::find(modules, layer) != modules.end() ||
           (among(modules) && (layers.empty() || is_in_layers(layer)));
  }
  /// Returns whether a layer is in one of the blocks of layers_to_transform, by its whole name.
  bool is_in_layers(const std::string& layer) const {
    const std::int64_t number = layer_number_in(layer);
    const std::string before = layer.substr(0, layer.find(fmt::format(".{}.", number)));
    return std::ranges::find(layers, number) != layers.end() &&
           (before_number.empty() ||
            std::ranges::any_of(before_number,
                                [&](const name_expression& e) { return e.matches(before); }));
  }
  /// Returns whether the configuration names the module of a tensor to be saved as a whole.
  bool saves(std::string_view tensor) const {
    const std::string_view module = tensor.substr(0, tensor.rfind('.'));
    return std::ranges::any_of(
        saved, [&](const std::string& name) { return names_layer(name, module, false); });
  }
  /// Returns whether the configuration names a layer for certain. Versions of PEFT take another
  /// number of an expert's matrix for that of its block, unless layers_pattern says which it is.
  bool means(const std::string& layer, bool of_experts) const {
    return is_certain_of(layer) && names(layer, of_experts);
  }
  /// Returns whether the configuration does not name a layer, for certain.
  bool leaves_out(const std::string& layer, bool of_experts) const {
    return is_certain_of(layer) && !names(layer, of_experts);
  }

private:
  bool is_certain_of(const std::string& layer) const {
    return layers.empty() || !before_number.empty() || !names_one_expert(layer);
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
                                               "alpha_pattern",
                                               "exclude_modules",
                                               "layers_to_transform",
                                               "layers_pattern"},
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
    if (!nothing && !read.contains(name) && !harmless.contains(name))
      other.push_back(fmt::format("{} {}", printable(name), printable(value.dump())));
  }
  if (const auto type = config.field<std::string>("peft_type"); type != "LORA")
    other.insert(other.begin(), "peft_type " + printable(type));
  if (!other.empty())
    throw config.fault(
        fmt::format("the adapter has {}, which {} what it computes and which megacpp does not "
                    "have; train one without",
                    fmt::join(other, ", "), other.size() == 1 ? "changes" : "change"));
  c.r = config.field<std::int64_t>("r", 1, 4096);
  c.alpha = config.field<double>("lora_alpha");
  if (!(c.alpha > 0 && c.alpha < 1e9))
    throw config.fault(
        fmt::format("field \"lora_alpha\" is {}, but must be above 0 and below 1e9", c.alpha));
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
  const auto is_text = [&](const char* field) {
    return config.has(field) && config.raw().at(field).is_string();
  };
  const auto names = [&](const char* field) {
    return config.has(field) ? config.field<std::vector<std::string>>(field)
                             : std::vector<std::string>{};
  };
  const auto expression = [&](const char* field, const std::string& text, bool or_end) {
    auto read = name_expression::read(text, or_end);
    if (!read)
      throw config.fault(fmt::format("field \"{}\" has \"{}\", which is no expression that is read",
                                     field, printable(text)));
    return *read;
  };
  if (is_text("target_modules")) {
    const auto text = config.field<std::string>("target_modules");
    c.all_linear = std::ranges::equal(text, std::string_view("all-linear"), {}, [](char x) {
      return x >= 'A' && x <= 'Z' ? static_cast<char>(x - 'A' + 'a') : x;
    });
    if (!c.all_linear) c.expression = expression("target_modules", text, false);
  } else c.modules = names("target_modules");
  if (!is_text("exclude_modules")) c.excluded = names("exclude_modules");
  else if (const auto text = config.field<std::string>("exclude_modules"); !text.empty())
    c.excluded_expression = expression("exclude_modules", text, false);
  if (config.has("layers_to_transform") && config.raw().at("layers_to_transform").is_number())
    c.layers = {config.field<std::int64_t>("layers_to_transform")};
  else if (config.has("layers_to_transform"))
    c.layers = config.field<std::vector<std::int64_t>>("layers_to_transform");
  if (!c.layers.empty() && (c.all_linear || c.expression))
    throw config.fault(
        "layers_to_transform is beside a text in target_modules, which PEFT refuses: give the "
        "names of the layers");
  if (is_text("layers_pattern")) {
    if (const auto text = config.field<std::string>("layers_pattern"); !text.empty())
      c.before_number.push_back(expression("layers_pattern", text, true));
  } else {
    for (const std::string& text : names("layers_pattern"))
      c.before_number.push_back(expression("layers_pattern", text, true));
  }
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

} // namespace mc
