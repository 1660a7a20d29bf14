// Flags that belong together, checked together: the numbers of a training run, and what is compiled
// in.
#pragma once

#include <megacpp/exec/product_shape.hpp>
#include <megacpp/io/json_file.hpp>
#include <megacpp/optim/batch_schedule.hpp>
#include <megacpp/optim/schedule.hpp>
#include <megacpp/options/compiled_model.hpp>
#include <megacpp/options/options.hpp>
#include <megacpp/options/refusals.hpp>
#include <megacpp/run/view.hpp>

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mc {

/// What a training run does, free of contradictions.
struct training_settings {
  std::int64_t steps = 0;
  std::int64_t at_once = 1; ///< sequences that all replicas take at once, a micro-batch each
  batch_schedule batches;   ///< sequences of each step, on all of them
  std::int64_t warmup = 0;  ///< steps that bench-json leaves out
  bool bench = false;
  schedule rates;
  bool rates_by_samples = false; ///< the schedule counts samples, not steps
  step_numbers numbers;

  /// Of all steps.
  std::int64_t samples() const { return batches.samples_of(steps, 0); }
  /// Of the largest step, on each replica.
  std::int64_t micro_batches() const { return batches.last / at_once; }
};

namespace detail {

inline decay_style decay_style_of(std::string_view name) {
  if (name == "constant") return decay_style::constant;
  if (name == "linear") return decay_style::linear;
  return name == "cosine" ? decay_style::cosine : decay_style::wsd;
}
inline wsd_style wsd_style_of(std::string_view name) {
  if (name == "linear") return wsd_style::linear;
  if (name == "cosine") return wsd_style::cosine;
  return name == "exponential" ? wsd_style::exponential : wsd_style::minus_sqrt;
}

/// `rampup`: the text of --rampup-batch-size.
inline batch_schedule batches_of(std::string_view rampup, std::int64_t global) {
  batch_schedule s{.last = global};
  for (std::int64_t* number : {&s.start, &s.increment, &s.samples}) {
    const std::string_view word = rampup.substr(0, rampup.find(' '));
    std::from_chars(word.data(), word.data() + word.size(), *number);
    rampup.remove_prefix(std::min(word.size() + 1, rampup.size()));
  }
  return s;
}

} // namespace detail

/// Fills in what is compiled in. Numbers for which a model has no member are read off its
/// graph; what it does not have is 0.
inline void set_compiled(options& o, const program_view& p) {
  compiled_flags& c = o.compiled;
  compiled_expert_flags& e = o.experts;
  const auto set = [](auto& flag, const auto& value) { flag.is(value, flag.help()); };
  const model_extents& model = p.model.extents;
  const graph& block = *p.block(0).g;
  const layout& l = p.numbers.ranks;
  const std::int64_t heads = model.heads > 0 ? model.heads : detail::extent_in(block, dim::heads);
  set(c.micro_batch_size, p.numbers.batch.micro);
  set(c.seq_length, p.numbers.batch.sequence);
  set(c.tensor_model_parallel_size, l.tp);
  set(c.pipeline_model_parallel_size, l.pp);
  set(c.context_parallel_size, l.cp);
  set(c.expert_model_parallel_size, l.ep);
  set(c.expert_tensor_parallel_size, l.expert_tp());
  set(c.sequence_parallel, l.sequence_parallel);
  set(c.num_virtual_stages_per_pipeline_rank, l.virtual_stages);
  const bool even = l.virtual_stages > 1 && l.cut == stage_cut{};
  set(c.num_layers_per_virtual_pipeline_stage, even ? layers_of_stage(l, p.layers, 0) : 0);
  set(c.decoder_first_pipeline_num_layers, l.cut.first);
  set(c.decoder_last_pipeline_num_layers, l.cut.last);
  set(c.account_for_embedding_in_pipeline_split, l.cut.embedding);
  set(c.account_for_loss_in_pipeline_split, l.cut.loss);
  set(c.use_distributed_optimizer, l.zero == 1);
  set(c.num_layers, p.layers);
  set(c.hidden_size, p.hidden);
  set(c.num_attention_heads, heads);
  set(c.num_query_groups, model.kv_heads > 0 ? model.kv_heads : heads);
  set(c.ffn_hidden_size, model.ffn > 0 ? model.ffn : detail::extent_in(block, dim::ffn));
  set(e.num_experts, model.experts);
  set(e.moe_ffn_hidden_size, model.expert_ffn);
  set(e.moe_router_topk, model.experts_per_token);
  set(e.moe_router_load_balancing_type, model.balanced_by);
  set(e.moe_aux_loss_coeff, model.aux_loss);
  set(e.moe_z_loss_coeff, model.router_z_loss);
  set(e.moe_router_enable_expert_bias, model.bias_rate > 0);
  set(e.moe_router_bias_update_rate, model.bias_rate);
  set(e.moe_router_pre_softmax, !model.norm_topk);
  set(e.moe_expert_capacity_factor, model.capacity);
  set(e.moe_shared_expert_intermediate_size, model.shared_ffn);
  set(c.vocab_size, p.vocabulary);
  set(c.bf16, p.numbers.precision.weight == dtype::bf16);
  set(c.recompute_granularity, name_of(p.numbers.again));
  set(c.recompute_activations, p.numbers.again == recompute::selective);
  set(c.recompute_method, p.numbers.again == recompute::full ? "uniform" : "none");
  set(c.recompute_num_layers, p.numbers.again == recompute::full ? 1 : 0);
  set(c.numerics, name_of(p.numbers.sums));
  // Megatron-LM does without sequence parallelism where nothing is shared over tp.
  c.sequence_parallel.idles(l.tp == 1);
  e.moe_token_drop_policy.idles(model.capacity == 0);
  set_compiled_model(o, p);
}

namespace detail {
/// True if flags ask for linear layers without biases, where Megatron-LM fuses no GELU and so
/// computes the exact one, of a model that has the one by tanh.
inline bool asks_for_exact_gelu(const std::vector<flag_entry>& asked,
                                const compiled_model_flags& real) {
  const auto is_on = [&](const char* name) {
    const flag_base& flag = *find_flag(asked, name)->flag;
    return flag.given() && flag.text() == "true";
  };
  return is_on("disable-bias-linear") && !is_on("openai-gelu") && real.disable_bias_linear() &&
         real.openai_gelu() && !real.openai_gelu.is_idle();
}
} // namespace detail

/// Sorts flags that say what was compiled in: into `taken`, or, where they ask for something else,
/// into what is refused (exit_code::mismatch).
inline void check_compiled(const std::vector<flag_entry>& asked, const program_view& p,
                           refusals& refused, idle_flags& taken) {
  options real;
  set_compiled(real, p);
  for (const flag_entry& e : flags_of(real)) {
    const flag_base& flag = *find_flag(asked, e.name)->flag;
    if (!e.compiled || !flag.given()) continue;
    const bool agrees = flag.text() == e.flag->text();
    if (e.name == "disable-bias-linear" && detail::asks_for_exact_gelu(asked, real.made_of))
      refused.add(exit_code::mismatch,
                  fmt::format("--disable-bias-linear makes Megatron-LM compute the exact GELU, but "
                              "{} was compiled with the one by tanh; leave the flag out, or {}",
                              p.name, flag.otherwise()));
    else if (agrees || e.flag->is_idle())
      (agrees ? taken.agreeing : taken.without_effect).push_back(e.name);
    else
      refused.add(exit_code::mismatch,
                  fmt::format("--{} is {}, but {} was compiled with {}; leave the flag out, or {}",
                              e.name, flag.text(), p.name, e.flag->text(), flag.otherwise()));
  }
}

/// Throws mc::error(exit_code::usage) for several files to train on.
inline void require_one_file(const options& o) {
  const std::vector<std::string>& paths = o.data.data_path();
  if (paths.size() > 1)
    throw error(exit_code::usage,
                fmt::format("--data-path takes one value, but is given \"{}\" and \"{}\"; give one",
                            printable(paths[0]), printable(paths[1])));
}

/// Refuses flags of the command line that would change nothing beside the others, all of them at
/// once, but for those that Megatron-LM's lines have all the same, whose names it returns to be
/// told. Those of a configuration file, which may serve many commands, and of a state are not
/// asked. What is refused is added to `refused`.
inline std::vector<std::string> refuse_idle_flags(command c, options& o, refusals& refused) {
  const std::vector<flag_entry> all = flags_of(o);
  std::vector<std::string> told;
  const auto tell = [&](bool idle, std::initializer_list<const char*> flags) {
    for (const char* name : flags)
      if (idle && find_flag(all, name)->flag->asked()) told.emplace_back(name);
  };
  const auto refuse = [&](bool idle, std::initializer_list<const char*> flags, const char* why) {
    for (const char* name : flags)
      if (idle && find_flag(all, name)->flag->asked())
        refused.add(exit_code::usage, fmt::format("--{} {}; leave --{} out", name, why, name));
  };
  if (c == command::train) {
    tell(!o.training.save.given(), {"save-interval"}); // the run tells that nothing will be saved
    refuse(!o.training.save.given(), {"keep-latest-k", "keep-best", "max-shard-size"},
           "changes nothing without --save FOLDER");
    refuse(!o.model.load.given(), {"finetune"}, "changes nothing without --load FOLDER");
    refuse(!o.training.sample_interval.given(), {"sample-prompt", "max-new-tokens"},
           "changes nothing without --sample-interval N");
    refuse(!o.report.bench_json(), {"warmup"}, "changes nothing without --bench-json");
    refuse(!o.report.trace.given() && !o.report.profile(),
           {"profile-step-start", "profile-step-end"}, "changes nothing without --trace FILE");
    tell(!o.report.trace.given() && o.report.profile(), {"profile-step-start", "profile-step-end"});
    const std::string& words = o.data.tokenizer_type();
    const bool of_text = words == "byte" || words == "char";
    tell(o.data.mock_data() && !of_text, {"tokenizer-type"});
    refuse(o.data.mock_data() && of_text, {"tokenizer-type"},
           "and --mock-data contradict each other: random tokens are not read from anything");
    refuse(o.data.mock_data(), {"data-type"},
           "and --mock-data contradict each other: random tokens are not read from anything");
    refuse(o.report.bench_json() && !o.data.data_path.given() && !o.model.load.given(),
           {"tokenizer-type", "data-type"},
           "changes nothing beside --bench-json without --data-path: tokens are random");
    refuse(o.report.bench_json(), {"rampup-batch-size"},
           "and --bench-json contradict each other: steps that are measured are alike");
    refuse(o.report.bench_json(), {"exit-duration-in-mins", "sample-interval"},
           "and --bench-json contradict each other: what is measured is a number of steps");
    refuse(o.report.bench_json(), {"log-interval"},
           "changes nothing beside --bench-json, which shows no progress");
    const bool asked = o.training.eval_iters.given();
    refuse(!asked, {"multiple-validation-sets"}, "changes nothing without --eval-iters");
    refuse(asked && o.training.eval_iters.asked(), {"full-validation"},
           "and --eval-iters contradict each other");
    tell(asked && o.training.eval_iters() == 0, {"eval-interval"});
    refuse(asked && o.training.eval_iters() == 0, {"keep-best"},
           "and --eval-iters 0 contradict each other: nothing is evaluated");
    refuse(!asked && (o.data.mock_data() || o.report.bench_json()), {"eval-interval", "keep-best"},
           "changes nothing: random tokens and --bench-json are evaluated only with --eval-iters");
    const std::string& style = o.optimizer.lr_decay_style();
    tell(style == "constant", {"min-lr"});
    tell(style == "constant" && !o.optimizer.lr_warmup_fraction.given(),
         {"lr-decay-iters", "lr-decay-samples"});
    refuse(style != "WSD", {"lr-wsd-decay-iters", "lr-wsd-decay-style"},
           "changes nothing without --lr-decay-style WSD");
  }
  if (c == command::generate)
    refuse(!o.sampling.chat(), {"system-prompt", "enable-thinking"},
           "changes nothing without --chat");
  if (c == command::generate) {
    refuse(o.sampling.chat(), {"ids"}, "and --chat contradict each other: answers are texts");
    refuse(o.sampling.chat() && !o.sampling.prompt.given() && !o.sampling.prompts_file.given(),
           {"json", "num-samples", "batch-size", "logprobs"},
           "changes nothing in a conversation, where --chat is given without a prompt");
  }
  if (c == command::describe) {
    refuse(o.report.json(), {"graphs"}, "changes nothing beside --json, which has the graphs, too");
    refuse(o.report.pictures.given(), {"graphs"}, "changes nothing beside --pictures");
    refuse(o.report.roofline.given(),
           {"graphs", "pictures", "threads", "product-type", "ranks", "no-deterministic-attention"},
           "changes nothing beside --roofline");
    refuse(o.report.graphs(), {"threads", "product-type"},
           "changes nothing beside --graphs, which computes nothing");
  }
  if (c == command::eval) {
    refuse(!o.training.eval_iters.given(), {"global-batch-size", "multiple-validation-sets"},
           "changes nothing without --eval-iters");
    refuse(o.training.eval_iters.given() && o.training.eval_iters() == 0, {"eval-iters"},
           "0 would measure nothing");
  }
  if (overlaps(c, command::train | command::eval))
    refuse(o.data.data_type() != "chat", {"chat-loss"}, "changes nothing without --data-type chat");
  if (c == command::generate) {
    const bool always =
        o.sampling.greedy() || (o.sampling.temperature.given() && o.sampling.temperature() == 0);
    const char* const likeliest =
        "changes nothing where the likeliest token is always taken, by --greedy or --temperature 0";
    refuse(always, {"top-k", "top-p", "num-samples"}, likeliest);
    refuse(always && !o.model.random_weights(), {"seed"}, likeliest);
    refuse(o.model.random_weights(), {"ignore-eos"},
           "changes nothing beside --random-weights, with which no token ends a text");
  }
  const bool ids = c == command::generate
                       ? o.sampling.ids()
                       : o.data.data_type() == "u16" || o.data.data_type() == "i32";
  refuse(ids, {"tokenizer-type"},
         c == command::generate ? "and --ids contradict each other: token ids need no tokenizer"
                                : "and a --data-type of token ids contradict each other: they need "
                                  "no tokenizer");
  return told;
}

/// A line for each table of positions that sequences of this many tokens are too short to train
/// whole.
inline std::vector<std::string> untrained_positions(const program_view& p, std::int64_t sequence) {
  std::vector<std::string> lines;
  for (int number = 0; number <= p.kinds() + 1; ++number) {
    const graph& g = *p.part(number).g;
    for (int i = 0; i < g.parameter_count; ++i) {
      const parameter_info& info = g.parameters[static_cast<unsigned>(i)];
      const extent rows = g.at(info.v).dims[0];
      if (rows.d == dim::position && rows.n > sequence && !info.frozen)
        lines.push_back(fmt::format(
            "{}.{} has {} positions, of which sequences of {} tokens train the first {}: text "
            "becomes worse behind them",
            g.at(info.v).scope, g.at(info.v).name, rows.n, sequence, sequence));
    }
  }
  return lines;
}

/// The steps that --trace shows: those behind `after`, up to `last`.
struct traced_steps {
  std::int64_t after = 0, last = 0;
  bool has(std::int64_t done) const { return after <= done && done < last; }
};
/// Of a run that goes on after step `done` until `steps`. Throws mc::error(exit_code::usage) where
/// it does not take those that are asked for.
inline traced_steps traced_steps_of(const report_flags& r, std::int64_t done, std::int64_t steps) {
  constexpr std::int64_t most = 64, typical = 10, few = 2;
  traced_steps t;
  t.after = r.profile_step_start.given()
                ? r.profile_step_start()
                : std::max(done, std::min(done + typical, r.profile_step_end.given()
                                                              ? r.profile_step_end() - few
                                                              : steps - few));
  t.last = r.profile_step_end.given() ? r.profile_step_end() : std::min(t.after + few, steps);
  if (done >= steps) return t; // nothing is left to train, and that is told
  if (t.after < done || t.last <= t.after || t.last > steps || t.last - t.after > most)
    throw error(exit_code::usage,
                fmt::format("--trace is to show the steps behind {} up to {}, but this run takes "
                            "those behind {} up to {}, of which it shows 1 to {}: give other "
                            "numbers to --profile-step-start and --profile-step-end",
                            t.after, t.last, done, steps, most));
  return t;
}

namespace detail {

/// Steps that take so many samples, the last one whole, as Megatron-LM counts them: those while the
/// batch grows, then whole batches.
inline std::int64_t steps_of_samples(const batch_schedule& b, std::int64_t samples) {
  std::int64_t steps = 0, consumed = 0;
  for (; b.grows() && consumed <= b.samples && consumed < samples; ++steps)
    consumed += b.after(consumed);
  return steps + std::max<std::int64_t>(0, samples - consumed) / b.last;
}

/// The fewest steps that take at least so many samples, and at least one.
inline std::int64_t steps_for_samples(const batch_schedule& b, std::int64_t samples) {
  const std::int64_t steps = std::max<std::int64_t>(1, steps_of_samples(b, samples));
  return steps + (b.samples_of(steps, 0) < samples);
}

/// A run is counted in steps, in samples or in epochs of conversations.
inline void refuse_two_lengths(const options& o) {
  const training_flags& t = o.training;
  const optimizer_flags& f = o.optimizer;
  const auto refuse = [](bool both, const char* a, const char* b) {
    if (both)
      throw error(exit_code::usage,
                  fmt::format("--{} and --{} contradict each other; give one", a, b));
  };
  refuse(t.train_iters.asked() && t.train_samples.given(), "train-iters", "train-samples");
  refuse(t.train_iters.asked() && t.epochs.given(), "train-iters", "epochs");
  refuse(t.train_samples.asked() && t.epochs.given(), "train-samples", "epochs");
  refuse(f.lr_decay_iters.asked() && t.train_samples.given(), "lr-decay-iters", "train-samples");
  refuse(f.lr_warmup_iters.asked() && t.train_samples.given(), "lr-warmup-iters", "train-samples");
  for (const auto& [name, warms] :
       {std::pair{"lr-warmup-iters", f.lr_warmup_iters.given() && f.lr_warmup_iters() > 0},
        std::pair{"lr-warmup-samples", f.lr_warmup_samples.given() && f.lr_warmup_samples() > 0}})
    refuse(f.lr_warmup_fraction.given() && warms, "lr-warmup-fraction", name);
  for (const auto& [name, given] : {std::pair{"lr-decay-samples", f.lr_decay_samples.asked()},
                                    std::pair{"lr-warmup-samples", f.lr_warmup_samples.asked()}})
    if (given && !t.train_samples.given())
      throw error(exit_code::usage,
                  fmt::format("--{} changes nothing without --train-samples; leave it out", name));
}

} // namespace detail

/// Of a run of `dp` replicas. `steps`: those that the data come to, instead of --train-iters.
/// Throws mc::error(exit_code::usage) naming the flags that contradict each other.
inline training_settings settings_of(const program_view& p, const options& o, int dp = 1,
                                     std::optional<std::int64_t> steps = {}) {
  training_settings t;
  t.bench = o.report.bench_json();
  t.warmup = o.report.warmup();
  detail::refuse_two_lengths(o);
  constexpr std::int64_t measured = 200, highest = std::numeric_limits<std::int64_t>::max();
  t.steps = t.bench && !o.training.train_iters.given()
                ? std::min(t.warmup, highest - measured) + measured
                : steps.value_or(o.training.train_iters());
  if (t.bench && t.warmup >= t.steps)
    throw error(exit_code::usage,
                fmt::format("--warmup is {}, but must be less than --train-iters, which is {}",
                            t.warmup, t.steps));
  const std::int64_t micro = std::int64_t{p.numbers.batch.micro} * dp; // at once
  const std::int64_t global =
      o.training.global_batch_size.given() ? o.training.global_batch_size() : micro;
  if (global % micro != 0)
    throw error(exit_code::usage,
                dp == 1 ? fmt::format("--global-batch-size is {}, but must be a multiple of the "
                                      "compiled micro-batch, which is {}",
                                      global, micro)
                        : fmt::format("--global-batch-size is {}, but must be a multiple of {}: "
                                      "{} replicas take {} sequences at once each",
                                      global, micro, dp, p.numbers.batch.micro));
  // Elements of a step draw their dropout by the number of their token in it, an int32.
  const std::int64_t most =
      std::min((std::int64_t{1} << 31) / p.numbers.batch.sequence, max_micros * micro);
  if (global > most)
    throw error(exit_code::usage,
                fmt::format("--global-batch-size is {}, but must be at most {}: a step has at most "
                            "2^31 tokens, and sequences of {}",
                            global, most, p.numbers.batch.sequence));
  t.at_once = micro, t.batches = detail::batches_of(o.training.rampup_batch_size(), global);
  if (const std::string_view why = contradiction(t.batches); !why.empty())
    throw error(exit_code::usage, std::string(why));
  if (o.training.train_samples.given()) {
    t.steps = detail::steps_of_samples(t.batches, o.training.train_samples());
    if (t.steps < 1)
      throw error(
          exit_code::usage,
          fmt::format("--train-samples is {}, but a step has {} sequences; give at least as "
                      "many",
                      o.training.train_samples(), t.batches.after(0)));
  }
  for (const auto& [size, name] :
       {std::pair{t.batches.start, "START"}, std::pair{t.batches.increment, "INCREMENT"}})
    if (t.batches.grows() && size % micro != 0)
      throw error(exit_code::usage,
                  fmt::format("{} of --rampup-batch-size is {}, but must be a multiple of {}, the "
                              "sequences that {} at once",
                              name, size, micro,
                              dp == 1 ? "are computed" : fmt::format("{} replicas take", dp)));
  std::set<int> proven; // what is proven of one number may be so of many
  const auto require_schedule = [&](std::int64_t size, const char* flag) {
    const int micros = static_cast<int>(size / micro), most = p.numbers.batch.micro_batches;
    const bool fits = most == 0 || micros <= most;
    if (fits && !proven.insert(micros_to_prove(p.numbers.ranks, micros)).second) return;
    const fault_record wrong = fault_of_micros(p, micros);
    if (wrong.code == fault::none) return;
    throw error(
        exit_code::usage,
        fmt::format(
            "{}: a batch of {} sequences makes {} micro-batches on each of {} replicas, and "
            "{} {}; the nearest size is {}",
            flag, size, micros, dp, p.name,
            fits ? fmt::format("cannot run them by {}", name_of_schedule(p.numbers.ranks))
                 : fmt::format("is built for at most {} (MICRO_BATCHES)", most),
            micro * nearest_micros(p, micros)));
  };
  for (std::int64_t size = t.batches.start; t.batches.grows() && size < global;
       size += t.batches.increment)
    require_schedule(size, "--rampup-batch-size");
  require_schedule(global, "--global-batch-size");

  const optimizer_flags& f = o.optimizer;
  t.rates.lr = f.lr(), t.rates.min_lr = f.min_lr();
  t.rates.style = detail::decay_style_of(f.lr_decay_style());
  t.rates.wsd = detail::wsd_style_of(f.lr_wsd_decay_style());
  t.rates.warmup = static_cast<double>(f.lr_warmup_iters());
  t.rates.decay = f.lr_decay_iters.given() ? f.lr_decay_iters() : t.steps;
  t.rates.wsd_decay = f.lr_wsd_decay_iters();
  t.rates_by_samples = o.training.train_samples.given();
  if (t.rates_by_samples) {
    t.rates.warmup = static_cast<double>(f.lr_warmup_samples());
    t.rates.decay = f.lr_decay_samples.given() ? f.lr_decay_samples() : o.training.train_samples();
    t.rates.wsd_decay *= global;
  }
  if (f.lr_warmup_fraction.given())
    t.rates.warmup = f.lr_warmup_fraction() * static_cast<double>(t.rates.decay);
  if (const std::string_view why = contradiction(t.rates); !why.empty())
    throw error(exit_code::usage, std::string(why));

  t.numbers.seed = static_cast<std::uint64_t>(o.model.seed());
  t.numbers.beta1 = f.adam_beta1(), t.numbers.beta2 = f.adam_beta2();
  t.numbers.epsilon = f.adam_eps();
  t.numbers.weight_decay = f.weight_decay();
  t.numbers.clip = f.clip_grad();
  return t;
}

/// The options with the values that flags left out come to: what a state keeps.
inline options effective_options(options o, const training_settings& t, const program_view& p,
                                 product_type products) {
  const auto set = [](auto& flag, const auto& value) { flag.is(value, flag.help()); };
  set(o.training.train_iters, t.steps);
  set(o.training.global_batch_size, t.batches.last);
  if (t.rates_by_samples) set(o.optimizer.lr_decay_samples, t.rates.decay);
  else set(o.optimizer.lr_decay_iters, t.rates.decay);
  if (p.numbers.precision.weight == dtype::bf16)
    set(o.machine.product_type, products == product_type::bf16 ? "bf16" : "widened");
  return o;
}

} // namespace mc
