// adapter_config.json of PEFT, as it is written for the adapter of a program.
#pragma once

#include <megacpp/hf/adapter_tensors.hpp>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
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
      const bool of_experts = r.v->dims[0].d == dim::expert && r.v->rank > 2; // and no router
      auto& list = of_experts ? experts_ : layers_;
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

  /// Tells whether each block has an adapter of all matrices of its experts, or of none.
  bool all_experts_or_none() const {
    return std::ranges::all_of(experts_, [&](const auto& of) {
      return of.second.adapted == experts_.begin()->second.adapted;
    });
  }

  /// Returns an adapted layer of a dense MLP in a model that has experts elsewhere; "" without one.
  std::string dense_beside_experts() const {
    for (const auto& [name, of] : layers_)
      for (const std::string_view matrix : {"gate_proj", "up_proj", "down_proj"})
        if (!experts_.empty() && !of.adapted.empty() && name.ends_with(matrix)) return name;
    return "";
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

/// The numbers of an adapter as adapter_config.json has them.
struct peft_numbers {
  std::int64_t r;
  double alpha;
  bool rslora;
  double dropout;
  std::map<std::string, std::int64_t> rs; ///< rank_pattern
  std::map<std::string, double> alphas;   ///< alpha_pattern
  std::vector<std::string> saved;

  explicit peft_numbers(const lora& a)
      : r(a.rank),
        alpha(a.alpha),
        rslora(a.rslora),
        dropout(a.dropout),
        saved(a.saved.names, a.saved.names + a.saved.count) {
    for (int k = 0; k < a.ranks.count; ++k)
      rs[escaped(a.ranks.all[k].layer)] = static_cast<std::int64_t>(a.ranks.all[k].value);
    for (int k = 0; k < a.alphas.count; ++k)
      alphas[escaped(a.alphas.all[k].layer)] = a.alphas.all[k].value;
  }
  explicit peft_numbers(const adapter_config& c)
      : r(c.r), alpha(c.alpha), rslora(c.rslora), dropout(c.dropout), saved(c.saved) {
    for (const auto& one : c.rs) rs[one.layers.text()] = one.value;
    for (const auto& one : c.alphas) alphas[one.layers.text()] = one.value;
  }

private:
  /// Returns a name as an expression that means it.
  static std::string escaped(std::string_view name) {
    std::string all;
    for (const char c : name) all += c == '.' ? std::string("\\.") : std::string(1, c);
    return all;
  }
};

/// Returns adapter_config.json for an adapter of some layers of a program, as PEFT reads it.
inline nlohmann::json written_adapter_config(const program_view& p, const peft_numbers& a,
                                             const detail::layers_by_name& layers,
                                             adapter_layout layout, const std::string& base) {
  std::set<std::string> modules = layers.targets(false), matrices = layers.targets(true);
  if (layout == adapter_layout::vllm) {
    for (const adapter_tensor& t : adapter_tensors(p, layout))
      if (t.experts && matrices.contains(t.layer)) modules.insert(t.matrix);
      else if (const auto block = fmt::format("layers.{}.", t.number);
               t.experts && matrices.contains(block + t.layer))
        modules.insert(block + t.matrix);
    matrices.clear();
  }
  return {
      {"peft_type", "LORA"},
      {"peft_version", layout == adapter_layout::peft_0_18 ? "0.18.0" : "0.19.1"},
      {"task_type", "CAUSAL_LM"},
      {"base_model_name_or_path", base.empty() ? nlohmann::json() : nlohmann::json(as_utf8(base))},
      {"r", a.r},
      {"rank_pattern", a.rs},
      {"alpha_pattern", a.alphas},
      {"lora_alpha", a.alpha},
      {"lora_dropout", a.dropout},
      {"use_rslora", a.rslora},
      {"use_dora", false},
      {"bias", "none"},
      {"fan_in_fan_out", hf_family_of(p).conv1d},
      {"inference_mode", true},
      {"init_lora_weights", true},
      {"modules_to_save", a.saved.empty() ? nlohmann::json() : nlohmann::json(a.saved)},
      {"target_modules", modules},
      {"target_parameters", matrices}};
}

} // namespace mc
