// What a training run starts from: nothing, a model, or a saved state.
#pragma once

#include <megacpp/inputs/run_data.hpp>
#include <megacpp/io/same_place.hpp>
#include <megacpp/observe/print.hpp>
#include <megacpp/request/start_request.hpp>
#include <megacpp/states/state.hpp>

#include <filesystem>
#include <optional>
#include <string>

namespace mc {

/// The folder that is saved to, and what was found to begin with; nothing of either: a new run.
/// With the data, which the ranks of a process share.
struct training_start {
  std::optional<state_root> root; ///< where the run starts from the folder that it saves to
  std::optional<found_model> from;
  opened_once<run_data> data = {};
};

/// Finds what a training run that saves to a folder, or to none, starts from. Nothing if nothing is
/// to be loaded, or if it would be of the folder that is saved to, which has no state yet: so one
/// request serves the first start and every later one. That folder is locked and tidied before it
/// is looked at: what is found in it is the newest as long as the run lives. Throws mc::error.
inline training_start find_start(const start_request& r, const std::optional<std::string>& save) {
  training_start start;
  if (!r.load) return start;
  const bool same = save && detail::is_same_place(*r.load, *save);
  std::error_code ignored;
  if (same && std::filesystem::is_directory(*r.load, ignored)) start.root.emplace(*save);
  std::optional<found_model>& from = start.from;
  if (!same || std::filesystem::exists(*r.load, ignored)) from = find_saved(*r.load, !r.finetune);
  if (!from && !same) throw nothing_saved(*r.load, "check the path of start_request::load");
  if (!from) {
    print_on_the_way(fmt::format("{} has no saved state yet: a new run begins", *r.load));
    return start;
  }
  if (start.root) start.root->pass_over(from->damaged);
  for (const std::string& note : from->notes) print_on_the_way(note);
  return start;
}

/// What another rank than the first starts from: the same folder, which the first one has examined,
/// and the same data.
inline training_start for_another_rank(const training_start& first) {
  training_start start;
  start.data = first.data;
  if (!first.from) return start;
  model_folder folder(first.from->folder.path());
  std::optional<state_file> state;
  if (first.from->state) state.emplace(folder);
  start.from = found_model{std::move(folder), std::move(state), first.from->root};
  return start;
}

/// The folder that a run starts from, by its name in the one that was named; "." is that one
/// itself, and "" none.
inline std::string name_of_start(const training_start& start) {
  return start.from ? name_of(*start.from) : "";
}

/// What a rank of another process starts from: what the first one has found and named, as this
/// process sees it. Throws mc::error.
inline training_start start_as_named(const std::string& name, const start_request& r) {
  training_start start;
  if (!name.empty()) start.from = found_as_named(r.load.value_or(""), name, !r.finetune, true);
  return start;
}

} // namespace mc
