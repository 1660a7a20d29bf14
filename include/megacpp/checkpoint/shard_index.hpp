// A large model is stored in several files (shards), such as model-00001-of-00003.safetensors. The
// index model.safetensors.index.json says which tensor is in which file, as huggingface_hub has it:
//   {"metadata": {"total_size": BYTES}, "weight_map": {TENSOR: FILE, ...}}
#pragma once

#include <megacpp/io/error.hpp>
#include <megacpp/io/folder.hpp>
#include <megacpp/io/json_file.hpp>

#include <charconv>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace mc {

/// shard_map gives the file of every tensor, by the tensor's name.
using shard_map = std::map<std::string, std::string, std::less<>>;

/// Returns the weight_map of an index. Throws mc::error of the file's class where the index has no
/// weight_map, an empty one, or one with a value that is no plain file name ending in .safetensors.
/// total_size is not read: published indexes often have a wrong one, and the files have the sizes.
inline shard_map read_shard_index(const json_value& index) {
  const json_value listed = index.field<json_value>("weight_map");
  shard_map files;
  for (const auto& [tensor, file] : listed.raw().items()) {
    if (!file.is_string())
      throw index.fault(
          fmt::format("field \"weight_map\" gives tensor \"{}\" {}, but the name of "
                      "a file is needed",
                      printable(tensor), printable(file.dump())));
    const auto& name = file.get_ref<const std::string&>();
    if (!is_bare_name(name) || !name.ends_with(".safetensors"))
      throw index.fault(
          fmt::format("field \"weight_map\" has tensor \"{}\" in \"{}\", which is not the plain "
                      "name of a .safetensors file; files of a model lie directly in its folder",
                      printable(tensor), printable(name)));
    files.emplace(tensor, name);
  }
  if (files.empty()) throw index.fault("field \"weight_map\" names no tensor");
  return files;
}

/// Returns the names of all files of an index, each once.
inline std::set<std::string> files_of(const shard_map& index) {
  std::set<std::string> files;
  for (const auto& [tensor, file] : index) files.insert(file);
  return files;
}

/// Returns the name of a shard, such as "model-00001-of-00003.safetensors" for number 0 of 3.
inline std::string shard_name(std::size_t number, std::size_t count) {
  return fmt::format("model-{:05}-of-{:05}.safetensors", number + 1, count);
}

/// Returns how many tensors go into each file, in the order of `sizes` (bytes). A file is full when
/// the next tensor would make it larger than `limit` bytes. A tensor larger than that has a file of
/// its own.
inline std::vector<std::size_t> cut_into_shards(std::span<const std::uint64_t> sizes,
                                                std::uint64_t limit) {
  std::vector<std::size_t> counts;
  std::uint64_t filled = 0;
  for (const std::uint64_t size : sizes) {
    if (counts.empty() || filled > limit || size > limit - filled) counts.push_back(0), filled = 0;
    ++counts.back();
    filled += size;
  }
  return counts;
}

/// Reads a size as the Hugging Face libraries write it, and returns its bytes. A size is a number
/// of bytes, of KB, MB, GB, TB (powers of 1000), or of KiB, MiB, GiB, TiB (powers of 1024), in
/// lower or upper case. Returns nothing for other texts, for zero, and for sizes beyond 64 bits.
inline std::optional<std::uint64_t> size_from_text(std::string_view text) {
  std::uint64_t number = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (problem != std::errc() || number == 0) return std::nullopt;
  std::string unit(end, text.data() + text.size());
  for (char& c : unit)
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  if (unit.empty()) return number;
  const auto power = std::string_view("KMGT").find(unit[0]);
  const std::string_view rest = std::string_view(unit).substr(1);
  if (power == std::string_view::npos || (rest != "B" && rest != "IB")) return std::nullopt;
  for (std::size_t i = 0; i <= power; ++i)
    if (__builtin_mul_overflow(number, rest == "B" ? 1000u : 1024u, &number)) return std::nullopt;
  return number;
}

} // namespace mc
