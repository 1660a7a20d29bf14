// The trace of a run: what each rank does when, in a few of its steps.
#pragma once

#include <megacpp/inspect/timeline.hpp>
#include <megacpp/inspect/traced_steps.hpp>
#include <megacpp/request/report_request.hpp>
#include <megacpp/train/ranks.hpp>
#include <megacpp/train/reports.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace mc {

/// Records the traced steps of a run on every rank, and writes the file on the first one.
class step_trace {
public:
  /// Prepares the trace of a run that goes on after step `done` until `steps`, if one is asked for.
  /// The references must stay valid. Throws as traced_steps_of.
  void prepare(const report_request& asked, const program_view& p, training_ranks& ranks,
               int micro_batches, std::int64_t done, std::int64_t steps) {
    if (!asked.trace) return;
    steps_ = traced_steps_of(asked, done, steps);
    if (steps_.last > done)
      timeline_.emplace(p, ranks.timed(), micro_batches,
                        static_cast<int>(steps_.last - steps_.after));
  }
  /// Returns what records the step that follows step `done`; nullptr if that is not traced.
  timeline* of(std::int64_t done) { return timeline_ && steps_.has(done) ? &*timeline_ : nullptr; }
  bool is_complete_after(std::int64_t step) const { return timeline_ && step == steps_.last; }

  /// Writes the steps that were recorded, once. All ranks call it. Throws mc::error.
  void write(const program_view& p, training_ranks& ranks, training_reports& reports) {
    if (!timeline_) return;
    const int steps = timeline_->steps();
    if (steps == 0) return timeline_.reset();
    timed_communicator* const timed = ranks.timed();
    const std::vector<std::string> all = ranks.all().gather(timeline_->packed(ranks.hosts()));
    const bool cut = ranks.all().any(timed != nullptr && timed->left_out() > 0);
    timeline_.reset();
    if (!ranks.all().first()) return;
    reports.trace(trace_text(p, ranks.hosts().ranks(), all), steps);
    if (cut)
      reports.note("the trace lacks exchanges of further rounds of experts: they had no memory");
  }

private:
  traced_steps steps_;
  std::optional<timeline> timeline_; ///< until the file is written
};

} // namespace mc
