// What the flags of other programs are called here: nanoGPT, transformers' TrainingArguments and
// generate, torchtitan, Megatron-LM, PyTorch Lightning. Who types one of them is told what it is,
// rather than which name is spelled alike.
#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

namespace mc {

/// A name elsewhere, with dashes, and the flag that means it here, or a sentence; both where the
/// sentence is for commands without that flag. A sentence begins with what is said to all commands.
struct foreign_flag {
  std::string_view name, ours, says;
};

namespace detail {
inline constexpr std::string_view
    micro_batch_compiled =
        "the micro-batch is compiled in: MICRO_BATCH of megacpp_add_preset, "
        "micro-batch= of examples/build_preset.sh, or the struct of "
        "megacpp_add_run; --global-batch-size gives the "
        "sequences of a step",
    sequence_compiled =
        "the sequence length is compiled in: SEQUENCE of megacpp_add_preset, "
        "sequence= of examples/build_preset.sh, or the struct of megacpp_add_run",
    tp_compiled =
        "tensor parallelism is compiled in: TP of megacpp_add_preset, tp= of "
        "examples/build_preset.sh, or the struct of megacpp_add_run",
    pp_compiled =
        "the number of pipeline stages is compiled in: PP of megacpp_add_preset, pp= of "
        "examples/build_preset.sh, or the struct of megacpp_add_run",
    cp_compiled =
        "context parallelism is compiled in: CP of megacpp_add_preset, cp= of "
        "examples/build_preset.sh, or the struct of megacpp_add_run",
    ep_compiled =
        "expert parallelism is compiled in: EP of megacpp_add_preset, ep= of "
        "examples/build_preset.sh, or the struct of megacpp_add_run",
    etp_compiled =
        "tensor parallelism of experts is compiled in: ETP of megacpp_add_preset, etp= "
        "of examples/build_preset.sh, or the struct of megacpp_add_run",
    dp_rest = "ranks that nothing else uses are data parallel, without a flag",
    sp_compiled =
        "sequence parallelism is compiled in: SEQUENCE_PARALLEL of megacpp_add_preset, "
        "sp=1 of examples/build_preset.sh, or the struct of megacpp_add_run",
    precision_compiled =
        "the precision is compiled in: PRECISION of megacpp_add_preset, precision= "
        "of examples/build_preset.sh, or the struct of megacpp_add_run",
    recompute_compiled =
        "recomputation is compiled in: RECOMPUTE of megacpp_add_preset, recompute= "
        "of examples/build_preset.sh, or the struct of megacpp_add_run",
    numerics_compiled =
        "how sums over tokens are taken is compiled in: NUMERICS of megacpp_add_preset, numerics= "
        "of examples/build_preset.sh, or the struct of megacpp_add_run",
    device_compiled =
        "the device is compiled in: DEVICE of megacpp_add_preset, device= of "
        "examples/build_preset.sh, or the struct of megacpp_add_run",
    model_compiled =
        "the numbers of the model are compiled in: MODEL or HF_CONFIG of "
        "megacpp_add_preset, the config.json of examples/build_preset.sh, or the struct of "
        "megacpp_add_run",
    epochs_counted =
        "a run is counted in steps: --train-iters, of --global-batch-size sequences "
        "each",
    always_adamw =
        "the optimizer is AdamW, with the flags --adam-beta1, --adam-beta2, --adam-eps "
        "and --weight-decay",
    warmup_in_steps = "--lr-warmup-iters gives the warm-up in steps, not as a share of the run",
    warmup_no_samples =
        "--lr-warmup-iters gives the warm-up in steps, of --global-batch-size "
        "sequences each, not in samples",
    decay_no_samples =
        "--lr-decay-iters gives the decay in steps, of --global-batch-size sequences "
        "each, not in samples",
    decays_by_style =
        "--lr-decay-style says how the learning rate falls, and with constant it does "
        "not",
    batch_in_sequences = "--global-batch-size gives the sequences of a step, not its tokens",
    prompt_not_counted =
        "--max-new-tokens counts the tokens that are drawn, without those "
        "of the prompt",
    no_loading_threads =
        "no threads of their own load the data; --threads gives those that compute",
    data_in_a_file =
        "--data-path names a file of text or of token ids; nothing is found or "
        "downloaded by the name of a data set",
    accumulates =
        "--global-batch-size gives the sequences of a step, and what exceeds the "
        "micro-batch is accumulated",
    resumes_by_load =
        "--load names the folder to go on from, and --save the one to write to; they "
        "may be the same",
    own_tokenizer =
        "--tokenizer knows byte and char; for another tokenizer give its token ids, "
        "with --data-type u16 or i32",
    sampled_by_default = "tokens are drawn at random unless --greedy is given",
    eval_is_a_command = "the command eval measures a model, and train always trains",
    step_by_folder =
        "--load takes the folder of one step, as ROOT/iter_0000400, or ROOT for the newest",
    weights_by_finetune = "--finetune takes the weights of --load and nothing else",
    no_random_state =
        "random numbers have no state: they follow from --seed, the step and the sample",
    metrics_as_lines =
        "--metrics-jsonl writes the numbers of a run to a file, a line each, and "
        "--loss-curve draws the loss",
    one_order_of_data =
        "the data has one order: all windows once, drawn at random by --seed, then again",
    nothing_to_capture =
        "a step is compiled whole, so there are no graphs that would be captured at run "
        "time";
} // namespace detail

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
    {"exit-interval", "train-iters", ""},
    {"num-train-epochs", "", detail::epochs_counted},
    {"epochs", "", detail::epochs_counted},
    {"num-epochs", "", detail::epochs_counted},
    {"max-epochs", "", detail::epochs_counted},
    {"train-samples", "", detail::epochs_counted},
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
    {"lr-warmup-fraction", "", detail::warmup_in_steps},
    {"lr-warmup-samples", "", detail::warmup_no_samples},
    {"lr-decay-samples", "", detail::decay_no_samples},
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
    {"optimizer", "", detail::always_adamw},
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
    {"tokenizer-type", "", detail::own_tokenizer},
    {"tokenizer-model", "", detail::own_tokenizer},
    {"tokenizer-name", "", detail::own_tokenizer},
    {"vocab-file", "", detail::own_tokenizer},
    {"merge-file", "", detail::own_tokenizer},
    {"eval-steps", "eval-interval", ""},
    {"eval-batches", "eval-iters", ""},
    {"logging-steps", "log-interval", ""},
    {"log-every", "log-interval", ""},
    {"log-freq", "log-interval", ""},
    {"metrics.log-freq", "log-interval", ""},
    {"random-seed", "seed", ""},
    {"training.seed", "seed", ""},
    {"skip-train", "", detail::eval_is_a_command},
    {"eval-only", "", detail::eval_is_a_command},
    {"ckpt-step", "", detail::step_by_folder},
    {"no-load-optim", "", detail::weights_by_finetune},
    {"no-load-rng", "", detail::no_random_state},
    {"no-save-rng", "", detail::no_random_state},
    {"tensorboard-dir", "", detail::metrics_as_lines},
    {"wandb-project", "", detail::metrics_as_lines},
    {"report-to", "", detail::metrics_as_lines},
    {"dataloader-type", "", detail::one_order_of_data},
    {"cuda-graph-impl", "", detail::nothing_to_capture},
    {"enable-cuda-graph", "", detail::nothing_to_capture},
    {"num-workers", "", detail::no_loading_threads},
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
    {"max-position-embeddings", "", detail::model_compiled},
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
    {"fp16", "", detail::precision_compiled},
    {"fp32", "", detail::precision_compiled},
    {"fp8-format", "", detail::precision_compiled},
    {"recompute", "", detail::recompute_compiled},
    {"recompute-activations", "", detail::recompute_compiled},
    {"recompute-method", "", detail::recompute_compiled},
    {"recompute-num-layers", "", detail::recompute_compiled},
    {"gradient-checkpointing", "", detail::recompute_compiled},
    {"activation-checkpoint.mode", "", detail::recompute_compiled},
    {"batch-invariant-mode", "", detail::numerics_compiled},
    {"device", "", detail::device_compiled},
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
    {"hidden-dropout", "", detail::model_compiled},
    {"attention-dropout", "", detail::model_compiled},
    {"group-query-attention", "", detail::model_compiled},
    {"normalization", "", detail::model_compiled},
    {"swiglu", "", detail::model_compiled},
    {"position-embedding-type", "", detail::model_compiled},
    {"rotary-base", "", detail::model_compiled},
    {"kv-channels", "", detail::model_compiled},
    {"init-method-std", "", detail::model_compiled},
    {"norm-epsilon", "", detail::model_compiled},
    {"untie-embeddings-and-output-weights", "", detail::model_compiled},
    {"make-vocab-size-divisible-by", "", detail::model_compiled},
    {"config-name", "", detail::model_compiled},
    {"disable-bias-linear", "", detail::model_compiled},
    {"add-qkv-bias", "", detail::model_compiled},
    {"qk-layernorm", "", detail::model_compiled},
    {"moe-aux-loss-coeff", "", detail::model_compiled},
    {"moe-z-loss-coeff", "", detail::model_compiled},
    {"moe-router-load-balancing-type", "", detail::model_compiled},
    {"moe-expert-capacity-factor", "", detail::model_compiled},
    {"moe-shared-expert-intermediate-size", "", detail::model_compiled},
});

/// A name with - for _.
inline std::string dashed(std::string_view name) {
  std::string text(name);
  std::replace(text.begin(), text.end(), '_', '-');
  return text;
}

/// The entry of a name, which may have _ for -; null for an unknown one.
inline const foreign_flag* find_foreign(std::string_view name) {
  const auto* const at =
      std::find_if(foreign_flags.begin(), foreign_flags.end(),
                   [&](const foreign_flag& f) { return f.name == dashed(name); });
  return at == foreign_flags.end() ? nullptr : at;
}

} // namespace mc
