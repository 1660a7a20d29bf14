// Texts that a training run writes between its steps. generate/ has a writer of them, and stands
// below train/.
#pragma once

#include <megacpp/exec/device.hpp>
#include <megacpp/inputs/run_data.hpp>
#include <megacpp/io/clock.hpp>
#include <megacpp/io/signals.hpp>
#include <megacpp/io/utf8.hpp>
#include <megacpp/optim/recurrence.hpp>
#include <megacpp/request/requests.hpp>
#include <megacpp/run/stores.hpp>
#include <megacpp/run/view.hpp>
#include <megacpp/train/early_end.hpp>
#include <megacpp/train/reports.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace mc {

class sample_writer {
public:
  virtual ~sample_writer() = default;
  /// Returns a text by the weights as they are now, which is valid until the next call; less of it
  /// once `stop` asks for an end. Changes nothing that training reads. Throws mc::error.
  virtual std::string_view write(const stop_signals* stop) = 0;
};

/// Makes a writer for a session's weights and the data of its run; all must outlive it. Throws
/// mc::error for a request that contradicts the data, and for a model that cannot generate.
using make_sample_writer = std::function<std::unique_ptr<sample_writer>(
    const program_view&, const training_request&, device&, const stores&, const run_data&)>;

/// The texts of a run, which has them written every so many steps, or not at all.
class sample_texts {
public:
  sample_texts() = default;
  /// The run has `last` steps.
  sample_texts(std::unique_ptr<sample_writer> writer, recurrence when, std::int64_t last)
      : writer_(std::move(writer)), when_(when), last_(last) {}

  /// Tells whether a text is due behind a step that is not the last.
  bool is_due(std::int64_t step) const { return writer_ && when_.is_due(step, last_); }
  /// Returns how many texts are left once this step has been taken.
  std::int64_t times_left(std::int64_t step) const {
    return writer_ ? when_.times_from(step, last_) : 0;
  }
  /// Writes a text and reports it, unless a signal ends the run. Throws mc::error.
  void write(std::int64_t step, const early_end& end, training_reports& reports) {
    if (!writer_ || end.stops()) return;
    const stopwatch clock;
    const std::string text = as_utf8(writer_->write(end.signals()));
    if (end.stops()) return;
    reports.paused(pace::sample, clock.seconds());
    reports.sample(step, text);
  }

private:
  std::unique_ptr<sample_writer> writer_;
  recurrence when_;
  std::int64_t last_ = 0;
};

} // namespace mc
