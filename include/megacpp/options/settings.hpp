// Flags that belong together, checked together: what is compiled in, and what changes nothing
// beside other flags.
#pragma once

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

} // namespace mc
