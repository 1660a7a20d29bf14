// What the flags of other programs are called here: nanoGPT, transformers' TrainingArguments and
// generate, torchtitan, PyTorch Lightning, and Megatron-LM (cli/megatron_flags.hpp). Who types one
// of them is told what it is, rather than which name is spelled alike.
#pragma once

#include <megacpp/cli/megatron_flags.hpp>
#include <megacpp/options/flag.hpp>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

namespace mc {

inline constexpr auto foreign_flags = std::to_array<foreign_flag>({
    // Steps and batches
    {"max-iters", "train-iters", ""},
    {"max-steps", "train-iters", ""},
    {"steps", "train-iters", ""},
    {"num-steps", "train-iters", ""},
    {"iters", "train-iters", ""},
    {"iterations", "train-iters", ""},
    {"training.steps", "train-iters", ""},
    {"train-steps", "train-iters", ""},
    {"num-train-epochs", "", detail::epochs_counted},
    {"num-epochs", "", detail::epochs_counted},
    {"max-epochs", "", detail::epochs_counted},
    {"batch-size", "", detail::micro_batch_compiled},
    {"per-device-train-batch-size", "", detail::micro_batch_compiled},
    {"per-device-eval-batch-size", "", detail::micro_batch_compiled},
    {"train-batch-size", "", detail::micro_batch_compiled},
    {"micro-batch", "", detail::micro_batch_compiled},
    {"local-batch-size", "", detail::micro_batch_compiled},
    {"training.local-batch-size", "", detail::micro_batch_compiled},
    {"training.batch-size", "", detail::micro_batch_compiled},
    {"training.global-batch-size", "global-batch-size", ""},
    {"total-batch-size", "", detail::batch_in_sequences},
    {"gradient-accumulation-steps", "", detail::accumulates},
    {"accumulate-grad-batches", "", detail::accumulates},
    {"grad-accum-steps", "", detail::accumulates},
    // Learning rate and optimizer
    {"learning-rate", "lr", ""},
    {"max-lr", "lr", ""},
    {"optimizer.lr", "lr", ""},
    {"min-learning-rate", "min-lr", ""},
    {"warmup-steps", "lr-warmup-iters", ""},
    {"warmup-iters", "lr-warmup-iters", ""},
    {"num-warmup-steps", "lr-warmup-iters", ""},
    {"lr-scheduler.warmup-steps", "lr-warmup-iters", ""},
    {"warmup-ratio", "", detail::warmup_in_steps},
    {"decay-lr", "", detail::decays_by_style},
    {"lr-scheduler-type", "lr-decay-style", ""},
    {"lr-scheduler", "lr-decay-style", ""},
    {"scheduler", "lr-decay-style", ""},
    {"max-grad-norm", "clip-grad", ""},
    {"grad-clip", "clip-grad", ""},
    {"gradient-clip-val", "clip-grad", ""},
    {"training.max-norm", "clip-grad", ""},
    {"max-norm", "clip-grad", ""},
    {"beta1", "adam-beta1", ""},
    {"beta2", "adam-beta2", ""},
    {"adam-epsilon", "adam-eps", ""},
    {"eps", "adam-eps", ""},
    {"optimizer.eps", "adam-eps", ""},
    {"wd", "weight-decay", ""},
    {"optimizer.weight-decay", "weight-decay", ""},
    {"optim", "", detail::always_adamw},
    {"optimizer.name", "", detail::always_adamw},
    // Saving, data, evaluation, output
    {"output-dir", "save", ""},
    {"out-dir", "save", ""},
    {"out", "save", ""},
    {"output", "save", ""},
    {"dump-folder", "save", ""},
    {"checkpoint.folder", "save", ""},
    {"save-dir", "save", ""},
    {"save-steps", "save-interval", ""},
    {"save-every", "save-interval", ""},
    {"checkpoint.interval", "save-interval", ""},
    {"save-total-limit", "keep-latest-k", ""},
    {"checkpoint.keep-latest-k", "keep-latest-k", ""},
    {"resume", "", detail::resumes_by_load},
    {"resume-from-checkpoint", "", detail::resumes_by_load},
    {"init-from", "", detail::resumes_by_load},
    {"always-save-checkpoint", "", detail::resumes_by_load},
    {"checkpoint", "load", ""},
    {"model", "load", ""},
    {"model-name-or-path", "load", ""},
    {"model-path", "load", ""},
    {"dataset", "", detail::data_in_a_file},
    {"data", "data-path", ""},
    {"data-dir", "", detail::data_in_a_file},
    {"train-file", "data-path", ""},
    {"dataset-name", "", detail::data_in_a_file},
    {"input", "data-path", ""},
    {"tokenizer-name", "tokenizer-model", ""},
    {"eval-steps", "eval-interval", ""},
    {"eval-batches", "eval-iters", ""},
    {"logging-steps", "log-interval", ""},
    {"log-every", "log-interval", ""},
    {"log-freq", "log-interval", ""},
    {"metrics.log-freq", "log-interval", ""},
    {"random-seed", "seed", ""},
    {"training.seed", "seed", ""},
    {"eval-only", "", detail::eval_is_a_command},
    {"report-to", "", detail::metrics_as_lines},
    {"nthreads", "threads", ""},
    {"num-threads", "threads", ""},
    // Generation
    {"max-length", "", detail::prompt_not_counted},
    {"max-tokens", "max-new-tokens", ""},
    {"out-seq-length", "max-new-tokens", ""},
    {"start", "prompt", ""},
    {"temp", "temperature", ""},
    {"topk", "top-k", ""},
    {"topp", "top-p", ""},
    {"top-k-sampling", "top-k", ""},
    {"top-p-sampling", "top-p", ""},
    {"do-sample", "", detail::sampled_by_default},
    {"num-return-sequences", "num-samples", ""},
    {"eos-token-id", "stop-tokens", ""},
    {"stop-strings", "stop", ""},
    {"torch-dtype", "dtype", detail::precision_compiled},
    // Compiled in
    {"block-size", "", detail::sequence_compiled},
    {"sequence-length", "", detail::sequence_compiled},
    {"seq-len", "", detail::sequence_compiled},
    {"max-seq-length", "", detail::sequence_compiled},
    {"training.seq-len", "", detail::sequence_compiled},
    {"sequence", "", detail::sequence_compiled},
    {"tp", "", detail::tp_compiled},
    {"tp-size", "", detail::tp_compiled},
    {"tensor-parallel-size", "", detail::tp_compiled},
    {"tensor-parallel-degree", "", detail::tp_compiled},
    {"parallelism.tensor-parallel-degree", "", detail::tp_compiled},
    {"pp", "", detail::pp_compiled},
    {"pp-size", "", detail::pp_compiled},
    {"pipeline-parallel-size", "", detail::pp_compiled},
    {"pipeline-parallel-degree", "", detail::pp_compiled},
    {"parallelism.pipeline-parallel-degree", "", detail::pp_compiled},
    {"cp", "", detail::cp_compiled},
    {"context-parallel-degree", "", detail::cp_compiled},
    {"parallelism.context-parallel-degree", "", detail::cp_compiled},
    {"ep", "", detail::ep_compiled},
    {"expert-parallel-size", "", detail::ep_compiled},
    {"expert-parallel-degree", "", detail::ep_compiled},
    {"parallelism.expert-parallel-degree", "", detail::ep_compiled},
    {"etp", "", detail::etp_compiled},
    {"expert-tensor-parallel-degree", "", detail::etp_compiled},
    {"parallelism.expert-tensor-parallel-degree", "", detail::etp_compiled},
    {"dp", "", detail::dp_rest},
    {"data-parallel-size", "", detail::dp_rest},
    {"data-parallel-shard-degree", "", detail::dp_rest},
    {"parallelism.data-parallel-shard-degree", "", detail::dp_rest},
    {"parallelism.data-parallel-replicate-degree", "", detail::dp_rest},
    {"sp", "", detail::sp_compiled},
    {"precision", "", detail::precision_compiled},
    {"dtype", "", detail::precision_compiled},
    {"mixed-precision", "", detail::precision_compiled},
    {"fp32", "", detail::precision_compiled},
    {"recompute", "", detail::recompute_compiled},
    {"gradient-checkpointing", "", detail::recompute_compiled},
    {"activation-checkpoint.mode", "", detail::recompute_compiled},
    {"no-cuda", "", detail::device_compiled},
    {"use-cpu", "", detail::device_compiled},
    {"n-layer", "", detail::model_compiled},
    {"n-head", "", detail::model_compiled},
    {"n-embd", "", detail::model_compiled},
    {"n-layers", "", detail::model_compiled},
    {"n-heads", "", detail::model_compiled},
    {"dim", "", detail::model_compiled},
    {"d-model", "", detail::model_compiled},
    {"layers", "", detail::model_compiled},
    {"heads", "", detail::model_compiled},
    {"dropout", "", detail::model_compiled},
    {"bias", "", detail::model_compiled},
    {"config-name", "", detail::model_compiled},
});

/// A name with - for _.
inline std::string dashed(std::string_view name) {
  std::string text(name);
  std::replace(text.begin(), text.end(), '_', '-');
  return text;
}

/// The entry of a name, which may have _ for -, for a command; null for an unknown one.
inline const foreign_flag* find_foreign(std::string_view name, command c = command::all) {
  const std::string wanted = dashed(name);
  const foreign_flag* found = nullptr; // the longest begin
  const foreign_flag* same = nullptr;
  const auto look = [&](const auto& table) {
    for (const foreign_flag& f : table) {
      if (same == nullptr && (f.name == name || f.name == wanted)) same = &f;
      const bool begins =
          f.name.ends_with('*') && wanted.starts_with(f.name.substr(0, f.name.size() - 1));
      if (begins && (found == nullptr || found->name.size() < f.name.size())) found = &f;
    }
  };
  if (overlaps(c, command::all_of_data)) look(preprocess_flags);
  if (overlaps(c, command::all)) look(megatron_flags);
  look(foreign_flags);
  return same != nullptr ? same : found;
}

} // namespace mc
