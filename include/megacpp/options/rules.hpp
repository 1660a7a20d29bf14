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

/// Returns the form of a command's data: as --data-type says, or indexed where the files of a data
/// set are there. Random tokens are asked for, or taken where speed is measured without data.
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
  return d.data_type.choice<data_kind>();
}

/// Flags of some commands that are refused, or told and taken, under a condition on other flags.
struct flag_rule {
  command commands;
  std::string_view flags; ///< names with blanks between them
  /// The condition: terms with blanks between them, which all hold. A term has alternatives with |
  /// between them: "x" is given, or on if it is a switch; "x=v" has the value v; "asked:x" is on
  /// the command line; "!" makes one its opposite. The name "data" stands for kind_of_data.
  std::string_view when;
  /// The fault of such a flag, put behind its name; "": it contradicts the flag of the first term,
  /// or changes nothing without it.
  std::string_view why{};
  unsigned how = 0;          ///< told, late and wherever, below, or some of them
  std::string_view remedy{}; ///< in place of leaving the flag out
};

namespace detail {

inline constexpr unsigned
    told = 1,     ///< the flag changes nothing, and is told, since lines of Megatron-LM have it
    late = 2,     ///< the rule is asked once the state has been read, which has flags of its run
    wherever = 4; ///< it is also for flags of a file, which may serve many commands, or of a state

inline constexpr std::string_view
    data_lists =
        "train-data-path valid-data-path test-data-path data-args-path "
        "per-split-data-args-path",
    of_random = "and --mock-data contradict each other: random tokens are not read from anything",
    without_data = "changes nothing beside --bench-json without --data-path: tokens are random",
    without_sets = "changes nothing without an indexed data set, which megacpp-data prepares",
    of_folder =
        "changes nothing for conversations: the folder of --tokenizer-model or --load has "
        "their tokenizer and template",
    of_stop = "give another --eval-iters, or --stop-after-no-better 0",
    of_greedy = "changes nothing beside --greedy or --temperature 0, which draw no tokens";

} // namespace detail

