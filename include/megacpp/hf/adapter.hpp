// An adapter in a folder of PEFT: adapter_config.json and adapter_model.safetensors, whose tensors
// hf/adapter_tensors.hpp lays out.
#pragma once

#include <megacpp/hf/adapter_config.hpp>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace mc {

namespace detail {
/// Returns the files of an adapter, without their tensors.
inline outgoing_model outgoing_adapter(nlohmann::json config, const adapter_base& base) {
  outgoing_model m;
  m.weights_name = adapter_weights_name;
  m.texts[adapter_config_name] = config.dump(2) + "\n";
  if (base.is_known()) m.metadata[base_checksum_key] = fmt::format("{:016x}", base.checksum);
  if (base.plain != 0) m.metadata[plain_checksum_key] = fmt::format("{:016x}", base.plain);
  if (base.nf4) m.metadata[base_storage_key] = name_of(base_storage::nf4);
  return m;
}
} // namespace detail

namespace detail {
/// Returns a checksum in the metadata of a file; 0 if it is not there.
inline std::uint64_t checksum_in(const std::map<std::string, std::string, std::less<>>& metadata,
                                 const char* key) {
  const auto at = metadata.find(key);
  std::uint64_t sum = 0;
  if (at != metadata.end())
    std::from_chars(at->second.data(), at->second.data() + at->second.size(), sum, 16);
  return sum;
}
} // namespace detail

/// Writes the files of a program's adapter, beside a base if it is known. All ranks call it, as
/// write_model_files. Throws mc::error.
inline saved_model write_adapter_files(folder_writer& out, const program_view& p,
                                       const mc::stores& s, communicator& hosts = self::hosts(),
                                       const adapter_base& base = {},
                                       adapter_layout layout = adapter_layout::peft) {
  require_ranks(p, hosts);
  detail::outgoing_model m = detail::outgoing_adapter(
      written_adapter_config(p, peft_numbers(p.numbers.adapter), detail::layers_by_name(p), layout,
                             base.folder),
      base);
  std::vector<hf_tensor> tensors;
  for (adapter_tensor& t : adapter_tensors(p, layout)) tensors.push_back(std::move(t.tensor));
  for (hf_tensor& t : saved_modules(p)) tensors.push_back(std::move(t));
  std::vector<std::byte> buffer;
  detail::add_tensors(m, tensors, s, hosts, buffer);
  return detail::write_model(out, std::move(m), ~std::uint64_t{0});
}

/// The tensors of an adapter in a folder, paired with the factors of a program. The constructor
/// verifies all of them: a file has both factors of a layer or neither, no tensor that the program
/// has no place for, and none of another shape or type, or not finite. Throws
/// mc::error(exit_code::model) that names the file and the field or tensor.
class adapter_in_folder {
public:
  /// `number`: of the adapter, where the program holds several.
  adapter_in_folder(const model_folder& in, const program_view& p,
                    std::optional<adapter_layout> asked = {}, int number = 0)
      : program_(p),
        number_(number),
        config_(read_adapter_config(read_json(in.open(adapter_config_name)))),
        file_(in.open(adapter_weights_name)),
        layout_(layout(asked)) {
    const lora& ours = p.numbers.adapter;
    if (ours.rank == 0)
      throw error(exit_code::mismatch,
                  fmt::format("{} has no adapter to load {} into; build a preset with {}", p.name,
                              in.path(), build_key()));
    struct seen {
      std::string name; ///< of the layer's first tensor
      bool there;
    };
    std::map<std::pair<int, std::string>, seen> found; // by layer, of which a file has all or none
    for (adapter_tensor& t : tensors(layout_)) {
      const auto stored = file_->find(t.tensor.name);
      const auto [layer, anew] =
          found.emplace(std::pair(t.number, t.layer), seen{t.tensor.name, stored.has_value()});
      if (!anew && layer->second.there != stored.has_value())
        throw missing(stored ? layer->second.name : t.tensor.name,
                      fmt::format("another of the {} of its layer is there",
                                  t.matrix.empty() ? "factors" : "experts' factors"));
      if (!stored) {
        if (config_.means(whole_name(t), t.experts && t.matrix.empty()))
          throw missing(t.tensor.name, fmt::format("{} names its layer", adapter_config_name));
        continue;
      }
      if (config_.leaves_out(whole_name(t), t.experts && t.matrix.empty()))
        throw about(t.tensor.name,
                    fmt::format("is of a layer that {} does not name, so that readers leave it "
                                "out; take the tensor out, or name the layer",
                                adapter_config_name));
      hf_slice slice = hf_whole(t.tensor.name, *stored);
      weights_in_folder::require_readable(file_, slice, t.tensor, p.name);
      require_finite(file_, *stored, slice.bytes);
      known_.insert(t.tensor.name), layers_.insert({t.number, t.layer});
      if (!t.same.empty()) {
        require_same(t, *stored);
        continue;
      }
      const double in_program = t.experts ? ours.scale() : ours.scale_of(t.layer);
      const double times = t.scaled ? config_.scale_of(whole_name(t)) / in_program : 1;
      matches_.push_back({std::move(t.tensor), std::move(slice), &file_, times});
    }
    for (hf_tensor& t : saved_modules(p)) {
      const auto stored = file_->find(t.name);
      if (!stored && config_.saves(t.name))
        throw missing(t.name, fmt::format("{} names its module", adapter_config_name));
      if (!stored) continue;
      hf_slice slice = hf_whole(t.name, *stored);
      weights_in_folder::require_readable(file_, slice, t, p.name);
      require_finite(file_, *stored, slice.bytes);
      known_.insert(t.name), modules_.insert(t.name);
      matches_.push_back({std::move(t), std::move(slice), &file_, 1});
    }
    if (file_->size() == 0)
      throw error(exit_code::model,
                  fmt::format("{} has no tensors; the folder holds no adapter", file_->path()));
    for (std::size_t i = 0; i < file_->size(); ++i)
      if (const std::string name(file_.tensors()[i].name); !known_.contains(name))
        throw about(
            name,
            is_of_model(name)
                ? fmt::format("is not one of the adapter of {}; build a preset with {}", p.name,
                              build_key())
                : fmt::format("is of no layer of {}; the adapter is of another model", p.name));
  }
  adapter_in_folder(const adapter_in_folder&) = delete;
  adapter_in_folder& operator=(const adapter_in_folder&) = delete;

