// The layers that an adapter_config.json means by an expression.
#pragma once

#include <megacpp/hf/models.hpp>
#include <megacpp/hf/peft_config.hpp>

#include <algorithm>
#include <cstddef>
#include <string>
#include <variant>
#include <vector>

#include <fmt/format.h>

namespace mc {

/// Returns the linear layers of a model's blocks by the names that they have in files, without the
/// text before them, such as "self_attn.q_proj".
inline std::vector<std::string> linear_layers(const hf_model& model) {
  if (std::holds_alternative<gpt>(model))
    return {"attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"};
  return {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
          "mlp.gate_proj",    "mlp.up_proj",      "mlp.down_proj"};
}

/// Returns the layers of a model that an adapter means by an expression. As PEFT has it, the
/// expression must match a layer's whole name, such as model.layers.0.self_attn.q_proj. Throws
/// mc::error of the file's class for an expression that means no layer, or one in some blocks
/// alone.
inline std::vector<std::string> layers_of_expression(const adapter_config& adapter,
                                                     const hf_model& model) {
  const auto refuse = [&](const std::string& what) {
    return adapter.at.fault("field \"target_modules\" " + what);
  };
  const char* const before =
      std::holds_alternative<gpt>(model) ? "transformer.h." : "model.layers.";
  const int blocks = std::visit([](const auto& m) { return m.layers; }, model);
  std::vector<std::string> found;
  for (const std::string& layer : linear_layers(model)) {
    int times = 0;
    for (int b = 0; b < blocks; ++b)
      times += adapter.names(fmt::format("{}{}.{}", before, b, layer), false);
    if (times != 0 && times != blocks)
      throw refuse(
          fmt::format("means {} in {} of {} blocks, and an adapter here is the same in "
                      "all of them",
                      layer, times, blocks));
    if (times > 0) found.push_back(layer);
  }
  if (found.empty()) throw refuse("means no layer of the model");
  return found;
}

/// Returns numbers of layers as the keys of a build have them, such as "q_proj:8". Throws mc::error
/// of the file's class for an expression that is no end of a layer's name.
template <class T>
std::vector<std::string> pattern_of(const adapter_config& adapter,
                                    const std::vector<named_number<T>>& numbers) {
  std::vector<std::string> all;
  for (const auto& [layers, value] : numbers) {
    const std::string& expression = layers.text();
    std::string name;
    for (std::size_t i = 0; i < expression.size(); ++i) {
      const bool dot = expression[i] == '\\' && expression.substr(i + 1, 1) == ".";
      name += dot ? '.' : expression[i], i += dot ? 1 : 0;
    }
    const auto is_of_name = [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
             c == '_' || c == '.';
    };
    if (!std::ranges::all_of(name, is_of_name))
      throw adapter.at.fault(
          fmt::format("has \"{}\", which is no end of a layer's name: give the keys of the adapter "
                      "one by one",
                      printable(expression)));
    all.push_back(fmt::format("{}:{}", name, value));
  }
  return all;
}

/// Returns the targets of a run's adapter that is like one of PEFT (recipe/lora.hpp). `model` is
/// that of a config.json, or null. Throws mc::error of the file's class for targets that a run's
/// adapter cannot have.
inline std::vector<std::string> targets_of(const adapter_config& adapter, const hf_model* model) {
  const json_value& config = adapter.at;
  if (config.has("layers_to_transform") || config.has("exclude_modules"))
    throw config.fault(
        "layers_to_transform or exclude_modules choose among the layers, which an "
        "adapter here has in all blocks alike: give its keys one by one");
  std::vector<std::string> targets = adapter.modules;
  if (adapter.all_linear) targets = {"all-linear"};
  else if (adapter.expression && model != nullptr) targets = layers_of_expression(adapter, *model);
  else if (adapter.expression)
    throw config.fault(
        "field \"target_modules\" is an expression, and no config.json names the layers that it "
        "may mean: give HF_CONFIG, or the keys of the adapter one by one");
  for (const std::string& parameter : adapter.parameters) {
    const std::size_t experts = parameter.find("experts.");
    if (experts == std::string::npos)
      throw config.fault(
          fmt::format("field \"target_parameters\" names {}, which is no matrix of experts",
                      printable(parameter)));
    targets.push_back(parameter.substr(experts));
  }
  return targets;
}

} // namespace mc
