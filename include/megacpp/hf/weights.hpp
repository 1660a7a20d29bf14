// weights_in_folder finds the weights of a program in a Hugging Face folder, verifies them, and
// reads them stretch by stretch from mapped files.
#pragma once

#include <megacpp/checkpoint/finite_file.hpp>
#include <megacpp/checkpoint/safetensors.hpp>
#include <megacpp/checkpoint/shard_index.hpp>
#include <megacpp/hf/arrays.hpp>
#include <megacpp/hf/families.hpp>
#include <megacpp/io/folder.hpp>
#include <megacpp/threads/parallel.hpp>

#include <algorithm>
#include <cstdint>
#include <list>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace mc {

inline constexpr const char* hf_weights_name = "model.safetensors";
inline constexpr const char* hf_index_name = "model.safetensors.index.json";

/// weights_in_folder pairs the tensors of a program with those of a folder, in the order of the
/// model. The constructor verifies all of them: no tensor is missing, unknown, there twice, of
/// another shape or not finite, and an index names the file of every tensor. Tensors that are no
/// weights, such as a mask of -inf, are not read. Throws mc::error(exit_code::model) that names the
/// file and the tensor.
class weights_in_folder {
public:
  struct match {
    hf_tensor ours;
    hf_slice theirs{};
    const safetensors_file* file = nullptr; ///< The tensor's file; null: no file has it, it is 0.
    double factor = 1;                      ///< The values are multiplied by it.
  };

  weights_in_folder(const model_folder& folder, const program_view& p)
      : family_(hf_family_of(p)), program_(p.name), folder_(folder.path()) {
    open(folder);
    for (hf_tensor& t : family_.tensors(p)) {
      by_name_.emplace(t.name, matches_.size());
      matches_.push_back({std::move(t)});
    }
    if (folder.contains("config.json"))
      arrays_ = hf_arrays(hf_storage_of(read_json(folder.open("config.json"))));
    match head;
    for (const safetensors_file& file : files_)
      for (std::size_t i = 0; i < file->size(); ++i) arrays_.add(file, file.tensors()[i]);
    for (const safetensors_file& file : files_)
      for (std::size_t i = 0; i < file->size(); ++i)
        if (const file_tensor t = file.tensors()[i]; !arrays_.is_array(t.name))
          for (hf_slice& slice : family_.slices(t)) assign(std::move(slice), file, head);
    arrays_.require_all_taken();
    for (const match& m : matches_) check_found(m);
    if (head.file != nullptr) check_tied_head(head, matches_[by_name_.at(family_.embedding)]);
  }
  weights_in_folder(const weights_in_folder&) = delete;
  weights_in_folder& operator=(const weights_in_folder&) = delete;

  const std::vector<match>& matches() const { return matches_; }
  /// Returns the way in which the weights are stored.
  hf_storage storage() const { return arrays_.storage(); }
  std::size_t files() const { return files_.size(); }

  static error about(const safetensors_file& file, std::string_view name, std::string_view what) {
    return hf_arrays::about(file, name, what);
  }
  /// Throws mc::error for a tensor of a file that cannot be read as one of a program: it has
  /// another shape, or a type that weights do not have.
  static void require_readable(const safetensors_file& file, const hf_slice& stored,
                               const hf_tensor& ours, const std::string& program) {
    hf_arrays::require_shape(file, stored, ours.shape, program);
    const storage_type t = stored.type;
    if (t != storage_type::f32 && t != storage_type::bf16 && t != storage_type::f16 &&
        t != storage_type::f64)
      throw about(file, stored.stored_name,
                  fmt::format("is of type {}, but weights are read from F64, F32, BF16 and F16; "
                              "convert the model first",
                              name_of(t)));
  }

