// Flags beside other flags: which contradict each other, and which change nothing. One table has
// every rule.
#pragma once

#include <megacpp/inputs/named_data.hpp>
#include <megacpp/options/options.hpp>
#include <megacpp/options/refusals.hpp>
#include <megacpp/request/data_request.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

namespace mc {

/// The form in which the data of a command are stored: as --data-type says, or indexed because
/// their files are there. Random tokens are asked for, or taken where speed is measured without
/// data.
inline data_kind kind_of_data(const options& o) {
  const data_flags& d = o.data;
  if (d.data_type() == "chat") return data_kind::chat;
  if (d.mock_data()) return data_kind::random;
  const bool lists = d.data_args_path.given() || d.per_split_data_args_path.given() ||
                     d.train_data_path.given() || d.valid_data_path.given() ||
                     d.test_data_path.given();
  const bool sets = d.data_type.given()
                        ? d.data_type() == "indexed"
                        : lists || std::ranges::any_of(d.data_path(), detail::is_set);
  if (sets) return data_kind::indexed;
  if (o.report.bench_json() && !d.data_path.given()) return data_kind::random;
  return d.data_type() == "u16"   ? data_kind::u16
         : d.data_type() == "i32" ? data_kind::i32
                                  : data_kind::text;
}

/// The origin that a flag must have for a rule to hold: the command line, since a file of flags may
/// serve many commands and a state has the flags of its run; or anyone.
enum class flag_origin : std::uint8_t { command_line, any };

/// Flags that are refused, or told and taken, where a condition holds.
struct flag_rule {
  command commands;
  std::array<std::string_view, 6> flags; ///< "" is none
  bool (*holds)(const options&);
  /// The fault of such a flag, put behind its name; "": they change nothing, which is told, since
  /// lines of Megatron-LM have them all the same.
  std::string_view why;
  flag_origin origin = flag_origin::command_line;
  bool late = false;            ///< the rule is asked once the state has been read
  std::string_view remedy = {}; ///< in place of leaving the flag out
};

namespace detail {

inline bool without_sets(const options& o) { return kind_of_data(o) != data_kind::indexed; }
inline bool reads_lists(const options& o) {
  const data_kind k = kind_of_data(o);
  return k == data_kind::indexed || k == data_kind::chat;
}
inline bool of_chat(const options& o) { return kind_of_data(o) == data_kind::chat; }
inline bool without_lists(const options& o) {
  return !reads_lists(o) && kind_of_data(o) != data_kind::random;
}
/// Tells whether data of their own for training and the rest are named, and are read.
inline bool names_parts(const options& o) {
  const data_flags& d = o.data;
  return reads_lists(o) &&
         (d.train_data_path.given() || d.valid_data_path.given() || d.test_data_path.given());
}
inline bool names_parts_by_file(const options& o) {
  return reads_lists(o) && o.data.per_split_data_args_path.given();
}
inline bool talks(const options& o) {
  return o.sampling.chat() && !o.sampling.prompt.given() && !o.sampling.prompts_file.given();
}
inline bool likeliest(const options& o) {
  return o.sampling.greedy() || (o.sampling.temperature.given() && o.sampling.temperature() == 0);
}
/// Tells whether --eval-iters is left out; the next one, whether it is 0.
inline bool evaluates_all(const options& o) { return !o.training.eval_iters.given(); }
inline bool evaluates_none(const options& o) {
  return o.training.eval_iters.given() && o.training.eval_iters() == 0;
}
inline bool of_bytes(const options& o) {
  return o.data.tokenizer_type() == "byte" || o.data.tokenizer_type() == "char";
}

} // namespace detail

inline constexpr flag_rule flag_rules[] = {
    // The length of a run.
    {command::train,
     {"train-iters"},
     [](const options& o) { return o.training.train_samples.given(); },
     "and --train-samples contradict each other",
     flag_origin::command_line,
     true},
    {command::train,
     {"train-iters", "train-samples"},
     [](const options& o) { return o.training.epochs.given(); },
     "and --epochs contradict each other",
     flag_origin::command_line,
     true},
    {command::train,
     {"epochs"},
     [](const options& o) { return kind_of_data(o) != data_kind::chat; },
     "counts conversations, and the data are none",
     flag_origin::any,
     true,
     "give --train-iters or --train-samples"},
    {command::train,
     {"lr-decay-iters", "lr-warmup-iters"},
     [](const options& o) { return o.training.train_samples.given(); },
     "and --train-samples contradict each other",
     flag_origin::command_line,
     true},
    {command::train,
     {"lr-decay-samples", "lr-warmup-samples"},
     [](const options& o) { return !o.training.train_samples.given(); },
     "changes nothing without --train-samples",
     flag_origin::command_line,
     true},
    {command::train,
     {"lr-warmup-fraction"},
     [](const options& o) {
       return o.optimizer.lr_warmup_iters.given() && o.optimizer.lr_warmup_iters() > 0;
     },
     "and --lr-warmup-iters contradict each other",
     flag_origin::any},
    {command::train,
     {"lr-warmup-fraction"},
     [](const options& o) {
       return o.optimizer.lr_warmup_samples.given() && o.optimizer.lr_warmup_samples() > 0;
     },
     "and --lr-warmup-samples contradict each other",
     flag_origin::any},
    {command::train,
     {"min-lr"},
     [](const options& o) { return o.optimizer.lr_decay_style() == "constant"; },
     ""},
    {command::train,
     {"lr-decay-iters", "lr-decay-samples"},
     [](const options& o) {
       return o.optimizer.lr_decay_style() == "constant" && !o.optimizer.lr_warmup_fraction.given();
     },
     ""},
    {command::train,
     {"lr-wsd-decay-iters", "lr-wsd-decay-style"},
     [](const options& o) { return o.optimizer.lr_decay_style() != "WSD"; },
     "changes nothing without --lr-decay-style WSD"},

    // The folders that are saved to and loaded.
    {command::train,
     {"save-interval"},
     [](const options& o) { return !o.training.save.given(); },
     ""},
    {command::train,
     {"keep-latest-k", "keep-best", "max-shard-size"},
     [](const options& o) { return !o.training.save.given(); },
     "changes nothing without --save FOLDER"},
    {command::train,
     {"finetune"},
     [](const options& o) { return !o.model.load.given(); },
     "changes nothing without --load FOLDER"},

    // Evaluations, and texts on the way.
    {command::train,
     {"sample-prompt", "max-new-tokens"},
     [](const options& o) { return !o.training.sample_interval.given(); },
     "changes nothing without --sample-interval N"},
    {command::train,
     {"multiple-validation-sets"},
     &detail::evaluates_all,
     "changes nothing without --eval-iters"},
    {command::train,
     {"full-validation"},
     [](const options& o) { return o.training.eval_iters.asked(); },
     "and --eval-iters contradict each other"},
    {command::train, {"eval-interval"}, &detail::evaluates_none, ""},
    {command::train,
     {"keep-best"},
     &detail::evaluates_none,
     "and --eval-iters 0 contradict each other: nothing is evaluated"},
    {command::train,
     {"eval-interval", "keep-best"},
     [](const options& o) {
       return detail::evaluates_all(o) && (o.data.mock_data() || o.report.bench_json());
     },
     "changes nothing: random tokens and --bench-json are evaluated only with --eval-iters"},
    {command::eval,
     {"global-batch-size", "multiple-validation-sets"},
     &detail::evaluates_all,
     "changes nothing without --eval-iters"},
    {command::eval, {"eval-iters"}, &detail::evaluates_none, "0 would measure nothing"},

    // Reports.
    {command::train,
     {"warmup"},
     [](const options& o) { return !o.report.bench_json(); },
     "changes nothing without --bench-json"},
    {command::train,
     {"profile-step-start", "profile-step-end"},
     [](const options& o) { return !o.report.trace.given() && !o.report.profile(); },
     "changes nothing without --trace FILE"},
    {command::train,
     {"profile-step-start", "profile-step-end"},
     [](const options& o) { return !o.report.trace.given() && o.report.profile(); },
     ""},
    {command::train,
     {"rampup-batch-size"},
     [](const options& o) { return o.report.bench_json(); },
     "and --bench-json contradict each other: steps that are measured are alike"},
    {command::train,
     {"exit-duration-in-mins", "sample-interval"},
     [](const options& o) { return o.report.bench_json(); },
     "and --bench-json contradict each other: what is measured is a number of steps"},
    {command::train,
     {"log-interval"},
     [](const options& o) { return o.report.bench_json(); },
     "changes nothing beside --bench-json, which shows no progress"},

    // Data.
    {command::train,
     {"tokenizer-type"},
     [](const options& o) { return o.data.mock_data() && !detail::of_bytes(o); },
     ""},
    {command::train,
     {"tokenizer-type"},
     [](const options& o) { return o.data.mock_data() && detail::of_bytes(o); },
     "and --mock-data contradict each other: random tokens are not read from anything"},
    {command::train,
     {"data-type"},
     [](const options& o) { return o.data.mock_data(); },
     "and --mock-data contradict each other: random tokens are not read from anything"},
    {command::train,
     {"data-path"},
     [](const options& o) { return o.data.mock_data(); },
     "and --mock-data contradict each other: random tokens are not read from anything",
     flag_origin::any},
    {command::train,
     {"tokenizer-type", "data-type"},
     [](const options& o) {
       return o.report.bench_json() && !o.data.data_path.given() && !o.model.load.given();
     },
     "changes nothing beside --bench-json without --data-path: tokens are random"},
    {command::train | command::eval,
     {"chat-loss"},
     [](const options& o) { return o.data.data_type() != "chat"; },
     "changes nothing without --data-type chat"},
    {command::train | command::eval,
     {"tokenizer-type"},
     [](const options& o) { return o.data.data_type() == "u16" || o.data.data_type() == "i32"; },
     "and a --data-type of token ids contradict each other: they need no tokenizer"},
    {command::train | command::eval,
     {"reset-position-ids", "reset-attention-mask", "eod-mask-loss", "eod-token",
      "data-cache-path"},
     &detail::without_sets,
     "changes nothing without an indexed data set, which megacpp-data prepares",
     flag_origin::command_line,
     true},
    {command::train | command::eval,
     {"multiple-validation-sets"},
     [](const options& o) { return !detail::evaluates_all(o) && detail::without_sets(o); },
     "changes nothing without an indexed data set, which megacpp-data prepares",
     flag_origin::command_line,
     true},
    {command::train | command::eval,
     {"vocab-file", "merge-file"},
     &detail::of_chat,
     "changes nothing for conversations, whose tokenizer and template are those of the folder "
     "--tokenizer-model or --load",
     flag_origin::command_line,
     true},
    {command::train | command::eval,
     {"tokenizer-type"},
     [](const options& o) {
       return detail::of_chat(o) && o.data.tokenizer_type() != "HuggingFaceTokenizer";
     },
     "changes nothing for conversations, whose tokenizer and template are those of the folder "
     "--tokenizer-model or --load",
     flag_origin::command_line,
     true},
    {command::train | command::eval,
     {"train-data-path", "valid-data-path", "test-data-path", "data-args-path",
      "per-split-data-args-path"},
     &detail::without_lists,
     "names indexed data sets or conversations, and --data-type says that the data are a file",
     flag_origin::command_line,
     true,
     "give the file by --data-path, or another --data-type"},
    {command::train,
     {"train-data-path", "valid-data-path", "test-data-path", "data-args-path",
      "per-split-data-args-path"},
     [](const options& o) { return o.data.mock_data(); },
     "and --mock-data contradict each other: random tokens are not read from anything",
     flag_origin::command_line,
     true},
    {command::train,
     {"train-data-path", "valid-data-path", "test-data-path", "data-args-path",
      "per-split-data-args-path"},
     [](const options& o) { return kind_of_data(o) == data_kind::random && !o.data.mock_data(); },
     "changes nothing beside --bench-json without --data-path: tokens are random",
     flag_origin::command_line,
     true},
    {command::train,
     {"data-path", "data-args-path", "split", "per-split-data-args-path"},
     &detail::names_parts,
     "and --train-data-path with its like contradict each other",
     flag_origin::any},
    {command::train,
     {"data-path", "data-args-path", "split"},
     &detail::names_parts_by_file,
     "and --per-split-data-args-path contradict each other",
     flag_origin::any},
    {command::train | command::eval,
     {"data-path"},
     [](const options& o) { return detail::reads_lists(o) && o.data.data_args_path.given(); },
     "and --data-args-path contradict each other",
     flag_origin::any},

    // Texts.
    {command::generate,
     {"system-prompt", "enable-thinking"},
     [](const options& o) { return !o.sampling.chat(); },
     "changes nothing without --chat"},
    {command::generate,
     {"ids"},
     [](const options& o) { return o.sampling.chat(); },
     "and --chat contradict each other: answers are texts"},
    {command::generate,
     {"json", "num-samples", "batch-size", "logprobs"},
     &detail::talks,
     "changes nothing in a conversation, where --chat is given without a prompt"},
    {command::generate,
     {"temperature"},
     [](const options& o) { return o.sampling.greedy() && o.sampling.temperature() != 0; },
     "and --greedy contradict each other",
     flag_origin::any},
    {command::generate,
     {"top-k", "top-p", "num-samples"},
     &detail::likeliest,
     "changes nothing where the likeliest token is always taken, by --greedy or --temperature 0"},
    {command::generate,
     {"num-samples"},
     [](const options& o) {
       return detail::likeliest(o) && o.sampling.num_samples() > 1 &&
              !o.sampling.num_samples.asked() && !detail::talks(o);
     },
     "changes nothing where the likeliest token is always taken, by --greedy or --temperature 0: "
     "all texts would be one",
     flag_origin::any},
    {command::generate,
     {"seed"},
     [](const options& o) { return detail::likeliest(o) && !o.model.random_weights(); },
     "changes nothing where the likeliest token is always taken, by --greedy or --temperature 0"},
    {command::generate,
     {"ignore-eos"},
     [](const options& o) { return o.model.random_weights(); },
     "changes nothing beside --random-weights, with which no token ends a text"},
    {command::generate,
     {"load"},
     [](const options& o) { return o.model.random_weights(); },
     "and --random-weights contradict each other",
     flag_origin::any},
    {command::generate,
     {"random-weights"},
     [](const options& o) { return o.model.random_weights() && !o.sampling.ids(); },
     "needs --ids, since such weights have no tokenizer",
     flag_origin::any,
     false,
     "give both"},
    {command::generate,
     {"tokenizer-type"},
     [](const options& o) { return o.sampling.ids(); },
     "and --ids contradict each other: token ids need no tokenizer"},

    // Descriptions.
    {command::describe,
     {"graphs"},
     [](const options& o) { return o.report.json(); },
     "changes nothing beside --json, which has the graphs, too"},
    {command::describe,
     {"graphs"},
     [](const options& o) { return o.report.pictures.given(); },
     "changes nothing beside --pictures"},
    {command::describe,
     {"graphs", "pictures", "threads", "product-type", "ranks", "no-deterministic-attention"},
     [](const options& o) { return o.report.roofline.given(); },
     "changes nothing beside --roofline"},
    {command::describe,
     {"threads", "product-type"},
     [](const options& o) { return o.report.graphs(); },
     "changes nothing beside --graphs, which computes nothing"},
};

/// Applies the rules of a command: adds what is refused to `refused`, and returns the names of
/// flags that are told. Where nothing but the command line has been read, `late` is false: rules
/// that a state or the data have a part in are left to a later call.
inline std::vector<std::string> apply_rules(command c, options& o, refusals& refused,
                                            bool late = true) {
  const std::vector<flag_entry> all = flags_of(o);
  std::vector<std::string> told;
  constexpr std::string_view elsewhere = ", which the state or a file of flags has";
  for (const flag_rule& rule : flag_rules) {
    if (!overlaps(rule.commands, c) || (!late && (rule.late || rule.origin == flag_origin::any)))
      continue;
    for (const std::string_view name : rule.flags) {
      if (name.empty()) continue;
      const flag_base& flag = *find_flag(all, name)->flag;
      const bool there = rule.origin == flag_origin::any ? flag.given() : flag.asked();
      if (!there || !rule.holds(o)) continue;
      if (rule.why.empty()) told.emplace_back(name);
      else
        refused.add(exit_code::usage,
                    fmt::format("--{} {}; {}", name, rule.why,
                                !rule.remedy.empty() ? std::string(rule.remedy)
                                                     : fmt::format("leave --{} out{}", name,
                                                                   flag.asked() ? "" : elsewhere)));
    }
  }
  return told;
}

} // namespace mc
