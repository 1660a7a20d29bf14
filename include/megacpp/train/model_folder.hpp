// Weights as a Hugging Face folder: config.json, generation_config.json and model.safetensors, that
// transformers loads, and that is read whoever wrote it.
#pragma once

#include <megacpp/checkpoint/folder.hpp>
#include <megacpp/checkpoint/safetensors.hpp>
#include <megacpp/checkpoint/safetensors_writer.hpp>
#include <megacpp/train/hugging_face.hpp>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace mc {

inline constexpr const char* hf_weights_name = "model.safetensors";
inline constexpr const char* hf_index_name = "model.safetensors.index.json";

namespace detail {

inline const char* torch_name(dtype t) {
  return t == dtype::f64 ? "float64" : t == dtype::bf16 ? "bfloat16" : "float32";
}

/// One tensor from a store of T to a file, block by block.
template <class T> void write_tensor(const hf_tensor& t, const std::byte* store,
                                     std::vector<std::byte>& buffer, const byte_sink& sink) {
  const T* const from = reinterpret_cast<const T*>(store);
  const std::int64_t n = t.elements(), block = t.block();
  for (std::int64_t first = 0; first < n; first += block) {
    const std::int64_t count = std::min(block, n - first);
    buffer.assign(static_cast<std::size_t>(count) * sizeof(T), std::byte{});
    T* const to = reinterpret_cast<T*>(buffer.data());
    t.each(first, count, [=](std::int64_t i, std::int64_t at) { to[i - first] = from[at]; });
    sink(buffer);
  }
}

/// f(first, values) for one tensor of a file, block by block, in double.
template <class F>
void read_blocks(const hf_tensor& t, const tensor_view& stored, std::vector<double>& buffer, F f) {
  const std::int64_t n = t.elements(), block = t.block();
  const auto size = static_cast<std::size_t>(bits_of(stored.type) / 8);
  for (std::int64_t first = 0; first < n; first += block) {
    const std::int64_t count = std::min(block, n - first);
    buffer.resize(static_cast<std::size_t>(count));
    tensor_view part = stored;
    part.shape = std::span(&count, 1);
    part.bytes = stored.bytes.subspan(static_cast<std::size_t>(first) * size, buffer.size() * size);
    read_values(part, std::span(buffer));
    f(first, std::span<const double>(buffer));
  }
}

/// Puts elements of a tensor into weights of T, and into masters where they are apart.
template <class T>
void place(const hf_tensor& t, std::int64_t first, std::span<const double> x, mc::stores& s) {
  T* const weights = reinterpret_cast<T*>(s.weights());
  auto* const masters =
      s.type() == s.main_type() ? nullptr : reinterpret_cast<accumulator_t<T>*>(s.masters());
  t.each(first, static_cast<std::int64_t>(x.size()), [=](std::int64_t i, std::int64_t at) {
    const double value = x[static_cast<std::size_t>(i - first)];
    weights[at] = convert<T>(value);
    if (masters != nullptr) masters[at] = static_cast<accumulator_t<T>>(value);
  });
}

/// The tensors of a folder's model beside the program's, verified before anything is loaded.
class weights_in_folder {
public:
  struct match {
    hf_tensor ours;
    tensor_view theirs{};
    bool found = false;
  };

  weights_in_folder(const model_folder& folder, const program_view& p)
      : file_(open(folder)), family_(hf_family_of(p)), program_(p.name) {
    std::map<std::string, std::size_t> by_name;
    for (hf_tensor& t : family_.tensors(p)) {
      by_name.emplace(t.name, matches_.size());
      matches_.push_back({std::move(t)});
    }
    tensor_view head{};
    for (std::size_t i = 0; i < file_->size(); ++i) {
      const tensor_view stored = file_.tensors()[i];
      const std::string name = family_.canonical(stored.name);
      if (name.empty()) continue;
      const auto at = by_name.find(name);
      if (at != by_name.end()) check_and_keep(matches_[at->second], stored);
      else if (name == "lm_head.weight") head = stored;
      else
        throw about(stored.name,
                    fmt::format("is not one of {}'s; the file is of another model", program_));
    }
    for (const match& m : matches_) check_found(m);
    if (!head.name.empty()) check_tied_head(head, matches_[by_name.at(family_.embedding)]);
  }

