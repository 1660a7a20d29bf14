// The form of an entry about a flag that another program has, and sentences that several entries
// share.
#pragma once

#include <string_view>

namespace mc {

/// Values of a flag elsewhere: none, so many, or as many as follow.
inline constexpr int is_switch = 0, one_value = 1, several_values = 1 << 20;

/// An entry says what a flag of another program is here. It has `ours`, or a sentence, or both: the
/// sentence is then for commands that lack the flag, and begins with what is said to all commands.
/// A name that ends in * stands for all flags that begin so and have no entry of their own.
struct foreign_flag {
  std::string_view name; ///< elsewhere, with dashes
  std::string_view ours; ///< that means it here; "" is none
  std::string_view says;
  /// Values, with | between, with which it changes nothing here, so that it is taken: "*" is any,
  /// "" none.
  std::string_view idle{};
  int words = one_value;
  std::string_view beside{}; ///< any value changes nothing beside this flag of ours
  /// It is taken for `ours`: so many times its value, or this value.
  int times = 0;
  std::string_view fixed{};

  constexpr bool is_honoured() const { return times > 0 || !fixed.empty(); }
  /// True if a command line may have the flag.
  constexpr bool is_taken() const { return is_honoured() || !idle.empty() || !beside.empty(); }
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
    rows_compiled =
        "rows that go to a rank's experts at once are compiled in: expert_rows of the batch in the "
        "struct of megacpp_add_run",
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
    says_who_waits = "a rank that waits in vain says for which, and at which line of the model",
    summed_in_fp32 = "gradients are kept and summed in fp32 or wider: leave it out",
    no_buckets = "gradients are reduced in ranges of one store, once a step: there are no buckets",
    zero_compiled =
        "what replicas share is compiled in, nothing or the optimizer's state: ZERO of "
        "megacpp_add_preset, zero= of examples/build_preset.sh, or the struct of megacpp_add_run",
    no_fp16 =
        "no program computes in fp16; bf16 has its width and the range of fp32: PRECISION "
        "bf16_mixed of megacpp_add_preset, precision=bf16_mixed of examples/build_preset.sh, or "
        "the "
        "struct of megacpp_add_run, and --bf16",
    kept_in_fp32 = "weights that are updated and their moments are fp32 or wider: leave it out",
    no_loss_scale = "gradients have the range of fp32, so that no loss is scaled: leave it out",
    batch_divides = "--global-batch-size must be a multiple of what all replicas take at once",
    given_flags_win =
        "a run that goes on keeps the schedule of its state, but for flags that are given: leave "
        "these out",
    gains_as_they_are = "the gains of norms are stored as they are, not less 1: leave it out",
    not_cut_into_sentences = "a document is one sequence of tokens, not cut into sentences",
    workers_by_cores =
        "--workers gives the threads, by default one a core, and results do not depend on it: "
        "leave "
        "it out";
} // namespace detail

} // namespace mc