  /// Calls f(first, values) for each stretch of a tensor, in double. `buffer` becomes about half a
  /// MiB.
  template <class F> static void read(const match& m, std::vector<double>& buffer, F f) {
    m.file->check_unchanged();
    buffer.resize(stretch_size(m));
    for (std::int64_t b = 0; b < stretches(m); ++b) read_stretch(m, b, buffer, f);
  }
  /// Calls f(values) for the stretch that begins with element `first`; f may write to them.
  template <class F>
  static void read_from(const match& m, std::int64_t first, std::vector<double>& buffer, F f) {
    m.file->check_unchanged();
    buffer.resize(stretch_size(m));
    read_stretch(m, first / m.ours.stretch(), buffer,
                 [&](std::int64_t, auto values) { f(values); });
  }
  /// Calls f(first, values) for each stretch of a tensor; threads take stretches in turn, and each
  /// has its own range of `buffer`. f must not throw, and writes only its own elements.
  template <class F>
  static void read_in_parallel(const match& m, std::vector<double>& buffer, F f) {
    m.file->check_unchanged();
    const std::int64_t n = stretches(m), at_once = std::min<std::int64_t>(n, thread_count());
    const std::size_t size = stretch_size(m);
    buffer.resize(static_cast<std::size_t>(at_once) * size);
    for (std::int64_t b = 0; b < n; b += at_once)
      parallel_for(std::min(at_once, n - b), [&](std::int64_t i) {
        read_stretch(m, b + i, std::span(buffer).subspan(static_cast<std::size_t>(i) * size, size),
                     f);
      });
  }

private:
  static std::int64_t stretches(const match& m) {
    return (m.ours.elements() + m.ours.stretch() - 1) / m.ours.stretch();
  }
  static std::size_t stretch_size(const match& m) {
    return static_cast<std::size_t>(std::min(m.ours.stretch(), m.ours.elements()));
  }
  /// Calls f(first, values) for one stretch. The constructor has verified that its type can be
  /// read.
  template <class F>
  static void read_stretch(const match& m, std::int64_t b, std::span<double> buffer, F f) {
    const hf_slice& stored = m.theirs;
    if (stored.quantised != nullptr) {
      const std::int64_t from = b * m.ours.stretch();
      const auto some = buffer.first(
          static_cast<std::size_t>(std::min(m.ours.stretch(), m.ours.elements() - from)));
      stored.quantised->decode(stored.bytes, from, some);
      return f(from, some);
    }
    const std::int64_t first = b * m.ours.stretch(),
                       count = std::min(m.ours.stretch(), m.ours.elements() - first);
    const auto size = static_cast<std::size_t>(bits_of(stored.type) / 8);
    const auto values = buffer.first(static_cast<std::size_t>(count));
    const file_tensor part{
        stored.stored_name, stored.type, std::span(&count, 1),
        stored.bytes.subspan(static_cast<std::size_t>(first) * size, values.size() * size)};
    read_values(part, values);
    if (m.factor != 1)
      for (double& x : values) x *= m.factor;
    f(first, values);
  }

  /// Opens model.safetensors, or the files of an index where there is no such file. transformers
  /// prefers model.safetensors, too.
  void open(const model_folder& folder) {
    if (folder.contains(adapter_config_name))
      throw error(exit_code::model,
                  fmt::format("the model folder {} has an adapter_config.json beside its weights, "
                              "which transformers would load with that adapter (PEFT); merge it "
                              "by PEFT's merge_and_unload(), or remove the file",
                              folder.path()));
    if (folder.contains(hf_weights_name) || !folder.contains(hf_index_name)) {
      files_.emplace_back(folder.open(hf_weights_name));
      return;
    }
    const shard_map index = read_shard_index(read_json(folder.open(hf_index_name)));
    std::map<std::string, const safetensors_file*> opened;
    for (const std::string& name : files_of(index))
      opened[name] = &files_.emplace_back(folder.open(name));
    check_listed(index, opened);
  }

  /// Throws unless every file has the tensors that the index says, and no others.
  void check_listed(const shard_map& index,
                    const std::map<std::string, const safetensors_file*>& opened) const {
    for (const auto& [tensor, name] : index)
      if (!opened.at(name)->tensors().find(tensor))
        throw error(exit_code::model,
                    fmt::format("{}/{} lists tensor \"{}\" in {}, which does not have it; one of "
                                "them is of another model or incomplete",
                                folder_, hf_index_name, printable(tensor), name));
    for (const auto& [name, file] : opened)
      for (std::size_t i = 0; i < (*file)->size(); ++i) {
        const std::string_view tensor = file->tensors()[i].name;
        const auto at = index.find(tensor);
        if (at == index.end() || at->second != name)
          throw about(*file, tensor,
                      fmt::format("is not listed for this file by {}; one of them is of another "
                                  "model or a leftover",
                                  hf_index_name));
      }
  }

