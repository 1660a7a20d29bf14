// The steps of a run that its trace shows.
#pragma once

#include <megacpp/io/error.hpp>
#include <megacpp/request/report_request.hpp>

#include <algorithm>
#include <cstdint>

#include <fmt/format.h>

namespace mc {

/// The steps that a trace shows: those behind step `after`, up to step `last`.
struct traced_steps {
  std::int64_t after = 0, last = 0;
  /// Tells whether the trace shows the step that follows step `done`.
  bool has(std::int64_t done) const { return after <= done && done < last; }
};
/// Returns the traced steps of a run that goes on after step `done` until step `steps`. Throws
/// mc::error(exit_code::usage) if the user asked for steps that the run does not take.
inline traced_steps traced_steps_of(const report_request& r, std::int64_t done,
                                    std::int64_t steps) {
  constexpr std::int64_t most = 64, typical = 10, few = 2;
  traced_steps t;
  t.after = r.trace_after.value_or(
      std::max(done, std::min(done + typical, r.trace_last ? *r.trace_last - few : steps - few)));
  t.last = r.trace_last.value_or(std::min(t.after + few, steps));
  if (done >= steps) return t; // no step is left, which the run tells elsewhere
  if (t.after < done || t.last <= t.after || t.last > steps || t.last - t.after > most)
    throw error(
        exit_code::usage,
        fmt::format(
            "report_request::trace is to show the steps behind {} up to {}, but this run takes "
            "the steps behind {} up to {}, and a trace shows at most {} of them: give other "
            "numbers to report_request::trace_after and report_request::trace_last",
            t.after, t.last, done, steps, most));
  return t;
}

} // namespace mc