/// All rules of flags beside flags.
inline constexpr auto flag_rules = [] {
  using namespace detail;
  using enum command;
  return std::to_array<flag_rule>({
      // The length of a run.
      {train, "train-iters", "train-samples", "", late},
      {train, "train-iters train-samples", "epochs", "", late},
      {train, "epochs", "!data=chat", "counts conversations, and the data are none",
       late | wherever, "give --train-iters or --train-samples"},
      {train, "lr-decay-iters lr-warmup-iters", "train-samples", "", late},
      {train, "lr-decay-samples lr-warmup-samples", "!train-samples", "", late},
      {train, "lr-warmup-fraction", "lr-warmup-iters !lr-warmup-iters=0", "", wherever},
      {train, "lr-warmup-fraction", "lr-warmup-samples !lr-warmup-samples=0", "", wherever},
      {train, "min-lr", "lr-decay-style=constant", "", told},
      {train, "lr-decay-iters lr-decay-samples", "lr-decay-style=constant !lr-warmup-fraction", "",
       told},
      {train, "lr-wsd-decay-iters lr-wsd-decay-style", "!lr-decay-style=WSD"},
      // Folders.
      {train, "save-interval", "!save", "", told},
      {train, "keep-latest-k keep-best max-shard-size", "!save"},
      {train, "finetune", "!load"},
      {running | convert, "pretrained-checkpoint adapter", "!load"},
      {running | convert, "adapter-layout", "!adapter"},
      {convert, "dequantised", "!merge"},
      {convert, "merge", "quantise=nf4",
       "and --quantise contradict each other: a merged model is exported first"},
      {train, "finetune", "pretrained-checkpoint"},
      // Evaluations, and texts on the way.
      {train, "sample-prompt max-new-tokens", "!sample-interval"},
      {train, "multiple-validation-sets", "!eval-iters"},
      {train, "full-validation", "asked:eval-iters"},
      {train, "eval-interval", "eval-iters eval-iters=0", "", told},
      {train, "keep-best", "eval-iters eval-iters=0",
       "and --eval-iters 0 contradict each other: nothing is evaluated"},
      {train, "stop-after-no-better",
       "!stop-after-no-better=0 eval-iters eval-iters=0 !full-validation",
       "needs evaluations, and --eval-iters 0 asks for none", wherever, of_stop},
      {train, "stop-after-no-better", "!stop-after-no-better=0 !eval-iters mock-data|bench-json",
       "needs evaluations, and random tokens and --bench-json are evaluated only with --eval-iters",
       wherever, of_stop},
      {train, "eval-interval keep-best", "!eval-iters mock-data|bench-json",
       "changes nothing: random tokens and --bench-json are evaluated only with --eval-iters"},
      {eval, "global-batch-size multiple-validation-sets", "!eval-iters"},
      {eval, "eval-iters", "eval-iters=0", "0 would measure nothing"},
      // Reports.
      {train, "warmup", "!bench-json"},
      {train, "tensorboard-log-interval", "!tensorboard-dir", "", told},
      {train, "metrics-address", "!metrics-port"},
      {train, "show-mask", "bench-json"},
      {train, "profile-step-start profile-step-end", "!trace !profile"},
      {train, "profile-step-start profile-step-end", "!trace profile", "", told},
      {train, "rampup-batch-size", "bench-json",
       "and --bench-json contradict each other: steps that are measured are alike"},
      {train, "exit-duration-in-mins sample-interval", "bench-json",
       "and --bench-json contradict each other: it measures a number of steps"},
      {train, "log-interval tensorboard-dir metrics-port katib-metrics", "bench-json",
       "changes nothing beside --bench-json, which shows no progress and has no observers"},
      // Devices. fp32-residual-connection is on in programs of f32, and only there, because
      // options/compiled_model.hpp says so; roofline, below, asks for it, too.
      {running, "tf32", "tf32 !fp32-residual-connection", "is for programs of f32",
       late | wherever},
      {train, "no-deterministic-attention", "no-deterministic-attention !bf16",
       "is for programs of bf16", late | wherever},
      // Data.
      {train, "tokenizer-type", "mock-data !tokenizer-type=byte !tokenizer-type=char", "", told},
      {train, "tokenizer-type", "mock-data tokenizer-type=byte|tokenizer-type=char", of_random},
      {train, "data-type", "mock-data", of_random},
      {train, "data-path", "mock-data", of_random, wherever},
      {train, "tokenizer-type data-type", "bench-json !data-path !load", without_data},
      {reading, "chat-loss chat-keys", "!data-type=chat"},
      {reading, "tokenizer-type", "data-type=u16|data-type=i32",
       "and a --data-type of token ids contradict each other: ids need no tokenizer"},
      {reading, "reset-position-ids reset-attention-mask eod-mask-loss eod-token data-cache-path",
       "!data=indexed", without_sets, late},
      {reading, "multiple-validation-sets", "eval-iters !data=indexed", without_sets, late},
      {reading, "vocab-file merge-file", "data=chat", of_folder, late},
      {reading, "tokenizer-type", "data=chat !tokenizer-type=HuggingFaceTokenizer", of_folder,
       late},
      {reading, data_lists, "data=text|data=u16|data=i32", "names no file, as --data-type asks for",
       late, "give it by --data-path, or give another --data-type"},
      {train, data_lists, "mock-data", of_random, late},
      {train, data_lists, "data=random !mock-data", without_data, late},
      {train, "data-path data-args-path split per-split-data-args-path",
       "train-data-path|valid-data-path|test-data-path data=indexed|data=chat",
       "and --train-data-path with its like contradict each other", wherever},
      {train, "data-path data-args-path split", "per-split-data-args-path data=indexed|data=chat",
       "", wherever},
      {reading, "data-path", "data-args-path data=indexed|data=chat", "", wherever},
      // Texts.
      {generate, "system-prompt enable-thinking", "!chat"},
      {generate, "ids", "chat", "and --chat contradict each other: answers are texts"},
      {generate, "json num-samples batch-size logprobs", "chat !prompt !prompts-file",
       "changes nothing in a conversation, where --chat is given without a prompt"},
      {generate, "temperature", "greedy !temperature=0", "", wherever},
      {generate, "top-k top-p", "greedy|temperature=0", of_greedy},
      {generate, "num-samples", "greedy|temperature=0 num-samples=1", of_greedy},
      {generate, "num-samples", "greedy|temperature=0 !num-samples=1 !chat|prompt|prompts-file",
       "changes nothing beside --greedy or --temperature 0: all would be one text", wherever},
      {generate, "seed", "greedy|temperature=0 !random-weights", of_greedy},
      {generate, "ignore-eos", "random-weights",
       "changes nothing beside --random-weights, with which no token ends a text"},
      {generate, "load", "random-weights", "", wherever},
      {generate, "random-weights", "random-weights !ids",
       "needs --ids, since such weights have no tokenizer", wherever, "give both"},
      {generate, "tokenizer-type", "ids",
       "and --ids contradict each other: token ids need no tokenizer"},
      // Descriptions.
      {describe, "ranks threads product-type pictures graphs roofline", "load",
       "is for the description of a program, and describe --load lists states alone", wherever,
       "leave one of them out"},
      {describe, "ranks threads product-type pictures graphs roofline load", "launch",
       "changes nothing beside --launch"},
      {describe, "graphs", "json", "changes nothing beside --json, which has the graphs, too"},
      {describe, "graphs", "pictures", "changes nothing beside --pictures"},
      {describe, "graphs pictures threads product-type ranks no-deterministic-attention",
       "roofline", "changes nothing beside --roofline"},
      {describe, "roofline", "!bf16 !fp32-residual-connection", "is for programs of bf16 and f32",
       late | wherever},
      {describe, "threads product-type", "graphs",
       "changes nothing beside --graphs, which computes nothing"},
  });
}();

