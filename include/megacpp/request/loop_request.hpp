// The loop of a training run: its steps, and what happens between them.
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

/// The loop of a training run, free of contradictions. A sentence names a member as
/// loop_request::member.
struct loop_request {
  std::int64_t steps = 0;
  std::optional<std::int64_t> samples_asked; ///< that the run was asked to take, in place of steps
  std::optional<std::int64_t> epochs;        ///< of conversations, which say what `steps` is
  std::int64_t at_once = 1; ///< sequences that all replicas take at once, a micro-batch each
  batch_schedule batches;   ///< sequences of each step, on all of them
  schedule rates;
  bool rates_by_samples = false;         ///< the schedule counts samples, not steps
  bool decays_to_end = true;             ///< the decay of the rates is as long as the run
  std::optional<double> warmup_fraction; ///< of that decay, which the rates rise over
  step_numbers numbers = [] {            // of AdamW, and the seed of what is drawn
    step_numbers n;
    n.beta1 = 0.9, n.beta2 = 0.999, n.epsilon = 1e-8;
    n.weight_decay = 0.01, n.clip = 1, n.seed = 1234;
    return n;
  }();

  bool bench = false;      ///< the time of steps is measured, and nothing else told
  std::int64_t warmup = 0; ///< steps that are not measured

  std::optional<std::string> save; ///< folder of the states of the run
  std::int64_t save_interval = 0;  ///< steps between states; 0: one at the end
  std::int64_t keep_latest = 10;   ///< states that are kept; 0: all
  bool keep_best = false;          ///< and that of the lowest validation loss
  bool insists_on_best = false;    ///< a run that validates nothing is refused
  std::optional<std::uint64_t>
      max_shard; ///< bytes of a file of weights; as Hugging Face has it otherwise

  bool takes_signals = true;          ///< a signal to end saves the state first
  std::optional<double> exit_minutes; ///< after which the run saves its state and ends

  std::int64_t eval_interval = 1000;        ///< steps between evaluations
  std::optional<std::int64_t> eval_iters;   ///< global batches in one; none: all of the data
  bool full_validation = false;             ///< all of the data, whatever `eval_iters` is
  bool by_set = false;                      ///< so many of each data set
  std::int64_t sample_interval = 0;         ///< steps between texts of the model; 0: none
  std::optional<std::string> sample_prompt; ///< that these texts continue
  std::int64_t sample_tokens = 200;         ///< that such a text has at most

  /// Samples of all steps.
  std::int64_t samples() const { return batches.samples_of(steps, 0); }
  /// Micro-batches of the largest step on each replica.
  std::int64_t micro_batches() const { return batches.last / at_once; }
  /// Tells whether a part of the validation data is enough for an evaluation.
  bool validates_some() const { return eval_iters && !full_validation; }

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

/// Tells what a request contradicts where replicas take so many sequences at once; "" is nothing.
/// Requests that flags make contradict nothing (options/loop.hpp).
inline std::string contradiction(const loop_request& r, std::int64_t at_once) {
  const auto refuse = [](const char* member, std::int64_t n, const std::string& why) {
    return std::string(member) + " is " + std::to_string(n) + ", but must be " + why;
  };
  const std::string times = "a multiple of " + std::to_string(at_once) + ", above 0";
  if (r.at_once != at_once)
    return "the request counts " + std::to_string(r.at_once) +
           " sequences at once, but replicas take " + std::to_string(at_once) +
           ": give it the program's micro-batch times their number";
  const batch_schedule& b = r.batches;
  if (b.last < 1 || b.last % at_once != 0) return refuse("batch_schedule::last", b.last, times);
  if (b.grows() && b.start % at_once != 0) return refuse("batch_schedule::start", b.start, times);
  if (b.grows() && (b.increment < 1 || b.increment % at_once != 0))
    return refuse("batch_schedule::increment", b.increment, times);
  if (r.eval_interval < 1)
    return refuse("loop_request::eval_interval", r.eval_interval, "at least 1");
  if (const std::string_view why = contradiction(b); !why.empty()) return std::string(why);
  return std::string(contradiction(r.rates));
}

} // namespace mc
