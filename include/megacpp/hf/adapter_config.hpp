// adapter_config.json of PEFT: what a file says of its adapter, and what is written for that of a
// program.
#pragma once

#include <megacpp/hf/adapter_tensors.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

namespace mc {

/// The model that an adapter was trained beside. A checksum is 0 where nobody has told it.
struct adapter_base {
  std::string folder;         ///< its path, as the run had it
  std::uint64_t checksum = 0; ///< checksum_of_values() of its weights
  std::uint64_t plain = 0;    ///< that of the plain weights that these were quantised from
  bool nf4 = false;           ///< the program had its linear layers in NF4

  bool operator==(const adapter_base&) const = default;
  bool is_known() const { return checksum != 0; }
  /// Tells whether two bases are one model, or quantised from one.
  bool is_of(const adapter_base& o) const {
    const auto among = [&](std::uint64_t sum) {
      return sum != 0 && (sum == o.checksum || sum == o.plain);
    };
    return among(checksum) || among(plain);
  }
};
/// The adapter of an adapter_config.json, as far as its numbers depend on it.
struct adapter_config {
  json_value at; ///< the file, for messages
  std::int64_t r = 0;
  double alpha = 0;
  bool rslora = false;
  std::vector<std::string> modules{}; ///< ends of the names of layers; none if it is an expression
  std::vector<std::string> parameters{};  ///< ends of the names of experts' matrices
  bool some = false;                      ///< fields beside `modules` choose among the layers
  std::optional<adapter_layout> layout{}; ///< the layout of the version of PEFT that wrote the file

  lora numbers() const {
    return {.rank = static_cast<int>(r), .alpha = alpha, .rslora = rslora, .targets = {}};
  }
  double scale() const {
    return lora{.rank = static_cast<int>(r), .alpha = alpha, .rslora = rslora}.scale();
  }
  /// Returns whether the configuration names a layer for certain.
  bool means(std::string_view layer, int number, bool of_experts) const {
    if (some) return false;
    const std::string name = fmt::format("layers.{}.{}", number, layer);
    return std::ranges::any_of(of_experts ? parameters : modules, [&](const std::string& target) {
      return names_layer(target, name, of_experts);
    });
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
                                               "target_parameters"},
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
  const auto names = [&](const char* field) {
    const bool text = config.has(field) && config.raw().at(field).is_string();
    c.some = c.some || text;
    return config.has(field) && !text ? config.field<std::vector<std::string>>(field)
                                      : std::vector<std::string>{};
  };
  c.modules = names("target_modules"), c.parameters = names("target_parameters");
  if (config.has("peft_version")) {
    int major = 0, minor = 0;
    const auto version = config.field<std::string>("peft_version");
    if (std::sscanf(version.c_str(), "%d.%d", &major, &minor) == 2)
      c.layout = major > 0 || minor >= 19 ? adapter_layout::peft : adapter_layout::peft_0_18;
  }
  return c;
}

/// Returns the keys of a build that has an adapter like that of a file.
inline std::string build_keys_of(const adapter_config& c) {
  std::vector<std::string> targets = c.modules;
  targets.insert(targets.end(), c.parameters.begin(), c.parameters.end());
  return fmt::format("lora={} lora-alpha={:.6g}{}{}{}", c.r, c.alpha, c.rslora ? " rslora=1" : "",
                     targets.empty() ? "" : " lora-targets=",
                     printable(fmt::format("{}", fmt::join(targets, ","))));
}

/// Tells whether PEFT reads a program's adapter; false for a program without one.
inline bool peft_reads_adapter(const program_view& p) {
  return p.numbers.adapter.rank > 0 && transformers_has(p);
}

namespace detail {

/// The layers that a program's blocks have, by their published names, and those that an adapter
/// has: the program's, or one of a file, which may have fewer.
class layers_by_name {
public:
  explicit layers_by_name(const program_view& p) : prefix_(hf_family_of(p).layer_prefix) {
    const hf_family& family = hf_family_of(p);
    prefix_.erase(0, prefix_.rfind('.', prefix_.size() - 2) + 1); // "layers." or "h."
    for_each_parameter(p, [&](const parameter_ref& r) {
      const bool weight = std::string_view(r.v->name) == "weight" && r.v->rank > 1;
      if (r.layer < 0 || !(weight || r.info->added)) return;
      auto& list = r.v->dims[0].d == dim::expert ? experts_ : layers_;
      numbers& of = list[published_layer_name(family, *r.v)];
      (r.info->added ? of.adapted : of.all).insert(r.layer);
    });
  }
  /// Keeps of the adapted layers those for which has(name, number) holds.
  template <class Has> void keep(Has has) {
    for (auto* const list : {&layers_, &experts_})
      for (auto& [name, of] : *list)
        std::erase_if(of.adapted, [&, &layer = name](int number) { return !has(layer, number); });
  }

  /// Returns the shortest ends of names that mean the adapted layers, and no others; the matrices
  /// of experts for `of_experts`.
  std::set<std::string> targets(bool of_experts) const {
    std::set<std::string> found;
    for (const auto& [name, of] : of_experts ? experts_ : layers_) {
      if (of.adapted.empty()) continue;
      if (of.adapted != of.all) {
        for (const int n : of.adapted) found.insert(fmt::format("{}{}.{}", prefix_, n, name));
        continue;
      }
      std::size_t dot = of_experts ? std::string::npos : name.rfind('.');
      while (dot != std::string::npos && !means_adapted(name.substr(dot + 1)))
        dot = dot == 0 ? std::string::npos : name.rfind('.', dot - 1);
      found.insert(dot == std::string::npos ? name : name.substr(dot + 1));
    }
    return found;
  }

private:
  struct numbers {
    std::set<int> all, adapted;
  };
  bool means_adapted(const std::string& target) const {
    return std::ranges::all_of(layers_, [&](const auto& layer) {
      return !names_layer(target, layer.first, false) || layer.second.adapted == layer.second.all;
    });
  }
  std::string prefix_;
  std::map<std::string, numbers> layers_, experts_;
};

} // namespace detail

/// Returns adapter_config.json for an adapter of some layers of a program, as PEFT reads it.
inline nlohmann::json written_adapter_config(const program_view& p, const lora& a,
                                             const detail::layers_by_name& layers,
                                             adapter_layout layout, const std::string& base) {
  return {
      {"peft_type", "LORA"},
      {"peft_version", layout == adapter_layout::peft_0_18 ? "0.18.0" : "0.19.0"},
      {"task_type", "CAUSAL_LM"},
      {"base_model_name_or_path", base.empty() ? nlohmann::json() : nlohmann::json(as_utf8(base))},
      {"r", a.rank},
      {"lora_alpha", a.alpha},
      {"lora_dropout", 0.0},
      {"use_rslora", a.rslora},
      {"use_dora", false},
      {"bias", "none"},
      {"fan_in_fan_out", hf_family_of(p).conv1d},
      {"inference_mode", true},
      {"init_lora_weights", true},
      {"modules_to_save", nullptr},
      {"target_modules", layers.targets(false)},
      {"target_parameters", layers.targets(true)}};
}

} // namespace mc
