// The recurrence of what a run does between its steps.
#pragma once

#include <cstdint>

namespace mc {

/// The rule for work, such as a save, that a run does every `interval` steps and once behind its
/// last one. With the interval 0 it is done behind the last step alone.
struct recurrence {
  std::int64_t interval = 0;

  /// Tells whether it is due between `step`, which was taken, and the next step. Behind the
  /// last step of the run it is done in any case, and not due here.
  bool is_due(std::int64_t step, std::int64_t last) const {
    return step < last && interval > 0 && step % interval == 0;
  }
  /// Returns how often it is still done once `step` > 0 has been taken: behind this step and later
  /// ones where it is due, and once behind the last.
  std::int64_t times_from(std::int64_t step, std::int64_t last) const {
    return interval > 0 ? (last - 1) / interval - (step - 1) / interval + 1 : 1;
  }
};

} // namespace mc