  const adapter_config& config() const { return config_; }
  /// Returns the path of the folder's weights, for messages.
  const std::string& path() const { return file_->path(); }
  /// Tells whether the folder has the factors of a layer, by its published name and its number.
  bool has(const std::string& layer, int number) const { return layers_.contains({number, layer}); }
  /// Tells whether the folder has a tensor of a module that is trained as a whole.
  bool has_module(const std::string& tensor) const { return modules_.contains(tensor); }
  bool has_modules() const { return !modules_.empty(); }
  /// Returns a type that holds all factors: F64 if one has it, BF16 if all have it, or F32.
  storage_type type() const {
    const auto is = [](storage_type t) {
      return [t](const weights_in_folder::match& m) { return m.theirs.type == t; };
    };
    return std::ranges::any_of(matches_, is(storage_type::f64))    ? storage_type::f64
           : std::ranges::all_of(matches_, is(storage_type::bf16)) ? storage_type::bf16
                                                                   : storage_type::f32;
  }
  const std::vector<weights_in_folder::match>& matches() const { return matches_; }
  /// Returns the layout of the experts' factors in the file.
  adapter_layout layout() const { return layout_; }
  /// Returns the name of a layer of experts that the configuration gives numbers of its own: that
  /// of a tensor, or, beside the names of single experts, also that of the matrix of all of them;
  /// "" where there is none.
  std::string with_own_numbers(const adapter_tensor& t, bool of_all = false) const {
    if (!t.experts || (config_.rs.empty() && config_.alphas.empty())) return "";
    const std::string name = whole_name(t), all = whole_name(t.number, t.layer);
    return config_.has_own_numbers(name) ? name : of_all && config_.has_own_numbers(all) ? all : "";
  }
  /// Returns the base of the adapter, as far as the file tells it.
  adapter_base base() const {
    const auto& metadata = file_.tensors().metadata();
    return {"", detail::checksum_in(metadata, base_checksum_key),
            detail::checksum_in(metadata, plain_checksum_key),
            metadata.find(base_storage_key) != metadata.end()};
  }

private:
  error about(std::string_view name, const std::string& what) const {
    return weights_in_folder::about(file_, name, what);
  }
  /// Returns whether a tensor has the name of a factor of one of the model's layers.
  bool is_of_model(std::string_view name) const {
    constexpr std::string_view before = "base_model.model.";
    if (name.starts_with(before)) name.remove_prefix(before.size());
    const bool of_factor = name.rfind(".lora_") != std::string_view::npos;
    std::string layer(name.substr(0, name.rfind(of_factor ? ".lora_" : ".")));
    if (const auto wrapped = layer.rfind(".base_layer"); wrapped != std::string::npos)
      layer.resize(wrapped);
    return std::ranges::any_of(hf_family_of(program_).tensors(program_),
                               [&](const hf_tensor& t) { return t.name.starts_with(layer + "."); });
  }
  error missing(std::string_view name, const std::string& though) const {
    return about(name, fmt::format("is missing, though {}; the file is incomplete", though));
  }
  /// Throws mc::error where a tensor has other elements than the one that it must repeat, since a
  /// program has one factor for both.
  void require_same(const adapter_tensor& t, const file_tensor& stored) const {
    const auto other = file_->find(t.same);
    if (other->type != stored.type || !std::ranges::equal(other->bytes, stored.bytes))
      throw about(t.tensor.name,
                  fmt::format("differs from \"{}\", and {} has one factor for both; only an "
                              "adapter that was trained with one can be loaded",
                              printable(t.same), program_.name));
  }
  std::vector<adapter_tensor> tensors(adapter_layout l) const {
    std::vector<adapter_tensor> all = adapter_tensors(
        program_, l,
        [&](const adapted_layer& layer, std::int64_t of_program) {
          const bool one_by_one = layer.experts && l == adapter_layout::vllm;
          const std::int64_t r = one_by_one ? config_.r : config_.r_of(layer.whole);
          if (r <= of_program) return r;
          // No tensor of a layer that is not named is read.
          if (!one_by_one && !config_.names(layer.whole, layer.experts)) return of_program;
          throw config_.at.fault(fmt::format(
              "has rank {} for {}, but the adapter of {} has rank {} there; build a preset with {}",
              r, layer.whole, program_.name, of_program, build_key()));
        },
        [&](const std::string& matrix, int number) {
          return l == adapter_layout::vllm || config_.parameters.empty() ||
                 config_.names(whole_name(number, matrix), true);
        },
        number_);
    for (const adapter_tensor& t : all)
      if (l == adapter_layout::vllm && !with_own_numbers(t).empty())
        throw config_.at.fault(
            fmt::format("gives {} numbers of its own, and single experts have "
                        "those of the whole adapter",
                        with_own_numbers(t)));
    return all;
  }
  /// Returns the key of a build whose program has such an adapter.
  std::string build_key() const {
    return "adapter=" + printable(std::filesystem::path(file_->path()).parent_path().string());
  }
  /// Returns the name of a layer in the model of transformers.
  std::string whole_name(int number, const std::string& layer) const {
    return fmt::format("{}{}.{}", hf_family_of(program_).layer_prefix, number, layer);
  }
  std::string whole_name(const adapter_tensor& t) const {
    return whole_name(t.number, t.matrix.empty() ? t.layer : t.matrix);
  }
  /// Returns the layout of the experts' factors: what was asked for, or what the names of tensors
  /// or the version of PEFT in the configuration say, or the only one that has the file's shapes.
  adapter_layout layout(std::optional<adapter_layout> asked) const {
    if (asked) return *asked;
    for (std::size_t i = 0; i < file_->size(); ++i)
      if (names_one_expert(file_.tensors()[i].name)) return adapter_layout::vllm;
    if (std::ranges::any_of(config_.modules, names_one_expert)) return adapter_layout::vllm;
    if (config_.parameters.empty()) return adapter_layout::peft;
    if (config_.layout) return *config_.layout;
    std::optional<adapter_layout> fits;
    for (const adapter_layout l : {adapter_layout::peft, adapter_layout::peft_0_18}) {
      bool all = true;
      for (const adapter_tensor& t : tensors(l))
        if (const auto stored = file_->find(t.tensor.name))
          all = all && std::ranges::equal(stored->shape, t.tensor.shape);
      if (all && fits)
        throw config_.at.fault(
            "has no peft_version, and the shapes of the experts' factors fit several layouts; say "
            "by --adapter-layout which version of PEFT wrote them");
      if (all) fits = l;
    }
    return fits.value_or(adapter_layout::peft);
  }

