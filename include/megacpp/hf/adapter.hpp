// An adapter in a folder of PEFT: adapter_config.json and adapter_model.safetensors. Its tensors
// are the factors of the layers that it adapts, A (r, in) and B (out, r), by the name that
// transformers gives the layer behind "base_model.model.".
#pragma once

#include <megacpp/hf/model_folder.hpp>

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace mc {

/// Returns the tensors of a program's adapter, as PEFT names and lays them out. Throws
/// mc::error(exit_code::mismatch) for a family whose layers PEFT adapts under other names.
inline std::vector<hf_tensor> adapter_tensors(const program_view& p) {
  const hf_family& family = hf_family_of(p);
  if (family.tensors != hf_decoder::tensors)
    throw error(exit_code::mismatch,
                fmt::format("{} is of the family \"{}\", whose adapters have no form of PEFT yet: "
                            "use a llama, a qwen2 or a qwen3",
                            p.name, p.family.name));
  std::vector<hf_tensor> all;
  for_each_parameter(p, [&](const parameter_ref& r) {
    if (r.info->added) all.push_back(hf_as_stored("base_model.model.model." + r.name, r));
  });
  return all;
}

/// Tells whether PEFT reads a program's adapter; false for a program without one.
inline bool peft_reads_adapter(const program_view& p) {
  const hf_family* const f = find_hf_family(p);
  return p.numbers.adapter.rank > 0 && f != nullptr && f->tensors == hf_decoder::tensors;
}

/// Returns adapter_config.json for a program's adapter, as PEFT reads it.
inline nlohmann::json adapter_config(const program_view& p) {
  const lora& a = p.numbers.adapter;
  std::set<std::string> targets;
  for_each_parameter(p, [&](const parameter_ref& r) {
    if (!r.info->added) return;
    const std::string_view scope = r.v->scope;
    targets.emplace(scope.substr(scope.rfind('.') + 1));
  });
  return {{"peft_type", "LORA"},
          {"task_type", "CAUSAL_LM"},
          {"base_model_name_or_path", nullptr},
          {"r", a.rank},
          {"lora_alpha", a.alpha},
          {"lora_dropout", 0.0},
          {"use_rslora", a.rslora},
          {"use_dora", false},
          {"bias", "none"},
          {"fan_in_fan_out", false},
          {"inference_mode", true},
          {"init_lora_weights", true},
          {"modules_to_save", nullptr},
          {"target_modules", targets}};
}

/// Writes the files of a program's adapter. All ranks call it, as write_model_files. Throws
/// mc::error.
inline saved_model write_adapter_files(folder_writer& out, const program_view& p,
                                       const mc::stores& s, communicator& hosts = self::hosts()) {
  require_ranks(p, hosts);
  detail::outgoing_model m;
  m.weights_name = adapter_weights_name;
  m.texts[adapter_config_name] = adapter_config(p).dump(2) + "\n";
  std::vector<std::byte> buffer;
  detail::add_tensors(m, adapter_tensors(p), s, hosts, buffer);
  return detail::write_model(out, std::move(m), ~std::uint64_t{0});
}

/// Throws mc::error of the file's class unless a configuration is of the adapter that the program
/// was built with. The sentence names all fields that differ.
inline void require_same_adapter(const json_value& config, const program_view& p) {
  const lora& a = p.numbers.adapter;
  std::string found;
  const auto differ = [&](std::string_view field, const std::string& there,
                          const std::string& here) {
    if (there != here)
      found += fmt::format("{}{} is {} there and {} in the program", found.empty() ? "" : ", ",
                           field, there, here);
  };
  differ("peft_type", config.field<std::string>("peft_type"), "LORA");
  differ("r", fmt::format("{}", config.field<std::int64_t>("r")), fmt::format("{}", a.rank));
  differ("lora_alpha", fmt::format("{}", config.field<double>("lora_alpha")),
         fmt::format("{}", a.alpha));
  differ("use_rslora",
         fmt::format("{}", config.has("use_rslora") && config.field<bool>("use_rslora")),
         fmt::format("{}", a.rslora));
  // PEFT adds fields that change what an adapter computes. A field is taken if it is one of these,
  // which change no weight, or has the value of nothing asked for.
  static const std::set<std::string_view> harmless{"peft_type",         "r",
                                                   "lora_alpha",        "use_rslora",
                                                   "target_modules",    "task_type",
                                                   "auto_mapping",      "base_model_name_or_path",
                                                   "revision",          "inference_mode",
                                                   "peft_version",      "ensure_weight_tying",
                                                   "qalora_group_size", "megatron_core"};
  for (const auto& [name, value] : config.raw().items()) {
    const bool plain = value.is_null() || value == false || value == 0 || value.empty() ||
                       (name == "bias" && value == "none") ||
                       (name == "init_lora_weights" && (value == true || value == "gaussian"));
    if (!plain && !harmless.contains(name))
      found += fmt::format("{}{} is {}, which megacpp does not have", found.empty() ? "" : ", ",
                           printable(name), printable(value.dump()));
  }
  if (!found.empty())
    throw config.fault(
        fmt::format("this is another adapter than {} was built for: {}; give the "
                    "folder of such an adapter, or build a preset of this one",
                    p.name, found));
}

/// Loads the factors of an adapter, as far as this rank holds them. They change only after the
/// whole folder was found sound. Throws mc::error(exit_code::model) that names the file and the
/// field or tensor.
inline void load_adapter(const model_folder& in, const program_view& p, mc::stores& s) {
  require_same_adapter(read_json(in.open(adapter_config_name)), p);
  const safetensors_file file(in.open(adapter_weights_name));
  const auto about = [&](std::string_view name, const std::string& what) {
    return weights_in_folder::about(file, name, what);
  };
  std::vector<weights_in_folder::match> all;
  std::set<std::string> known;
  for (hf_tensor& t : adapter_tensors(p)) {
    const auto stored = file->find(t.name);
    if (!stored)
      throw about(t.name, fmt::format("is missing; {} needs it, with the shape {}", p.name,
                                      shape_text(t.shape)));
    hf_slice slice = hf_whole(t.name, *stored);
    weights_in_folder::require_readable(file, slice, t, p.name);
    require_finite(file, *stored, slice.bytes);
    known.insert(t.name);
    all.push_back({std::move(t), std::move(slice), &file});
  }
  for (std::size_t i = 0; i < file->size(); ++i)
    if (const std::string name(file.tensors()[i].name); known.count(name) == 0)
      throw about(
          name, fmt::format("is not one of the adapter of {}; build a preset that adapts its layer",
                            p.name));
  detail::load_tensors(all, s);
}

} // namespace mc
