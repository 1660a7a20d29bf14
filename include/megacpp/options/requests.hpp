// The requests of commands, made from flags that keep to the rules (options/rules.hpp).
#pragma once

#include <megacpp/options/data.hpp>
#include <megacpp/options/flags_of_values.hpp>
#include <megacpp/options/loop.hpp>
#include <megacpp/options/options.hpp>
#include <megacpp/options/resume.hpp>
#include <megacpp/request/requests.hpp>
#include <megacpp/run/view.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace mc {

inline report_request report_request_of(const report_flags& f) {
  return {.log_interval = f.log_interval(),
          .metrics = f.metrics_jsonl.if_given(),
          .curve = f.loss_curve.if_given(),
          .tensorboard = f.tensorboard_dir.if_given(),
          .tensorboard_interval = f.tensorboard_log_interval(),
          .port = f.metrics_port.if_given(),
          .address = f.metrics_address(),
          .katib = f.katib_metrics.if_given(),
          .profile = f.profile(),
          .trace = f.trace.if_given(),
          .trace_after = f.profile_step_start.if_given(),
          .trace_last = f.profile_step_end.if_given(),
          .peak_tflops = f.peak_tflops(),
          .spelled = [](std::string sentence) { return in_flags(sentence); }};
}

inline sampling_request sampling_request_of(const options& o) {
  const sampling_flags& f = o.sampling;
  sampling_request r;
  r.prompts = f.prompt(), r.prompts_file = f.prompts_file.if_given();
  r.chat = f.chat(), r.system_prompt = f.system_prompt(), r.ids = f.ids();
  r.thinks = f.enable_thinking(), r.insists_on_thinking = f.enable_thinking.asked();
  r.samples = f.num_samples(), r.numbered = f.num_samples.given(), r.most = f.max_new_tokens();
  r.stop_tokens = f.stop_tokens(), r.stops = f.stop(), r.ignores_eos = f.ignore_eos();
  r.temperature = f.greedy() ? 0 : f.temperature(), r.top_k = f.top_k(), r.top_p = f.top_p();
  r.seed = static_cast<std::uint64_t>(o.model.seed()), r.slides = f.overflow() == "slide";
  r.batch = f.batch_size(), r.caches = f.use_cache();
  r.logprobs = f.logprobs(), r.json = o.report.json();
  return r;
}

/// Returns the request of `train` on `dp` replicas. Throws mc::error.
inline training_request training_request_of(const program_view& p, const options& o, int dp = 1) {
  return {.start = start_request_of(o.model),
          .data = data_request_of(o, command::train),
          .loop = loop_request_of(p, o, dp),
          .reports = report_request_of(o.report),
          .kept = std::make_shared<const kept_flags>(o)};
}

/// Returns the request of `eval`. Without --load it has no data, since run_evaluation refuses it.
/// Throws mc::error.
inline evaluation_request evaluation_request_of(const options& o) {
  const training_flags& t = o.training;
  return {.start = start_request_of(o.model),
          .data = o.model.load.given() ? data_request_of(o, command::eval) : data_request(),
          .eval_iters = t.full_validation() ? std::nullopt : t.eval_iters.if_given(),
          .global_batch = t.global_batch_size.if_given(),
          .by_set = t.multiple_validation_sets(),
          .json = o.report.json()};
}

inline generation_request generation_request_of(const options& o) {
  return {.start = start_request_of(o.model),
          .tokenizer = tokenizer_request_of(o.data),
          .sampling = sampling_request_of(o)};
}

/// Returns the request of `export`. Throws mc::error(exit_code::usage) for a --max-shard-size that
/// is no size.
inline export_request export_request_of(const options& o) {
  return {.start = start_request_of(o.model),
          .save = o.training.save.if_given(),
          .layout = o.model.export_layout.if_given(),
          .nf4 = o.model.quantise() == "nf4",
          .through_nf4 = o.model.dequantised(),
          .merge = o.model.merge(),
          .type = o.model.dtype(),
          .max_shard = o.model.max_shard_size.given()
                           ? std::optional(detail::shard_limit_of(o.model))
                           : std::nullopt};
}

} // namespace mc
