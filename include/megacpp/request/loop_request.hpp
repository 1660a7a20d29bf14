// The request of a training loop: its steps, and the work between them.
#pragma once

#include <megacpp/io/error.hpp>
#include <megacpp/optim/batch_schedule.hpp>
#include <megacpp/optim/schedule.hpp>
#include <megacpp/run/frame.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace mc {

/// The loop of a training run, free of contradictions. A message names a member as
/// loop_request::member.
struct loop_request {
  std::int64_t steps = 0;
  std::optional<std::int64_t> samples_asked;  ///< length of the run in samples, if it was asked so
  std::optional<std::int64_t> epochs;         ///< length in readings of all conversations, if asked
  std::int64_t sequences_of_all_replicas = 1; ///< sequences of one micro-batch on each, together
  batch_schedule batches;                     ///< sequences of each step, on all replicas
  schedule rates;
  bool rates_by_samples = false;         ///< the schedule counts samples, not steps
  bool decays_to_end = true;             ///< the decay of the rates is as long as the run
  std::optional<double> warmup_fraction; ///< share of the decay over which the rates rise
  step_numbers numbers = [] {            // of AdamW, and the seed of random numbers
    step_numbers n;
    n.beta1 = 0.9, n.beta2 = 0.999, n.epsilon = 1e-8;
    n.weight_decay = 0.01, n.clip = 1, n.seed = 1234;
    return n;
  }();

  bool bench = false;      ///< the time of steps is measured, and no progress told
  std::int64_t warmup = 0; ///< steps that are not measured

  std::optional<std::string> save; ///< folder of the states of the run
  std::int64_t save_interval = 0;  ///< steps between states; 0: one at the end
  std::int64_t keep_latest = 10;   ///< states that are kept; 0: all
  bool keep_best = false;          ///< the state of the lowest validation loss is kept, too
  bool insists_on_best = false;    ///< a run that validates nothing is refused
  std::optional<std::uint64_t>
      max_shard; ///< most bytes of a file of weights; none: Hugging Face's default

  bool takes_signals = true;          ///< a signal to end saves the state first
  std::optional<double> exit_minutes; ///< time after which the run saves its state and ends

  std::int64_t eval_interval = 1000;        ///< steps between evaluations
  std::optional<std::int64_t> eval_iters;   ///< batches of an evaluation; none: all of the data
  bool full_validation = false;             ///< evaluations read all data, whatever `eval_iters` is
  bool by_set = false;                      ///< `eval_iters` counts for each data set
  std::int64_t stop_after_no_better = 0;    ///< evaluations in a row, behind which the run ends
  std::int64_t sample_interval = 0;         ///< steps between texts of the model; 0: none
  std::optional<std::string> sample_prompt; ///< text that these texts continue
  std::int64_t sample_tokens = 200;         ///< most tokens of such a text

  /// Returns the number of samples of all steps.
  std::int64_t samples() const { return batches.samples_of(steps, 0); }
  /// Returns the number of micro-batches of the largest step on each replica.
  std::int64_t micro_batches() const { return batches.last / sequences_of_all_replicas; }
  /// Tells whether an evaluation reads some of the validation data, not all.
  bool validates_some() const { return eval_iters && !full_validation; }
  /// Tells whether losses of evaluations are compared, so that all must be of the same samples.
  bool compares_evaluations() const { return (save && keep_best) || stop_after_no_better > 0; }

  /// Returns the request of the same run with the `n` steps that the data come to. Throws
  /// mc::error(exit_code::usage) where its rates contradict that.
  loop_request of_steps(std::int64_t n) const {
    loop_request t = *this;
    t.steps = n;
    if (decays_to_end) t.rates.decay = n;
    if (warmup_fraction) t.rates.warmup = *warmup_fraction * static_cast<double>(t.rates.decay);
    if (bench && warmup >= n)
      throw error(exit_code::usage, "loop_request::warmup is " + std::to_string(warmup) +
                                        ", but must be less than loop_request::steps, which is " +
                                        std::to_string(n));
    if (const std::string_view why = contradiction(t.rates); !why.empty())
      throw error(exit_code::usage, std::string(why));
    return t;
  }
};

/// Returns the fault of a request where all replicas take so many sequences at once; "" is none.
/// Requests that flags make have none (options/loop.hpp).
inline std::string contradiction(const loop_request& r, std::int64_t sequences) {
  const auto refuse = [](const char* member, std::int64_t n, const std::string& why) {
    return std::string(member) + " is " + std::to_string(n) + ", but must be " + why;
  };
  const std::string times = "a multiple of " + std::to_string(sequences) + ", above 0";
  if (r.sequences_of_all_replicas != sequences)
    return "the request counts " + std::to_string(r.sequences_of_all_replicas) +
           " sequences at once, but replicas take " + std::to_string(sequences) +
           ": give it the program's micro-batch times their number";
  const batch_schedule& b = r.batches;
  if (b.last < 1 || b.last % sequences != 0) return refuse("batch_schedule::last", b.last, times);
  if (b.grows() && b.start % sequences != 0) return refuse("batch_schedule::start", b.start, times);
  if (b.grows() && (b.increment < 1 || b.increment % sequences != 0))
    return refuse("batch_schedule::increment", b.increment, times);
  if (r.eval_interval < 1)
    return refuse("loop_request::eval_interval", r.eval_interval, "at least 1");
  if (const std::string_view why = contradiction(b); !why.empty()) return std::string(why);
  return std::string(contradiction(r.rates));
}

} // namespace mc
