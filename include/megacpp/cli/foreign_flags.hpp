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
/// A name that ends in * is of all flags that begin so and have no entry of their own.
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
        "each; conversations also in epochs: --epochs",
    always_adamw =
        "the optimizer is AdamW, with the flags --adam-beta1, --adam-beta2, --adam-eps "
        "and --weight-decay",
    warmup_in_steps = "--lr-warmup-iters gives the warm-up in steps, not as a share of the run",
    decays_by_style =
        "--lr-decay-style says how the learning rate falls, and with constant it does "
        "not",
    batch_in_sequences = "--global-batch-size gives the sequences of a step, not its tokens",
    prompt_not_counted =
        "--max-new-tokens counts the tokens that are drawn, without those "
        "of the prompt",
    no_loading_threads =
        "one thread loads the data, ahead of the steps; --threads gives those that compute",
    data_in_a_file =
        "--data-path names a file of text, token ids or conversations, or the prefix of a data set "
        "on disk; nothing is found or downloaded by the name of a data set",
    accumulates =
        "--global-batch-size gives the sequences of a step, and what exceeds the "
        "micro-batch is accumulated",
    resumes_by_load =
        "--load names the folder to go on from, and --save the one to write to; they "
        "may be the same",
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
    recomputes_cheap =
        "selective recomputation is of norms, activations, RoPE and dropout, and full of all: "
        "RECOMPUTE of megacpp_add_preset, recompute= of examples/build_preset.sh, or the struct of "
        "megacpp_add_run",
    saved_shards =
        "what is saved is sharded by sequence parallelism: SEQUENCE_PARALLEL of "
        "megacpp_add_preset, sp=1 of examples/build_preset.sh, or the struct of megacpp_add_run",
    router_type =
        "the router's product has the type of the program, and what is made of its logits that of "
        "sums: PRECISION of megacpp_add_preset, precision= of examples/build_preset.sh, or the "
        "struct of megacpp_add_run",
    rows_compiled =
        "rows that go to a rank's experts at once are compiled in: expert_rows of the batch in the "
        "struct of megacpp_add_run",
    fused_when_compiled =
        "what runs as one kernel is settled when a program is compiled, and describe tells of it",
    nothing_overlaps =
        "ranks compute while nothing is under way but what stages send each other; results do not "
        "depend on such flags, so leave it out",
    no_padded_experts = "an expert computes the rows that it has, without padding, so leave it out",
    one_dispatcher =
        "tokens go to experts and back by one all-to-all of their rows, so leave it out",
    one_grouped_product =
        "a rank's experts are one product in memory of one order, so leave it out",
    nothing_offloaded =
        "nothing lies in memory of another device; RECOMPUTE of megacpp_add_preset, recompute= of "
        "examples/build_preset.sh, or the struct of megacpp_add_run saves memory",
    no_upcycling = "experts are not made of a dense model",
    not_in_a_model = "no family of models has it; a family of your own may",
    weights_by_tp =
        "weights are cut by the ranks that compute with them: TP of megacpp_add_preset, tp= of "
        "examples/build_preset.sh, or the struct of megacpp_add_run",
    one_context_group =
        "a sequence is shared by one group of ranks, as long as it was compiled: CP of "
        "megacpp_add_preset, cp= of examples/build_preset.sh, or the struct of megacpp_add_run",
    own_communicator =
        "ranks have a communicator of their own, with nothing to choose: leave it out",
    describes_ranks = "the command describe plans every rank's memory and communication on one",
    one_rank_order = "ranks are numbered tp first, then cp, dp and pp, and no other way",
    timeout_in_seconds = "--collective-timeout gives that time in seconds",
    says_who_waits = "a rank that waits in vain says for which, and at which line of the model",
    summed_and_divided =
        "gradients are sums over all tokens, divided once by their number: leave it out",
    summed_in_fp32 = "gradients are kept and summed in fp32 or wider: leave it out",
    no_buckets = "gradients are reduced in ranges of one store, once a step: there are no buckets",
    zero_compiled =
        "what replicas share is compiled in, nothing or the optimizer's state: ZERO of "
        "megacpp_add_preset, zero= of examples/build_preset.sh, or the struct of megacpp_add_run",
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
    {"lr-warmup-fraction", "", detail::warmup_in_steps},
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
    {"tokenizer-name", "tokenizer-model", ""},
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
    {"recompute-modules", "", detail::recomputes_cheap},
    {"checkpoint-activations", "recompute-activations", ""},
    {"moe-layer-recompute", "", detail::recompute_compiled},
    {"mhc-recompute-layer-num", "", detail::recompute_compiled},
    {"distribute-saved-activations", "", detail::saved_shards},
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
    // Megatron-LM: experts
    {"moe-layer-freq", "", detail::model_compiled},
    {"moe-router-dtype", "", detail::router_type},
    {"moe-router-fusion", "", detail::fused_when_compiled},
    {"moe-permute-fusion", "", detail::fused_when_compiled},
    {"moe-shared-expert-overlap", "", detail::nothing_overlaps},
    {"overlap-moe-expert-parallel-comm", "", detail::nothing_overlaps},
    {"ep-overlap-early-attn-memory-release", "", detail::nothing_overlaps},
    {"overlap-dispatch-backward-with-experts-wgrad", "", detail::nothing_overlaps},
    {"high-priority-a2a-comm-stream", "", detail::nothing_overlaps},
    {"moe-per-layer-logging", "", detail::metrics_as_lines},
    {"moe-expert-rank-capacity-factor", "", detail::rows_compiled},
    {"moe-pad-*", "", detail::no_padded_experts},
    {"moe-router-padding-*", "", detail::no_padded_experts},
    {"moe-enable-deepep", "", detail::one_dispatcher},
    {"moe-deepep-*", "", detail::one_dispatcher},
    {"moe-flex-*", "", detail::one_dispatcher},
    {"moe-hybridep-*", "", detail::one_dispatcher},
    {"moe-ncclep-*", "", detail::one_dispatcher},
    {"moe-dispatch-*", "", detail::one_dispatcher},
    {"moe-combine-*", "", detail::one_dispatcher},
    {"moe-permute-fusion-into-hybridep", "", detail::one_dispatcher},
    {"moe-use-grouped-tensor", "", detail::one_grouped_product},
    {"moe-single-grouped-*", "", detail::one_grouped_product},
    {"moe-mlp-glu-interleave-size", "", detail::one_grouped_product},
    {"moe-shared-expert-glu-interleave-size", "", detail::one_grouped_product},
    {"use-grouped-gemm-for-shared-expert", "", detail::one_grouped_product},
    {"moe-paged-stash*", "", detail::nothing_offloaded},
    {"moe-use-upcycling", "", detail::no_upcycling},
    {"moe-upcycling-granularity", "", detail::no_upcycling},
    {"moe-*", "", detail::not_in_a_model},
    {"inference-moe-*", "", detail::one_dispatcher},
    // Megatron-LM: tensor, sequence, context and pipeline parallelism
    {"model-parallel-size", "tensor-model-parallel-size", ""},
    {"tensor-parallel-num-weight-shards", "", detail::weights_by_tp},
    {"expert-tensor-parallel-num-weight-shards", "", detail::weights_by_tp},
    {"gtp-*", "", detail::weights_by_tp},
    {"tp-comm-*", "", detail::nothing_overlaps},
    {"no-tp-comm-*", "", detail::nothing_overlaps},
    {"disable-tp-comm-*", "", detail::nothing_overlaps},
    {"hierarchical-context-parallel-sizes", "", detail::one_context_group},
    {"hybrid-context-parallel", "", detail::one_context_group},
    {"max-seqlen-per-dp-cp-rank", "", detail::one_context_group},
    {"pipeline-model-parallel-comm-backend", "", detail::own_communicator},
    {"use-ring-exchange-p2p", "", detail::own_communicator},
    {"overlap-p2p-communication-warmup-flush", "", detail::nothing_overlaps},
    {"no-overlap-p2p-communication", "", detail::nothing_overlaps},
    {"delay-wgrad-compute", "", detail::nothing_overlaps},
    {"defer-embedding-wgrad-compute", "", detail::nothing_overlaps},
    {"wgrad-deferral-limit", "", detail::nothing_overlaps},
    {"no-gradient-accumulation-fusion", "", detail::fused_when_compiled},
    {"microbatch-group-size-per-virtual-pipeline-stage", "", detail::pp_compiled},
    {"pipeline-model-parallel-layout", "", detail::pp_compiled},
    {"mtp-standalone", "", detail::pp_compiled},
    // Megatron-LM: replicas and their communication
    {"overlap-grad-reduce", "", detail::nothing_overlaps},
    {"overlap-param-gather*", "", detail::nothing_overlaps},
    {"no-align-*", "", detail::nothing_overlaps},
    {"disable-align-grad-reduce", "", detail::nothing_overlaps},
    {"create-all-gather-group", "", detail::nothing_overlaps},
    {"ddp-average-in-collective", "", detail::summed_and_divided},
    {"no-gradient-reduce-div-fusion", "", detail::summed_and_divided},
    {"ddp-reduce-scatter-with-fp32-accumulation", "", detail::summed_in_fp32},
    {"ddp-param-name-patterns-for-fp32-local-accumulation", "", detail::summed_in_fp32},
    {"ddp-*", "", detail::no_buckets},
    {"suggested-communication-unit-size", "", detail::no_buckets},
    {"no-use-layer-wise-param-layout", "", detail::no_buckets},
    {"data-parallel-sharding-strategy", "", detail::zero_compiled},
    {"outer-dp-sharding-strategy", "", detail::zero_compiled},
    {"enable-full-sharding-in-hsdp", "", detail::zero_compiled},
    {"use-megatron-fsdp", "", detail::zero_compiled},
    {"use-custom-fsdp", "", detail::zero_compiled},
    {"use-torch-fsdp2", "", detail::zero_compiled},
    {"torch-fsdp2-*", "", detail::zero_compiled},
    {"megatron-fsdp-*", "", detail::zero_compiled},
    {"fsdp-*", "", detail::zero_compiled},
    {"keep-fp8-transpose-cache", "", detail::zero_compiled},
    {"distributed-backend", "", detail::own_communicator},
    {"local-rank", "", detail::own_communicator},
    {"lazy-mpu-init", "", detail::own_communicator},
    {"fake-process-group", "", detail::describes_ranks},
    {"use-nccl-ub", "", detail::own_communicator},
    {"disable-symmetric-registration", "", detail::own_communicator},
    {"nccl-communicator-config-path", "", detail::own_communicator},
    {"high-priority-stream-groups", "", detail::own_communicator},
    {"disable-gloo-process-groups", "", detail::own_communicator},
    {"use-sharp", "", detail::own_communicator},
    {"sharp-enabled-group", "", detail::own_communicator},
    {"inference-fuse-tp-communication", "", detail::own_communicator},
    {"use-tp-pp-dp-mapping", "", detail::one_rank_order},
    {"distributed-timeout-minutes", "", detail::timeout_in_seconds},
    {"distributed-timeout-seconds-after-init", "collective-timeout", ""},
    {"flight-recorder-*", "", detail::says_who_waits},
    {"no-flight-recorder-*", "", detail::says_who_waits},
    {"disable-flight-recorder-*", "", detail::says_who_waits},
    {"disable-jit-fuser", "", detail::fused_when_compiled},
    // Megatron-LM: memory elsewhere
    {"cpu-offloading*", "", detail::nothing_offloaded},
    {"fine-grained-*", "", detail::nothing_offloaded},
    {"offload-modules", "", detail::nothing_offloaded},
    {"activation-offload-fraction", "", detail::nothing_offloaded},
    {"delay-offload-until-cuda-graph", "", detail::nothing_offloaded},
    {"delta-offload-bytes-across-pp-ranks", "", detail::nothing_offloaded},
    {"min-offloaded-tensor-size", "", detail::nothing_offloaded},
    {"optimizer-cpu-offload", "", detail::nothing_offloaded},
    {"optimizer-offload-fraction", "", detail::nothing_offloaded},
    {"overlap-cpu-optimizer-d2h-h2d", "", detail::nothing_offloaded},
    {"use-torch-optimizer-for-cpu-offload", "", detail::nothing_offloaded},
    {"no-pin-cpu-*", "", detail::nothing_offloaded},
});

/// A name with - for _.
inline std::string dashed(std::string_view name) {
  std::string text(name);
  std::replace(text.begin(), text.end(), '_', '-');
  return text;
}

/// The entry of a name, which may have _ for -; null for an unknown one.
inline const foreign_flag* find_foreign(std::string_view name) {
  const std::string wanted = dashed(name);
  const foreign_flag* found = nullptr;
  for (const foreign_flag& f : foreign_flags) {
    if (f.name == wanted) return &f;
    const bool begins =
        f.name.ends_with('*') && wanted.starts_with(f.name.substr(0, f.name.size() - 1));
    if (begins && (found == nullptr || found->name.size() < f.name.size())) found = &f;
  }
  return found;
}

} // namespace mc
