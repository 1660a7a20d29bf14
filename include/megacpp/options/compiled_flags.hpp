// Flags of Megatron-LM that say what a program is, which here was decided when it was built: they
// are accepted where they agree with it. What another value needs is a build.
#pragma once

#include <megacpp/io/error.hpp>
#include <megacpp/options/build_keys.hpp>
#include <megacpp/options/flag.hpp>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <fmt/format.h>

namespace mc {

namespace detail {
/// Returns how a program with another value is built: a key as megacpp_add_preset has it and as
/// examples/build_preset.sh does, both with that value, "" is none. `with` is what comes before.
inline std::string built_with(const build_key& k, std::string_view value = "{0}",
                              std::string_view with = "build it with ") {
  return fmt::format(
      "{}{}{}{} of megacpp_add_preset, {}={} of examples/build_preset.sh, or the struct of "
      "megacpp_add_run",
      with, k.cmake, value.empty() ? "" : " ", value, k.script,
      value.empty() && k.kind == key_kind::on_or_off ? "1" : value);
}
inline std::string built_with(std::string_view key, std::string_view value,
                              std::string_view with = "build it with ") {
  return built_with(*find_build_key(key), value, with);
}
/// Returns the same of a key that stands alone; `how` is "with" or "without" it.
inline std::string built_alone(const build_key& k, std::string_view how, int value) {
  return fmt::format(
      "build it {} {} of megacpp_add_preset, {}{}={} of "
      "examples/build_preset.sh, or the struct of megacpp_add_run",
      how, k.cmake, value == 0 ? "with " : "", k.script, value);
}
inline std::string built_without(const build_key& k) {
  return fmt::format(
      "build it without {} of megacpp_add_preset, without {}= of "
      "examples/build_preset.sh, or by the struct of megacpp_add_run",
      k.cmake, k.script);
}
inline constexpr const char* another_model =
    "build another model: MODEL or HF_CONFIG of megacpp_add_preset, the config.json of "
    "examples/build_preset.sh, or the struct of megacpp_add_run";
inline constexpr const char* compiled_title =
    "Compiled into this program (accepted only with these values)";
} // namespace detail

/// A flag takes the choices of its key as they are written, so C++ may not spell one otherwise.
static_assert(std::ranges::none_of(build_keys, [](const build_key& k) {
  return !k.flag.empty() && k.on.empty() &&
         std::string_view(k.choices).find('=') != std::string_view::npos;
}));

/// The flag of a build key.
struct key_flag {
  const build_key* key;
  std::variant<whole_flag, switch_flag, text_flag> flag;

  explicit key_flag(const build_key& k) : key(&k), flag(made(k)) {}
  flag_base& base() {
    return std::visit([](auto& f) -> flag_base& { return f; }, flag);
  }
  /// Fills in the value that a program was compiled with.
  void set(const setup& run) {
    const std::int64_t value = key->value(run);
    if (auto* whole = std::get_if<whole_flag>(&flag)) whole->set(value);
    else if (auto* on = std::get_if<switch_flag>(&flag)) on->set(value != 0);
    else if (auto* text = std::get_if<text_flag>(&flag))
      text->set(std::string(choice_of(*key, value)));
  }

private:
  static std::variant<whole_flag, switch_flag, text_flag> made(const build_key& k) {
    using detail::built_alone, detail::built_with, detail::built_without;
    const on_resume how = k.stays ? on_resume::must_match : on_resume::may_change;
    flag_is on(false);
    on.of(command::all, how).otherwise(built_alone(k, "with", 1), built_alone(k, "without", 0));
    if (k.kind == key_kind::on_or_off) return switch_flag(nullptr, k.flag, on, k.sentence);
    on.otherwise(built_with(k, k.on), built_with(k, k.off));
    if (!k.on.empty())
      return switch_flag(nullptr, k.flag, on,
                         *k.switch_sentence == 0 ? k.sentence : k.switch_sentence);
    flag_is choice(k.before);
    choice.one_of(k.choices).of(command::all, how).otherwise(built_with(k));
    if (k.kind == key_kind::choice) return text_flag(nullptr, k.flag, choice, k.sentence);
    flag_is number(0);
    number.of(command::all, how)
        .otherwise(built_with(k), k.kind == key_kind::number ? built_without(k) : std::string());
    return whole_flag(nullptr, k.flag, number, k.sentence);
  }
};

/// The flags of all build keys that Megatron-LM has a flag for, in the order of the table. They are
/// accepted and refused as those of compiled_flags are.
struct key_flags {
  std::vector<key_flag> all;

