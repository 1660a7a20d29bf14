// Every flag of a megacpp program, once: the members of the groups below. Command line,
// configuration file, help, printing and checks read them from here (Boost.Hana); each group's
// constructor gives defaults, ranges and explanations, and a test refuses a flag without one. Names
// are those of Megatron-LM with _ for -.
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

struct model_flags {
  BOOST_HANA_DEFINE_STRUCT(model_flags, (text_flag, load), (switch_flag, random_weights),
                           (switch_flag, finetune), (whole_flag, seed), (text_flag, dtype),
                           (text_flag, max_shard_size));
  model_flags() {
    load.is("",
            "folder to start from; eval, generate and export need one, but for random weights. A "
            "folder that train --save wrote: train goes on where its newest whole state ends, or "
            "begins if it has none and --save names it too. A Hugging Face model folder: train "
            "begins with its weights. describe lists the states in the folder instead of the "
            "model")
        .of(command::all)
        .resumes(on_resume::unsaved);
    random_weights
        .is(false,
            "take the weights that a new run begins with instead of those of --load, to measure "
            "speed; needs --ids")
        .of(command::generate);
    finetune
        .is(false,
            "take only the weights from --load: a new run, with its own optimizer, schedule, data "
            "and first step")
        .of(command::train)
        .resumes(on_resume::unsaved);
    seed.is(1234,
            "of initial weights, the order of the data, dropout, and sampling: the same seed "
            "gives the same bits, whatever --threads is")
        .within(0, std::numeric_limits<std::int64_t>::max())
        .of(command::train | command::generate)
        .resumes(on_resume::must_match);
    dtype.is("stored", "type of the exported weights; stored: of each tensor as it is")
        .one_of("stored|fp32|bf16|fp64")
        .of(command::convert);
    max_shard_size
        .is("5GB",
            "bytes of tensors in one file of a model, above which it is cut into several with an "
            "index: a number with KB, MB, GB, TB or KiB, MiB, GiB, TiB")
        .of(command::train | command::convert)
        .resumes(on_resume::may_change);
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
    const command reading = command::train | command::eval;
    data_path
        .is({},
            "what to train on or to evaluate: a file, or prefixes of indexed data sets "
            "(Megatron-LM's "
            ".bin and .idx), each with a weight before it or none; eval measures each whole, and "
            "all together, whatever the weights")
        .many()
        .of(reading)
        .resumes(on_resume::may_change);
    data_type
        .is("text",
            "what a file holds. text: any bytes, each one or each distinct one a token "
            "(--tokenizer-type). u16, i32: token ids, little-endian, without a header. indexed: a "
            "data set of .bin and .idx. chat: conversations, one JSON object a line")
        .one_of("text|u16|i32|indexed|chat")
        .shown_as("indexed where there is PATH.idx, else text")
        .of(reading)
        .resumes(on_resume::must_match);
    split
        .is("969,30,1",
            "shares of the tokens of a file, or of the documents of a data set, for training, "
            "validation and test, in this order; eval measures the validation part; at its end "
            "train "
            "measures the test part of data sets, and no command reads that of a file")
        .shown_as("969,30,1; for eval all")
        .of(reading)
        .resumes(on_resume::must_match);
    train_data_path.is({}, "data sets to train on, instead of a share of --data-path")
        .many()
        .of(command::train)
        .resumes(on_resume::may_change);
    valid_data_path.is({}, "with --train-data-path: data sets to validate with")
        .many()
        .of(command::train)
        .resumes(on_resume::may_change);
    test_data_path.is({}, "with --train-data-path: data sets that are measured at the end")
        .many()
        .of(command::train)
        .resumes(on_resume::may_change);
    data_args_path.is("", "file with the words of --data-path")
        .of(reading)
        .resumes(on_resume::may_change);
    per_split_data_args_path
        .is("",
            "JSON file {\"train\": [...], \"valid\": [...], \"test\": [...]} with the words of "
            "--train-data-path and the others")
        .of(command::train)
        .resumes(on_resume::may_change);
    data_cache_path
        .is("", "folder that keeps the order of the samples of data sets for the next start")
        .of(reading)
        .resumes(on_resume::unsaved);
    tokenizer_type
        .is("byte",
            "how texts become tokens. byte: the byte is the token. char: the distinct "
            "bytes of the file, sorted and numbered from 0, for vocabularies below 256; "
            "the list is saved with the model as characters.json. The others are Megatron-LM's "
            "names: of --tokenizer-model, of --vocab-file, of a .tiktoken file, and of ids whose "
            "last "
            "one ends a document; eval and generate take that of the state. Those of "
            "SentencePiece, "
            "such as Llama2Tokenizer, are read by nothing here, and taken beside data sets alone, "
            "whose ids need none")
        .one_of(tokenizer_types)
        .shown_as(
            "that of --tokenizer-model or of the folder --load, else as --load was saved, else "
            "byte; must be given for a vocabulary above 256")
        .of(reading | command::generate)
        .resumes(on_resume::must_match);
    tokenizer_model
        .is("",
            "folder of a Hugging Face model, or a tokenizer.json, or a .tiktoken file; its files "
            "are "
            "saved with the model")
        .of(reading | command::generate)
        .resumes(on_resume::may_change);
    vocab_file.is("", "GPT-2's vocab.json, with --merge-file instead of --tokenizer-model")
        .of(reading | command::generate)
        .resumes(on_resume::may_change);
    merge_file.is("", "GPT-2's merges.txt")
        .of(reading | command::generate)
        .resumes(on_resume::may_change);
    reset_position_ids.is(false, "positions begin anew behind the end of a document")
        .of(reading)
        .resumes(on_resume::must_match);
    reset_attention_mask
        .is(false, "attention stays within a document; needs a program built with PACKED")
        .of(reading)
        .resumes(on_resume::must_match);
    eod_mask_loss.is(false, "what follows the end of a document is not learned")
        .of(reading)
        .resumes(on_resume::must_match);
    eod_token.is("", "the token that ends a document, for the three flags before this one")
        .shown_as(
            "<|endoftext|>, <|end_of_text|> or </s>, the first that there is; of "
            "HuggingFaceTokenizer the eos_token of tokenizer_config.json")
        .of(reading)
        .resumes(on_resume::must_match);
    chat_loss
        .is("assistant",
            "what is learned of conversations: what the assistant says, or every token")
        .one_of("assistant|all")
        .of(reading)
        .resumes(on_resume::must_match);
    mock_data.is(false, "train on random tokens instead of a file, to measure speed")
        .of(command::train)
        .resumes(on_resume::must_match);
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
    train_iters.is(1000, "optimizer steps")
        .at_least(1)
        .of(command::train)
        .resumes(on_resume::may_change);
    train_samples.is(0, "sequences to train on, instead of --train-iters")
        .at_least(1)
        .shown_as("")
        .of(command::train)
        .resumes(on_resume::may_change);
    epochs.is(0, "how often all conversations are seen, instead of --train-iters")
        .at_least(1)
        .shown_as("")
        .of(command::train)
        .resumes(on_resume::may_change);
    global_batch_size
        .is(0,
            "sequences in one optimizer step; a multiple of the compiled micro-batch, whose "
            "gradients are accumulated; for eval, of --eval-iters")
        .within(1, std::int64_t{1} << 31)
        .shown_as("the micro-batch; for eval that of the state")
        .of(command::train | command::eval)
        .resumes(on_resume::may_change);
    rampup_batch_size
        .is("",
            "the sequences of a step grow from START by INCREMENT to --global-batch-size, in equal "
            "parts of the first SAMPLES sequences of the run")
        .whole_numbers(3, "START INCREMENT SAMPLES")
        .shown_as("every step has --global-batch-size")
        .of(command::train)
        .resumes(on_resume::may_change);
    save.is("",
            "folder for the state of the run (weights, optimizer, step, position in the data, "
            "flags), in a folder of its own for each step saved: at the end, when a signal ends "
            "the run, and every --save-interval steps. export: the Hugging Face folder to write")
        .of(command::train | command::convert)
        .resumes(on_resume::unsaved);
    save_interval.is(0, "steps between saves on the way; 0: only at the end")
        .at_least(0)
        .of(command::train)
        .resumes(on_resume::may_change);
    keep_latest_k
        .is(10,
            "saved states to keep (torchtitan's name; Megatron-LM keeps all): older ones are "
            "removed once a new one is on the disk; 0: all")
        .at_least(0)
        .of(command::train)
        .resumes(on_resume::may_change);
    keep_best
        .is(false,
            "keep the state of the lowest validation loss as well, in the folder best of --save, "
            "where an evaluation that finds a lower one replaces it; all evaluations are of the "
            "same samples then")
        .of(command::train)
        .resumes(on_resume::may_change);
    exit_signal_handler
        .is(true,
            "SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGXCPU finish the micro-batch, save and exit "
            "with code 10; a second SIGINT or SIGTERM a second later, or false, ends the program "
            "at once")
        .of(command::train)
        .resumes(on_resume::unsaved);
    exit_duration_in_mins
        .is(0,
            "minutes after which the run saves its state and ends, with exit code 0, behind the "
            "step under way")
        .above(0, 1e9)
        .shown_as("no limit")
        .of(command::train)
        .resumes(on_resume::unsaved);
    eval_interval.is(1000, "steps between evaluations of the validation part; one more at the end")
        .at_least(1)
        .of(command::train)
        .resumes(on_resume::may_change);
    eval_iters
        .is(0,
            "global batches in one evaluation: of a text spread evenly over the part, of data sets "
            "those behind the ones of the evaluation before; 0: no evaluation. eval measures what "
            "an evaluation of train did at the step of a state")
        .at_least(0)
        .shown_as("the whole part")
        .of(command::train | command::eval)
        .resumes(on_resume::may_change);
    full_validation.is(false, "each evaluation is of the whole part, as without --eval-iters")
        .of(command::train)
        .resumes(on_resume::may_change);
    multiple_validation_sets
        .is(false,
            "with --eval-iters: measure so much of each data set apart, by name; without, they "
            "always are")
        .of(command::train | command::eval)
        .resumes(on_resume::may_change);
    sample_interval
        .is(0,
            "steps between texts that the model writes as it is by then, each time with the same "
            "random numbers; one more at the end. The weights of the run do not depend on it")
        .at_least(1)
        .shown_as("no texts")
        .of(command::train)
        .resumes(on_resume::may_change);
    sample_prompt
        .is("",
            "text that those of --sample-interval continue; token ids where the data are ids or "
            "random")
        .shown_as("a line end")
        .of(command::train)
        .resumes(on_resume::may_change);
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
    // What updates compute in.
    constexpr double least = std::numeric_limits<float>::denorm_min(),
                     most = std::numeric_limits<float>::max();
    lr.is(1e-3, "highest learning rate")
        .zero_or_within(least, most)
        .of(command::train)
        .resumes(on_resume::may_change);
    min_lr.is(0, "learning rate at the end of the decay")
        .zero_or_within(least, most)
        .of(command::train)
        .resumes(on_resume::may_change);
    lr_decay_style
        .is("linear",
            "how the learning rate falls from --lr to --min-lr; WSD holds it and "
            "decays at the end")
        .one_of("constant|linear|cosine|WSD")
        .of(command::train)
        .resumes(on_resume::may_change);
    lr_warmup_iters.is(0, "steps over which the learning rate first rises from 0 to --lr")
        .at_least(0)
        .of(command::train)
        .resumes(on_resume::may_change);
    lr_warmup_samples.is(0, "the same in sequences, with --train-samples")
        .at_least(0)
        .of(command::train)
        .resumes(on_resume::may_change);
    lr_warmup_fraction
        .is(0, "the same as a share of --lr-decay-iters or --lr-decay-samples, instead of these")
        .within(0, 0.999999)
        .shown_as("")
        .of(command::train)
        .resumes(on_resume::may_change);
    lr_decay_samples.is(0, "with --train-samples: sequences behind which the decay ends")
        .at_least(1)
        .shown_as("--train-samples")
        .of(command::train)
        .resumes(on_resume::derived);
    lr_decay_iters.is(0, "step at which the decay ends")
        .at_least(1)
        .shown_as("--train-iters")
        .of(command::train)
        .resumes(on_resume::derived);
    lr_wsd_decay_iters.is(0, "length of the decay of WSD, in steps")
        .at_least(1)
        .shown_as("")
        .of(command::train)
        .resumes(on_resume::may_change);
    lr_wsd_decay_style.is("exponential", "shape of the decay of WSD")
        .one_of("linear|cosine|exponential|minus_sqrt")
        .of(command::train)
        .resumes(on_resume::may_change);
    weight_decay.is(0.01, "decoupled weight decay of matrices and embeddings (AdamW)")
        .zero_or_within(least, most)
        .of(command::train)
        .resumes(on_resume::may_change);
    clip_grad
        .is(1, "largest global norm of the gradient; longer ones are shortened; 0: no clipping")
        .zero_or_within(least, most)
        .of(command::train)
        .resumes(on_resume::may_change);
    adam_beta1.is(0.9, "decay of the first moment")
        .within(0, 0.999999)
        .of(command::train)
        .resumes(on_resume::may_change);
    adam_beta2.is(0.999, "decay of the second moment")
        .within(0, 0.999999999)
        .of(command::train)
        .resumes(on_resume::may_change);
    adam_eps.is(1e-8, "added to the root of the second moment")
        .within(std::numeric_limits<float>::min(), 1)
        .of(command::train)
        .resumes(on_resume::may_change);
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
    prompt
        .is({},
            "text to continue; given several times, several texts are continued in one batch, "
            "each with random numbers of its own")
        .shown_as("a line end")
        .of(command::generate);
    prompts_file.is("", "file with further prompts, one a line").of(command::generate);
    chat.is(false,
            "talk to the model: each prompt is what a user says, and what is written is the "
            "answer. "
            "Without a prompt, lines of the standard input are one conversation")
        .of(command::generate);
    system_prompt.is("", "with --chat: what the system says first").of(command::generate);
    enable_thinking
        .is(true,
            "with --chat: whether a model is to think first, where the template has a switch for "
            "it "
            "(Qwen3)")
        .of(command::generate);
    ids.is(false,
           "prompts and what is written are token ids, separated by blanks or commas, instead of "
           "text")
        .of(command::generate);
    num_samples.is(1, "texts to write for each prompt, each with random numbers of its own")
        .within(1, 1 << 20)
        .of(command::generate);
    max_new_tokens.is(200, "tokens to write for each prompt, at most; train: for --sample-interval")
        .at_least(0)
        .of(command::generate | command::train)
        .resumes(on_resume::may_change);
    stop_tokens
        .is({},
            "token ids, separated by blanks or commas: after any of them, which is still "
            "written, a text is finished")
        .of(command::generate);
    stop.is({}, "a text that, once written, finishes its text; may be given several times")
        .of(command::generate);
    ignore_eos
        .is(false,
            "texts go on behind the tokens that end one by the model's generation_config.json, and "
            "answers of --chat behind the end of a turn")
        .of(command::generate);
    greedy.is(false, "always take the likeliest token, as --temperature 0 does")
        .of(command::generate);
    temperature
        .is(1,
            "logits are divided by it: below 1 safer, above 1 bolder; 0 always takes the "
            "likeliest token")
        .within(0, 1000)
        .of(command::generate);
    top_k.is(0, "choose among the k likeliest tokens; 0: all").at_least(0).of(command::generate);
    top_p.is(1, "choose among the likeliest tokens that together have this probability")
        .above(0, 1)
        .of(command::generate);
    overflow
        .is("slide",
            "what happens where a text becomes longer than the model's positions. slide: the later "
            "half of it is read again and goes on; stop: it ends there")
        .one_of("slide|stop")
        .of(command::generate);
    batch_size.is(16, "prompts that run at once; what is written does not depend on it")
        .within(1, 1 << 20)
        .of(command::generate);
    use_cache
        .is(true,
            "keep the keys and values of earlier tokens; false computes the whole text again "
            "for every token, which writes the same and is slow")
        .of(command::generate);
    logprobs
        .is(false,
            "tell of each token that is written the natural logarithm of the probability that the "
            "model gives it: over its whole vocabulary, before --temperature, --top-k and --top-p")
        .of(command::generate);
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
    log_interval
        .is(100,
            "steps between lines of progress. The first step has one too, and whichever ends 10 s "
            "or more after the line before; a terminal shows every step")
        .at_least(1)
        .of(command::train)
        .resumes(on_resume::unsaved);
    metrics_jsonl
        .is("", "file for one JSON object a step: loss, learning rate, gradient norm, speed")
        .of(command::train)
        .resumes(on_resume::unsaved);
    loss_curve.is("", "SVG file for the curve of training and validation loss")
        .of(command::train)
        .resumes(on_resume::unsaved);
    profile.is(false, "measure the time of every node of the graph and print a table at the end")
        .of(command::train)
        .resumes(on_resume::unsaved);
    trace
        .is("",
            "file for what each rank did when in a few steps, its tasks and its exchanges with "
            "others, which chrome://tracing and ui.perfetto.dev open")
        .of(command::train)
        .resumes(on_resume::unsaved);
    profile_step_start.is(0, "step behind which those of --trace begin")
        .at_least(0)
        .shown_as("10 steps after the first, or two before the last")
        .of(command::train)
        .resumes(on_resume::unsaved);
    profile_step_end.is(0, "the last step of --trace, at most 64 behind --profile-step-start")
        .at_least(1)
        .shown_as("two behind --profile-step-start")
        .of(command::train)
        .resumes(on_resume::unsaved);
    pictures
        .is("",
            "folder for SVG pictures of the layout's ranks and of its pipeline's schedule, instead "
            "of the description")
        .of(command::describe);
    graphs
        .is(false,
            "list the parameters, each collective with its line of the model, and the graph of "
            "each "
            "part after each pass, instead of what there is to know at a glance")
        .of(command::describe);
    roofline
        .is("",
            "say about what each op, and what a step, would take on such a GPU, by arithmetic and "
            "traffic, instead of the description")
        .one_of("h100|h200")
        .of(command::describe);
    bench_json
        .is(false,
            "print one JSON object with the median milliseconds of a step as the last "
            "line; without --data-path on random tokens, 200 steps, no evaluation")
        .of(command::train)
        .resumes(on_resume::unsaved);
    warmup.is(20, "steps that --bench-json leaves out")
        .at_least(0)
        .of(command::train)
        .resumes(on_resume::unsaved);
    peak_tflops
        .is(0,
            "highest speed of what one rank computes on, in 10^12 floating-point operations a "
            "second: the share of it that the model needs (MFU) is told with the progress")
        .above(0, 1e9)
        .shown_as("no MFU is told")
        .of(command::train)
        .resumes(on_resume::unsaved);
    json.is(false,
            "print one JSON object instead of text; generate prints one a prompt, each in a "
            "line of its own")
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
    const command computing =
        command::train | command::eval | command::generate | command::describe;
    const command together = command::train | command::eval | command::generate | command::convert;
    threads
        .is(0,
            "threads to compute with; 0: all cores, or the quota of a container. Results do not "
            "depend on it")
        .within(0, 4096)
        .of(computing)
        .resumes(on_resume::unsaved);
    device
        .is(0,
            "the GPU to compute on, by its number among those that are visible "
            "(CUDA_VISIBLE_DEVICES), of a program that is built for GPUs. Left out, the processes "
            "of a machine take its GPUs in turn; ranks that are threads of one process share one")
        .within(0, 4096)
        .of(command::train | command::eval | command::generate)
        .resumes(on_resume::unsaved);
    ranks
        .is(0,
            "ranks to run, as threads of this process, which share --threads; 0: the fewest that "
            "the program is laid out over, and one of export. More of them are replicas. "
            "describe tells what so many have. Under mpirun or srun, which start each as a "
            "process, as many as those")
        .within(0, 4096)
        .of(together | command::describe)
        .resumes(on_resume::unsaved);
    collective_timeout
        .is(600, "seconds that ranks wait for one of them before all end with its name")
        .within(1, 1 << 30)
        .of(together)
        .resumes(on_resume::unsaved);
    check_collectives
        .is(MEGACPP_DEBUGGED,
            "ranks tell each other what they are about to exchange, and end where they differ with "
            "both ranks and both lines of the model")
        .of(together)
        .resumes(on_resume::unsaved);
    no_memory_check
        .is(false,
            "start also where all ranks plan more memory than the machine, its container or "
            "ulimit -v leaves them")
        .of(command::train | command::eval | command::generate)
        .resumes(on_resume::unsaved);
    product_type
        .is("auto",
            "how bf16 matrices are multiplied: by bf16 instructions, widened to fp32 "
            "first, or the faster of the two, measured at start")
        .one_of("auto|bf16|widened")
        .of(computing)
        .resumes(on_resume::may_change);
    tf32.is(false,
            "let a GPU multiply matrices of fp32 by TF32, which rounds their elements to 11 "
            "significant bits and is faster")
        .of(command::train | command::eval | command::generate)
        .resumes(on_resume::may_change);
    product_table
        .is("",
            "file with the fastest way to compute each product on this GPU, as megacpp_gpu --tune "
            "has measured it; each way is checked before it is used. Other ways give other bits")
        .of(command::train | command::eval | command::generate)
        .resumes(on_resume::unsaved);
    no_deterministic_attention
        .is(false,
            "let a GPU add up the gradients of attention in any order, which takes less memory "
            "for long sequences; the bits of a rerun differ")
        .of(command::train | command::describe)
        .resumes(on_resume::may_change);
    no_cuda_graphs
        .is(false,
            "start every kernel on a GPU by itself, instead of a micro-batch as a graph of CUDA: "
            "slower, and an error names the kernel that was started last; with "
            "CUDA_LAUNCH_BLOCKING=1 in the environment, the one that failed")
        .of(command::train | command::eval | command::generate)
        .resumes(on_resume::unsaved);
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
  compiled_flags compiled;
  compiled_expert_flags experts;
  compiled_model_flags made_of;
};

/// A flag with its name (dashes) and the title of its group.
struct flag_entry {
  std::string name;
  const char* group = "";
  flag_base* flag = nullptr;
  bool compiled = false;
};

namespace detail {
template <class Group>
void append_flags(std::vector<flag_entry>& list, const char* title, Group& group, bool compiled) {
  boost::hana::for_each(boost::hana::accessors<Group>(), [&](auto member) {
    std::string name = boost::hana::to<const char*>(boost::hana::first(member));
    std::replace(name.begin(), name.end(), '_', '-');
    list.push_back({std::move(name), title, &boost::hana::second(member)(group), compiled});
  });
}
} // namespace detail

/// All flags of `o`, in the order of the help; points into `o`.
inline std::vector<flag_entry> flags_of(options& o) {
  std::vector<flag_entry> list;
  detail::append_flags(list, "Data", o.data, false);
  detail::append_flags(list, "Model", o.model, false);
  detail::append_flags(list, "Training", o.training, false);
  detail::append_flags(list, "Learning rate and optimizer (AdamW)", o.optimizer, false);
  detail::append_flags(list, "Sampling", o.sampling, false);
  detail::append_flags(list, "Output", o.report, false);
  detail::append_flags(list, "Machine", o.machine, false);
  constexpr const char* compiled = "Compiled into this program (accepted only with these values)";
  detail::append_flags(list, compiled, o.compiled, true);
  detail::append_flags(list, compiled, o.experts, true);
  detail::append_flags(list, compiled, o.made_of, true);
  return list;
}

inline const flag_entry* find_flag(const std::vector<flag_entry>& list, std::string_view name) {
  for (const flag_entry& e : list)
    if (e.name == name) return &e;
  return nullptr;
}

/// `lr=0.001 save=model ...`: the flags of a command that were given.
inline std::string given_flags(const std::vector<flag_entry>& list, command c) {
  std::string text;
  for (const flag_entry& e : list) {
    if (!e.flag->given() || !overlaps(e.flag->commands(), c)) continue;
    if (!text.empty()) text += ' ';
    text += fmt::format("{}={}", e.name, e.flag->text());
  }
  return text;
}

} // namespace mc
