// Hugging Face folders on the way from one to another: other names, types and files, and weights
// that an adapter is merged into.
#pragma once

#include <megacpp/hf/nf4_folder.hpp>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace mc {
namespace detail {

/// A change of a model's weights on the way from one folder to another.
class tensor_change {
public:
  virtual ~tensor_change() = default;
  virtual bool changes(const hf_tensor& t) const = 0;
  /// Alters a stretch of a tensor's values, which begins with element `first`.
  virtual void change(const hf_tensor& t, std::int64_t first, std::span<double> values) = 0;
  /// Sees that stretch as it is written.
  virtual void written(const hf_tensor& t, std::int64_t first, std::span<const double> values) = 0;
  /// Ends a tensor, whose elements have so many significant bits. All ranks call it. Throws
  /// mc::error.
  virtual void end(const hf_tensor& t, int bits, communicator& hosts) = 0;
};

/// Writes a tensor of a folder, converted to T; zeros where the folder does not have it. Each rank
/// converts one stretch at a time, which `change` alters and sees; with `through`, its numbers are
/// first those that NF4 keeps.
template <class T> void convert_tensor(const weights_in_folder::match& m, communicator& hosts,
                                       const byte_sink& sink, tensor_change* change,
                                       const through_nf4* through) {
  const std::int64_t n = ranks_of(hosts.ranks()), elements = m.ours.elements(),
                     stretch = std::min(m.ours.stretch(), elements);
  std::vector<T> mine(static_cast<std::size_t>(stretch)),
      all(static_cast<std::size_t>(n * stretch));
  std::vector<double> values;
  for (std::int64_t begin = 0; begin < elements; begin += n * stretch) {
    const std::int64_t first = begin + hosts.rank() * stretch;
    if (m.file != nullptr && first < elements)
      weights_in_folder::read_from(m, first, values, [&](std::span<double> x) {
        if (through != nullptr) through->apply(first, x);
        if (change != nullptr) change->change(m.ours, first, x);
        std::transform(x.begin(), x.end(), mine.begin(), [](double v) { return convert<T>(v); });
        if (change == nullptr) return;
        std::transform(mine.begin(), mine.begin() + std::ssize(x), x.begin(),
                       [](T v) { return convert<double>(v); });
        change->written(m.ours, first, x);
      });
    hosts.run(exchange::all_gather(everyone, dtype_of<T>, mine.data(), all.data(), stretch));
    const auto count = static_cast<std::size_t>(std::min(n * stretch, elements - begin));
    sink(std::as_bytes(std::span(all)).first(count * sizeof(T)));
  }
}

} // namespace detail

/// The changes of an export. Linear layers in NF4 are those that the program has so.
struct export_changes {
  detail::tensor_change* change = nullptr; ///< alters tensors
  /// Linear layers are written in NF4; the checksum of the values that are read.
  std::optional<std::uint64_t> nf4_of{};
  bool through_nf4 = false; ///< linear layers have the numbers that NF4 keeps of them
};