  key_flags() {
    for (const build_key& k : build_keys)
      if (!k.flag.empty()) all.emplace_back(k);
  }
  /// Returns the flag of a key, as megacpp_add_preset spells it.
  template <class Flag> Flag& of(std::string_view key) { return of<Flag>(all, key); }
  template <class Flag> const Flag& of(std::string_view key) const { return of<Flag>(all, key); }

private:
  template <class Flag, class Flags> static auto& of(Flags& all, std::string_view key) {
    const auto at = std::ranges::find(all, key, [](const key_flag& f) { return f.key->cmake; });
    if (at == all.end())
      throw error(exit_code::internal, fmt::format("no flag says what {} is", key));
    return std::get<Flag>(at->flag);
  }
};

/// The macro says once of a flag its kind, its name, its default with what it takes, and its
/// explanation. Only config/ may leave a macro to who includes it, so each header with groups of
/// flags defines this one, alike, and takes it back.
#define MEGACPP_FLAG(kind, name, ...) \
  kind##_flag name { this, #name, __VA_ARGS__ }

/// The values that are compiled in. They are accepted so that a Megatron command line can be
/// reused, and refused where it asks for something else. The program fills in its own values; a
/// value that it does not fill in is the same in every program.
struct compiled_flags : flag_group {
  compiled_flags() : flag_group(detail::compiled_title, all, must_match, detail::another_model) {}
  MEGACPP_FLAG(whole, num_layers_per_virtual_pipeline_stage,
               is(0)
                   .otherwise(detail::built_with("VIRTUAL_STAGES", "n",
                                                 "build it with n runs, each of {0} layers: "))
                   .resumes(may_change),
               "layers of each run of layers that a stage has; 0: they are one");
  MEGACPP_FLAG(
      switch, accumulate_allreduce_grads_in_fp32,
      is(true).otherwise("", "do without: gradients are kept in no narrower type").resumes(unsaved),
      "gradients of bf16 weights are kept and summed over ranks in fp32");
  MEGACPP_FLAG(whole, num_layers, is(0), "layers");
  MEGACPP_FLAG(whole, hidden_size, is(0), "width of the residual stream");
  MEGACPP_FLAG(whole, num_attention_heads, is(0), "attention heads");
  MEGACPP_FLAG(whole, num_query_groups, is(0),
               "heads of keys and values, each shared by a group of attention heads");
  MEGACPP_FLAG(whole, ffn_hidden_size, is(0),
               "width inside the feed-forward network of layers without experts");
  MEGACPP_FLAG(whole, vocab_size, is(0), "tokens in the vocabulary");
  MEGACPP_FLAG(switch, recompute_activations,
               is(false)
                   .otherwise(detail::built_with("RECOMPUTE", "selective"),
                              detail::built_with("RECOMPUTE", "none"))
                   .resumes(unsaved),
               "the same as --recompute-granularity selective");
  MEGACPP_FLAG(text, recompute_method,
               is("none")
                   .one_of("none|uniform|block")
                   .otherwise(detail::built_with(
                       "RECOMPUTE", "full",
                       "build it with recomputation of every layer, as uniform says: "))
                   .resumes(unsaved),
               "which layers --recompute-granularity full is of: all, alike");
  MEGACPP_FLAG(
      whole, recompute_num_layers,
      is(0)
          .otherwise(detail::built_with("RECOMPUTE", "full",
                                        "build it with recomputation of every layer by itself: "))
          .resumes(unsaved),
      "layers that it computes again at once: one; 0: none");
};

/// The values of experts that are compiled in. They differ from the others in what a run that
/// goes on does.
struct compiled_expert_flags : flag_group {
  compiled_expert_flags()
      : flag_group(detail::compiled_title, all, unsaved, detail::another_model) {}
  MEGACPP_FLAG(whole, num_experts, is(0).resumes(must_match), "experts a layer; 0: none");
  MEGACPP_FLAG(whole, moe_ffn_hidden_size, is(0).resumes(must_match), "width inside an expert");
  MEGACPP_FLAG(whole, moe_shared_expert_intermediate_size, is(0),
               "width of an expert that every token goes to; 0: none");
  MEGACPP_FLAG(whole, moe_router_topk, is(0).resumes(must_match), "experts that a token goes to");
  MEGACPP_FLAG(switch, moe_router_pre_softmax, is(false),
               "the router's softmax is over all experts, not over those a token goes to");
  MEGACPP_FLAG(text, moe_router_score_function,
               is("softmax")
                   .one_of("softmax|sigmoid|sqrtsoftplus")
                   .otherwise("do without {0}: routers have a softmax"),
               "what makes weights of the router's logits");
  MEGACPP_FLAG(text, moe_router_load_balancing_type,
               is("none")
                   .one_of("aux_loss|seq_aux_loss|global_aux_loss|none")
                   .otherwise("build another model: aux_loss, aux_per_sequence and aux_global in "
                              "the struct of megacpp_add_run"),
               "whose load the balancing loss is of: a micro-batch's, each sequence's, that of the "
               "micro-batches of all replicas");
  MEGACPP_FLAG(real, moe_aux_loss_coeff, is(0), "coefficient of the load-balancing loss; 0: none");
  MEGACPP_FLAG(real, moe_z_loss_coeff, is(0), "coefficient of the router's z-loss; 0: none");
  MEGACPP_FLAG(switch, moe_router_enable_expert_bias, is(false),
               "a bias without a gradient balances the experts");
  MEGACPP_FLAG(real, moe_router_bias_update_rate, is(0), "step of that bias; 0: none");
  MEGACPP_FLAG(real, moe_expert_capacity_factor, is(0),
               "an expert takes so many times its share of a micro-batch's tokens; 0: all");
  MEGACPP_FLAG(text, moe_token_drop_policy,
               is("position")
                   .one_of("probs|position")
                   .otherwise("do without {0}: an expert of a capacity takes the first tokens"),
               "which tokens it takes: the first ones");
  MEGACPP_FLAG(text, moe_router_dtype,
               is("none")
                   .one_of("fp32|fp64|bf16|none")
                   .otherwise("do without {0}: the router's product has the type of the program"),
               "type of the product that makes a router's logits");
  MEGACPP_FLAG(text, moe_layer_freq, is("none"),
               "which layers have experts: 1 for all, or a list such as [0,1,1] of 0 and 1");
  MEGACPP_FLAG(switch, moe_grouped_gemm,
               is(true).otherwise("", "do without: a rank's experts are one product"),
               "a rank's experts are one product");
};

/// Flags that say what a model is made of; their values are read off its graphs
/// (options/compiled_model.hpp).
struct compiled_model_flags : flag_group {
  compiled_model_flags()
      : flag_group(detail::compiled_title, all, unsaved, detail::another_model) {}
  MEGACPP_FLAG(switch, group_query_attention, is(false),
               "several attention heads share one of keys and values");
  MEGACPP_FLAG(whole, kv_channels, is(0), "width of an attention head");
  MEGACPP_FLAG(whole, max_position_embeddings, is(0),
               "positions that the model has learned vectors for");
  MEGACPP_FLAG(text, position_embedding_type,
               is("none").one_of("learned_absolute|rope|yarn|mrope|relative|none"),
               "how tokens get their positions");
  MEGACPP_FLAG(switch, no_position_embedding, is(false), "no vectors of positions are learned");
  MEGACPP_FLAG(real, rotary_base, is(0.0), "base of the angles of RoPE");
  MEGACPP_FLAG(real, rotary_percent, is(1.0), "share of a head's width that RoPE turns");
  MEGACPP_FLAG(real, rotary_seq_len_interpolation_factor, is(1.0),
               "by which all positions of RoPE are divided");
  MEGACPP_FLAG(switch, use_rope_scaling, is(false), "RoPE is stretched as in Llama 3.1");
  MEGACPP_FLAG(real, rope_scaling_factor, is(1.0), "by how much it is");
  MEGACPP_FLAG(text, normalization, is("none").one_of("LayerNorm|RMSNorm|none"),
               "norm of the residual stream");
  MEGACPP_FLAG(real, norm_epsilon, is(0.0), "added to what a norm divides by, under the root");
  MEGACPP_FLAG(switch, qk_layernorm, is(false), "queries and keys are normed");
  MEGACPP_FLAG(switch, swiglu, is(false), "the feed-forward network is gated by SiLU");
  MEGACPP_FLAG(switch, openai_gelu, is(false), "its GELU is the approximation by tanh");
  MEGACPP_FLAG(switch, no_bias_gelu_fusion, is(false),
               "its GELU is the exact one, which Megatron-LM computes where it fuses none");
  MEGACPP_FLAG(switch, disable_bias_linear, is(false),
               "linear layers, but for those of queries, keys and values, have no biases");
  MEGACPP_FLAG(switch, add_qkv_bias, is(false),
               "linear layers of queries, keys and values have biases");
  MEGACPP_FLAG(switch, untie_embeddings_and_output_weights, is(false),
               "embedding and head are two tables");
  MEGACPP_FLAG(real, hidden_dropout, is(0.0), "dropout of the residual stream");
  MEGACPP_FLAG(real, attention_dropout, is(0.0), "dropout of the shares of attention");
  MEGACPP_FLAG(real, init_method_std, is(0.0),
               "standard deviation of the first weights of the embedding");
  MEGACPP_FLAG(switch, fp32_residual_connection, is(false), "the residual stream is fp32");
};

#undef MEGACPP_FLAG

} // namespace mc
