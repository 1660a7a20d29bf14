// The micro-batches of a training run, read ahead of its steps.
#pragma once

#include <megacpp/comm/communicator.hpp>
#include <megacpp/data/micro_batches.hpp>
#include <megacpp/io/clock.hpp>
#include <megacpp/optim/batch_cutter.hpp>
#include <megacpp/run/session.hpp>
#include <megacpp/train/evaluation.hpp>

#include <cstdint>
#include <optional>

namespace mc {

/// Gives steps their micro-batches, which a thread of its own reads ahead.
class batch_reader {
public:
  /// The samples must outlive this.
  batch_reader(const program_view& p, const sample_set& samples, const batch_schedule& batches,
               const communicator& hosts)
      : samples_(samples),
        cut_(batches, p.numbers.batch.micro, hosts.ranks().of(axis::dp),
             hosts.coordinate()[static_cast<unsigned>(axis::dp)]),
        micro_(p.numbers.batch.micro),
        sequence_(p.numbers.batch.sequence),
        packed_(p.numbers.batch.packed) {}

  /// Begins to read, behind so many samples of the run.
  void begin(std::int64_t samples) {
    reader_.emplace(samples_, micro_, sequence_,
                    [cut = cut_, batch = cut_.after(samples), m = 0]() mutable {
                      const std::int64_t first = batch.first + cut.samples_before(m);
                      if (++m == batch.micro_batches) batch = cut.after(batch.end()), m = 0;
                      return first;
                    });
  }
  /// Returns the batch of the next step, before which so many samples of the run were taken.
  step_batch next_batch(std::int64_t samples) {
    seconds_waited_ = 0;
    return cut_.after(samples);
  }
  /// Gives micro-batch m of the step to a session, once it has been read. Throws what reading it
  /// threw.
  void give(int m, batch_view& to) {
    const stopwatch waiting;
    micro_batch& read = reader_->next();
    seconds_waited_ += waiting.seconds();
    to = view_of(read, packed_, cut_.samples_before(m));
  }
  double seconds_waited() const { return seconds_waited_; }

private:
  const sample_set& samples_;
  batch_cutter cut_;
  std::int64_t micro_, sequence_;
  bool packed_;
  double seconds_waited_ = 0; ///< time that the step has waited for its micro-batches
  std::optional<read_ahead> reader_;
};

} // namespace mc