  const std::vector<match>& matches() const { return matches_; }
  void check_unchanged() const { file_.check_unchanged(); }

private:
  static safetensors_file open(const model_folder& folder) {
    if (!folder.contains(hf_weights_name) && folder.contains(hf_index_name))
      throw error(exit_code::model,
                  fmt::format("the model in {} is cut into several files ({}), and only models in "
                              "one file are read: save it as one {}",
                              folder.path(), hf_index_name, hf_weights_name));
    return safetensors_file(folder.open(hf_weights_name));
  }
  error about(std::string_view name, std::string_view what) const {
    return error(exit_code::model,
                 fmt::format("{}: tensor \"{}\" {}", file_->path(), printable(name), what));
  }

  void check_and_keep(match& m, const tensor_view& stored) const {
    if (m.found)
      throw about(stored.name, fmt::format("is the same weight as tensor \"{}\"; remove one",
                                           printable(m.theirs.name)));
    if (!std::ranges::equal(stored.shape, m.ours.shape))
      throw about(stored.name,
                  fmt::format("has the shape {}, but {} needs {}", shape_text(stored.shape),
                              program_, shape_text(m.ours.shape)));
    const storage_type t = stored.type;
    if (t != storage_type::f32 && t != storage_type::bf16 && t != storage_type::f16 &&
        t != storage_type::f64)
      throw about(stored.name, fmt::format("is of type {}, but weights are read from F64, F32, "
                                           "BF16 and F16; convert the model first",
                                           name_of(t)));
    m.theirs = stored, m.found = true;
  }

  /// What the program has no parameter for must be absent or zero.
  void check_found(const match& m) const {
    if (!m.found && !m.ours.parts.empty())
      throw about(m.ours.name, fmt::format("is missing; {} needs it, with the shape {}", program_,
                                           shape_text(m.ours.shape)));
    if (!m.found || !m.ours.parts.empty()) return;
    file_.check_unchanged();
    std::vector<double> values;
    read_blocks(m.ours, m.theirs, values, [&](std::int64_t first, std::span<const double> x) {
      const auto at = std::find_if(x.begin(), x.end(), [](double v) { return v != 0; });
      if (at != x.end())
        throw about(m.theirs.name,
                    fmt::format("is not zero (element {} is {}), but {} was built without biases; "
                                "build a preset with them",
                                first + (at - x.begin()), *at, program_));
    });
  }

  /// Some writers store the head of a tied model beside the embedding.
  void check_tied_head(const tensor_view& head, const match& table) const {
    file_.check_unchanged();
    const bool same = head.type == table.theirs.type &&
                      std::ranges::equal(head.shape, table.theirs.shape) &&
                      std::ranges::equal(head.bytes, table.theirs.bytes);
    if (!same)
      throw about(head.name, fmt::format("is not equal to \"{}\", but {} uses one table for both; "
                                         "build a preset that is not tied",
                                         printable(table.theirs.name), program_));
  }

  safetensors_file file_;
  const hf_family& family_;
  std::string program_;
  std::vector<match> matches_;
};

} // namespace detail

