// What a training run starts from: nothing, a model, or a saved state.
#pragma once

#include <megacpp/inputs/run_data.hpp>
#include <megacpp/observe/print.hpp>
#include <megacpp/options/resume.hpp>
#include <megacpp/states/state.hpp>
#include <megacpp/train/report_files.hpp>

#include <filesystem>
#include <optional>
#include <string>

namespace mc {

/// The folder that is saved to, and what was found to begin with; nothing of either: a new run.
/// With the data, which the ranks of a process share.
struct training_start {
  std::optional<state_root> root; ///< that of --save, where --load names it too and it is there
  std::optional<found_model> from;
  opened_once<run_data> data = {};
};

/// Finds what a training run starts from. A state fills in the flags that were left out; what
/// changes is told. Nothing if there is no --load, or if it names the folder of --save, which has
/// no state yet: so one command line serves the first start and every later one. That folder is
/// locked and tidied before it is looked at: what is found in it is the newest as long as the run
/// lives. Throws mc::error.
inline training_start prepare_start(const program_view& p, options& o) {
  training_start start;
  if (!o.model.load.given()) return start;
  const bool same =
      o.training.save.given() && detail::is_same_place(o.model.load(), o.training.save());
  std::error_code ignored;
  if (same && std::filesystem::is_directory(o.model.load(), ignored))
    start.root.emplace(o.training.save());
  std::optional<found_model>& from = start.from;
  if (!same || std::filesystem::exists(o.model.load(), ignored))
    from = find_saved(o.model.load(), !o.model.finetune());
  if (!from && !same) throw nothing_saved(o.model.load(), "check the path of --load");
  if (!from) {
    print_on_the_way(fmt::format("{} has no saved state yet: a new run begins", o.model.load()));
    return start;
  }
  if (start.root) start.root->pass_over(from->damaged);
  for (const std::string& note : from->notes) print_on_the_way(note);
  if (!from->state || o.model.finetune()) return start;
  require_same_program(from->state->state(), p);
  from->changes = resume_flags(from->state->state(), o, p.name);
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

/// The folder that a run starts from, by its name in that of --load; "." is that one itself, and ""
/// none.
inline std::string name_of_start(const training_start& start) {
  return start.from ? name_of(*start.from) : "";
}

/// What a rank of another process starts from: what the first one has found and named, as this
/// process sees it. Throws mc::error.
inline training_start start_as_named(const std::string& name, options& o,
                                     std::string_view program) {
  training_start start;
  if (name.empty()) return start;
  start.from = found_as_named(o.model.load(), name, !o.model.finetune(), true);
  if (start.from->state && !o.model.finetune())
    resume_flags(start.from->state->state(), o, program);
  return start;
}

} // namespace mc