namespace detail {

/// An alternative of a term.
struct flag_term {
  std::string_view name, value;
  bool opposite = false, asked = false, has_value = false;

  explicit flag_term(std::string_view text) {
    if (opposite = text.starts_with('!'); opposite) text.remove_prefix(1);
    if (asked = text.starts_with("asked:"); asked) text.remove_prefix(6);
    name = text.substr(0, text.find('='));
    if (has_value = name.size() < text.size(); has_value) value = text.substr(name.size() + 1);
  }
  bool holds(const options& o, const std::vector<named_flag>& all) const {
    if (name == "data") return (name_of(kind_of_data(o)) == value) != opposite;
    const flag_base& flag = *find_flag(all, name)->flag;
    return (has_value          ? flag.text() == value
            : asked            ? flag.asked()
            : flag.is_toggle() ? flag.text() == "true"
                               : flag.given()) != opposite;
  }
};

inline bool holds(std::string_view when, const options& o, const std::vector<named_flag>& all) {
  bool every = true;
  each_between(when, ' ', [&](std::string_view term) {
    bool any = false;
    each_between(term, '|',
                 [&](std::string_view one) { any = any || flag_term(one).holds(o, all); });
    every = every && any;
  });
  return every;
}

/// Returns the fault of a flag by a rule, as "and --save contradict each other".
inline std::string fault_of(const flag_rule& rule) {
  if (!rule.why.empty()) return std::string(rule.why);
  const flag_term first(rule.when.substr(0, rule.when.find_first_of(" |")));
  return fmt::format(fmt::runtime(first.opposite ? "changes nothing without --{}{}{}"
                                                 : "and --{}{}{} contradict each other"),
                     first.name, first.has_value ? " " : "", first.value);
}

} // namespace detail

/// Applies the rules of a command: adds flags that are refused to `refused`, and returns the names
/// of flags that are told. `all` is false before a state and the data have been read: rules that
/// need them, or are about flags from a file, too, are left to a later call.
inline std::vector<std::string> apply_rules(command c, options& o, refusals& refused,
                                            bool all = true) {
  const std::vector<named_flag> list = flags_of(o);
  std::vector<std::string> told;
  for (const flag_rule& rule : flag_rules) {
    if (!overlaps(rule.commands, c) ||
        (!all && (rule.how & (detail::late | detail::wherever)) != 0))
      continue;
    each_between(rule.flags, ' ', [&](std::string_view name) {
      const flag_base& flag = *find_flag(list, name)->flag;
      const bool there = (rule.how & detail::wherever) != 0 ? flag.given() : flag.asked();
      if (!there || !detail::holds(rule.when, o, list)) return;
      if ((rule.how & detail::told) != 0) return told.emplace_back(name), void();
      const std::string leave = fmt::format(
          "leave --{} out{}", name, flag.asked() ? "" : ", which the state or a file of flags has");
      refused.add(exit_code::usage, fmt::format("--{} {}; {}", name, detail::fault_of(rule),
                                                rule.remedy.empty() ? leave : rule.remedy));
    });
  }
  return told;
}

/// Applies all rules of a command, and returns the names of flags that are told. Throws
/// mc::error(exit_code::usage) for flags that are refused.
inline std::vector<std::string> apply_all_rules(command c, options& o) {
  refusals refused;
  std::vector<std::string> told = apply_rules(c, o, refused);
  refused.raise();
  return told;
}

} // namespace mc
