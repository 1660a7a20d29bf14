// A step of training with all that was measured of it, and what observers see of that.
#pragma once

#include <megacpp/inspect/speed_gauge.hpp>
#include <megacpp/observe/observer.hpp>
#include <megacpp/observe/progress.hpp>
#include <megacpp/observe/speeds.hpp>

#include <cstdint>
#include <span>

namespace mc {

/// A step, as the loop hands it to the reports. `fraction`: its batch as a fraction of a whole one.
/// `computing`: the seconds in which each rank did not wait for others; empty if there is one rank.
struct measured_step {
  step_report report;
  double fraction = 1, tokens = 0, seconds = 0;
  std::int64_t sequences = 0, consumed_sequences = 0;
  std::span<const double> computing;
  double steps_left = 0; ///< counted as fractions of a whole batch
  std::int64_t evaluations_left = 0, saves_left = 0, samples_left = 0;
};

/// Returns a step as observers see it. `slow`: the slowest rank of the step, or -1.
inline observed_step observed_of(const measured_step& s, const rank_speeds::slowest& slow,
                                 const speed_gauge& gauge) {
  const step_report& r = s.report;
  const double whole = s.seconds / s.fraction; // seconds of a step with a whole batch
  observed_step x;
  x.step = r.step, x.steps = r.steps;
  if (r.learned > 0) x.loss = r.loss, x.grad_norm = r.grad_norm;
  x.lr = r.lr;
  x.tokens = static_cast<std::int64_t>(s.tokens);
  x.learned_tokens = static_cast<std::int64_t>(r.learned);
  x.sequences = s.sequences;
  x.consumed_tokens = r.consumed_tokens, x.consumed_sequences = s.consumed_sequences;
  x.seconds = s.seconds, x.data_seconds = r.data_seconds;
  if (r.mfu > 0) x.mfu = gauge.mfu(whole);
  if (const double share = gauge.fraction_of_ceiling(s.seconds, s.fraction); share > 0)
    x.of_ceiling = share;
  x.flops_per_second = gauge.needed_speed(whole);
  x.memory = static_cast<std::int64_t>(r.memory);
  x.slowest_rank = slow.rank;
  if (slow.rank >= 0) x.slowest_seconds = slow.seconds, x.others_seconds = slow.others;
  x.seconds_left = r.seconds_left;
  return x;
}

} // namespace mc
