// The folder of the states of a run, as it is read: a root with one folder for each saved step.
//
//   ROOT/iter_0000100/                       complete, or not there
//   ROOT/best/                               of the lowest validation loss, with --keep-best
//   ROOT/latest_checkpointed_iteration.txt   written last; a hint for people and tools
//
// Reading does not trust the hint. The newest state whose checksums hold is taken, which may be the
// best one.
#pragma once

#include <megacpp/io/leftovers.hpp>
#include <megacpp/states/state_file.hpp>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

namespace mc {

/// Megatron-LM's names for the folder of a step, and for the file that names the newest one.
inline std::string step_folder_name(std::int64_t step) { return fmt::format("iter_{:07}", step); }
inline constexpr const char* newest_step_name = "latest_checkpointed_iteration.txt";
inline constexpr const char* best_folder_name = "best";

/// Returns the step that the name of a folder has; nothing for other names.
inline std::optional<std::int64_t> step_of(std::string_view name) {
  constexpr std::string_view prefix = "iter_";
  std::int64_t step = 0;
  if (name.starts_with(prefix))
    std::from_chars(name.data() + prefix.size(), name.data() + name.size(), step);
  return step >= 0 && name == step_folder_name(step) ? std::optional(step) : std::nullopt;
}

namespace detail {
/// Tells whether a folder in a root is a model that somebody put there under the name of a state.
/// It is no state, and was none.
inline bool is_model_in(int root, const std::string& name) {
  const auto there = [&](const char* file) {
    struct stat s {};
    return ::fstatat(root, (name + '/' + file).c_str(), &s, AT_SYMLINK_NOFOLLOW) == 0 ? 0 : errno;
  };
  return there(model_folder_marker) == 0 && there(state_file_name) == ENOENT &&
         there(optimizer_file_name) == ENOENT;
}
/// Returns the steps of folders in a root that are states, whole or damaged, the newest first.
inline std::vector<std::int64_t> steps_in(int root, const std::vector<std::string>& names) {
  std::vector<std::int64_t> steps;
  for (const std::string& name : names)
    if (const auto step = step_of(name); step && !is_model_in(root, name)) steps.push_back(*step);
  std::sort(steps.rbegin(), steps.rend());
  return steps;
}
/// Returns the number that tells a file or folder from another one that takes its place; 0 if there
/// is none of that name.
inline std::uint64_t number_of(int folder, const std::string& name) {
  struct stat s {};
  return ::fstatat(folder, name.c_str(), &s, AT_SYMLINK_NOFOLLOW) == 0 ? s.st_ino : 0;
}
/// Tells whether a root has a best state, whole or damaged. A folder of its name with other files
/// is none; a link of that name that leads nowhere may have led to one.
inline bool has_best(int root) {
  if (is_link(root, best_folder_name) && ::faccessat(root, best_folder_name, F_OK, 0) != 0)
    return true;
  const std::string name = best_folder_name;
  return number_of(root, name + '/' + state_file_name) != 0 ||
         number_of(root, name + '/' + optimizer_file_name) != 0;
}
} // namespace detail

/// Returns the steps that have a folder of their own, whole or damaged, the newest first.
inline std::vector<std::int64_t> saved_steps(const model_folder& root) {
  return detail::steps_in(root.get(), root.names());
}

/// The loss on validation data behind a step.
struct validation_result {
  std::int64_t step = 0;
  double loss = 0;          ///< nats a token
  std::string measure = {}; ///< tells the data from others; "" where losses are not compared
  std::int64_t tokens = 0;  ///< predictions that the loss is of; 0: the state does not say
};
/// Returns the loss that a state has as "validation". Throws mc::error.
inline validation_result validation_of(const json_value& state) {
  const auto v = state.field<json_value>("validation");
  return {state.field<std::int64_t>("step"), v.field<double>("loss"),
          v.has("measure") ? v.field<std::string>("measure") : "",
          v.has("tokens") ? v.field<std::int64_t>("tokens") : 0};
}

/// The lowest validation loss of a run that ends behind so many evaluations in a row without a
/// lower one, and how many there were since.
struct lowest_loss {
  double loss = 0;
  std::int64_t step = 0;    ///< the step behind which it was measured
  std::int64_t since = 0;   ///< evaluations behind it, none of them lower
  std::int64_t limit = 0;   ///< as many end the run
  std::string measure = {}; ///< as in validation_result

