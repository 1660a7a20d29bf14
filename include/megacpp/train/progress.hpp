// The position of a training run, and its losses so far.
#pragma once

#include <megacpp/states/losses.hpp>
#include <megacpp/states/state.hpp>

#include <cstdint>

namespace mc {

/// The position of a run and its losses, as all ranks know them between steps.
struct run_progress {
  run_position at;
  run_losses losses;
  std::int64_t steps_taken = 0;  ///< by this process
  std::int64_t samples_left = 0; ///< of the steps to come
  bool worth_saving = true;      ///< all numbers were finite, and no data have changed
};

} // namespace mc