/// Saves the weights as a folder that appears complete or not at all: what was there before stays
/// until then (folder_writer). This is the form for use elsewhere, without the optimizer's state.
///
/// Weights are written in the type that training updates, which is F32 for bf16_mixed too: the
/// master weights hold what rounding to bf16 would lose, training can go on from them, and readers
/// convert as they load. A program built for inference has no masters and writes its own type.
/// Rows that pad the vocabulary are left out.
///
/// `extra_files` are (name, contents), written beside the others; a generation_config.json there
/// replaces ours. Names that is_model_file() does not know keep the folder from being replaced by
/// a later save. Throws mc::error: output if something cannot be written, mismatch for a program
/// that one rank does not hold, or of a family that transformers does not have.
inline void save_model_folder(
    const std::filesystem::path& folder, const program_view& p, const mc::stores& s,
    std::span<const std::pair<std::string, std::string>> extra_files = {}) {
  const hf_family& family = hf_family_of(p);
  const bool mastered = s.masters() != nullptr;
  const dtype type = mastered ? s.main_type() : s.type();
  const std::byte* const store = mastered ? s.masters() : s.weights();
  std::map<std::string, hf_tensor> by_name;
  std::vector<tensor_spec> specs;
  for (hf_tensor& t : family.tensors(p)) {
    specs.push_back({t.name, storage_of(type), t.shape});
    std::string name = t.name;
    by_name.emplace(std::move(name), std::move(t));
  }
  const safetensors_layout file(std::move(specs));

  nlohmann::json config = family.config(p);
  config["torch_dtype"] = detail::torch_name(type);
  std::map<std::string, std::string> texts;
  texts["generation_config.json"] = nlohmann::json{{"_from_model_config", true},
                                                   {"bos_token_id", config["bos_token_id"]},
                                                   {"eos_token_id", config["eos_token_id"]}}
                                        .dump(2) +
                                    "\n";
  for (const auto& [name, text] : extra_files) texts[name] = text;
  texts["config.json"] = config.dump(2) + "\n";

  folder_writer out(folder.string());
  std::uint64_t bytes = file.file_size();
  for (const auto& [name, text] : texts) bytes += text.size();
  out.require_space(bytes);
  for (const auto& [name, text] : texts) out.write(name, text);
  std::vector<std::byte> buffer;
  out.write(hf_weights_name, [&](const byte_sink& sink) {
    file.write(sink, [&](const tensor_spec& t, const byte_sink& data) {
      const hf_tensor& from = by_name.at(t.name);
      switch (type) {
      case dtype::f64: detail::write_tensor<double>(from, store, buffer, data); break;
      case dtype::bf16: detail::write_tensor<bf16>(from, store, buffer, data); break;
      default: detail::write_tensor<float>(from, store, buffer, data); break;
      }
    });
  });
  out.commit();
}

/// Loads weights, and masters where there are, from a folder written by save_model_folder,
/// transformers or anyone else. Reads F64, F32, BF16 and F16 in one model.safetensors. The weights
/// stay as they were unless the whole folder is sound. Beside the mapped file, memory is about a
/// MiB.
///
/// A program without biases takes a model whose biases are absent or zero. Rows that pad the
/// vocabulary become zero. Throws mc::error(exit_code::model), naming the file and the field or
/// tensor: no such folder, a file missing or cut short, a configuration of another model (all
/// fields that differ, with both values), a tensor missing, unknown, or of another shape or type.
inline void load_model_folder(const std::filesystem::path& folder, const program_view& p,
                              mc::stores& s) {
  const hf_family& family = hf_family_of(p);
  const model_folder in(folder.string());
  const json_value config = read_json(in.open("config.json"));
  hf_comparison comparison(config, p.name);
  comparison.text("model_type", {family.name}, "none");
  comparison.finish(); // the fields of another type are not worth comparing
  if (config.has("quantization_config"))
    throw config.fault(
        "field \"quantization_config\" says that the weights are quantised, and "
        "such models are not read: convert it to bfloat16 first");
  family.compare(p, comparison);
  comparison.finish();

  const detail::weights_in_folder weights(in, p);
  for_each_parameter(p, [&](const parameter_ref& r) {
    if (r.info->valid_rows <= 0) return;
    const std::int64_t row = r.count / r.v->dims[0].n;
    for (std::int64_t i = r.info->valid_rows * row; i < r.count; ++i) s.set_weight(r.offset + i, 0);
  });
  std::vector<double> values;
  for (const auto& m : weights.matches()) {
    if (m.ours.parts.empty()) continue;
    weights.check_unchanged();
    detail::read_blocks(m.ours, m.theirs, values,
                        [&](std::int64_t first, std::span<const double> x) {
                          switch (s.type()) {
                          case dtype::f64: detail::place<double>(m.ours, first, x, s); break;
                          case dtype::bf16: detail::place<bf16>(m.ours, first, x, s); break;
                          default: detail::place<float>(m.ours, first, x, s); break;
                          }
                        });
  }
}

} // namespace mc
