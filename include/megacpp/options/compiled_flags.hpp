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
#include <boost/hana/define_struct.hpp>

namespace mc {

namespace detail {
/// Returns how a program with another value is built: a key as megacpp_add_preset has it and as
/// examples/build_preset.sh does, both with that value. `with` is what comes before the keys.
inline std::string built_with(const build_key& k, std::string_view value = "{0}",
                              std::string_view with = "build it with ") {
  return fmt::format(
      "{}{} {} of megacpp_add_preset, {}={} of "
      "examples/build_preset.sh, or the struct of megacpp_add_run",
      with, k.cmake, value, k.script, value);
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
inline constexpr const char* another_model =
    "build another model: MODEL or HF_CONFIG of megacpp_add_preset, the config.json of "
    "examples/build_preset.sh, or the struct of megacpp_add_run";
} // namespace detail

/// A flag takes the choices of its key as they are written, so C++ may not spell one otherwise.
static_assert(std::ranges::none_of(build_keys, [](const build_key& k) {
  return !k.flag.empty() && k.on.empty() &&
         std::string_view(k.choices).find('=') != std::string_view::npos;
}));

/// The flag of a build key.
struct key_flag {
  const build_key* key = nullptr;
  std::variant<whole_flag, switch_flag, text_flag> flag;

