// The request of the loop of a training run, made from flags.
#pragma once

#include <megacpp/checkpoint/shard_index.hpp>
#include <megacpp/options/options.hpp>
#include <megacpp/request/loop_request.hpp>
#include <megacpp/run/stage.hpp>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace mc {

namespace detail {

/// Returns the batches of a run that ends with `global` sequences a step. `rampup` is the text of
/// --rampup-batch-size.
inline batch_schedule batches_of(std::string_view rampup, std::int64_t global) {
  batch_schedule s{.last = global};
  std::int64_t* const numbers[] = {&s.start, &s.increment, &s.samples};
  std::size_t i = 0;
  if (!rampup.empty())
    each_between(rampup, ' ', [&](std::string_view number) {
      std::from_chars(number.data(), number.data() + number.size(), *numbers[i++]);
    });
  return s;
}

/// Returns the bytes of --max-shard-size. Throws mc::error(exit_code::usage) for a text that is no
/// size.
inline std::uint64_t shard_limit_of(const model_flags& f) {
  const std::string& text = f.max_shard_size();
  if (const auto size = size_from_text(text)) return *size;
  throw usage(
      "--max-shard-size is \"{}\", but must be a number of bytes above 0, or one with KB, MB, GB, "
      "TB, KiB, MiB, GiB or TiB, for example 5GB",
      printable(text));
}

} // namespace detail

/// Returns the loop of a run of `dp` replicas, from flags that keep to the rules. Throws
/// mc::error(exit_code::usage) for numbers that contradict each other or the program.
inline loop_request loop_request_of(const program_view& p, const options& o, int dp = 1) {
  loop_request t;
  t.bench = o.report.bench_json();
  t.warmup = o.report.warmup();
  constexpr std::int64_t measured = 200, highest = std::numeric_limits<std::int64_t>::max();
  t.steps = t.bench && !o.training.train_iters.given()
                ? std::min(t.warmup, highest - measured) + measured
                : o.training.train_iters();
  if (t.bench && t.warmup >= t.steps)
    throw usage("--warmup is {}, but must be less than --train-iters, which is {}", t.warmup,
                t.steps);
  const std::int64_t micro = std::int64_t{p.numbers.batch.micro} * dp; // at once
  const std::string replica = dp == 1 ? "the one replica" : fmt::format("each of {} replicas", dp);
  const std::int64_t global = o.training.global_batch_size.if_given().value_or(micro);
  if (global % micro != 0)
    throw usage(
        "--global-batch-size is {}, but must be a multiple of {}: {} takes {} at once, the "
        "compiled micro-batch",
        global, micro, replica, p.numbers.batch.micro);
  // An int32 numbers the tokens of a step, by which their elements draw dropout.
  const std::int64_t most =
      std::min((std::int64_t{1} << 31) / p.numbers.batch.sequence, max_micros * micro);
  if (global > most)
    throw usage(
        "--global-batch-size is {}, but must be at most {}: a step has at most 2^31 tokens, and "
        "sequences of {}",
        global, most, p.numbers.batch.sequence);
  t.sequences_of_all_replicas = micro,
  t.batches = detail::batches_of(o.training.rampup_batch_size(), global);
  if (const std::string_view why = contradiction(t.batches); !why.empty()) throw usage("{}", why);
  t.samples_asked = o.training.train_samples.if_given();
  if (!t.samples_asked && (!t.bench || o.training.train_iters.given()))
    t.epochs = o.training.epochs.if_given();
  if (t.samples_asked) {
    t.steps = steps_of_samples(t.batches, *t.samples_asked);
    if (t.steps < 1)
      throw usage("--train-samples is {}, but a step has {} sequences; give at least as many",
                  *t.samples_asked, t.batches.after(0));
  }
  for (const auto& [size, name] :
       {std::pair{t.batches.start, "START"}, std::pair{t.batches.increment, "INCREMENT"}})
    if (t.batches.grows() && size % micro != 0)
      throw usage(
          "{} of --rampup-batch-size is {}, but must be a multiple of {}, the sequences that {} at "
          "once",
          name, size, micro, dp == 1 ? "are computed" : fmt::format("{} replicas take", dp));
  std::set<int> proven; // one proof may stand for many numbers
  const auto require_schedule = [&](std::int64_t size, const char* flag) {
    const int micros = static_cast<int>(size / micro), most = p.numbers.batch.micro_batches;
    const bool fits = most == 0 || micros <= most;
    if (fits && !proven.insert(micros_to_prove(p.numbers.ranks, micros)).second) return;
    const fault_record wrong = fault_of_micros(p, micros);
    if (wrong.code == fault::none) return;
    throw usage(
        "{}: a batch of {} sequences makes {} micro-batches on {}, and {} {}; the nearest "
        "size is {}",
        flag, size, micros, replica, p.name,
        fits ? fmt::format("cannot run them by {}", name_of_schedule(p.numbers.ranks))
             : fmt::format("is built for at most {} (MICRO_BATCHES)", most),
        micro * nearest_micros(p, micros));
  };
  for (std::int64_t size = t.batches.start; t.batches.grows() && size < global;
       size += t.batches.increment)
    require_schedule(size, "--rampup-batch-size");
  require_schedule(global, "--global-batch-size");

  const optimizer_flags& f = o.optimizer;
  t.rates.lr = f.lr(), t.rates.min_lr = f.min_lr();
  t.rates.style = f.lr_decay_style.choice<decay_style>();
  t.rates.wsd = f.lr_wsd_decay_style.choice<wsd_style>();
  t.decays_to_end = !f.lr_decay_iters.given();
  const bool samples = t.rates_by_samples = t.samples_asked.has_value();
  t.rates.warmup = static_cast<double>(samples ? f.lr_warmup_samples() : f.lr_warmup_iters());
  t.rates.decay = samples ? f.lr_decay_samples.if_given().value_or(*t.samples_asked)
                          : f.lr_decay_iters.if_given().value_or(t.steps);
  t.rates.wsd_decay = f.lr_wsd_decay_iters() * (samples ? global : 1);
  t.warmup_fraction = f.lr_warmup_fraction.if_given();
  if (t.warmup_fraction) t.rates.warmup = *t.warmup_fraction * static_cast<double>(t.rates.decay);
  if (const std::string_view why = contradiction(t.rates); !why.empty()) throw usage("{}", why);

  t.numbers.seed = static_cast<std::uint64_t>(o.model.seed());
  t.numbers.beta1 = f.adam_beta1(), t.numbers.beta2 = f.adam_beta2();
  t.numbers.epsilon = f.adam_eps(), t.numbers.weight_decay = f.weight_decay();
  t.numbers.clip = f.clip_grad();

  const training_flags& r = o.training;
  t.save = r.save.if_given(), t.save_interval = r.save_interval();
  t.keep_latest = r.keep_latest_k(), t.keep_best = r.keep_best();
  t.insists_on_best = r.keep_best.asked() && r.keep_best();
  t.max_shard = detail::shard_limit_of(o.model);
  t.takes_signals = r.exit_signal_handler();
  t.exit_minutes = r.exit_duration_in_mins.if_given();
  t.eval_interval = r.eval_interval(), t.eval_iters = r.eval_iters.if_given();
  t.stop_after_no_better = r.stop_after_no_better();
  t.full_validation = r.full_validation(), t.by_set = r.multiple_validation_sets();
  t.sample_interval = t.bench ? 0 : r.sample_interval(),
  t.sample_prompt = r.sample_prompt.if_given();
  t.sample_tokens = o.sampling.max_new_tokens();
  return t;
}

} // namespace mc
