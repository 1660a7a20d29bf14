// Every flag of a megacpp program, once: a member of one of the groups below. Command line, files
// of flags, help, printing and checks read the members from here (Boost.Hana). The constructor of a
// group gives defaults, ranges and explanations. Names are those of Megatron-LM with _ for -.
#pragma once

#include <megacpp/config/config.hpp>
#include <megacpp/options/compiled_flags.hpp>
#include <megacpp/request/tokenizer_request.hpp>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include <boost/hana/accessors.hpp>
#include <boost/hana/core/to.hpp>
#include <boost/hana/define_struct.hpp>
#include <boost/hana/first.hpp>
#include <boost/hana/for_each.hpp>
#include <boost/hana/second.hpp>
#include <boost/hana/string.hpp>
#include <boost/hana/tuple.hpp>

namespace mc {

namespace detail {
/// Gives all flags of a group their commands and their way across runs.
template <class Group> void belong_to(Group& group, command c, on_resume how) {
  boost::hana::for_each(boost::hana::accessors<Group>(), [&](auto member) {
    boost::hana::second(member)(group).belongs_to(c, how);
  });
}
inline constexpr command reading = command::train | command::eval,
                         running = reading | command::generate;
} // namespace detail

struct model_flags {
  BOOST_HANA_DEFINE_STRUCT(model_flags, (text_flag, load), (switch_flag, random_weights),
                           (switch_flag, finetune), (whole_flag, seed), (text_flag, dtype),
                           (text_flag, max_shard_size));
  model_flags() {
    detail::belong_to(*this, command::train, on_resume::unsaved);
    load.is("",
            "the folder to start from. eval, generate and export need one, unless weights are "
            "random. A folder that train --save wrote: train goes on where its newest whole state "
            "ends; if there is none and --save names the folder, too, train begins. A Hugging Face "
            "model folder: train begins with its weights. describe lists the states in the folder "
            "in place of the model")
        .of(command::all);
    random_weights
        .is(false,
            "generate with the weights that a new run begins with in place of those of --load, to "
            "measure speed; needs --ids")
        .of(command::generate);
    finetune.is(false,
                "take the weights of --load alone: a new run, with its own optimizer, schedule, "
                "data and first step");
    seed.is(1234,
            "the seed of initial weights, the order of the data, dropout, and sampling. One seed "
            "gives the same bits, whatever --threads is")
        .within(0, std::numeric_limits<std::int64_t>::max())
        .of(command::train | command::generate, on_resume::must_match);
    dtype.is("stored", "the type of the exported weights; stored: each tensor keeps its own")
        .one_of("stored|fp32|bf16|fp64")
        .of(command::convert);
    max_shard_size
        .is("5GB",
            "the most bytes of tensors in one file of a model: a number with KB, MB, GB, TB or "
            "KiB, MiB, GiB, TiB. A larger model has several files and an index")
        .of(command::train | command::convert, on_resume::may_change);
  }
};

struct data_flags {
  BOOST_HANA_DEFINE_STRUCT(data_flags, (texts_flag, data_path), (text_flag, data_type),
                           (text_flag, split), (texts_flag, train_data_path),
                           (texts_flag, valid_data_path), (texts_flag, test_data_path),
                           (text_flag, data_args_path), (text_flag, per_split_data_args_path),
                           (text_flag, data_cache_path), (text_flag, tokenizer_type),
                           (text_flag, tokenizer_model), (text_flag, vocab_file),
                           (text_flag, merge_file), (switch_flag, reset_position_ids),
                           (switch_flag, reset_attention_mask), (switch_flag, eod_mask_loss),
                           (text_flag, eod_token), (text_flag, chat_loss),
                           (switch_flag, mock_data));
  data_flags() {
    detail::belong_to(*this, detail::reading, on_resume::must_match);
    data_path
        .is({},
            "the data to train on or to evaluate: a file, or prefixes of indexed data sets "
            "(Megatron-LM's .bin and .idx). A weight may stand before each prefix; eval ignores "
            "weights, and measures each data set and all of them together")
        .many()
        .resumes(on_resume::may_change);
    data_type
        .is("text",
            "the content of a file. text: bytes, which --tokenizer-type makes tokens of. u16, i32: "
            "token ids, little-endian, without a header. indexed: a data set of .bin and .idx. "
            "chat: conversations, one JSON object a line",
            "indexed where there is PATH.idx, else text")
        .one_of("text|u16|i32|indexed|chat");
    split.is("969,30,1",
             "the shares of a file's tokens, or of a data set's documents, for training, "
             "validation and test. eval measures the validation share. train measures the test "
             "share of data sets at its end; no command reads that of a file",
             "969,30,1; for eval all");
    train_data_path.is({}, "data sets to train on, in place of a share of --data-path")
        .many()
        .of(command::train, on_resume::may_change);
    valid_data_path.is({}, "data sets to validate with, beside --train-data-path")
        .many()
        .of(command::train, on_resume::may_change);
    test_data_path.is({}, "data sets to measure at the end, beside --train-data-path")
        .many()
        .of(command::train, on_resume::may_change);
    data_args_path.is("", "a file with the arguments of --data-path")
        .resumes(on_resume::may_change);
    per_split_data_args_path
        .is("",
            "a JSON file {\"train\": [...], \"valid\": [...], \"test\": [...]} with the arguments "
            "of --train-data-path, --valid-data-path and --test-data-path")
        .of(command::train, on_resume::may_change);
    data_cache_path
        .is("", "a folder that keeps the order of the samples of data sets for the next start")
        .resumes(on_resume::unsaved);
    tokenizer_type
        .is("byte",
            "how texts become tokens. byte: each byte is a token. char: the distinct bytes of the "
            "file are the tokens, sorted and numbered from 0; the model's folder keeps their list "
            "as characters.json. The other names are Megatron-LM's: HuggingFaceTokenizer reads "
            "--tokenizer-model, GPT2BPETokenizer --vocab-file and --merge-file, TikTokenizer a "
            ".tiktoken file; NullTokenizer is for token ids, the last of which ends a document. "
            "eval and generate take the tokenizer of the state. Data sets have their ids already, "
            "so that beside them the names of SentencePiece's tokenizers are taken, too; nothing "
            "reads their files",
            "that of --tokenizer-model or of the folder --load, else as --load was saved, else "
            "byte; must be given for a vocabulary above 256")
        .one_of(tokenizer_types)
        .of(detail::reading | command::generate);
    tokenizer_model
        .is("",
            "the folder of a Hugging Face model, or a tokenizer.json, or a .tiktoken file; its "
            "files are saved with the model")
        .of(detail::reading | command::generate, on_resume::may_change);
    vocab_file.is("", "GPT-2's vocab.json, with --merge-file in place of --tokenizer-model")
        .of(detail::reading | command::generate, on_resume::may_change);
    merge_file.is("", "GPT-2's merges.txt")
        .of(detail::reading | command::generate, on_resume::may_change);
    reset_position_ids.is(false, "positions begin anew behind the end of a document");
    reset_attention_mask.is(
        false, "attention stays within a document; the program must be built with PACKED");
    eod_mask_loss.is(false, "tokens that follow the end of a document are not learned");
    eod_token.is("", "the token that ends a document, for the three flags before this one",
                 "<|endoftext|>, <|end_of_text|> or </s>, the first that there is; of "
                 "HuggingFaceTokenizer the eos_token of tokenizer_config.json");
    chat_loss
        .is("assistant",
            "the tokens of conversations that are learned: those of the assistant, or all")
        .one_of("assistant|all");
    mock_data.is(false, "train on random tokens in place of a file, to measure speed")
        .of(command::train);
  }
};

struct training_flags {
  BOOST_HANA_DEFINE_STRUCT(training_flags, (whole_flag, train_iters), (whole_flag, train_samples),
                           (whole_flag, epochs), (whole_flag, global_batch_size),
                           (text_flag, rampup_batch_size), (text_flag, save),
                           (whole_flag, save_interval), (whole_flag, keep_latest_k),
                           (switch_flag, keep_best), (switch_flag, exit_signal_handler),
                           (real_flag, exit_duration_in_mins), (whole_flag, eval_interval),
                           (whole_flag, eval_iters), (switch_flag, full_validation),
                           (switch_flag, multiple_validation_sets), (whole_flag, sample_interval),
                           (text_flag, sample_prompt));
  training_flags() {
    detail::belong_to(*this, command::train, on_resume::may_change);
    train_iters.is(1000, "steps of the optimizer").at_least(1);
    train_samples.is(0, "sequences to train on, in place of --train-iters", "").at_least(1);
    epochs.is(0, "how often all conversations are read, in place of --train-iters", "").at_least(1);
    global_batch_size
        .is(0,
            "sequences of one step: a multiple of the compiled micro-batch. A step adds up the "
            "gradients of its micro-batches. For eval, the sequences that --eval-iters counts by",
            "the micro-batch; for eval that of the state")
        .within(1, std::int64_t{1} << 31)
        .of(command::train | command::eval);
    rampup_batch_size
        .is("",
            "the sequences of a step grow from START by INCREMENT to --global-batch-size; the "
            "first SAMPLES sequences of the run are shared equally among the smaller sizes",
            "every step has --global-batch-size")
        .whole_numbers(3, "START INCREMENT SAMPLES");
    save.is("",
            "the folder for the states of the run (weights, optimizer, step, position in the data, "
            "flags), each in a folder of its own: at the end, when a signal ends the run, and "
            "every --save-interval steps. For export, the Hugging Face folder to write")
        .of(command::train | command::convert, on_resume::unsaved);
    save_interval.is(0, "steps between states; 0: one at the end alone").at_least(0);
    keep_latest_k
        .is(10,
            "states to keep: an older one is removed once a new one is on the disk; 0: all. (The "
            "name is torchtitan's; Megatron-LM keeps all.)")
        .at_least(0);
    keep_best.is(false,
                 "also keep the state of the lowest validation loss, in the folder best of --save. "
                 "All evaluations measure the same samples then");
    exit_signal_handler
        .is(true,
            "SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGXCPU end the run behind the micro-batch under "
            "way: it saves its state and exits with code 10. A second SIGINT or SIGTERM after a "
            "second ends the program at once; with false, the first one does")
        .resumes(on_resume::unsaved);
    exit_duration_in_mins
        .is(0,
            "minutes after which the run saves its state, at the end of a step, and exits with "
            "code 0",
            "no limit")
        .above(0, 1e9)
        .resumes(on_resume::unsaved);
    eval_interval
        .is(1000, "steps between evaluations of the validation data; one more comes at the end")
        .at_least(1);
    eval_iters
        .is(0,
            "batches of --global-batch-size in one evaluation; 0: no evaluation. They are spread "
            "evenly over the validation share of a text; of data sets each evaluation reads the "
            "samples behind those of the last one. eval measures what the evaluation at the step "
            "of its state did",
            "the whole part")
        .at_least(0)
        .of(command::train | command::eval);
    full_validation.is(false, "each evaluation reads all validation data, as without --eval-iters");
    multiple_validation_sets
        .is(false,
            "with --eval-iters: measure as many batches of each data set, by name. Without "
            "--eval-iters each data set is measured anyway")
        .of(command::train | command::eval);
    sample_interval
        .is(0,
            "steps between texts that the model writes as it is by then, each time with the same "
            "random numbers; one more comes at the end. The weights of the run do not depend on it",
            "no texts")
        .at_least(1);
    sample_prompt.is("",
                     "the text that the texts of --sample-interval continue; token ids where the "
                     "data are ids or random",
                     "a line end");
  }
};

struct optimizer_flags {
  BOOST_HANA_DEFINE_STRUCT(optimizer_flags, (real_flag, lr), (real_flag, min_lr),
                           (text_flag, lr_decay_style), (whole_flag, lr_warmup_iters),
                           (whole_flag, lr_warmup_samples), (real_flag, lr_warmup_fraction),
                           (whole_flag, lr_decay_iters), (whole_flag, lr_decay_samples),
                           (whole_flag, lr_wsd_decay_iters), (text_flag, lr_wsd_decay_style),
                           (real_flag, weight_decay), (real_flag, clip_grad),
                           (real_flag, adam_beta1), (real_flag, adam_beta2), (real_flag, adam_eps));
  optimizer_flags() {
    detail::belong_to(*this, command::train, on_resume::may_change);
    // Updates compute in fp32.
    constexpr double least = std::numeric_limits<float>::denorm_min(),
                     most = std::numeric_limits<float>::max();
    lr.is(1e-3, "the highest learning rate").zero_or_within(least, most);
    min_lr.is(0, "the learning rate at the end of the decay").zero_or_within(least, most);
    lr_decay_style
        .is("linear",
            "how the learning rate falls from --lr to --min-lr; WSD keeps it, and lets it fall at "
            "the end")
        .one_of("constant|linear|cosine|WSD");
    lr_warmup_iters.is(0, "steps over which the learning rate first rises from 0 to --lr")
        .at_least(0);
    lr_warmup_samples.is(0, "sequences over which it rises, with --train-samples").at_least(0);
    lr_warmup_fraction
        .is(0,
            "the share of --lr-decay-iters or --lr-decay-samples over which it rises, in place of "
            "the two flags before",
            "")
        .within(0, 0.999999);
    lr_decay_samples
        .is(0, "with --train-samples: sequences behind which the decay ends", "--train-samples")
        .at_least(1)
        .resumes(on_resume::derived);
    lr_decay_iters.is(0, "the step at which the decay ends", "--train-iters")
        .at_least(1)
        .resumes(on_resume::derived);
    lr_wsd_decay_iters.is(0, "the length of the decay of WSD, in steps", "").at_least(1);
    lr_wsd_decay_style.is("exponential", "the shape of the decay of WSD")
        .one_of("linear|cosine|exponential|minus_sqrt");
    weight_decay.is(0.01, "decoupled weight decay of matrices and embeddings (AdamW)")
        .zero_or_within(least, most);
    clip_grad
        .is(1,
            "the largest global norm of the gradient; a longer one is shortened to it; 0: none is")
        .zero_or_within(least, most);
    adam_beta1.is(0.9, "the decay of the first moment").within(0, 0.999999);
    adam_beta2.is(0.999, "the decay of the second moment").within(0, 0.999999999);
    adam_eps.is(1e-8, "a number added to the root of the second moment")
        .within(std::numeric_limits<float>::min(), 1);
  }
};

struct sampling_flags {
  BOOST_HANA_DEFINE_STRUCT(sampling_flags, (texts_flag, prompt), (text_flag, prompts_file),
                           (switch_flag, chat), (text_flag, system_prompt),
                           (switch_flag, enable_thinking), (switch_flag, ids),
                           (whole_flag, num_samples), (whole_flag, max_new_tokens),
                           (texts_flag, stop_tokens), (texts_flag, stop), (switch_flag, ignore_eos),
                           (switch_flag, greedy), (real_flag, temperature), (whole_flag, top_k),
                           (real_flag, top_p), (text_flag, overflow), (whole_flag, batch_size),
                           (switch_flag, use_cache), (switch_flag, logprobs));
  sampling_flags() {
    detail::belong_to(*this, command::generate, on_resume::unsaved);
    prompt.is({},
              "a text to continue. Given several times, all texts are continued in one batch, each "
              "with random numbers of its own",
              "a line end");
    prompts_file.is("", "a file with further prompts, one a line");
    chat.is(false,
            "talk to the model: each prompt is a user's turn, and the model writes its answer. "
            "Without a prompt, the lines of the standard input are one conversation");
    system_prompt.is("", "with --chat: the text of the system, which comes first");
    enable_thinking.is(true,
                       "with --chat: whether the model thinks before it answers, if its template "
                       "has a switch for that (Qwen3)");
    ids.is(false, "prompts and texts are token ids, separated by blanks or commas");
    num_samples.is(1, "texts to write for each prompt, each with random numbers of its own")
        .within(1, 1 << 20);
    max_new_tokens
        .is(200, "the most tokens to write for each prompt; for train, those of --sample-interval")
        .at_least(0)
        .of(command::generate | command::train, on_resume::may_change);
    stop_tokens.is(
        {},
        "token ids, separated by blanks or commas, each of which ends a text once it is written");
    stop.is({}, "a text that ends the text in which it is written; may be given several times");
    ignore_eos.is(false,
                  "write on behind the tokens that end a text by the model's "
                  "generation_config.json, and behind the end of a turn of --chat");
    greedy.is(false, "always take the likeliest token, as --temperature 0 does");
    temperature
        .is(1,
            "a number that divides logits: below 1 texts are safer, above 1 bolder; 0 always takes "
            "the likeliest token")
        .within(0, 1000);
    top_k.is(0, "draw from the k likeliest tokens; 0: from all").at_least(0);
    top_p.is(1, "draw from the likeliest tokens that together have this probability").above(0, 1);
    overflow
        .is("slide",
            "the way on for a text that is longer than the model's positions. slide: the later "
            "half of the text is read again, and the text goes on; stop: it ends")
        .one_of("slide|stop");
    batch_size.is(16, "prompts that run at once; texts do not depend on it").within(1, 1 << 20);
    use_cache.is(true,
                 "keep the keys and values of earlier tokens. false computes the whole text again "
                 "for each token, which writes the same text slowly");
    logprobs.is(false,
                "print for each new token the natural logarithm of its probability over the whole "
                "vocabulary, before --temperature, --top-k and --top-p");
  }
};

struct report_flags {
  BOOST_HANA_DEFINE_STRUCT(report_flags, (whole_flag, log_interval), (text_flag, metrics_jsonl),
                           (text_flag, loss_curve), (switch_flag, profile), (text_flag, trace),
                           (whole_flag, profile_step_start), (whole_flag, profile_step_end),
                           (text_flag, pictures), (switch_flag, graphs), (text_flag, roofline),
                           (switch_flag, bench_json), (whole_flag, warmup),
                           (real_flag, peak_tflops), (switch_flag, json));
  report_flags() {
    detail::belong_to(*this, command::train, on_resume::unsaved);
    log_interval
        .is(100,
            "steps between lines of progress. The first step has one, too, and so has a step that "
            "ends 10 s or more after the last line; a terminal shows every step")
        .at_least(1);
    metrics_jsonl.is(
        "", "a file for one JSON object a step: loss, learning rate, gradient norm, speed");
    loss_curve.is("", "an SVG file for the curves of training and validation loss");
    profile.is(false, "measure the time of every node of the graph, and print a table at the end");
    trace.is("",
             "a file for what each rank did when in a few steps: its tasks, and its exchanges with "
             "other ranks. chrome://tracing and ui.perfetto.dev open it");
    profile_step_start
        .is(0, "the step behind which --trace begins",
            "10 steps after the first, or two before the last")
        .at_least(0);
    profile_step_end
        .is(0, "the last step of --trace, at most 64 behind --profile-step-start",
            "two behind --profile-step-start")
        .at_least(1);
    pictures
        .is("",
            "a folder for SVG pictures of the layout's ranks and its pipeline's schedule, in place "
            "of the description")
        .of(command::describe);
    graphs
        .is(false,
            "list the parameters, each collective with its line of the model, and the graph of "
            "each part after each pass, in place of the description")
        .of(command::describe);
    roofline
        .is("",
            "estimate the time of each op, and of a step, on such a GPU by arithmetic and traffic, "
            "in place of the description")
        .one_of("h100|h200")
        .of(command::describe);
    bench_json.is(
        false,
        "print one JSON object with the median milliseconds of a step as the last line. Without "
        "--data-path it trains on random tokens for 200 steps, and evaluates nothing");
    warmup.is(20, "steps that --bench-json does not count").at_least(0);
    peak_tflops
        .is(0,
            "the highest speed of what one rank computes on, in 10^12 floating-point operations a "
            "second. Progress then tells which share of it the model uses (MFU)",
            "no MFU is told")
        .above(0, 1e9);
    json.is(false,
            "print one JSON object in place of text; generate prints a line with one for each "
            "prompt")
        .of(command::eval | command::generate | command::describe);
  }
};

struct machine_flags {
  BOOST_HANA_DEFINE_STRUCT(machine_flags, (whole_flag, threads), (whole_flag, device),
                           (whole_flag, ranks), (whole_flag, collective_timeout),
                           (switch_flag, check_collectives), (switch_flag, no_memory_check),
                           (text_flag, product_type), (switch_flag, tf32),
                           (text_flag, product_table), (switch_flag, no_deterministic_attention),
                           (switch_flag, no_cuda_graphs));
  machine_flags() {
    detail::belong_to(*this, detail::running, on_resume::unsaved);
    const command computing =
        command::train | command::eval | command::generate | command::describe;
    const command together = command::train | command::eval | command::generate | command::convert;
    threads
        .is(0,
            "threads to compute with; 0: one a core, or the quota of a container. Results do not "
            "depend on it")
        .within(0, 4096)
        .of(computing);
    device
        .is(0,
            "the number of the GPU to compute on, among those that are visible "
            "(CUDA_VISIBLE_DEVICES), for a program that is built for GPUs. Left out, the processes "
            "of a machine take its GPUs in turn; ranks that are threads of one process share one "
            "GPU")
        .within(0, 4096);
    ranks
        .is(0,
            "ranks to run, as threads of this process, which share --threads; 0: the fewest that "
            "the program is laid out over, and one for export. More ranks are replicas. describe "
            "tells what that many ranks have. mpirun or srun start each rank as a process, so that "
            "the number is theirs")
        .within(0, 4096)
        .of(together | command::describe);
    collective_timeout.is(600, "seconds that ranks wait for one of them; then all end, and name it")
        .within(1, 1 << 30)
        .of(together);
    check_collectives
        .is(MEGACPP_DEBUGGED,
            "ranks tell each other what they are about to exchange; where they differ they end, "
            "and name both ranks and both lines of the model")
        .of(together);
    no_memory_check.is(false,
                       "start even if all ranks plan more memory than the machine, its container "
                       "or ulimit -v leaves them");
    product_type
        .is("auto",
            "how bf16 matrices are multiplied: by bf16 instructions, widened to fp32 first, or the "
            "faster of the two by a measurement at the start")
        .one_of("auto|bf16|widened")
        .of(computing, on_resume::may_change);
    tf32.is(false,
            "let a GPU multiply fp32 matrices by TF32, which is faster and rounds their elements "
            "to 11 significant bits")
        .resumes(on_resume::may_change);
    product_table.is(
        "",
        "a file with the fastest way to compute each product on this GPU, which megacpp_gpu --tune "
        "measured. A program checks each way before it takes it. Other ways give other bits");
    no_deterministic_attention
        .is(false,
            "let a GPU add up the gradients of attention in any order. That takes less memory for "
            "long sequences; a rerun has other bits")
        .of(command::train | command::describe, on_resume::may_change);
    no_cuda_graphs.is(false,
                      "start every kernel on a GPU by itself, not a micro-batch as a graph of "
                      "CUDA. That is slower, and an error names the kernel that was started last, "
                      "or with CUDA_LAUNCH_BLOCKING=1 in the environment the one that failed");
  }
};

struct options {
  model_flags model;
  data_flags data;
  training_flags training;
  optimizer_flags optimizer;
  sampling_flags sampling;
  report_flags report;
  machine_flags machine;
  key_flags keys;
  compiled_flags compiled;
  compiled_expert_flags experts;
  compiled_model_flags made_of;
};

/// A flag with its name, which has dashes, and the title of its group.
struct named_flag {
  std::string name;
  const char* group = "";
  flag_base* flag = nullptr;
  bool compiled = false;
};

namespace detail {
template <class Group>
void append_flags(std::vector<named_flag>& list, const char* title, Group& group, bool compiled) {
  boost::hana::for_each(boost::hana::accessors<Group>(), [&](auto member) {
    std::string name = boost::hana::to<const char*>(boost::hana::first(member));
    std::replace(name.begin(), name.end(), '_', '-');
    list.push_back({std::move(name), title, &boost::hana::second(member)(group), compiled});
  });
}
} // namespace detail

/// Returns all flags of `o`, in the order of the help. They point into `o`.
inline std::vector<named_flag> flags_of(options& o) {
  std::vector<named_flag> list;
  detail::append_flags(list, "Data", o.data, false);
  detail::append_flags(list, "Model", o.model, false);
  detail::append_flags(list, "Training", o.training, false);
  detail::append_flags(list, "Learning rate and optimizer (AdamW)", o.optimizer, false);
  detail::append_flags(list, "Sampling", o.sampling, false);
  detail::append_flags(list, "Output", o.report, false);
  detail::append_flags(list, "Machine", o.machine, false);
  constexpr const char* compiled = "Compiled into this program (accepted only with these values)";
  for (key_flag& f : o.keys.all)
    list.push_back({std::string(f.key->flag), compiled, &f.base(), true});
  detail::append_flags(list, compiled, o.compiled, true);
  detail::append_flags(list, compiled, o.experts, true);
  detail::append_flags(list, compiled, o.made_of, true);
  return list;
}

inline const named_flag* find_flag(const std::vector<named_flag>& list, std::string_view name) {
  for (const named_flag& e : list)
    if (e.name == name) return &e;
  return nullptr;
}

/// Returns the flags of a command that were given, as `lr=0.001 save=model`.
inline std::string given_flags(const std::vector<named_flag>& list, command c) {
  std::string text;
  for (const named_flag& e : list) {
    if (!e.flag->given() || !overlaps(e.flag->commands(), c)) continue;
    if (!text.empty()) text += ' ';
    text += fmt::format("{}={}", e.name, e.flag->text());
  }
  return text;
}

} // namespace mc
