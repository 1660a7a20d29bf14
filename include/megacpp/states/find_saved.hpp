// The model or state that lies at a path.
#pragma once

#include <megacpp/io/checksum.hpp>
#include <megacpp/states/saved_states.hpp>
#include <megacpp/states/state_root.hpp>

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace mc {

/// Returns a hash of the names, sizes and bytes of the files of a model. The files of a state are
/// read at their begin alone: the checksums of all others are there, and whoever reads the state
/// verifies them.
inline std::uint64_t hash_of(const model_folder& folder) {
  const bool of_state = folder.contains(state_file_name);
  std::vector<std::string> names = folder.names();
  std::sort(names.begin(), names.end());
  xxh64 hash;
  for (const std::string& name : names) {
    if (!is_state_file(name)) continue;
    const mapped_file file = folder.open(name);
    const std::string what = fmt::format("{} {} ", name, file.size());
    hash.add(std::as_bytes(std::span(what)));
    constexpr std::size_t enough = 1 << 16;
    hash.add({file.data(), of_state ? std::min(enough, file.size()) : file.size()});
  }
  return hash.value();
}

/// Returns a hash of all files that a command starts from.
inline std::uint64_t hash_of(const found_model& found) {
  std::uint64_t sum = hash_of(found.folder);
  if (found.base) sum = 31 * sum + hash_of(*found.base);
  for (const auto& adapter : found.adapters) sum = 31 * sum + hash_of(adapter.folder);
  return sum;
}

/// Returns the name of the folder that was found within the path; "." is the path itself.
inline std::string name_of(const found_model& found) {
  const std::string& path = found.folder.path();
  return found.root.empty() ? "." : path.substr(path.rfind('/') + 1);
}
/// Opens what another rank has found at a path, and named. With `apart` this process may see copies
/// of the files, so they are verified. `of_state`: the other rank has found a state, as it has
/// wherever it names a folder within the path. Throws mc::error(exit_code::model).
inline found_model found_as_named(const std::string& path, const std::string& name, bool all,
                                  bool apart, bool of_state = false) {
  model_folder folder(name == "." ? path : path + "/" + name);
  std::optional<state_file> state;
  const bool is_state = folder.contains(state_file_name);
  if (!is_state && (of_state || name != "."))
    throw error(exit_code::model,
                fmt::format("{} has no {}, but another rank has found a state there; let nobody "
                            "remove states while a command starts, and start it again",
                            folder.path(), state_file_name));
  if (is_state) {
    state.emplace(folder);
    if (apart)
      state->verify(folder,
                    [all](const std::string& file) { return all || file != optimizer_file_name; });
  }
  return {std::move(folder), std::move(state), name == "." ? std::string() : path};
}

/// Returns the error about a folder in which find_saved finds nothing.
inline error nothing_saved(const std::string& path, std::string_view advice) {
  const std::string other = detail::foreign_weights(model_folder(path).names());
  return error(exit_code::model,
               other.empty()
                   ? fmt::format("{} has neither a model nor a saved state; {}", path, advice)
                   : fmt::format("{} holds no model that is read: it {}", path, other));
}

/// Finds a model at a path, or with `all` a state: the newest whole state of a folder of states, a
/// state, or a model from anywhere. Returns nothing if there is none. Throws
/// mc::error(exit_code::model).
inline std::optional<found_model> find_saved(const std::string& path, bool all) {
  const auto needed = [all](const std::string& name) { return all || name != optimizer_file_name; };
  model_folder folder(path);
  if (folder.contains(state_file_name)) {
    state_file file(folder);
    file.verify(folder, needed);
    return found_model{std::move(folder), std::move(file), ""};
  }
  if (folder.contains(optimizer_file_name))
    throw error(exit_code::model, fmt::format("{} holds {} without {}: it is a damaged state; load "
                                              "the folder above, which finds the newest whole one",
                                              path, optimizer_file_name, state_file_name));
  const std::vector<std::string> names = folder.names();
  if (!is_state_root(folder) && std::any_of(names.begin(), names.end(), is_model_file))
    return found_model{std::move(folder), std::nullopt, ""};
  return newest_state(folder, needed);
}

} // namespace mc
