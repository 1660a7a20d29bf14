// The states in a folder, as `describe --load` lists them.
#pragma once

#include <megacpp/io/json_file.hpp>
#include <megacpp/observe/text.hpp>
#include <megacpp/states/saved_states.hpp>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <sys/stat.h>

#include <fmt/format.h>

namespace mc {

/// A state as it lies on the disk.
struct listed_state {
  std::string folder; ///< its name in the root
  std::optional<std::int64_t> step = {};
  std::optional<std::int64_t> steps = {};                ///< those of the run that saved it
  std::optional<double> loss = {}, validation_loss = {}; ///< nats a token
  std::optional<std::int64_t> committed = {};            ///< seconds since 1970, UTC
  std::uint64_t bytes = 0;                               ///< of all that the folder holds
  bool ended = false;      ///< evaluations without a lower loss have ended its run
  std::string damage = {}; ///< why it is not whole; "" if it is
};

struct state_list {
  std::vector<listed_state> states;   ///< newest first, the best one last
  std::optional<std::string> resumed; ///< the folder of the state that a training run goes on from
  std::string refusal;                ///< why it goes on from none of them; "" if it does

  /// Tells whether the run whose state is `resumed` has taken all of its steps, or has ended before
  /// as its evaluations asked for; nothing if that is not known.
  std::optional<bool> finished() const {
    for (const listed_state& s : states)
      if (resumed && s.folder == *resumed && s.step && s.steps)
        return *s.step >= *s.steps || s.ended;
    return std::nullopt;
  }
};

namespace detail {

/// Reads all files of a state. `step`: the one that the name of the folder has, if it has one.
inline listed_state examined(const model_folder& folder, std::string name,
                             std::optional<std::int64_t> step) {
  listed_state s{.folder = std::move(name), .step = step};
  try {
    for (const std::string& file : folder.names()) {
      struct stat f {};
      if (::fstatat(folder.get(), file.c_str(), &f, AT_SYMLINK_NOFOLLOW) != 0) continue;
      s.bytes += static_cast<std::uint64_t>(f.st_size);
      if (file == state_file_name) s.committed = f.st_mtim.tv_sec;
    }
    const state_file file(folder);
    const json_value& state = file.state();
    const auto own = state.field<std::int64_t>("step");
    if (state.has("loss")) s.loss = state.field<double>("loss");
    if (state.has("validation")) s.validation_loss = validation_of(state).loss;
    if (state.has("no_better")) s.ended = lowest_loss_of(state).ends_run();
    if (step.value_or(own) != own)
      throw state.fault("is the state of another step than its folder says");
    s.step = own;
    if (state.has("steps")) s.steps = state.field<std::int64_t>("steps");
    file.verify(folder, [](const std::string&) { return true; });
  } catch (const error& e) {
    if (e.code() != exit_code::model) throw;
    s.damage = e.what();
  }
  return s;
}

} // namespace detail

/// Lists the states in a folder that a run saved to, or the one state of a path. Throws
/// mc::error(exit_code::model) if there is none.
inline state_list list_states(const std::string& path) {
  const model_folder root(path);
  state_list list;
  if (root.contains(state_file_name)) {
    list.states.push_back(detail::examined(root, path, std::nullopt));
    list.refusal = list.states[0].damage;
    if (list.refusal.empty()) list.resumed = path;
    return list;
  }
  const auto examine = [&](const std::string& name, std::optional<std::int64_t> step) {
    try {
      list.states.push_back(detail::examined(model_folder(root, name), name, step));
    } catch (const error& e) {
      if (e.code() != exit_code::model) throw;
      if (root.lacks(name)) return; // a run that saves here has removed it
      list.states.push_back({.folder = name, .step = step, .damage = e.what()});
    }
  };
  for (const std::int64_t step : saved_steps(root)) examine(step_folder_name(step), step);
  if (detail::has_best(root.get())) examine(best_folder_name, std::nullopt);
  if (list.states.empty())
    throw error(exit_code::model,
                fmt::format("{} has no saved state; give a folder that train "
                            "loop_request::save wrote, or leave start_request::load out",
                            path));
  try {
    const auto newest = newest_state(root, [](const std::string&) { return true; });
    if (newest) list.resumed = newest->folder.path().substr(root.path().size() + 1);
  } catch (const error& e) {
    if (e.code() != exit_code::model) throw;
    list.refusal = e.what();
  }
  return list;
}

/// Returns a line for each state, and one that says which of them `train` goes on from.
inline std::vector<std::string> states_lines(const state_list& list) {
  std::size_t width = 0;
  for (const listed_state& s : list.states) width = std::max(width, s.folder.size());
  const auto known = [](const std::optional<double>& x) {
    return x ? fmt::format("{:.4f}", *x) : std::string("-");
  };
  std::vector<std::string> lines{fmt::format("{:<{}} {:>13} {:>10} {:>11} {:>14}  {}", "state",
                                             width, "step", "loss", "validation", "bytes",
                                             "committed")};
  for (const listed_state& s : list.states)
    lines.push_back(fmt::format("{:<{}} {:>13} {:>10} {:>11} {:>14}  {:<20}  {}", s.folder, width,
                                s.steps  ? fmt::format("{}/{}", *s.step, *s.steps)
                                : s.step ? fmt::format("{}", *s.step)
                                         : "-",
                                known(s.loss), known(s.validation_loss), s.bytes,
                                s.committed ? utc_text(*s.committed) : "-",
                                s.damage.empty() ? "whole" : "damaged: " + s.damage));
  lines.push_back(
      list.resumed ? fmt::format("train start_request::load goes on from {}{}", *list.resumed,
                                 list.finished() == true ? ", whose run has finished" : "")
                   : fmt::format("train start_request::load takes none of them: {}", list.refusal));
  return lines;
}

/// {"states": [{"folder", "step", "steps", "loss", "validation_loss", "committed", "bytes",
/// "whole", "damage"}], "train": folder or "refused": why, "finished", "best": folder}. Unknown
/// fields are left out.
inline std::string states_json(const state_list& list) {
  json_output states = json_output::array();
  for (const listed_state& s : list.states) {
    json_output one{{"folder", s.folder}};
    if (s.step) one["step"] = *s.step;
    if (s.steps) one["steps"] = *s.steps;
    if (s.loss) one["loss"] = *s.loss;
    if (s.validation_loss) one["validation_loss"] = *s.validation_loss;
    if (s.committed) one["committed"] = utc_text(*s.committed);
    one["bytes"] = s.bytes, one["whole"] = s.damage.empty();
    if (!s.damage.empty()) one["damage"] = s.damage;
    states.push_back(std::move(one));
  }
  json_output all{{"states", std::move(states)}};
  if (list.resumed) all["train"] = *list.resumed;
  else all["refused"] = list.refusal;
  if (const std::optional<bool> finished = list.finished()) all["finished"] = *finished;
  for (const listed_state& s : list.states)
    if (s.folder == best_folder_name) all["best"] = s.folder;
  return json_line(all);
}

} // namespace mc