  const program_view& program_;
  int number_; ///< of the adapter among those of the program
  adapter_config config_;
  safetensors_file file_;
  adapter_layout layout_;
  std::set<std::string> known_, modules_;
  std::set<std::pair<int, std::string>> layers_;
  std::vector<weights_in_folder::match> matches_;
};

/// Loads the factors of adapters, as far as this rank holds them: that of the program, or all that
/// it holds, in the order of their numbers. An adapter of a lower rank than the program's, or of
/// fewer layers, computes what it computes elsewhere: the other factors are those of a new adapter
/// by a seed, whose B is zero. The factors change only after all folders were found sound. Throws
/// mc::error(exit_code::mismatch) for modules that one of several has as a whole.
inline void load_adapters(std::span<const std::unique_ptr<const adapter_in_folder>> all,
                          mc::stores& s, std::uint64_t seed = 0) {
  for (const auto& one : all)
    if (s.program().numbers.held_adapters > 0 && one->has_modules())
      throw error(exit_code::mismatch,
                  fmt::format("{} has modules as a whole (modules_to_save), which texts of several "
                              "adapters cannot have each for itself; give it alone, without a name",
                              one->path()));
  s.initialise_added(seed);
  for (const auto& one : all) detail::load_tensors(one->matches(), s);
}
inline void load_adapter(const model_folder& in, const program_view& p, mc::stores& s,
                         std::uint64_t seed = 0, std::optional<adapter_layout> layout = {}) {
  const std::unique_ptr<const adapter_in_folder> one =
      std::make_unique<const adapter_in_folder>(in, p, layout);
  load_adapters(std::span(&one, 1), s, seed);
}

} // namespace mc
