// The flags that say what is compiled into a program.
#pragma once

#include <megacpp/options/compiled_model.hpp>
#include <megacpp/options/options.hpp>
#include <megacpp/options/refusals.hpp>
#include <megacpp/run/view.hpp>

#include <vector>

namespace mc {

/// Fills in what is compiled in. Numbers for which a model has no member are read off its
/// graph; what it does not have is 0.
inline void set_compiled(options& o, const program_view& p) {
  compiled_flags& c = o.compiled;
  compiled_expert_flags& e = o.experts;
  const auto set = [](auto& flag, const auto& value) { flag.set(value); };
  const model_extents& model = p.model.extents;
  const graph& block = *p.block(0).g;
  const layout& l = p.numbers.ranks;
  const std::int64_t heads = model.heads > 0 ? model.heads : detail::extent_in(block, dim::heads);
  for (key_flag& f : o.keys.all) f.set(p.numbers);
  const bool even = l.virtual_stages > 1 && l.cut == stage_cut{};
  set(c.num_layers_per_virtual_pipeline_stage, even ? layers_of_stage(l, p.layers, 0) : 0);
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
  set(c.recompute_activations, p.numbers.recompute_policy == recompute::selective);
  set(c.recompute_method, p.numbers.recompute_policy == recompute::full ? "uniform" : "none");
  set(c.recompute_num_layers, p.numbers.recompute_policy == recompute::full ? 1 : 0);
  // Megatron-LM does without sequence parallelism where nothing is shared over tp.
  o.keys.of<switch_flag>("SEQUENCE_PARALLEL").idles(l.tp == 1);
  e.moe_token_drop_policy.idles(model.capacity == 0);
  set_compiled_model(o, p);
}

namespace detail {
/// Returns whether flags ask for linear layers without biases, where Megatron-LM fuses no GELU and
/// so computes the exact one, of a model that has the one by tanh.
inline bool asks_for_exact_gelu(const std::vector<named_flag>& asked,
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
inline void check_compiled(const std::vector<named_flag>& asked, const program_view& p,
                           refusals& refused, told_flags& taken) {
  options real;
  set_compiled(real, p);
  for (const named_flag& e : flags_of(real)) {
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

} // namespace mc