  explicit key_flag(const build_key& k) : key(&k) {
    const on_resume how = k.stays ? on_resume::must_match : on_resume::may_change;
    if (k.kind == key_kind::on_or_off)
      flag.emplace<switch_flag>()
          .is(false, k.sentence)
          .otherwise(detail::built_alone(k, "with", 1), detail::built_alone(k, "without", 0))
          .resumes(how);
    else if (!k.on.empty())
      flag.emplace<switch_flag>()
          .is(false, *k.switch_sentence == 0 ? k.sentence : k.switch_sentence)
          .otherwise(detail::built_with(k, k.on), detail::built_with(k, k.off))
          .resumes(how);
    else if (k.kind == key_kind::choice)
      flag.emplace<text_flag>()
          .is(k.before, k.sentence)
          .one_of(k.choices)
          .otherwise(detail::built_with(k))
          .resumes(how);
    else flag.emplace<whole_flag>().is(0, k.sentence).otherwise(detail::built_with(k)).resumes(how);
  }
  flag_base& base() {
    return std::visit([](auto& f) -> flag_base& { return f; }, flag);
  }
  /// Fills in the value that a program was compiled with.
  void set(const setup& run) {
    const std::int64_t value = key->value(run);
    if (auto* whole = std::get_if<whole_flag>(&flag)) whole->is(value, whole->help());
    else if (auto* on = std::get_if<switch_flag>(&flag)) on->is(value != 0, on->help());
    else if (auto* text = std::get_if<text_flag>(&flag))
      text->is(std::string(choice_of(*key, value)), text->help());
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

/// The values that are compiled in. They are accepted so that a Megatron command line can be
/// reused, and refused where it asks for something else. The program fills in its own values; a
/// value that it does not fill in is the same in every program.
struct compiled_flags {
  BOOST_HANA_DEFINE_STRUCT(compiled_flags, (whole_flag, num_layers_per_virtual_pipeline_stage),
                           (switch_flag, accumulate_allreduce_grads_in_fp32),
                           (whole_flag, num_layers), (whole_flag, hidden_size),
                           (whole_flag, num_attention_heads), (whole_flag, num_query_groups),
                           (whole_flag, ffn_hidden_size), (whole_flag, vocab_size),
                           (switch_flag, recompute_activations), (text_flag, recompute_method),
                           (whole_flag, recompute_num_layers));
  compiled_flags() {
    using detail::another_model, detail::built_with;
    num_layers_per_virtual_pipeline_stage
        .is(0, "layers of each run of layers that a stage has; 0: they are one")
        .otherwise(built_with("VIRTUAL_STAGES", "n", "build it with n runs, each of {0} layers: "))
        .resumes(on_resume::may_change);
    accumulate_allreduce_grads_in_fp32
        .is(true, "gradients of bf16 weights are kept and summed over ranks in fp32")
        .otherwise("", "do without: gradients are kept in no narrower type")
        .resumes(on_resume::unsaved);
    num_layers.is(0, "layers").otherwise(another_model).resumes(on_resume::must_match);
    hidden_size.is(0, "width of the residual stream")
        .otherwise(another_model)
        .resumes(on_resume::must_match);
    num_attention_heads.is(0, "attention heads")
        .otherwise(another_model)
        .resumes(on_resume::must_match);
    num_query_groups.is(0, "heads of keys and values, each shared by a group of attention heads")
        .otherwise(another_model)
        .resumes(on_resume::must_match);
    ffn_hidden_size.is(0, "width inside the feed-forward network of layers without experts")
        .otherwise(another_model)
        .resumes(on_resume::must_match);
    vocab_size.is(0, "tokens in the vocabulary")
        .otherwise(another_model)
        .resumes(on_resume::must_match);
    recompute_activations.is(false, "the same as --recompute-granularity selective")
        .otherwise(built_with("RECOMPUTE", "selective"), built_with("RECOMPUTE", "none"))
        .resumes(on_resume::unsaved);
    recompute_method.is("none", "which layers --recompute-granularity full is of: all, alike")
        .one_of("none|uniform|block")
        .otherwise(built_with("RECOMPUTE", "full",
                              "build it with recomputation of every layer, as uniform says: "))
        .resumes(on_resume::unsaved);
    recompute_num_layers.is(0, "layers that it computes again at once: one; 0: none")
        .otherwise(built_with("RECOMPUTE", "full",
                              "build it with recomputation of every layer by itself: "))
        .resumes(on_resume::unsaved);
  }
};

/// The values of experts that are compiled in. They are a struct of their own, since Boost.Hana
/// counts members to 40.
struct compiled_expert_flags {
  BOOST_HANA_DEFINE_STRUCT(
      compiled_expert_flags, (whole_flag, num_experts), (whole_flag, moe_ffn_hidden_size),
      (whole_flag, moe_shared_expert_intermediate_size), (whole_flag, moe_router_topk),
      (switch_flag, moe_router_pre_softmax), (text_flag, moe_router_score_function),
      (text_flag, moe_router_load_balancing_type), (real_flag, moe_aux_loss_coeff),
      (real_flag, moe_z_loss_coeff), (switch_flag, moe_router_enable_expert_bias),
      (real_flag, moe_router_bias_update_rate), (real_flag, moe_expert_capacity_factor),
      (text_flag, moe_token_drop_policy), (text_flag, moe_router_dtype),
      (text_flag, moe_layer_freq), (switch_flag, moe_grouped_gemm));
  compiled_expert_flags() {
    using detail::another_model;
    num_experts.is(0, "experts a layer; 0: none")
        .otherwise(another_model)
        .resumes(on_resume::must_match);
    moe_ffn_hidden_size.is(0, "width inside an expert")
        .otherwise(another_model)
        .resumes(on_resume::must_match);
    moe_shared_expert_intermediate_size
        .is(0, "width of an expert that every token goes to; 0: none")
        .otherwise(another_model)
        .resumes(on_resume::unsaved);
    moe_router_topk.is(0, "experts that a token goes to")
        .otherwise(another_model)
        .resumes(on_resume::must_match);
    moe_router_pre_softmax
        .is(false, "the router's softmax is over all experts, not over those a token goes to")
        .otherwise(another_model)
        .resumes(on_resume::unsaved);
    moe_router_score_function.is("softmax", "what makes weights of the router's logits")
        .one_of("softmax|sigmoid|sqrtsoftplus")
        .otherwise("do without {0}: routers have a softmax")
        .resumes(on_resume::unsaved);
    moe_router_load_balancing_type
        .is("none",
            "whose load the balancing loss is of: a micro-batch's, each sequence's, that of "
            "the micro-batches of all replicas")
        .one_of("aux_loss|seq_aux_loss|global_aux_loss|none")
        .otherwise(
            "build another model: aux_loss, aux_per_sequence and aux_global in the struct of "
            "megacpp_add_run")
        .resumes(on_resume::unsaved);
    moe_aux_loss_coeff.is(0, "coefficient of the load-balancing loss; 0: none")
        .otherwise(another_model)
        .resumes(on_resume::unsaved);
    moe_z_loss_coeff.is(0, "coefficient of the router's z-loss; 0: none")
        .otherwise(another_model)
        .resumes(on_resume::unsaved);
    moe_router_enable_expert_bias.is(false, "a bias without a gradient balances the experts")
        .otherwise(another_model)
        .resumes(on_resume::unsaved);
    moe_router_bias_update_rate.is(0, "step of that bias; 0: none")
        .otherwise(another_model)
        .resumes(on_resume::unsaved);
    moe_expert_capacity_factor
        .is(0, "an expert takes so many times its share of a micro-batch's tokens; 0: all")
        .otherwise(another_model)
        .resumes(on_resume::unsaved);
    moe_token_drop_policy.is("position", "which tokens it takes: the first ones")
        .one_of("probs|position")
        .otherwise("do without {0}: an expert of a capacity takes the first tokens")
        .resumes(on_resume::unsaved);
    moe_router_dtype.is("none", "type of the product that makes a router's logits")
        .one_of("fp32|fp64|bf16|none")
        .otherwise("do without {0}: the router's product has the type of the program")
        .resumes(on_resume::unsaved);
    moe_layer_freq
        .is("none", "which layers have experts: 1 for all, or a list such as [0,1,1] of 0 and 1")
        .otherwise(another_model)
        .resumes(on_resume::unsaved);
    moe_grouped_gemm.is(true, "a rank's experts are one product")
        .otherwise("", "do without: a rank's experts are one product")
        .resumes(on_resume::unsaved);
  }
};

/// Flags that say what a model is made of; their values are read off its graphs
/// (options/compiled_model.hpp).
struct compiled_model_flags {
  BOOST_HANA_DEFINE_STRUCT(
      compiled_model_flags, (switch_flag, group_query_attention), (whole_flag, kv_channels),
      (whole_flag, max_position_embeddings), (text_flag, position_embedding_type),
      (switch_flag, no_position_embedding), (real_flag, rotary_base), (real_flag, rotary_percent),
      (real_flag, rotary_seq_len_interpolation_factor), (switch_flag, use_rope_scaling),
      (real_flag, rope_scaling_factor), (text_flag, normalization), (real_flag, norm_epsilon),
      (switch_flag, qk_layernorm), (switch_flag, swiglu), (switch_flag, openai_gelu),
      (switch_flag, no_bias_gelu_fusion), (switch_flag, disable_bias_linear),
      (switch_flag, add_qkv_bias), (switch_flag, untie_embeddings_and_output_weights),
      (real_flag, hidden_dropout), (real_flag, attention_dropout), (real_flag, init_method_std),
      (switch_flag, fp32_residual_connection));
  compiled_model_flags() {
    const auto told = [](auto& flag, const auto& initial, const char* help) -> auto& {
      return flag.is(initial, help).otherwise(detail::another_model).resumes(on_resume::unsaved);
    };
    told(group_query_attention, false, "several attention heads share one of keys and values");
    told(kv_channels, 0, "width of an attention head");
    told(max_position_embeddings, 0, "positions that the model has learned vectors for");
    told(position_embedding_type, "none", "how tokens get their positions")
        .one_of("learned_absolute|rope|yarn|mrope|relative|none");
    told(no_position_embedding, false, "no vectors of positions are learned");
    told(rotary_base, 0.0, "base of the angles of RoPE");
    told(rotary_percent, 1.0, "share of a head's width that RoPE turns");
    told(rotary_seq_len_interpolation_factor, 1.0, "by which all positions of RoPE are divided");
    told(use_rope_scaling, false, "RoPE is stretched as in Llama 3.1");
    told(rope_scaling_factor, 1.0, "by how much it is");
    told(normalization, "none", "norm of the residual stream").one_of("LayerNorm|RMSNorm|none");
    told(norm_epsilon, 0.0, "added to what a norm divides by, under the root");
    told(qk_layernorm, false, "queries and keys are normed");
    told(swiglu, false, "the feed-forward network is gated by SiLU");
    told(openai_gelu, false, "its GELU is the approximation by tanh");
    told(no_bias_gelu_fusion, false,
         "its GELU is the exact one, which Megatron-LM computes where it fuses none");
    told(disable_bias_linear, false,
         "linear layers, but for those of queries, keys and values, have no biases");
    told(add_qkv_bias, false, "linear layers of queries, keys and values have biases");
    told(untie_embeddings_and_output_weights, false, "embedding and head are two tables");
    told(hidden_dropout, 0.0, "dropout of the residual stream");
    told(attention_dropout, 0.0, "dropout of the shares of attention");
    told(init_method_std, 0.0, "standard deviation of the first weights of the embedding");
    told(fp32_residual_connection, false, "the residual stream is fp32");
  }
};

} // namespace mc
