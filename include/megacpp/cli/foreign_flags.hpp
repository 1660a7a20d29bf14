// The flags of other programs, and what each of them is here: Megatron-LM, nanoGPT, transformers'
// TrainingArguments and generate, torchtitan, and PyTorch Lightning. A command line of Megatron-LM
// can be reused: a flag that changes no result there, or changes results as it does here, is taken.
// All other names are refused with a sentence. Flags that have the same name here stand in
// options/.
#pragma once

#include <megacpp/cli/foreign_flag.hpp>

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <string_view>

namespace mc {

namespace detail {
inline constexpr std::string_view
    one_way = "there is one way to do this here, which no flag changes: leave it out",
    in_fp32 = "gradients, updated weights and moments are fp32 or wider: leave it out",
    of_model =
        "a build decides the numbers of the model: MODEL or HF_CONFIG of megacpp_add_preset, "
        "the config.json of examples/build_preset.sh, or the struct of megacpp_add_run",
    always_adamw =
        "the optimizer is AdamW, of --adam-beta1, --adam-beta2, --adam-eps and --weight-decay",
    one_decay = "--weight-decay is the same at each step",
    one_order = "all windows of the data are read once, in an order that --seed draws, then again",
    pairs_of_files = "data sets are pairs of files, .bin and .idx";

/// Flags that are taken, since nothing here depends on them: they choose kernels, communication,
/// memory, the reading of data, the writing of states, and logs. The first ones take no value.
inline constexpr std::string_view
    idle_switches =
        "align-grad-reduce align-param-gather async-save async-tensor-model-parallel-allreduce "
        "attention-softmax-in-fp32 auto-detect-ckpt-format calculate-per-token-loss "
        "ckpt-assume-constant-structure ckpt-fully-parallel-load ckpt-fully-parallel-save "
        "create-all-gather-group cross-entropy-loss-fusion dataloader-defer-npy-index-mmap "
        "dataloader-fast-cache-load ddp-average-in-collective ddp-pad-buckets-for-high-nccl-busbw "
        "ddp-reduce-scatter-with-fp32-accumulation defer-embedding-wgrad-compute delay-grad-reduce "
        "delay-wgrad-compute deterministic-mode disable-align-grad-reduce "
        "disable-bf16-reduced-precision-matmul disable-flight-recorder-dump-on-timeout "
        "disable-flight-recorder-extra-dump-on-exec disable-flight-recorder-include-only-active "
        "disable-gloo-process-groups disable-jit-fuser disable-straggler-on-startup "
        "disable-symmetric-registration disable-tp-comm-bulk-dgrad disable-tp-comm-bulk-wgrad "
        "disable-tp-comm-overlap-ag disable-tp-comm-overlap-rs disable-tp-comm-split-ag "
        "disable-tp-comm-split-rs dist-ckpt-optim-fully-reshardable enable-cuda-graph "
        "enable-gloo-process-groups ep-overlap-early-attn-memory-release external-cuda-graph "
        "flight-recorder-include-stack-trace fused-residual-rmsnorm fused-single-qkv-rope "
        "high-priority-a2a-comm-stream inference-rng-tracker log-batch-size-to-tensorboard "
        "log-device-memory-used log-energy log-learning-rate-to-tensorboard "
        "log-max-attention-logit log-memory-to-tensorboard log-num-zeros-in-grad log-params-norm "
        "log-progress log-straggler log-throughput log-timers-to-tensorboard "
        "log-validation-ppl-to-tensorboard log-world-size-to-tensorboard manual-gc "
        "memory-efficient-layer-norm mmap-warmup moe-enable-deepep "
        "moe-pad-expert-input-to-capacity moe-per-layer-logging moe-permute-fusion "
        "moe-router-fusion moe-shared-expert-overlap no-align-grad-reduce no-align-param-gather "
        "no-async-tensor-model-parallel-allreduce no-barrier-with-level-1-timing "
        "no-bias-dropout-fusion no-bias-swiglu-fusion no-ckpt-fully-parallel-save "
        "no-contiguous-buffers-in-local-ddp no-create-attention-mask-in-dataloader "
        "no-flight-recorder-dump-on-timeout no-flight-recorder-extra-dump-on-exec "
        "no-flight-recorder-include-only-active no-gradient-accumulation-fusion "
        "no-gradient-reduce-div-fusion no-load-rng no-log-learnig-rate-to-tensorboard "
        "no-log-learning-rate-to-tensorboard no-log-loss-scale-to-tensorboard no-manual-gc-eval "
        "no-masked-softmax-fusion no-mmap-bin-files no-one-logger no-overlap-p2p-communication "
        "no-pad-vocab-size no-persist-layer-norm no-query-key-layer-scaling no-rope-fusion "
        "no-save-rng no-scaled-masked-softmax-fusion no-scatter-gather-tensors-in-pipeline "
        "no-tp-comm-bulk-dgrad no-tp-comm-bulk-wgrad no-tp-comm-overlap-ag no-tp-comm-overlap-rs "
        "no-tp-comm-split-ag no-tp-comm-split-rs no-use-layer-wise-param-layout "
        "no-use-tokenizer-model-from-checkpoint-args nvtx-ranges one-logger-async "
        "overlap-dispatch-backward-with-experts-wgrad overlap-grad-reduce "
        "overlap-moe-expert-parallel-comm overlap-p2p-communication-warmup-flush "
        "overlap-param-gather overlap-param-gather-with-optimizer-step override-lr-scheduler "
        "override-opt-param-scheduler override-opt_param-scheduler "
        "pytorch-profiler-collect-callstack pytorch-profiler-collect-chakra "
        "pytorch-profiler-collect-shapes record-memory-history record-shapes te-rng-tracker "
        "tokenizer-hf-no-use-fast tp-comm-overlap tp-comm-overlap-rs-dgrad trust-remote-code "
        "use-checkpoint-args use-contiguous-buffers-in-ddp use-contiguous-buffers-in-local-ddp "
        "use-cpu-initialization use-dist-ckpt use-flash-attn use-mcore-models "
        "use-mp-args-from-checkpoint-args use-nccl-ub use-persistent-ckpt-worker "
        "use-precision-aware-optimizer use-pytorch-profiler use-ring-exchange-p2p use-sharp "
        "use-transformer-engine-op-fuser",
    idle_values =
        "app-tag-run-name app-tag-run-version async-strategy attention-backend "
        "check-weight-hash-across-dp-replicas-interval ckpt-format cross-entropy-fusion-impl "
        "cuda-graph-impl cuda-graph-warmup-steps ddp-bucket-size DDP-impl ddp-num-buckets "
        "dist-ckpt-format dist-ckpt-strictness dist-ckpt-workers distributed-backend "
        "empty-unused-memory-level flash-attention-version flight-recorder-dump-path "
        "flight-recorder-trace-buffer-size hysteresis initial-loss-scale local-rank local_rank "
        "log-memory-interval logging-level loss-scale-window make-vocab-size-divisible-by "
        "manual-gc-interval memory-snapshot-path min-loss-scale moe-deepep-num-sms "
        "moe-flex-dispatcher-backend moe-hybridep-num-sms moe-token-dispatcher-type "
        "nccl-communicator-config-path num-dataset-builder-threads "
        "num-distributed-optimizer-instances num-workers one-logger-project one-logger-run-name "
        "pipeline-model-parallel-comm-backend rerun-mode sharp-enabled-group straggler-ctrlr-port "
        "straggler-minmax-count suggested-communication-unit-size "
        "tensorboard-queue-size timing-log-level timing-log-option "
        "tp-comm-bootstrap-backend tp-comm-overlap-cfg train-sync-interval transformer-impl "
        "wandb-entity wandb-exp-name wandb-project wandb-save-dir wgrad-deferral-limit",
    idle_lists =
        "cp-comm-type cuda-graph-modules cuda-graph-scope "
        "ddp-param-name-patterns-for-fp32-local-accumulation high-priority-stream-groups "
        "profile-ranks";
} // namespace detail

/// The flags that a program of a run knows.
inline constexpr auto foreign_flags = [] {
  using namespace detail;
  return std::to_array<foreign_row>({
      idle(no_value, idle_switches),
      idle(1, idle_values),
      idle(several_values, idle_lists),
      // Taken for a flag of this program.
      same_as("tensor-model-parallel-size", "model-parallel-size"),
      same_as("seq-length", "encoder-seq-length"),
      same_as("num-layers", "encoder-num-layers"),
      same_as("vocab-size", "padded-vocab-size"),
      same_as("norm-epsilon", "layernorm-epsilon"),
      same_as("save-interval", "persistent-save-interval"),
      same_as("recompute-method", "activations-checkpoint-method"),
      same_as("collective-timeout", "distributed-timeout-seconds-after-init"),
      same_as("collective-timeout", "distributed-timeout-minutes", 60),
      given_as("recompute-granularity", "full", "checkpoint-activations"),
      given_as("position-embedding-type", "rope", "use-rotary-position-embeddings"),
      // Taken with the values that say what every program does.
      idle_if("single", "dataloader-type", one_order),
      idle_if("0.005", "mid-level-dataset-surplus", one_order),
      idle_if("mmap|infer", "data-impl", pairs_of_files),
      idle_if("adam", "optimizer", always_adamw),
      idle_if("constant", "weight-decay-incr-style", one_decay),
      idle_if("0", "lr-warmup-init", "the learning rate rises from 0"),
      idle_if("fp32", "main-grads-dtype main-params-dtype exp-avg-dtype exp-avg-sq-dtype", in_fp32),
      idle_if("0", "vocab-extra-ids", of_model),
      idle_if("vanilla", "softmax-type", "no family of models has it; a family of your own may"),
      {.names = "no-load-optim",
       .values = no_value,
       .reason = "--finetune takes the weights of --load and nothing else",
       .beside = "finetune"},
      // Refused: the length of a run, its batches, and its learning rate.
      means("train-iters",
            "max-iters max-steps steps num-steps iters iterations training.steps train-steps"),
      refused("num-train-epochs num-epochs max-epochs",
              "--train-iters gives steps, and --epochs how often all conversations are read"),
      refused("exit-interval",
              "--train-iters says where a run ends, and --lr-decay-iters where its decay does"),
      refused("skip-train eval-only", "the command eval measures a model, and train always trains"),
      means("global-batch-size", "training.global-batch-size"),
      built_by("MICRO_BATCH",
               "batch-size per-device-train-batch-size per-device-eval-batch-size train-batch-size "
               "micro-batch local-batch-size training.local-batch-size training.batch-size",
               "--global-batch-size is of a step, and a build decides the micro-batch"),
      refused("total-batch-size", "--global-batch-size counts sequences, not tokens"),
      refused("gradient-accumulation-steps accumulate-grad-batches grad-accum-steps",
              "a step has as many micro-batches as the sequences of --global-batch-size make"),
      refused("decrease-batch-size-if-needed",
              "--global-batch-size must be a multiple of what all replicas take at once"),
      refused("step-batch-size-schedule",
              "--rampup-batch-size lets the sequences of a step grow, from START by INCREMENT"),
      means("lr", "learning-rate max-lr optimizer.lr"),
      means("min-lr", "min-learning-rate"),
      refused("decoupled-lr decoupled-min-lr",
              "--lr and --min-lr are those of all parameters: leave it out"),
      means("lr-warmup-iters",
            "warmup-steps warmup-iters num-warmup-steps lr-scheduler.warmup-steps"),
      refused("warmup-ratio",
              "--lr-warmup-iters gives it in steps, --lr-warmup-fraction as a share of the decay"),
      refused("decay-lr", "--lr-decay-style constant keeps the learning rate as it is"),
      means("lr-decay-style", "lr-scheduler-type lr-scheduler scheduler"),
      refused("use-checkpoint-opt-param-scheduler use-checkpoint-lr-scheduler",
              "a run that goes on keeps its schedule, unless a flag changes it: leave it out"),
      means("clip-grad", "max-grad-norm grad-clip gradient-clip-val training.max-norm max-norm"),
      means("adam-beta1", "beta1"),
      means("adam-beta2", "beta2"),
      means("adam-eps", "adam-epsilon eps optimizer.eps"),
      means("weight-decay", "wd optimizer.weight-decay"),
      refused("start-weight-decay end-weight-decay", one_decay),
      refused("no-decoupled-weight-decay optim optimizer.name", always_adamw),
      refused("loss-scale grad-reduce-in-bf16", in_fp32),
      // States, data and reports.
      means("save", "output-dir out-dir out output dump-folder checkpoint.folder save-dir"),
      means("save-interval", "save-steps save-every checkpoint.interval"),
      means("keep-latest-k", "save-total-limit checkpoint.keep-latest-k"),
      means("load", "checkpoint model model-name-or-path model-path"),
      refused("resume resume-from-checkpoint init-from always-save-checkpoint",
              "--load names the folder to go on from, --save the one to write; both may be one"),
      refused("ckpt-step",
              "--load takes the folder of one step, as ROOT/iter_0000400, or ROOT for the newest"),
      refused("exit-on-missing-checkpoint",
              "a --load without a model or state is refused, unless --save names it, too: leave it "
              "out"),
      refused("no-save-optim",
              "leave it out; --finetune and the command export take the weights alone"),
      means("data-path", "data train-file input"),
      refused("dataset data-dir dataset-name",
              "--data-path names a file, or a data set on disk: none is downloaded by its name"),
      refused("sft", "--data-type chat trains on conversations"),
      means("tokenizer-model", "tokenizer-name"),
      refused("tiktoken-pattern", "the name of a .tiktoken file says its rules: leave it out"),
      means("eval-interval", "eval-steps"),
      means("eval-iters", "eval-batches"),
      means("log-interval", "logging-steps log-every log-freq metrics.log-freq"),
      refused("report-to",
              "--metrics-jsonl writes the numbers of each step, and --loss-curve draws the loss"),
      means("seed", "random-seed training.seed"),
      means("threads", "nthreads num-threads"),
      refused("no-check-for-nan-in-loss-and-grad",
              "a loss or a gradient that is not finite ends a run: leave it out"),
      refused("flight-recorder-* no-flight-recorder-* disable-flight-recorder-*",
              "a rank that waits too long names the other, and the line: leave it out"),
      // Texts.
      means("max-new-tokens", "max-tokens out-seq-length"),
      refused("max-length", "--max-new-tokens counts new tokens, without those of the prompt"),
      means("prompt", "start"),
      means("temperature", "temp"),
      means("top-k", "topk top-k-sampling"),
      means("top-p", "topp top-p-sampling"),
      refused("do-sample", "tokens are drawn at random unless --greedy is given"),
      means("num-samples", "num-return-sequences"),
      means("stop-tokens", "eos-token-id"),
      means("stop", "stop-strings"),
      // Decided by a build.
      built_by("SEQUENCE",
               "block-size sequence-length seq-len max-seq-length training.seq-len sequence"),
      built_by("TP",
               "tp tp-size tensor-parallel-size tensor-parallel-degree "
               "parallelism.tensor-parallel-degree tensor-parallel-num-weight-shards "
               "expert-tensor-parallel-num-weight-shards gtp-*"),
      built_by("PP",
               "pp pp-size pipeline-parallel-size pipeline-parallel-degree "
               "parallelism.pipeline-parallel-degree pipeline-model-parallel-layout mtp-standalone "
               "microbatch-group-size-per-virtual-pipeline-stage"),
      built_by("CP",
               "cp context-parallel-degree parallelism.context-parallel-degree "
               "hierarchical-context-parallel-sizes hybrid-context-parallel "
               "max-seqlen-per-dp-cp-rank"),
      built_by("EP",
               "ep expert-parallel-size expert-parallel-degree parallelism.expert-parallel-degree"),
      built_by("ETP",
               "etp expert-tensor-parallel-degree parallelism.expert-tensor-parallel-degree"),
      refused("dp data-parallel-size data-parallel-shard-degree "
              "parallelism.data-parallel-shard-degree parallelism.data-parallel-replicate-degree",
              "ranks that nothing else uses are data parallel, without a flag"),
      built_by("SEQUENCE_PARALLEL", "sp distribute-saved-activations"),
      built_by("ZERO",
               "data-parallel-sharding-strategy outer-dp-sharding-strategy "
               "enable-full-sharding-in-hsdp use-megatron-fsdp use-custom-fsdp use-torch-fsdp2 "
               "torch-fsdp2-* megatron-fsdp-* fsdp-* keep-fp8-transpose-cache",
               "replicas share nothing, or the optimizer's state, as a build decides"),
      built_by("PRECISION",
               "precision dtype mixed-precision fp32 fp8-* fp4-* first-last-layers-bf16"),
      {.names = "torch-dtype", .ours = "dtype", .build = "PRECISION"},
      built_by("PRECISION bf16_mixed", "fp16 fp16-lm-cross-entropy",
               "no program computes in fp16; bf16 has its width and the range of fp32"),
      built_by("NUMERICS", "batch-invariant-mode"),
      built_by("RECOMPUTE",
               "recompute gradient-checkpointing activation-checkpoint.mode moe-layer-recompute "
               "mhc-recompute-layer-num recompute-modules"),
      built_by("RECOMPUTE",
               "moe-paged-stash* cpu-offloading* fine-grained-* offload-modules "
               "activation-offload-fraction delay-offload-until-cuda-graph "
               "delta-offload-bytes-across-pp-ranks min-offloaded-tensor-size "
               "optimizer-cpu-offload optimizer-offload-fraction overlap-cpu-optimizer-d2h-h2d "
               "use-torch-optimizer-for-cpu-offload no-pin-cpu-*",
               "nothing moves to the memory of another device; recomputation saves memory"),
      built_by("DEVICE", "no-cuda use-cpu"),
      refused("n-layer n-head n-embd n-layers n-heads dim d-model layers heads dropout bias "
              "config-name window-size window-attn-skip-freq rotary-interleaved "
              "rotary-scaling-factor yarn-* mscale*",
              of_model),
      refused(
          "moe-expert-rank-capacity-factor",
          "a build decides the rows: expert_rows of the batch in the struct of megacpp_add_run"),
      // Absent from every program, or the same in all.
      refused("apply-residual-connection-post-layernorm squared-relu quick-geglu "
              "multi-latent-attention mtp-num-layers moe-* apply-layernorm-1p moe-use-upcycling "
              "moe-upcycling-granularity",
              "no family of models has it; a family of your own may"),
      refused("moe-pad-* moe-router-padding-* moe-deepep-* moe-flex-* moe-hybridep-* moe-ncclep-* "
              "moe-dispatch-* moe-combine-* moe-permute-fusion-into-hybridep inference-moe-* "
              "moe-use-grouped-tensor moe-single-grouped-* moe-mlp-glu-interleave-size "
              "moe-shared-expert-glu-interleave-size use-grouped-gemm-for-shared-expert tp-comm-* "
              "no-tp-comm-* disable-tp-comm-* overlap-param-gather* no-align-* ddp-* lazy-mpu-init "
              "inference-fuse-tp-communication use-tp-pp-dp-mapping data-parallel-random-init "
              "apply-query-key-layer-scaling",
              one_way),
      refused("fake-process-group",
              "the command describe plans the memory and communication of all ranks on one"),
  });
}();

static_assert(std::ranges::all_of(foreign_flags, [](const foreign_row& row) {
  return row.build.empty() || row.key() != nullptr;
}));

/// The flags of Megatron-LM's tools/preprocess_data.py, for megacpp-data.
inline constexpr auto preprocess_flags = [] {
  using namespace detail;
  return std::to_array<foreign_row>({
      idle(1, "log-interval lang make-vocab-size-divisible-by"),
      idle(no_value, "keep-sequential-samples trust-remote-code"),
      same_as("tokenizer", "tokenizer-model"),
      same_as("vocab-file", "vocab"),
      same_as("json-keys", "json-key"),
      given_as("add-special-tokens", "false", "tokenizer-hf-no-include-special-tokens"),
      idle_if("mmap", "dataset-impl", pairs_of_files),
      idle_if("0", "vocab-extra-ids", "a tokenizer has the tokens of its files"),
      idle_if("1", "partitions", "documents keep the order of the lines of --input: leave it out"),
      refused("tokenizer-hf-no-use-fast", "texts are encoded as transformers' fast tokenizers do"),
      refused("split-sentences keep-newlines",
              "a document is one sequence of tokens, not cut into sentences"),
      refused("find-optimal-num-workers workers-to-check max-documents",
              "--workers gives the threads, on which no result depends: leave it out"),
      refused("tiktoken-num-special-tokens", "--special-tokens names those of a .tiktoken file"),
  });
}();

/// A name of another program's flag, and its row; no row: it is unknown.
struct foreign_flag {
  std::string_view name;
  const foreign_row* row = nullptr;
};

/// Returns the flag of a name, which may have _ for -, that another program has for a command.
inline foreign_flag find_foreign(std::string_view name, command c = command::all) {
  const std::string wanted = dashed(std::string(name));
  foreign_flag same, begin; // the longest begin counts
  const auto look = [&](std::span<const foreign_row> rows) {
    for (const foreign_row& row : rows)
      each_between(row.names, ' ', [&](std::string_view one) {
        if (one == name || (one == wanted && same.row == nullptr)) same = {one, &row};
        if (one.ends_with('*') && one.size() > begin.name.size() &&
            wanted.starts_with(one.substr(0, one.size() - 1)))
          begin = {one, &row};
      });
  };
  if (overlaps(c, command::all)) look(foreign_flags);
  else look(preprocess_flags);
  return same.row != nullptr ? same : begin;
}

} // namespace mc
