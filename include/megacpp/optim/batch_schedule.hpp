// The number of sequences of every step, with the meaning of Megatron-LM's flags
// (megatron/core/num_microbatches_calculator.py). The functions are pure.
//
// The batch grows from START by INCREMENT to the global batch G over the first SAMPLES samples of
// the run, in N = (G - START) / INCREMENT equal stretches. After c samples a step has
//
//   c > SAMPLES    G
//   otherwise      START + floor(c / (SAMPLES / N)) INCREMENT, in double as in Megatron-LM
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

namespace mc {

struct batch_schedule {
  std::int64_t last = 1;      ///< the global batch G
  std::int64_t start = 0;     ///< the first batch; 0: every step has G
  std::int64_t increment = 1; ///< number of sequences by which the batch grows
  std::int64_t samples = 1;   ///< number of samples over which the batch grows

  constexpr bool grows() const { return start > 0 && start < last; }

  /// Returns the number of sequences of the step after so many samples.
  constexpr std::int64_t after(std::int64_t consumed) const {
    if (!grows() || consumed > samples) return last;
    const std::int64_t parts = (last - start) / increment;
    const double part = static_cast<double>(samples) / static_cast<double>(parts);
    return start + static_cast<std::int64_t>(static_cast<double>(consumed) / part) * increment;
  }

  /// Returns the number of samples of the next `steps` steps after so many samples.
  constexpr std::int64_t samples_of(std::int64_t steps, std::int64_t consumed) const {
    std::int64_t at = consumed;
    while (steps > 0 && grows() && at <= samples) {
      const std::int64_t size = after(at), parts = (last - start) / increment,
                         begun = (size - start) / increment;
      const auto same = [&](std::int64_t taken) { return after(at + taken * size) == size; };
      // Estimates the number of steps of this size, up to where the batch grows next.
      const double next = static_cast<double>(begun + 1) *
                          (static_cast<double>(samples) / static_cast<double>(parts));
      std::int64_t k =
          static_cast<std::int64_t>((next - static_cast<double>(at)) / static_cast<double>(size));
      k = std::clamp<std::int64_t>(k, 1, steps);
      while (k > 1 && !same(k - 1)) --k;
      while (k < steps && same(k)) ++k;
      at += k * size, steps -= k;
    }
    return at - consumed + std::max<std::int64_t>(0, steps) * last;
  }
};

/// Returns the number of steps that take so many samples, the last one whole, as Megatron-LM counts
/// them: the steps while the batch grows, then steps of whole batches.
inline std::int64_t steps_of_samples(const batch_schedule& b, std::int64_t samples) {
  std::int64_t steps = 0, consumed = 0;
  for (; b.grows() && consumed <= b.samples && consumed < samples; ++steps)
    consumed += b.after(consumed);
  return steps + std::max<std::int64_t>(0, samples - consumed) / b.last;
}

/// Returns the fewest steps that take at least so many samples; at least one.
inline std::int64_t steps_for_samples(const batch_schedule& b, std::int64_t samples) {
  const std::int64_t steps = std::max<std::int64_t>(1, steps_of_samples(b, samples));
  return steps + (b.samples_of(steps, 0) < samples);
}

/// Returns a sentence if the numbers contradict each other; else "".
constexpr std::string_view contradiction(const batch_schedule& s) {
  if (s.start > s.last) return "batch_schedule::start is above batch_schedule::last";
  if (s.start > 0 && (s.last - s.start) % s.increment != 0)
    return "the batch does not come to batch_schedule::last: what lies between that and "
           "batch_schedule::start must be a multiple of batch_schedule::increment";
  return {};
}

} // namespace mc
