// The file that makes a folder a state: what the state is of, and the checksums of every other file
// beside it, itself sealed by one. Without it, or with one bit of it changed, there is no state.
//
//   {"format": "megacpp-state", "version": 1, "xxh64": seal, "state": {..., "files": {...}}}
//
// The seal is XXH64 of "state" as compact JSON with sorted keys, so it covers what the text says,
// not its blanks. docs/state.md has every field.
#pragma once

#include <megacpp/checkpoint/finite_file.hpp>
#include <megacpp/io/checksum.hpp>
#include <megacpp/io/folder.hpp>
#include <megacpp/io/json_file.hpp>
#include <megacpp/threads/parallel.hpp>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace mc {

inline constexpr const char* state_file_name = "megacpp_state.json";
inline constexpr const char* optimizer_file_name = "optimizer.safetensors";
inline constexpr const char* state_format = "megacpp-state";
inline constexpr int state_version = 1;

/// Tells whether a name is that of a file that megacpp writes into the folder of a state.
inline bool is_state_file(std::string_view name) {
  return is_model_file(name) || name == state_file_name || name == optimizer_file_name ||
         name == adapter_config_name || name == adapter_weights_name;
}
/// The kind of folder that a state is. A damaged state may lack any file, so it is replaced
/// whatever it lacks.
inline constexpr folder_kind state_kind{"state", is_state_file, nullptr, state_file_name};

namespace detail {

inline std::string seal_of(const nlohmann::json& state) {
  const std::string text = state.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return fmt::format("{:016x}", xxh64::of(std::as_bytes(std::span(text))));
}

inline std::uint64_t checksum_of(const json_value& file, std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (text.size() != 16 || problem != std::errc() || end != text.data() + text.size())
    throw file.fault(
        fmt::format("\"{}\" is not a checksum of 16 hexadecimal digits", printable(text)));
  return value;
}

} // namespace detail

/// The text of a state file. `state` gets its field "files" from the records.
inline std::string state_text(nlohmann::json state, std::span<const file_record> files) {
  state["chunk_bytes"] = bytes_per_checksum;
  nlohmann::json& list = state["files"] = nlohmann::json::object();
  for (const file_record& f : files) {
    nlohmann::json sums = nlohmann::json::array();
    for (const std::uint64_t sum : f.checksums) sums.push_back(fmt::format("{:016x}", sum));
    list[f.name] = {{"bytes", f.bytes}, {"xxh64", std::move(sums)}};
  }
  const nlohmann::json whole{{"format", state_format},
                             {"version", state_version},
                             {"xxh64", detail::seal_of(state)},
                             {"state", std::move(state)}};
  return whole.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

/// A state file that was read and whose seal holds.
class state_file {
public:
  /// Throws mc::error(exit_code::model) for text that is not a state file of this version, or whose
  /// seal or list of files is wrong.
  state_file(std::string_view text, const std::string& path)
      : state_(unseal(json_value(parse_json(text, path), path, exit_code::model))),
        bytes_a_checksum_(
            state_.field<std::uint64_t>("chunk_bytes", 4096, std::uint64_t{1} << 30)) {
    const json_value list = state_.field<json_value>("files");
    for (const auto& item : list.raw().items()) add(item.key(), list.field<json_value>(item.key()));
  }
  explicit state_file(const model_folder& folder) : state_file(folder.open(state_file_name)) {}

  /// Returns the object "state".
  const json_value& state() const { return state_; }
  const std::vector<file_record>& files() const { return files_; }

  /// Throws mc::error(exit_code::model) unless the folder holds exactly the files listed, with
  /// their sizes and, where `needed(name)`, their checksums and numbers that are finite.
  template <class Needed> void verify(const model_folder& folder, Needed needed) const {
    for (const std::string& name : folder.names())
      if (is_state_file(name) && name != state_file_name && !lists(name))
        throw state_.fault(fmt::format("does not list {}, which lies beside it", name));
    for (const file_record& f : files_) {
      const mapped_file file = folder.open(f.name);
      if (file.size() != f.bytes)
        throw error(exit_code::model, fmt::format("{} has {} bytes, but was saved with {}",
                                                  file.path(), file.size(), f.bytes));
      if (!needed(f.name)) continue;
      check_contents(file, f);
      if (f.name.ends_with(".safetensors")) require_finite(safetensors_file(folder.open(f.name)));
    }
  }

private:
  explicit state_file(const mapped_file& file) : state_file(file.text(), file.path()) {}

  static json_value unseal(const json_value& whole) {
    if (whole.as<json_value>().field<std::string>("format") != state_format)
      throw whole.fault("is not the state of a megacpp run");
    const int version = whole.field<int>("version");
    if (version > state_version)
      throw unexamined(exit_code::model, fmt::format("{} is of version {}, and this program reads "
                                                     "version {}; build it with a newer megacpp",
                                                     whole.file(), version, state_version));
    if (version != state_version)
      throw whole.fault(fmt::format("is of version {}, and this program reads version {}", version,
                                    state_version));
    json_value state = whole.field<json_value>("state");
    if (whole.field<std::string>("xxh64") != detail::seal_of(state.raw()))
      throw whole.fault("its checksum differs from its contents: the file is damaged");
    return state;
  }

  bool lists(const std::string& name) const {
    return std::any_of(files_.begin(), files_.end(),
                       [&](const file_record& f) { return f.name == name; });
  }

  void add(const std::string& name, const json_value& entry) {
    if (!is_state_file(name) || name == state_file_name)
      throw state_.fault(fmt::format("lists \"{}\", which is no file of a state", printable(name)));
    file_record f{name, entry.field<std::uint64_t>("bytes"), {}};
    for (const std::string& sum : entry.field<std::vector<std::string>>("xxh64"))
      f.checksums.push_back(detail::checksum_of(entry, sum));
    if (f.bytes == 0 || f.checksums.size() != (f.bytes - 1) / bytes_a_checksum_ + 1)
      throw entry.fault(fmt::format("lists {} checksums for the {} bytes of {}", f.checksums.size(),
                                    f.bytes, name));
    files_.push_back(std::move(f));
  }

  void check_contents(const mapped_file& file, const file_record& f) const {
    file.check_unchanged();
    std::vector<char> wrong(f.checksums.size());
    parallel_for(std::ssize(wrong), [&](std::int64_t i) {
      const std::uint64_t at = static_cast<std::uint64_t>(i) * bytes_a_checksum_;
      const auto bytes = file.bytes().subspan(at, std::min(bytes_a_checksum_, f.bytes - at));
      wrong[static_cast<std::size_t>(i)] =
          xxh64::of(bytes) != f.checksums[static_cast<std::size_t>(i)];
    });
    const auto first = std::ranges::find(wrong, 1);
    if (first == wrong.end()) return;
    const std::uint64_t at = static_cast<std::uint64_t>(first - wrong.begin()) * bytes_a_checksum_;
    throw error(exit_code::model,
                fmt::format("{} is damaged: its bytes {} to {} do not have the checksum with which "
                            "they were saved",
                            file.path(), at, std::min(at + bytes_a_checksum_, f.bytes) - 1));
  }

  json_value state_;
  std::uint64_t bytes_a_checksum_;
  std::vector<file_record> files_;
};

} // namespace mc
