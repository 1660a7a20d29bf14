// Flags of Megatron-LM that say what a program is, which here was decided when it was built: they
// are accepted where they agree with it. What another value needs is a build.
#pragma once

#include <megacpp/options/flag.hpp>

#include <string>
#include <string_view>

#include <fmt/format.h>
#include <boost/hana/define_struct.hpp>

namespace mc {

namespace detail {
/// How a program with another value is built: an argument of megacpp_add_preset and a key of
/// examples/build_preset.sh, both with that value.
inline std::string built_with(std::string_view argument, std::string_view key,
                              std::string_view value = "{0}") {
  return fmt::format(
      "build it with {} {} of megacpp_add_preset, {}={} of "
      "examples/build_preset.sh, or the struct of megacpp_add_run",
      argument, value, key, value);
}
/// The same of a word that is there or not.
inline std::string with_word(std::string_view word, std::string_view key) {
  return fmt::format(
      "build it with {} of megacpp_add_preset, {}=1 of "
      "examples/build_preset.sh, or the struct of megacpp_add_run",
      word, key);
}
inline std::string without_word(std::string_view word, std::string_view key) {
  return fmt::format(
      "build it without {} of megacpp_add_preset, with {}=0 of "
      "examples/build_preset.sh, or the struct of megacpp_add_run",
      word, key);
}
inline constexpr const char* another_model =
    "build another model: MODEL or HF_CONFIG of megacpp_add_preset, the config.json of "
    "examples/build_preset.sh, or the struct of megacpp_add_run";
} // namespace detail

/// What is compiled in. Accepted so that a Megatron command line can be reused, and refused where
/// it asks for something else; the values are filled in from the program. Those that are not filled
/// in are what every program does.
struct compiled_flags {
  BOOST_HANA_DEFINE_STRUCT(
      compiled_flags, (whole_flag, micro_batch_size), (whole_flag, seq_length),
      (whole_flag, tensor_model_parallel_size), (whole_flag, pipeline_model_parallel_size),
      (whole_flag, context_parallel_size), (whole_flag, expert_model_parallel_size),
      (whole_flag, expert_tensor_parallel_size), (switch_flag, sequence_parallel),
      (whole_flag, num_virtual_stages_per_pipeline_rank),
      (whole_flag, num_layers_per_virtual_pipeline_stage),
      (whole_flag, decoder_first_pipeline_num_layers),
      (whole_flag, decoder_last_pipeline_num_layers),
      (switch_flag, account_for_embedding_in_pipeline_split),
      (switch_flag, account_for_loss_in_pipeline_split), (switch_flag, use_distributed_optimizer),
      (switch_flag, accumulate_allreduce_grads_in_fp32), (whole_flag, num_layers),
      (whole_flag, hidden_size), (whole_flag, num_attention_heads), (whole_flag, num_query_groups),
      (whole_flag, ffn_hidden_size), (whole_flag, vocab_size), (switch_flag, bf16),
      (text_flag, recompute_granularity), (switch_flag, recompute_activations),
      (text_flag, recompute_method), (whole_flag, recompute_num_layers), (text_flag, numerics));
  compiled_flags() {
    using detail::another_model, detail::built_with, detail::with_word, detail::without_word;
    micro_batch_size.is(0, "sequences that run at once")
        .otherwise(built_with("MICRO_BATCH", "micro-batch"))
        .resumes(on_resume::may_change);
    seq_length.is(0, "tokens in a sequence")
        .otherwise(built_with("SEQUENCE", "sequence"))
        .resumes(on_resume::must_match);
    tensor_model_parallel_size.is(0, "ranks that share each layer")
        .otherwise(built_with("TP", "tp"))
        .resumes(on_resume::may_change);
    pipeline_model_parallel_size.is(0, "pipeline stages")
        .otherwise(built_with("PP", "pp"))
        .resumes(on_resume::may_change);
    context_parallel_size.is(0, "ranks that share each sequence")
        .otherwise(built_with("CP", "cp"))
        .resumes(on_resume::may_change);
    expert_model_parallel_size.is(0, "ranks that share the experts")
        .otherwise(built_with("EP", "ep"))
        .resumes(on_resume::may_change);
    expert_tensor_parallel_size.is(0, "ranks that share each expert")
        .otherwise(built_with("ETP", "etp"))
        .resumes(on_resume::may_change);
    sequence_parallel.is(false, "the residual stream is sharded along the sequence")
        .otherwise(with_word("SEQUENCE_PARALLEL", "sp"), without_word("SEQUENCE_PARALLEL", "sp"))
        .resumes(on_resume::may_change);
    num_virtual_stages_per_pipeline_rank
        .is(0, "runs of layers that each stage has, which take turns")
        .otherwise(built_with("VIRTUAL_STAGES", "virtual-stages"))
        .resumes(on_resume::may_change);
    num_layers_per_virtual_pipeline_stage.is(0, "layers of each of these; 0: they are one")
        .otherwise(
            "build it with VIRTUAL_STAGES of megacpp_add_preset, virtual-stages of "
            "examples/build_preset.sh, that make runs of {0} layers, or the struct of "
            "megacpp_add_run")
        .resumes(on_resume::may_change);
    decoder_first_pipeline_num_layers.is(0, "layers of the first stage; 0: as many as of others")
        .otherwise(built_with("FIRST_STAGE_LAYERS", "first-stage-layers"))
        .resumes(on_resume::may_change);
    decoder_last_pipeline_num_layers.is(0, "layers of the last stage; 0: as many as of others")
        .otherwise(built_with("LAST_STAGE_LAYERS", "last-stage-layers"))
        .resumes(on_resume::may_change);
    account_for_embedding_in_pipeline_split
        .is(false, "the embedding counts as a layer of its stage")
        .otherwise(with_word("COUNT_EMBEDDING", "count-embedding"),
                   without_word("COUNT_EMBEDDING", "count-embedding"))
        .resumes(on_resume::may_change);
    account_for_loss_in_pipeline_split.is(false, "the loss counts as a layer of its stage")
        .otherwise(with_word("COUNT_LOSS", "count-loss"), without_word("COUNT_LOSS", "count-loss"))
        .resumes(on_resume::may_change);
    use_distributed_optimizer.is(false, "replicas share the optimizer's state (ZeRO 1)")
        .otherwise(built_with("ZERO", "zero"))
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
    bf16.is(false, "weights and activations are bf16, sums and masters fp32")
        .otherwise(built_with("PRECISION", "precision", "bf16_mixed"),
                   built_with("PRECISION", "precision", "fp32"))
        .resumes(on_resume::must_match);
    recompute_granularity.is("none", "what the backward pass computes again instead of saving it")
        .one_of("none|selective|full")
        .otherwise(built_with("RECOMPUTE", "recompute"))
        .resumes(on_resume::may_change);
    recompute_activations.is(false, "the same as --recompute-granularity selective")
        .otherwise(built_with("RECOMPUTE", "recompute", "selective"),
                   built_with("RECOMPUTE", "recompute", "none"))
        .resumes(on_resume::unsaved);
    recompute_method.is("none", "which layers --recompute-granularity full is of: all, alike")
        .one_of("none|uniform|block")
        .otherwise(
            "build it with recomputation of every layer, as uniform says: RECOMPUTE full of "
            "megacpp_add_preset, recompute=full of examples/build_preset.sh, or the struct of "
            "megacpp_add_run")
        .resumes(on_resume::unsaved);
    recompute_num_layers.is(0, "layers that it computes again at once: one; 0: none")
        .otherwise(
            "build it with recomputation of every layer by itself: RECOMPUTE full of "
            "megacpp_add_preset, recompute=full of examples/build_preset.sh, or the struct of "
            "megacpp_add_run")
        .resumes(on_resume::unsaved);
    // States of before there was a choice do not tell; their runs were of this kind.
    numerics
        .is("batch_invariant",
            "how sums over tokens are taken: fast, all of a micro-batch at "
            "once, or so that their bits do not depend on it")
        .one_of("fast|batch_invariant")
        .otherwise(built_with("NUMERICS", "numerics"))
        .resumes(on_resume::may_change);
  }
};

/// The same of experts: a struct of its own, since Boost.Hana counts members to 40.
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
