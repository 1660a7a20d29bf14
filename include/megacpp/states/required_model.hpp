// The model that a command reads, found by the first rank and opened by all.
#pragma once

#include <megacpp/comm/agreement.hpp>
#include <megacpp/observe/print.hpp>
#include <megacpp/states/state.hpp>

#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace mc::detail {

/// Throws mc::error unless all processes, each of which has opened the model for itself, have the
/// same.
inline void require_same_model(agreement& all, const model_folder& folder) {
  if (!all.separate_processes()) return;
  all.require_same(hash_of(folder), "another model at start_request::load",
                   "let all of them see the same folder");
}

/// Returns the model that a command needs. The first rank finds it and tells what is damaged; other
/// ranks open what it has `named` (agreement::enter_after_first). Throws mc::error.
inline found_model required_model(const std::optional<std::string>& load, const char* command,
                                  const agreement& ranks, const std::string& named) {
  if (!ranks.first())
    return found_as_named(load.value_or(""), named, false, ranks.separate_processes());
  if (!load)
    throw error(
        exit_code::usage,
        fmt::format("{} needs start_request::load FOLDER, the folder of a saved model", command));
  std::optional<found_model> found = find_saved(*load, false);
  if (!found) throw nothing_saved(*load, "train with loop_request::save first");
  for (const std::string& note : found->notes) print_note(note);
  return std::move(*found);
}

} // namespace mc::detail
