// The losses of a run, as its state keeps them and its curve shows them, and its progress.
#pragma once

#include <megacpp/io/json_file.hpp>
#include <megacpp/observe/history.hpp>
#include <megacpp/states/state.hpp>

#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include <nlohmann/json.hpp>

namespace mc {

/// The losses of all steps of a run, also of those before this process.
struct run_losses {
  loss_history history, validation;
  std::optional<double> last;                 ///< the loss of the last step, if it learned a token
  std::optional<validation_result> validated; ///< the last one measured
  std::optional<lowest_loss> lowest;          ///< of validation, where the run may end by it

  /// Tells whether the loss on validation data was measured behind this step.
  bool has_validated(std::int64_t step) const { return validated && validated->step == step; }

  /// Adds the losses of a run at this position to a state.
  void save(nlohmann::json& state, const run_position& at) const {
    if (last) state["loss"] = *last;
    state["history"] = {{"training", history.json()}, {"validation", validation.json()}};
    if (lowest) state["no_better"] = lowest->json();
    if (!has_validated(at.step)) return;
    state["validation"] = {{"loss", validated->loss}, {"tokens", validated->tokens}};
    if (!validated->measure.empty()) state["validation"]["measure"] = validated->measure;
  }
  /// Takes the losses from a state. Throws mc::error.
  void load(const json_value& state) {
    if (state.has("loss")) last = state.field<double>("loss");
    if (state.has("validation")) validated = validation_of(state);
    if (state.has("no_better")) lowest = lowest_loss_of(state);
    if (state.has("history")) {
      const auto h = state.field<json_value>("history");
      history = loss_history::read(h.field<json_value>("training"));
      validation = loss_history::read(h.field<json_value>("validation"));
    }
  }
  /// Returns losses whose text is as long as that of a run of so many steps and evaluations may be,
  /// where an evaluation has so many tokens, and `limit` evaluations may end the run.
  static run_losses longest(std::int64_t steps, std::int64_t evaluations, std::int64_t tokens,
                            const std::string& measure, std::int64_t limit) {
    run_losses l;
    l.history = loss_history::longest(steps, steps);
    l.validation = loss_history::longest(steps, evaluations);
    l.last = std::numeric_limits<double>::lowest(); // longest as a text
    l.validated = {steps, *l.last, measure, tokens};
    if (limit > 0) l.lowest = {*l.last, steps, limit, limit, measure};
    return l;
  }
};

/// The position of a run and its losses, as all ranks know them between steps.
struct run_progress {
  run_position at;
  run_losses losses;
  std::int64_t steps_taken = 0;  ///< by this process
  std::int64_t samples_left = 0; ///< of the steps to come
  bool worth_saving = true;      ///< all numbers were finite, and no data have changed
};

} // namespace mc
