// The samples of each step, and of each micro-batch of a step.
#pragma once

#include <megacpp/optim/batch_schedule.hpp>

#include <cstdint>

namespace mc {

/// The samples of one step, on all replicas together.
struct step_batch {
  std::int64_t first = 0; ///< number of its first sample in the run
  std::int64_t size = 0;  ///< samples
  int micro_batches = 0;  ///< of each replica

  /// The number of the sample behind its last one.
  std::int64_t end() const { return first + size; }
};

/// Cuts the samples of a run into the batches of its steps, and a batch into micro-batches, with
/// which replicas take turns. So sample i of the run is the same, however a step is cut.
class batch_cutter {
public:
  /// A micro-batch has `micro` samples, which must divide every batch of all replicas together.
  batch_cutter(const batch_schedule& batches, std::int64_t micro, std::int64_t replicas,
               std::int64_t replica)
      : batches_(batches), micro_(micro), replicas_(replicas), replica_(replica) {}

  /// Returns the batch of the step that begins once so many samples have been taken.
  step_batch after(std::int64_t samples) const {
    const std::int64_t size = batches_.after(samples);
    return {samples, size, static_cast<int>(size / (micro_ * replicas_))};
  }
  /// Returns how many samples of a batch stand before micro-batch m of this replica.
  std::int64_t samples_before(std::int64_t m) const { return (m * replicas_ + replica_) * micro_; }

private:
  batch_schedule batches_;
  std::int64_t micro_, replicas_, replica_;
};

} // namespace mc