  /// Returns a sentence about the PyTorch wrapper, such as DistributedDataParallel, that left its
  /// name in a tensor's name; null for none. Such a file is refused: programs that skipped the
  /// unknown names have trained on random weights.
  static const char* wrapper_in(std::string_view name) {
    constexpr std::pair<std::string_view, const char*> within[] = {
        {"_orig_mod.", "holds _orig_mod., which torch.compile puts there"},
        {"_fsdp_wrapped_module.", "holds _fsdp_wrapped_module., which PyTorch's FSDP puts there"},
        {"_checkpoint_wrapped_module.",
         "holds _checkpoint_wrapped_module., which activation checkpointing puts there"},
        {"base_layer.", "holds base_layer., which an adapter (PEFT) puts there"}};
    constexpr std::pair<std::string_view, const char*> before[] = {
        {"module.", "begins with module., which DistributedDataParallel and DeepSpeed put there"},
        {"_forward_module.", "begins with _forward_module., which Lightning puts there"},
        {"base_model.model.", "begins with base_model.model., which an adapter (PEFT) puts there"}};
    for (const auto& [part, says] : within)
      if (name.find(part) != std::string_view::npos) return says;
    for (const auto& [part, says] : before)
      if (name.starts_with(part)) return says;
    return nullptr;
  }

  void assign(hf_slice&& stored, const safetensors_file& file, match& head) {
    if (const auto at = by_name_.find(stored.name); at != by_name_.end())
      check_and_keep(matches_[at->second], std::move(stored), file);
    else if (stored.name == "lm_head.weight") head.theirs = std::move(stored), head.file = &file;
    else if (const char* const wrapped = wrapper_in(stored.stored_name))
      throw about(file, stored.stored_name,
                  fmt::format("has a name that {}; save the weights of the model within, or remove "
                              "that from the names",
                              wrapped));
    else
      throw about(file, stored.stored_name,
                  fmt::format("is not one of {}'s; the file is of another model", program_));
  }

  void check_and_keep(match& m, hf_slice&& stored, const safetensors_file& file) const {
    if (m.file != nullptr)
      throw about(file, stored.stored_name,
                  fmt::format("is the same weight as tensor \"{}\"; remove one",
                              printable(m.theirs.stored_name)));
    if (arrays_.has_codes(stored)) stored.quantised = arrays_.of(stored, file, m.ours, program_);
    else require_readable(file, stored, m.ours, program_);
    m.theirs = std::move(stored), m.file = &file;
  }

  /// Throws unless a weight of the program is there and finite. A tensor that the program has no
  /// parameter for must be absent or zero.
  void check_found(const match& m) const {
    if (m.file == nullptr && !m.ours.sources.empty())
      throw error(exit_code::model,
                  fmt::format("{}/{}: tensor \"{}\" is missing; {} needs it, with the shape {}",
                              folder_, files_.size() > 1 ? hf_index_name : hf_weights_name,
                              m.ours.name, program_, shape_text(m.ours.shape)));
    if (m.file == nullptr) return;
    if (m.theirs.quantised != nullptr) return; // its arrays are finite
    if (!m.ours.sources.empty())
      return require_finite(*m.file, m.file->tensors().at(m.theirs.stored_name), m.theirs.bytes);
    std::vector<double> values;
    read(m, values, [&](std::int64_t first, std::span<const double> x) {
      const auto at = std::find_if(x.begin(), x.end(), [](double v) { return v != 0; });
      if (at != x.end())
        throw about(*m.file, m.theirs.stored_name,
                    fmt::format("is not zero (element {} is {}), but {} was built without biases; "
                                "build a preset with them",
                                first + (at - x.begin()), *at, program_));
    });
  }

  /// Throws unless the head that a file stores equals the embedding of a tied model. Some writers
  /// store both.
  void check_tied_head(const match& head, const match& table) const {
    head.file->check_unchanged(), table.file->check_unchanged();
    const bool same = head.theirs.type == table.theirs.type &&
                      head.theirs.shape == table.theirs.shape &&
                      std::ranges::equal(head.theirs.bytes, table.theirs.bytes);
    if (!same)
      throw about(*head.file, head.theirs.stored_name,
                  fmt::format("is not equal to \"{}\", but {} uses one table for both; "
                              "build a preset that is not tied",
                              printable(table.theirs.stored_name), program_));
  }

  const hf_family& family_;
  hf_arrays arrays_;
  std::string program_, folder_;
  std::list<safetensors_file> files_; ///< The opened files, to which matches_ points.
  std::map<std::string, std::size_t, std::less<>> by_name_;
  std::vector<match> matches_;
};

} // namespace mc
