// The lines with which a training run begins.
#pragma once

#include <megacpp/inputs/named_data.hpp>
#include <megacpp/inputs/run_data.hpp>
#include <megacpp/request/requests.hpp>
#include <megacpp/states/state.hpp>
#include <megacpp/states/state_root.hpp>
#include <megacpp/train/reports.hpp>

#include <algorithm>
#include <optional>
#include <string>

#include <fmt/format.h>

namespace mc::detail {

/// Tells whether the search for a state to start from has reported this fault.
inline bool was_reported(const std::optional<found_model>& from, const std::string& fault) {
  return from && std::ranges::any_of(
                     from->notes, [&](const std::string& note) { return note.ends_with(fault); });
}

/// Tells which data a run reads.
inline void introduce_data(training_reports& reports, const training_request& r,
                           const run_data& data) {
  reports.note(fmt::format("{}: {}", data.name, data.summary));
  reports.tell_unlearned(data.unlearned);
  if (data.validation.empty() && !r.loop.eval_iters && r.data.kind != data_kind::random)
    reports.note("nothing is evaluated: " + nothing_to_validate(r.data));
}

/// Tells what is to be known of the folder that a run saves to.
inline void introduce_saves(training_reports& reports, const std::optional<state_root>& root,
                            const std::optional<found_model>& from) {
  if (!root)
    return reports.note("nothing will be saved: loop_request::save FOLDER keeps what is learned");
  if (const std::string note = root->note(); !note.empty()) reports.note(note);
  const std::string& fault = root->fault_of_best();
  if (!fault.empty() && !was_reported(from, fault))
    reports.note("the best state cannot be used: " + fault);
}

/// Tells that nothing is left to train, and what asked for no more.
inline void introduce_no_step(training_reports& reports, const loop_request& loop) {
  const std::string steps = fmt::format(", which are {} steps", loop.steps);
  reports.note(
      fmt::format("nothing is left to train of {}: give more",
                  loop.epochs ? fmt::format("loop_request::epochs {}{}", *loop.epochs, steps)
                  : loop.samples_asked
                      ? fmt::format("loop_request::samples_asked {}{}", *loop.samples_asked, steps)
                      : fmt::format("loop_request::steps {}", loop.steps)));
}

} // namespace mc::detail
