// Flags that belong together, checked together: the numbers of a training run.
#pragma once

#include <megacpp/exec/product_shape.hpp>
#include <megacpp/optim/schedule.hpp>
#include <megacpp/run/view.hpp>
#include <megacpp/train/options.hpp>

namespace mc {

/// What a training run does, free of contradictions.
struct training_settings {
  std::int64_t steps = 0;
  std::int64_t micro_batches = 1; ///< of one step
  std::int64_t warmup = 0;        ///< steps that bench-json leaves out
  bool bench = false;
  schedule rates;
  step_numbers numbers;
};

namespace detail {

inline decay_style decay_style_of(std::string_view name) {
  if (name == "constant") return decay_style::constant;
  if (name == "linear") return decay_style::linear;
  return name == "cosine" ? decay_style::cosine : decay_style::wsd;
}
inline wsd_style wsd_style_of(std::string_view name) {
  if (name == "linear") return wsd_style::linear;
  if (name == "cosine") return wsd_style::cosine;
  return name == "exponential" ? wsd_style::exponential : wsd_style::minus_sqrt;
}

} // namespace detail

/// Throws mc::error(exit_code::usage) naming the flags that contradict each other.
inline training_settings settings_of(const program_view& p, const options& o) {
  training_settings t;
  t.bench = o.report.bench_json();
  t.warmup = o.report.warmup();
  t.steps = t.bench && !o.training.train_iters.given() ? t.warmup + 200 : o.training.train_iters();
  if (t.bench && t.warmup >= t.steps)
    throw error(exit_code::usage,
                fmt::format("--warmup is {}, but must be less than --train-iters, which is {}",
                            t.warmup, t.steps));
  const std::int64_t micro = p.numbers.batch.micro;
  const std::int64_t global =
      o.training.global_batch_size.given() ? o.training.global_batch_size() : micro;
  if (global % micro != 0)
    throw error(exit_code::usage,
                fmt::format("--global-batch-size is {}, but must be a multiple of the compiled "
                            "micro-batch, which is {}",
                            global, micro));
  t.micro_batches = global / micro;

  const optimizer_flags& f = o.optimizer;
  t.rates.lr = f.lr(), t.rates.min_lr = f.min_lr();
  t.rates.style = detail::decay_style_of(f.lr_decay_style());
  t.rates.wsd = detail::wsd_style_of(f.lr_wsd_decay_style());
  t.rates.warmup = f.lr_warmup_iters();
  t.rates.decay = f.lr_decay_iters.given() ? f.lr_decay_iters() : t.steps;
  t.rates.wsd_decay = f.lr_wsd_decay_iters();
  if (const std::string_view why = contradiction(t.rates); !why.empty())
    throw error(exit_code::usage, std::string(why));

  t.numbers.seed = static_cast<std::uint64_t>(o.model.seed());
  t.numbers.beta1 = f.adam_beta1(), t.numbers.beta2 = f.adam_beta2();
  t.numbers.epsilon = f.adam_eps();
  t.numbers.weight_decay = f.weight_decay();
  t.numbers.clip = f.clip_grad();
  return t;
}

/// The options with the values that flags left out come to: what a state keeps.
inline options effective_options(options o, const training_settings& t, const program_view& p,
                                 product_type products) {
  const auto set = [](auto& flag, const auto& value) { flag.is(value, flag.help()); };
  set(o.training.train_iters, t.steps);
  set(o.training.global_batch_size, t.micro_batches * p.numbers.batch.micro);
  set(o.optimizer.lr_decay_iters, t.rates.decay);
  if (p.numbers.type == dtype::bf16)
    set(o.machine.product_type, products == product_type::bf16 ? "bf16" : "widened");
  return o;
}

} // namespace mc