  bool ends_run() const { return limit > 0 && since >= limit; }
  nlohmann::json json() const {
    nlohmann::json all{{"lowest", loss}, {"step", step}, {"since", since}, {"limit", limit}};
    if (!measure.empty()) all["measure"] = measure;
    return all;
  }
};
/// Returns what a state has as "no_better". Throws mc::error.
inline lowest_loss lowest_loss_of(const json_value& state) {
  const auto n = state.field<json_value>("no_better");
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  return {n.field<double>("lowest"), n.field<std::int64_t>("step", 0, most),
          n.field<std::int64_t>("since", 0, most), n.field<std::int64_t>("limit", 1, most),
          n.has("measure") ? n.field<std::string>("measure") : ""};
}

/// Returns the best state of a root, if there is one. `needed(name)` is as for newest_state. Throws
/// mc::error(exit_code::model) if it is damaged or cannot be examined.
template <class Needed>
std::optional<validation_result> best_state_of(const model_folder& root, Needed needed) {
  if (!detail::has_best(root.get())) return std::nullopt;
  const model_folder folder(root, best_folder_name);
  const state_file file(folder);
  file.verify(folder, needed);
  return validation_of(file.state());
}

/// Tells whether a run has saved to a folder, be it only the beginning of a state.
inline bool is_state_root(const model_folder& folder) {
  const std::vector<std::string> names = folder.names();
  return detail::has_best(folder.get()) ||
         std::any_of(names.begin(), names.end(), [](std::string_view name) {
           const std::string_view target = detail::leftover_of(name).target;
           return name == newest_step_name || step_of(name) || target == newest_step_name ||
                  step_of(target) || target == best_folder_name;
         });
}

/// A model or state that was found at a path.
struct found_model {
  model_folder folder;                 ///< has the weights
  std::optional<state_file> state;     ///< none: a model folder, from anywhere
  std::string root;                    ///< the folder of states, if the path names one
  std::vector<std::int64_t> damaged{}; ///< newer steps, whose states are not whole
  std::vector<std::string> notes{};    ///< sentences about these
  std::vector<std::string> changes{};  ///< lines on changed settings, told once all are accepted
  std::optional<model_folder> base{};  ///< has the weights, where `folder` has an adapter alone
  struct adapter_to_load {
    std::string name; ///< named_adapter::name
    model_folder folder;
  };
  std::vector<adapter_to_load> adapters{}; ///< for the weights of `folder`
};

namespace detail {
/// A folder of a root that may hold a state.
struct listed_folder {
  std::int64_t step;
  std::string name;
  std::uint64_t number; ///< as number_of has it
};
} // namespace detail

/// Returns the newest whole state of a root, which may be the best one; nothing if it has no state
/// at all. needed(name) tells for which files not only the size, but the contents are verified.
/// Throws mc::error(exit_code::model) if no state is whole, or if a state that may be whole cannot
/// be examined, since a run that went on from an older one would replace it.
template <class Needed>
std::optional<found_model> newest_state(const model_folder& root, Needed needed) {
  std::vector<std::int64_t> damaged;
  std::vector<std::string> notes;
  std::string first_fault;
  // Notes that a state cannot be used. Returns false if a run that saves here has removed or
  // replaced it, so that the list is old.
  const auto is_skipped = [&](const error& e, const detail::listed_folder& s,
                              const std::string& what, const char* then) {
    if (e.code() != exit_code::model) throw;
    if (detail::number_of(root.get(), s.name) != s.number) return false;
    if (dynamic_cast<const unexamined*>(&e) != nullptr)
      throw error(exit_code::model, fmt::format("{}; {} may be whole, so no older one takes its "
                                                "place: move {}/{} away if it is not to count",
                                                e.what(), what, root.path(), s.name));
    if (notes.empty()) first_fault = e.what();
    notes.push_back(fmt::format("{} cannot be used{}: {}", what, then, e.what()));
    return true;
  };
  const auto list = [&](std::int64_t step, std::string name) {
    const std::uint64_t number = detail::number_of(root.get(), name);
    return detail::listed_folder{step, std::move(name), number};
  };
  std::vector<detail::listed_folder> states;
  for (const std::int64_t step : saved_steps(root))
    states.push_back(list(step, step_folder_name(step)));
  detail::listed_folder best = list(-1, best_folder_name);
  try {
    if (const auto found = best_state_of(root, [](const std::string&) { return false; })) {
      best.step = found->step;
      // The state of the same step comes first.
      states.insert(
          std::find_if(states.begin(), states.end(),
                       [&](const detail::listed_folder& s) { return s.step < best.step; }),
          best);
    }
  } catch (const error& e) {
    if (!is_skipped(e, best, "the best state", "")) return newest_state(root, needed);
  }
  for (const detail::listed_folder& s : states) {
    const bool is_best = s.name == best_folder_name;
    try {
      model_folder folder(root, s.name);
      state_file file(folder);
      file.verify(folder, needed);
      if (file.state().field<std::int64_t>("step") != s.step)
        throw file.state().fault("is the state of another step than its folder says");
      return found_model{std::move(folder), std::move(file), root.path(), std::move(damaged),
                         std::move(notes)};
    } catch (const error& e) {
      const std::string what =
          is_best ? "the best state" : fmt::format("the state of step {}", s.step);
      if (!is_skipped(e, s, what, ", so the one before is")) return newest_state(root, needed);
      if (!is_best) damaged.push_back(s.step);
    }
  }
  if (notes.empty()) return std::nullopt;
  throw error(exit_code::model, fmt::format("none of the {} states in {} is whole; the newest: {}",
                                            notes.size(), root.path(), first_fault));
}

} // namespace mc