/// Writes the model of one folder as another folder, with names and spellings of transformers 4.51,
/// in one file or several. Each tensor is converted to `as` (F32, BF16 or F64), or keeps its type.
/// The folder that is read must be sound and of the program's model. A rank holds one stretch of a
/// tensor in memory. Token ids, generation_config.json and the list of characters are copied. `to`
/// may be the folder that is read. All ranks call this function and
/// convert; the first one writes. Throws as load_model_folder and save_model_folder do.
inline saved_model export_model_folder(const model_folder& in, const std::filesystem::path& to,
                                       const program_view& p, std::optional<storage_type> as,
                                       std::uint64_t max_shard = hf_shard_limit,
                                       communicator& hosts = self::hosts(),
                                       std::span<const extra_file> extra_files = {},
                                       const export_changes& changes = {}) {
  const hf_family& family = hf_family_of(p);
  nlohmann::json written = family.config(p);
  static_cast<void>(family.tensors(p)); // A program without such tensors is refused at once.
  const json_value config = read_json(in.open("config.json"));
  require_same_model(config, p);
  const weights_in_folder weights(in, p);

  storage_type common = as.value_or(storage_type::f32);
  for (const auto& t : weights.matches())
    if (!as && t.ours.name == family.embedding) common = t.theirs.type;
  for (const char* id : {"bos_token_id", "eos_token_id", "pad_token_id"})
    if (config.raw().contains(id)) written[id] = config.raw().at(id);
  detail::outgoing_model m;
  if (changes.nf4_of) {
    std::vector<std::string> plain{"lm_head"}; // a tied one has no tensor
    constexpr std::string_view end = ".weight";
    for (const auto& t : weights.matches())
      if (const std::string module = t.ours.name.substr(0, t.ours.name.size() - end.size());
          t.ours.shape.size() == 2 && t.ours.name.ends_with(end) && !detail::is_encoded(t.ours) &&
          t.ours.name != family.embedding && module != plain.front())
        plain.push_back(module);
    written["quantization_config"] = detail::nf4_config(common, plain);
    m.metadata[plain_checksum_key] = fmt::format("{:016x}", *changes.nf4_of);
  }
  m.texts = detail::config_texts(std::move(written), common);
  for (const char* name : {"generation_config.json", "characters.json"})
    if (in.contains(name)) m.texts[name] = detail::text_of(in, name);
  for (const auto& [name, text] : extra_files) m.texts[name] = text;
  hosts.run(exchange::barrier(everyone)); // All ranks have opened the files before any is replaced.

  for (const auto& t : weights.matches()) {
    if (changes.nf4_of && t.file != nullptr && detail::is_encoded(t.ours)) {
      detail::add_in_nf4(m, t, common);
      continue;
    }
    const bool is_nf4 = t.theirs.quantised && t.theirs.quantised->as == hf_storage::nf4,
               rounds = changes.through_nf4 && t.file != nullptr && detail::is_encoded(t.ours) &&
                        !is_nf4; // its numbers are those of NF4 already
    const bool decodes = t.theirs.quantised != nullptr;
    const storage_type type = as || t.file == nullptr || decodes ? common : t.theirs.type;
    detail::tensor_change* const altered =
        changes.change != nullptr && changes.change->changes(t.ours) ? changes.change : nullptr;
    const bool stays = t.file == nullptr || // zeros
                       (t.theirs.type == type && altered == nullptr && !rounds);
    if (!stays && type == storage_type::f16)
      throw error(
          exit_code::model,
          fmt::format("{}: tensor \"{}\" would be F16, and weights that change are written as F32, "
                      "BF16 or F64: choose a type for the export",
                      (*t.file)->path(), printable(t.ours.name)));
    m.tensors.push_back(
        {t.ours.name, type, t.ours.shape,
         [&t, type, &hosts, altered, rounds, stays](const byte_sink& out) {
           std::optional<detail::through_nf4> numbers;
           if (rounds) numbers.emplace(t);
           const detail::through_nf4* const through = numbers ? &*numbers : nullptr;
           if (stays && t.file != nullptr) {
             t.file->check_unchanged();
             out(t.theirs.bytes);
           } else if (bits_of(type) == 16)
             detail::convert_tensor<bf16>(t, hosts, out, altered, through);
           else if (bits_of(type) == 64)
             detail::convert_tensor<double>(t, hosts, out, altered, through);
           else detail::convert_tensor<float>(t, hosts, out, altered, through);
           if (altered != nullptr)
             altered->end(t.ours, bits_of(type) == 16 ? 8 : bits_of(type) == 64 ? 53 : 24, hosts);
         }});
  }
  folder_writer out =
      hosts.rank() == 0 ? folder_writer(to.string()) : folder_writer::of_another_rank();
  const saved_model saved = detail::write_model(out, std::move(m), max_shard);
  out.commit();
  return saved;
}
inline saved_model export_model_folder(const std::filesystem::path& from,
                                       const std::filesystem::path& to, const program_view& p,
                                       std::optional<storage_type> as,
                                       std::uint64_t max_shard = hf_shard_limit) {
  return export_model_folder(model_folder(from.string()), to, p, as, max_shard);
}

} // namespace mc
