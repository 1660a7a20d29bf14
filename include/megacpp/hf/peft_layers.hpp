// The layers that an adapter_config.json means, as the keys of a build have them.
#pragma once

#include <megacpp/hf/models.hpp>
#include <megacpp/hf/peft_config.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include <fmt/format.h>

namespace mc {

/// The layers that have an adapter, as the keys of a build have them.
struct keys_of_layers {
  std::vector<std::string> targets, excluded; ///< ends of names
  std::vector<int> layers;                    ///< numbers of blocks; none: all
};

/// A layer of a block that an adapter may have.
struct adaptable_layer {
  std::string name;   ///< its name in files, without the text before it: "self_attn.q_proj"
  std::string target; ///< what means it among the targets of a run's adapter
  bool experts = false;
};
/// Returns the layers of a block of a model that an adapter may have. With `one_by_one` PEFT has
/// seen each expert's matrices as layers.
inline std::vector<adaptable_layer> adaptable_layers(const hf_model& model, int block,
                                                     bool one_by_one) {
  std::vector<adaptable_layer> all;
  const auto add = [&](const char* scope, std::initializer_list<const char*> names) {
    for (const char* const name : names) all.push_back({fmt::format("{}.{}", scope, name), ""});
  };
  const auto* const mixture = std::get_if<qwen3_moe>(&model);
  const bool of_gpt2 = std::holds_alternative<gpt>(model),
             sparse = mixture != nullptr && mixture->kind_of(block) == 0;
  if (of_gpt2) add("attn", {"c_attn", "c_proj"}), add("mlp", {"c_fc", "c_proj"});
  else add("self_attn", {"q_proj", "k_proj", "v_proj", "o_proj"});
  if (!of_gpt2 && !sparse) add("mlp", {"gate_proj", "up_proj", "down_proj"});
  for (adaptable_layer& l : all) l.target = l.name;
  if (!sparse) return all;
  if (one_by_one) all.push_back({"mlp.experts.0.down_proj", "experts"});
  for (const char* const name : {"experts.gate_up_proj", "experts.down_proj"})
    all.push_back({fmt::format("mlp.{}", name), name, true});
  return all;
}

/// Returns the layers of a model that an adapter means, by an expression or by names and fields
/// that choose among the blocks. Throws mc::error of the file's class for an adapter that means no
/// layer, or that has other layers in some of its blocks than in others.
inline keys_of_layers chosen_layers(const adapter_config& adapter, const hf_model& model) {
  const char* const before =
      std::holds_alternative<gpt>(model) ? "transformer.h." : "model.layers.";
  const int blocks = std::visit([](const auto& m) { return m.layers; }, model);
  const bool one_by_one = std::ranges::any_of(adapter.modules, names_one_expert);
  std::vector<std::string> found;
  std::map<std::string, std::set<int>> having, meant; // by target
  std::set<int> chosen;
  std::set<std::string> unseen(adapter.parameters.begin(), adapter.parameters.end());
  std::ranges::copy_if(adapter.modules, std::inserter(unseen, unseen.end()),
                       std::not_fn(names_one_expert));
  for (int b = 0; b < blocks; ++b)
    for (const adaptable_layer& l : adaptable_layers(model, b, one_by_one)) {
      const std::string whole = fmt::format("{}{}.{}", before, b, l.name);
      having[l.target].insert(b);
      std::erase_if(unseen,
                    [&](const std::string& name) { return names_layer(name, whole, false); });
      if (!adapter.names(whole, l.experts)) continue;
      meant[l.target].insert(b), chosen.insert(b);
      if (std::ranges::find(found, l.target) == found.end()) found.push_back(l.target);
    }
  if (!unseen.empty())
    throw adapter.at.fault(
        fmt::format("names {}, which is no linear layer of the model's blocks and no matrix of its "
                    "experts",
                    printable(*unseen.begin())));
  if (found.empty()) throw adapter.at.fault("field \"target_modules\" means no layer of the model");
  const auto is_everywhere = [&](const std::string& t) { return meant[t] == having[t]; };
  if (std::ranges::all_of(found, is_everywhere)) return {found, {}, {}};
  for (const std::string& target : found) {
    std::erase_if(having[target], [&](int b) { return !chosen.contains(b); });
    if (!is_everywhere(target))
      throw adapter.at.fault(fmt::format(
          "means {} in {} of the {} blocks that it means layers of, and an adapter here has the "
          "same layers in all of its blocks",
          target, meant[target].size(), chosen.size()));
  }
  return {found, {}, {chosen.begin(), chosen.end()}};
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

/// Returns the layers of a run's adapter that is like one of PEFT (recipe/lora.hpp). `model` is
/// that of a config.json, or null. Throws mc::error of the file's class for layers that a run's
/// adapter cannot have.
inline keys_of_layers layers_of(const adapter_config& adapter, const hf_model* model) {
  const json_value& config = adapter.at;
  if ((adapter.chooses() || adapter.all_linear) && model != nullptr)
    return chosen_layers(adapter, *model);
  if (const char* const field = adapter.needs_model())
    throw config.fault(fmt::format(
        "field \"{}\" is an expression or has numbers of blocks, and no config.json names the "
        "layers that it may mean: give HF_CONFIG, or the keys of the adapter one by one",
        field));
  keys_of_layers keys{adapter.modules, adapter.excluded, {}};
  if (std::erase_if(keys.targets, names_one_expert) > 0) keys.targets.emplace_back("experts");
  if (adapter.all_linear) keys.targets = {"all-linear"};
  std::erase_if(keys.targets, [&](const std::string& target) {
    return std::ranges::find(adapter.excluded, target) != adapter.excluded.end();
  });
  for (const std::int64_t layer : adapter.layers) {
    if (layer < 0 || layer > layer_set::greatest)
      throw config.fault(
          fmt::format("field \"layers_to_transform\" has {}, but must be from 0 to {}", layer,
                      layer_set::greatest));
    keys.layers.push_back(static_cast<int>(layer));
  }
  if (!keys.layers.empty() && !adapter.parameters.empty())
    throw config.fault(
        "names some blocks for target_modules, and PEFT has target_parameters in all blocks: an "
        "adapter here has the same layers in all of its blocks");
  for (const std::string& parameter : adapter.parameters) {
    const std::size_t experts = parameter.find("experts.");
    if (experts == std::string::npos)
      throw config.fault(
          fmt::format("field \"target_parameters\" names {}, which is no matrix of experts",
                      printable(parameter)));
    keys.targets.push_back(parameter.substr(experts));
  }
  for (const std::string& name : keys.excluded)
    if (name.find("experts") != std::string::npos)
      throw config.fault(
          fmt::format("field \"exclude_modules\" has {}, and PEFT excludes no matrix of experts: "
                      "give the keys of the adapter one by one",
                      printable(name)));
  return keys;
}

} // namespace mc
