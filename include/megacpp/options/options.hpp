// Every flag of a megacpp program, once: a member of one of the groups below. Command line, files
// of flags, help, printing and checks read the members from here. Names are those of Megatron-LM
// with _ for -.
#pragma once

#include <megacpp/config/config.hpp>
#include <megacpp/options/compiled_flags.hpp>
#include <megacpp/options/model_flags.hpp>
#include <megacpp/request/tokenizer_request.hpp>

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <boost/hana/accessors.hpp>
#include <boost/hana/define_struct.hpp>
#include <boost/hana/for_each.hpp>
#include <boost/hana/second.hpp>

namespace mc {

// The macro is as in options/compiled_flags.hpp.
#define MEGACPP_FLAG(kind, name, ...) \
  kind##_flag name { this, #name, __VA_ARGS__ }

struct data_flags : flag_group {
  data_flags() : flag_group("Data", reading, must_match) {}
  MEGACPP_FLAG(texts, data_path, none().path().many().resumes(may_change),
               "the data to train on or to evaluate: a file, or prefixes of indexed data sets "
               "(Megatron-LM's .bin and .idx). A weight may stand before each prefix; eval ignores "
               "weights, and measures each data set and all of them together");
  MEGACPP_FLAG(text, data_type,
               is("text")
                   .one_of("text|u16|i32|indexed|chat")
                   .shown("indexed where there is PATH.idx, else text"),
               "the content of a file. text: bytes, which --tokenizer-type makes tokens of. u16, "
               "i32: token ids, little-endian, without a header. indexed: a data set of .bin and "
               ".idx. chat: conversations, one JSON object a line");
  MEGACPP_FLAG(text, split, is("969,30,1").shown("969,30,1; for eval all"),
               "the shares of a file's tokens, or of a data set's documents, for training, "
               "validation and test. eval measures the validation share. train measures the test "
               "share of data sets at its end; no command reads that of a file");
  MEGACPP_FLAG(texts, train_data_path, none().path().many().of(train, may_change),
               "data sets to train on, in place of a share of --data-path");
  MEGACPP_FLAG(texts, valid_data_path, none().path().many().of(train, may_change),
               "data sets to validate with, beside --train-data-path");
  MEGACPP_FLAG(texts, test_data_path, none().path().many().of(train, may_change),
               "data sets to measure at the end, beside --train-data-path");
  MEGACPP_FLAG(text, data_args_path, is("").path().resumes(may_change),
               "a file with the arguments of --data-path");
  MEGACPP_FLAG(text, per_split_data_args_path, is("").path().of(train, may_change),
               "a JSON file {\"train\": [...], \"valid\": [...], \"test\": [...]} with the "
               "arguments of --train-data-path, --valid-data-path and --test-data-path");
  MEGACPP_FLAG(text, data_cache_path, is("").path().resumes(unsaved),
               "a folder that keeps the order of the samples of data sets for the next start");
  MEGACPP_FLAG(
      text, tokenizer_type,
      is("byte")
          .one_of(tokenizer_types)
          .of(reading | generate)
          .shown("that of --tokenizer-model or of the folder --load, else as --load was saved, "
                 "else byte; must be given for a vocabulary above 256"),
      "how texts become tokens. byte: each byte is a token. char: the distinct bytes of the file "
      "are the tokens, sorted and numbered from 0; the model's folder keeps their list as "
      "characters.json. The other names are Megatron-LM's: HuggingFaceTokenizer reads "
      "--tokenizer-model, GPT2BPETokenizer --vocab-file and --merge-file, TikTokenizer a .tiktoken "
      "file; NullTokenizer is for token ids, the last of which ends a document. eval and generate "
      "take the tokenizer of the state. Data sets have their ids already, so that beside them the "
      "names of SentencePiece's tokenizers are taken, too; nothing reads their files");
  MEGACPP_FLAG(text, tokenizer_model, is("").path().of(reading | generate, may_change),
               "a Hugging Face folder, a tokenizer.json or a .tiktoken file; a model keeps them");
  MEGACPP_FLAG(text, vocab_file, is("").path().of(reading | generate, may_change),
               "GPT-2's vocab.json, with --merge-file in place of --tokenizer-model");
  MEGACPP_FLAG(text, merge_file, is("").path().of(reading | generate, may_change),
               "GPT-2's merges.txt");
  MEGACPP_FLAG(switch, reset_position_ids, is(false),
               "positions begin anew behind the end of a document");
  MEGACPP_FLAG(switch, reset_attention_mask, is(false),
               "attention stays within a document; the program must be built with PACKED");
  MEGACPP_FLAG(switch, eod_mask_loss, is(false),
               "tokens that follow the end of a document are not learned");
  MEGACPP_FLAG(text, eod_token,
               is("").shown("<|endoftext|>, <|end_of_text|> or </s>, the first that there is; of "
                            "HuggingFaceTokenizer the eos_token of tokenizer_config.json"),
               "the token that ends a document, for the three flags before this one");
  MEGACPP_FLAG(text, chat_loss, is("assistant").one_of("assistant|all"),
               "the tokens of conversations that are learned: those of the assistant, or all");
  MEGACPP_FLAG(text, chat_keys, is("").shown(""),
               "the fields of conversations that are no lists of messages, such as "
               "system=system_prompt,user=question,assistant=response; system may be left out");
  MEGACPP_FLAG(switch, mock_data, is(false).of(train),
               "train on random tokens in place of a file, to measure speed");
};

struct training_flags : flag_group {
  training_flags() : flag_group("Training", train, may_change) {}
  MEGACPP_FLAG(whole, train_iters, is(1000).at_least(1), "steps of the optimizer");
  MEGACPP_FLAG(whole, train_samples, is(0).at_least(1).shown(""),
               "sequences to train on, in place of --train-iters");
  MEGACPP_FLAG(whole, epochs, is(0).at_least(1).shown(""),
               "how often all conversations are read, in place of --train-iters");
  MEGACPP_FLAG(
      whole, global_batch_size,
      is(0)
          .within(1, std::int64_t{1} << 31)
          .of(train | eval)
          .shown("the micro-batch; for eval that of the state"),
      "sequences of one step: a multiple of the compiled micro-batch. A step adds up the gradients "
      "of its micro-batches. For eval, the sequences that --eval-iters counts by");
  MEGACPP_FLAG(text, rampup_batch_size,
               is("")
                   .whole_numbers(3, "START INCREMENT SAMPLES")
                   .shown("every step has --global-batch-size"),
               "the sequences of a step grow from START by INCREMENT to --global-batch-size; the "
               "first SAMPLES sequences of the run are shared equally among the smaller sizes");
  MEGACPP_FLAG(text, save, is("").path().of(train | convert, unsaved),
               "the folder for the states of the run (weights, optimizer, step, position in the "
               "data, flags), each in a folder of its own: at the end, when a signal ends the run, "
               "and every --save-interval steps. For export, the Hugging Face folder to write");
  MEGACPP_FLAG(whole, save_interval, is(0).at_least(0),
               "steps between states; 0: one at the end alone");
  MEGACPP_FLAG(whole, keep_latest_k, is(10).at_least(0),
               "states to keep: an older one is removed once a new one is on the disk; 0: all. "
               "(The name is torchtitan's; Megatron-LM keeps all.)");
  MEGACPP_FLAG(switch, keep_best, is(false),
               "also keep the state of the lowest validation loss, in the folder best of --save. "
               "All evaluations measure the same samples then");
  MEGACPP_FLAG(switch, exit_signal_handler, is(true).resumes(unsaved),
               "SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGXCPU end the run behind the micro-batch "
               "under way: it saves its state and exits with code 10. A second SIGINT or SIGTERM "
               "after a second ends the program at once; with false, the first one does");
  MEGACPP_FLAG(
      real, exit_duration_in_mins, is(0).above(0, 1e9).resumes(unsaved).shown("no limit"),
      "minutes after which the run saves its state, at the end of a step, and exits with code 0");
  MEGACPP_FLAG(whole, eval_interval, is(1000).at_least(1),
               "steps between evaluations of the validation data; one more comes at the end");
  MEGACPP_FLAG(
      whole, eval_iters, is(0).at_least(0).of(train | eval).shown("the whole part"),
      "batches of --global-batch-size in one evaluation; 0: no evaluation. They are spread evenly "
      "over the validation share of a text; of data sets each evaluation reads the samples behind "
      "those of the last one. eval measures what the evaluation at the step of its state did");
  MEGACPP_FLAG(switch, full_validation, is(false),
               "each evaluation reads all validation data, as without --eval-iters");
  MEGACPP_FLAG(switch, multiple_validation_sets, is(false).of(train | eval),
               "with --eval-iters: measure as many batches of each data set, by name. Without "
               "--eval-iters each data set is measured anyway");
  MEGACPP_FLAG(whole, stop_after_no_better, is(0).at_least(0).shown("never"),
               "end the run once so many evaluations in a row had no lower loss than the lowest "
               "before them; 0: never. All evaluations measure the same samples then");
  MEGACPP_FLAG(
      whole, sample_interval, is(0).at_least(1).shown("no texts"),
      "steps between texts that the model writes as it is by then, each time with the same random "
      "numbers; one more comes at the end. The weights of the run do not depend on it");
  MEGACPP_FLAG(text, sample_prompt, is("").shown("a line end"),
               "the text that --sample-interval continues; ids where the data are ids or random");
};

struct optimizer_flags : flag_group {
  // Updates compute in fp32.
  static constexpr double least = std::numeric_limits<float>::denorm_min(),
                          most = std::numeric_limits<float>::max();
  optimizer_flags() : flag_group("Learning rate and optimizer (AdamW)", train, may_change) {}
  MEGACPP_FLAG(real, lr, is(1e-3).zero_or_within(least, most), "the highest learning rate");
  MEGACPP_FLAG(real, min_lr, is(0).zero_or_within(least, most),
               "the learning rate at the end of the decay");
  MEGACPP_FLAG(text, lr_decay_style, is("linear").one_of("constant|linear|cosine|WSD"),
               "how --lr falls to --min-lr; WSD keeps it, and lets it fall at the end");
  MEGACPP_FLAG(whole, lr_warmup_iters, is(0).at_least(0),
               "steps over which the learning rate first rises from 0 to --lr");
  MEGACPP_FLAG(whole, lr_warmup_samples, is(0).at_least(0),
               "sequences over which it rises, with --train-samples");
  MEGACPP_FLAG(real, lr_warmup_fraction, is(0).within(0, 0.999999).shown(""),
               "the share of the decay over which it rises, in place of the two flags before");
  MEGACPP_FLAG(whole, lr_decay_iters, is(0).at_least(1).resumes(derived).shown("--train-iters"),
               "the step at which the decay ends");
  MEGACPP_FLAG(whole, lr_decay_samples, is(0).at_least(1).resumes(derived).shown("--train-samples"),
               "with --train-samples: sequences behind which the decay ends");
  MEGACPP_FLAG(whole, lr_wsd_decay_iters, is(0).at_least(1).shown(""),
               "the length of the decay of WSD, in steps");
  MEGACPP_FLAG(text, lr_wsd_decay_style,
               is("exponential").one_of("linear|cosine|exponential|minus_sqrt"),
               "the shape of the decay of WSD");
  MEGACPP_FLAG(real, weight_decay, is(0.01).zero_or_within(least, most),
               "decoupled weight decay of matrices and embeddings (AdamW)");
  MEGACPP_FLAG(
      real, clip_grad, is(1).zero_or_within(least, most),
      "the largest global norm of the gradient; a longer one is shortened to it; 0: none is");
  MEGACPP_FLAG(real, adam_beta1, is(0.9).within(0, 0.999999), "the decay of the first moment");
  MEGACPP_FLAG(real, adam_beta2, is(0.999).within(0, 0.999999999),
               "the decay of the second moment");
  MEGACPP_FLAG(real, adam_eps, is(1e-8).within(std::numeric_limits<float>::min(), 1),
               "a number added to the root of the second moment");
};

struct sampling_flags : flag_group {
  sampling_flags() : flag_group("Sampling", generate, unsaved) {}
  MEGACPP_FLAG(texts, prompt, none().shown("a line end"),
               "a text to continue. Given several times, all texts are continued in one batch, "
               "each with random numbers of its own");
  MEGACPP_FLAG(text, prompts_file, is("").path(), "a file with further prompts, one a line");
  MEGACPP_FLAG(switch, chat, is(false),
               "talk to the model: each prompt is a user's turn, and the model writes its answer. "
               "Without a prompt, the lines of the standard input are one conversation");
  MEGACPP_FLAG(text, system_prompt, is(""),
               "with --chat: the text of the system, which comes first");
  MEGACPP_FLAG(switch, enable_thinking, is(true),
               "with --chat: whether the model thinks first, if its template has a switch (Qwen3)");
  MEGACPP_FLAG(switch, ids, is(false),
               "prompts and texts are token ids, separated by blanks or commas");
  MEGACPP_FLAG(whole, num_samples, is(1).within(1, 1 << 20),
               "texts to write for each prompt, each with random numbers of its own");
  MEGACPP_FLAG(whole, max_new_tokens, is(200).at_least(0).of(generate | train, may_change),
               "the most tokens to write for each prompt; for train, those of --sample-interval");
  MEGACPP_FLAG(
      texts, stop_tokens, none(),
      "token ids, separated by blanks or commas, each of which ends a text once it is written");
  MEGACPP_FLAG(texts, stop, none(),
               "a text that ends the text in which it is written; may be given several times");
  MEGACPP_FLAG(switch, ignore_eos, is(false),
               "write on behind the tokens that end a text by the model's generation_config.json, "
               "and behind the end of a turn of --chat");
  MEGACPP_FLAG(switch, greedy, is(false),
               "always take the likeliest token, as --temperature 0 does");
  MEGACPP_FLAG(real, temperature, is(1).within(0, 1000),
               "divides logits: below 1 texts are safer, above bolder; 0 takes the likeliest");
  MEGACPP_FLAG(whole, top_k, is(0).at_least(0), "draw from the k likeliest tokens; 0: from all");
  MEGACPP_FLAG(real, top_p, is(1).above(0, 1),
               "draw from the likeliest tokens that together have this probability");
  MEGACPP_FLAG(text, overflow, is("slide").one_of("slide|stop"),
               "the way on for a text that is longer than the model's positions. slide: the later "
               "half of the text is read again, and the text goes on; stop: it ends");
  MEGACPP_FLAG(whole, batch_size, is(16).within(1, 1 << 20),
               "prompts that run at once; texts do not depend on it");
  MEGACPP_FLAG(switch, use_cache, is(true),
               "keep the keys and values of earlier tokens. false computes the whole text again "
               "for each token, which writes the same text slowly");
  MEGACPP_FLAG(switch, logprobs, is(false),
               "print for each new token the natural logarithm of its probability over the whole "
               "vocabulary, before --temperature, --top-k and --top-p");
};

struct report_flags : flag_group {
  report_flags() : flag_group("Output", train, unsaved) {}
  MEGACPP_FLAG(whole, log_interval, is(100).at_least(1),
               "steps between lines of progress. The first step has one, too, and so has a step "
               "that ends 10 s or more after the last line; a terminal shows every step");
  MEGACPP_FLAG(text, metrics_jsonl, is("").path(),
               "a file for a line of JSON for each step, evaluation and text: loss, learning rate, "
               "gradient norm, speed");
  MEGACPP_FLAG(text, loss_curve, is("").path(),
               "an SVG file for the curves of training and validation loss");
  MEGACPP_FLAG(text, tensorboard_dir, is("").path(),
               "a folder for TensorBoard, which is made: losses, learning rate, gradient norm and "
               "speed, by Megatron-LM's names, and the flags of the run");
  MEGACPP_FLAG(whole, tensorboard_log_interval, is(1).at_least(1),
               "steps between those that --tensorboard-dir has");
  MEGACPP_FLAG(whole, metrics_port, is(0).within(1, 65535).shown(""),
               "a port of this machine under which Prometheus finds the numbers of the run, at "
               "/metrics");
  MEGACPP_FLAG(text, metrics_address, is("127.0.0.1"),
               "the address of this machine that has --metrics-port; 0.0.0.0: all of them, for "
               "anyone who reaches it");
  MEGACPP_FLAG(text, katib_metrics, is("").path(),
               "a file for lines name=number, as Katib's metrics collector reads them, such as "
               "/var/log/katib/metrics.log; -: the standard output");
  MEGACPP_FLAG(switch, profile, is(false),
               "measure the time of every node of the graph, and print a table at the end");
  MEGACPP_FLAG(text, trace, is("").path(),
               "a file for what each rank did when in a few steps: its tasks, and its exchanges "
               "with other ranks. chrome://tracing and ui.perfetto.dev open it");
  MEGACPP_FLAG(whole, profile_step_start,
               is(0).at_least(0).shown("10 steps after the first, or two before the last"),
               "the step behind which --trace begins");
  MEGACPP_FLAG(whole, profile_step_end, is(0).at_least(1).shown("two behind --profile-step-start"),
               "the last step of --trace, at most 64 behind --profile-step-start");
  MEGACPP_FLAG(whole, show_mask, is(0).within(1, 1 << 20).shown(""),
               "print so many samples of the training data as the run would take them next, those "
               "tokens apart that are learned, in place of training");
  MEGACPP_FLAG(text, pictures, is("").of(describe),
               "a folder for SVGs of the ranks and the schedule, in place of the description");
  MEGACPP_FLAG(switch, graphs, is(false).of(describe),
               "list the parameters, each collective with its line of the model, and the graph of "
               "each part after each pass, in place of the description");
  MEGACPP_FLAG(switch, launch, is(false).of(describe),
               "tell how this process was started, in place of the description");
  MEGACPP_FLAG(text, roofline, is("").one_of("h100|h200").of(describe),
               "estimate the time of each op, and of a step, on such a GPU by arithmetic and "
               "traffic, in place of the description");
  MEGACPP_FLAG(
      switch, bench_json, is(false),
      "print one JSON object with the median milliseconds of a step as the last line. Without "
      "--data-path it trains on random tokens for 200 steps, and evaluates nothing");
  MEGACPP_FLAG(whole, warmup, is(20).at_least(0), "steps that --bench-json does not count");
  MEGACPP_FLAG(real, peak_tflops, is(0).above(0, 1e9).shown("no MFU is told"),
               "the highest speed of what one rank computes on, in 10^12 floating-point operations "
               "a second. Progress then tells which share of it the model uses (MFU)");
  MEGACPP_FLAG(
      switch, json, is(false).of(eval | generate | describe),
      "print one JSON object in place of text; generate prints a line with one for each prompt");
};

struct machine_flags : flag_group {
  static constexpr command computing = running | describe, together = running | convert;
  machine_flags() : flag_group("Machine", running, unsaved) {}
  MEGACPP_FLAG(whole, threads, is(0).within(0, 4096).of(computing),
               "threads, on which no result depends; 0: one a core, or the quota of a container");
  MEGACPP_FLAG(
      whole, device, is(0).within(0, 4096),
      "the number of the GPU to compute on, among those that are visible (CUDA_VISIBLE_DEVICES), "
      "for a program that is built for GPUs. Left out, the processes of a machine take its GPUs in "
      "turn; ranks that are threads of one process share one GPU");
  MEGACPP_FLAG(whole, ranks, is(0).within(0, 4096).of(together | describe),
               "ranks to run, as threads of this process, which share --threads; 0: the fewest "
               "that the program is laid out over, and one for export. More ranks are replicas. "
               "describe tells what that many ranks have. mpirun or srun start each rank as a "
               "process, so that the number is theirs");
  MEGACPP_FLAG(whole, collective_timeout, is(600).within(1, 1 << 30).of(together),
               "seconds that ranks wait for one of them; then all end, and name it");
  MEGACPP_FLAG(switch, check_collectives, is(MEGACPP_DEBUGGED).of(together),
               "ranks tell each other what they are about to exchange; where they differ they end, "
               "and name both ranks and both lines of the model");
  MEGACPP_FLAG(switch, no_memory_check, is(false),
               "start though ranks plan more memory than machine, container or ulimit -v leave");
  MEGACPP_FLAG(text, product_type, is("auto").one_of("auto|bf16|widened").of(computing, may_change),
               "how bf16 matrices are multiplied: by bf16 instructions, widened to fp32 first, or "
               "the faster of the two by a measurement at the start");
  MEGACPP_FLAG(switch, tf32, is(false).resumes(may_change),
               "let a GPU multiply fp32 by TF32: faster, with elements of 11 significant bits");
  MEGACPP_FLAG(
      text, product_table, is("").path(),
      "a file with the fastest way to compute each product on this GPU, which megacpp_gpu --tune "
      "measured. A program checks each way before it takes it. Other ways give other bits");
  MEGACPP_FLAG(switch, no_deterministic_attention, is(false).of(train | describe, may_change),
               "let a GPU add up the gradients of attention in any order. That takes less memory "
               "for long sequences; a rerun has other bits");
  MEGACPP_FLAG(switch, no_cuda_graphs, is(false),
               "start every kernel on a GPU by itself, not a micro-batch as a graph of CUDA. That "
               "is slower, and an error names the kernel that was started last, or with "
               "CUDA_LAUNCH_BLOCKING=1 in the environment the one that failed");
};

#undef MEGACPP_FLAG

/// All flags, by group, in the order of the help.
struct options {
  BOOST_HANA_DEFINE_STRUCT(options, (data_flags, data), (model_flags, model),
                           (training_flags, training), (optimizer_flags, optimizer),
                           (sampling_flags, sampling), (report_flags, report),
                           (machine_flags, machine), (key_flags, keys), (compiled_flags, compiled),
                           (compiled_expert_flags, experts), (compiled_model_flags, made_of));
};

/// A flag with its name, which has dashes, and the title of its group.
struct named_flag {
  std::string name;
  const char* group = "";
  flag_base* flag = nullptr;
  bool compiled = false;
};

inline void append_flags(std::vector<named_flag>& list, flag_group& group) {
  group.each([&](flag_base& f) { list.push_back({f.name(), group.title, &f, group.compiled}); });
}
inline void append_flags(std::vector<named_flag>& list, key_flags& keys) {
  for (key_flag& f : keys.all)
    list.push_back({f.base().name(), detail::compiled_title, &f.base(), true});
}

/// Returns all flags of `o`. They point into `o`.
inline std::vector<named_flag> flags_of(options& o) {
  std::vector<named_flag> list;
  boost::hana::for_each(boost::hana::accessors<options>(), [&](const auto& member) {
    append_flags(list, boost::hana::second(member)(o));
  });
  return list;
}

inline const named_flag* find_flag(const std::vector<named_flag>& list, std::string_view name) {
  for (const named_flag& e : list)
    if (e.name == name) return &e;
  return nullptr;
}

} // namespace mc
