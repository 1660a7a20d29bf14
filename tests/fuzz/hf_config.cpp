// libFuzzer: any configuration is either refused with mc::error or a model free of contradictions,
// whose sizes fit 63 bits at 16 bytes a parameter and which reads the same again. Half of the
// inputs are text; the others draw fields and values for a configuration that is valid, so that
// what lies behind the first check is reached.
//
// clang++ -std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -Iinclude
//   tests/fuzz/hf_config.cpp -lfmt
#include <megacpp/hf/models.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace {

using nlohmann::json;

void require(bool law) {
  if (!law) std::abort();
}

const std::vector<json>& valid() {
  static const std::vector<json> all{
      {{"model_type", "gpt2"},
       {"n_layer", 2},
       {"n_embd", 12},
       {"n_head", 2},
       {"n_positions", 16},
       {"vocab_size", 31},
       {"attn_pdrop", 0},
       {"embd_pdrop", 0},
       {"resid_pdrop", 0}},
      {{"model_type", "qwen3"},
       {"num_hidden_layers", 2},
       {"hidden_size", 12},
       {"num_attention_heads", 4},
       {"num_key_value_heads", 2},
       {"head_dim", 4},
       {"intermediate_size", 20},
       {"vocab_size", 31},
       {"max_position_embeddings", 16},
       {"rope_theta", 10000}},
      {{"model_type", "qwen3"},
       {"num_hidden_layers", 2},
       {"hidden_size", 12},
       {"num_attention_heads", 4},
       {"num_key_value_heads", 1},
       {"intermediate_size", 20},
       {"vocab_size", 31},
       {"max_position_embeddings", 16},
       {"use_sliding_window", true},
       {"sliding_window", 4},
       {"layer_types", {"sliding_attention", "sliding_attention"}},
       {"rope_parameters", {{"rope_theta", 10000}, {"rope_type", "default"}}}},
      {{"model_type", "llama"},
       {"num_hidden_layers", 2},
       {"hidden_size", 16},
       {"num_attention_heads", 4},
       {"intermediate_size", 20},
       {"vocab_size", 31},
       {"max_position_embeddings", 16},
       {"attention_bias", true},
       {"rope_scaling",
        {{"rope_type", "llama3"},
         {"factor", 8.0},
         {"low_freq_factor", 1.0},
         {"high_freq_factor", 4.0},
         {"original_max_position_embeddings", 8}}}},
      {{"model_type", "qwen2"},
       {"num_hidden_layers", 2},
       {"hidden_size", 16},
       {"num_attention_heads", 4},
       {"num_key_value_heads", 2},
       {"intermediate_size", 20},
       {"vocab_size", 31},
       {"max_position_embeddings", 32},
       {"rope_parameters", {{"rope_theta", 10000}, {"rope_type", "yarn"}, {"factor", 4}}}},
      {{"model_type", "qwen3_moe"},
       {"num_hidden_layers", 4},
       {"hidden_size", 12},
       {"num_attention_heads", 4},
       {"num_key_value_heads", 1},
       {"intermediate_size", 20},
       {"head_dim", 4},
       {"vocab_size", 31},
       {"max_position_embeddings", 16},
       {"num_local_experts", 6},
       {"num_experts_per_tok", 2},
       {"moe_intermediate_size", 8},
       {"mlp_only_layers", {1}}}};
  return all;
}

const std::vector<json>& values() {
  static const std::vector<json> all{nullptr,
                                     true,
                                     false,
                                     0,
                                     1,
                                     2,
                                     3,
                                     16,
                                     2048,
                                     2049,
                                     -1,
                                     1 << 30,
                                     1LL << 40,
                                     std::numeric_limits<std::uint64_t>::max(),
                                     0.5,
                                     1.0,
                                     1e-6,
                                     1e15,
                                     1e300,
                                     "",
                                     "2",
                                     "silu",
                                     "gelu",
                                     "default",
                                     "yarn",
                                     json::array(),
                                     json::object(),
                                     {"full_attention", "sliding_attention"},
                                     {"sliding_attention", "sliding_attention"},
                                     {{"rope_theta", 5.0}},
                                     {{"rope_type", "yarn"}},
                                     {{"type", "yarn"}, {"factor", 4.0}, {"beta_fast", 1}},
                                     {{"type", "linear"}, {"factor", 1}},
                                     {{"rope_type", "yarn"},
                                      {"factor", 1e6},
                                      {"truncate", false},
                                      {"mscale", 1000},
                                      {"mscale_all_dim", 1e-9},
                                      {"beta_slow", 1e-9},
                                      {"original_max_position_embeddings", 1}},
                                     {{"rope_type", "llama3"},
                                      {"factor", 2},
                                      {"low_freq_factor", 1},
                                      {"high_freq_factor", 1.0000001}},
                                     {{"factor", 2}},
                                     {1, 3},
                                     {-1},
                                     {255, 256},
                                     {"Qwen3ForCausalLM"},
                                     {"GPT2LMHeadModel"}};
  return all;
}

constexpr std::array<const char*, 46> names{"model_type",
                                            "architectures",
                                            "n_layer",
                                            "n_embd",
                                            "n_head",
                                            "n_inner",
                                            "n_positions",
                                            "n_ctx",
                                            "vocab_size",
                                            "layer_norm_epsilon",
                                            "activation_function",
                                            "attn_pdrop",
                                            "embd_pdrop",
                                            "tie_word_embeddings",
                                            "scale_attn_weights",
                                            "num_hidden_layers",
                                            "hidden_size",
                                            "num_attention_heads",
                                            "num_key_value_heads",
                                            "head_dim",
                                            "intermediate_size",
                                            "max_position_embeddings",
                                            "rms_norm_eps",
                                            "rope_theta",
                                            "rope_scaling",
                                            "rope_parameters",
                                            "sliding_window",
                                            "use_sliding_window",
                                            "max_window_layers",
                                            "layer_types",
                                            "hidden_act",
                                            "initializer_range",
                                            "torch_dtype",
                                            "dtype",
                                            "num_experts",
                                            "num_local_experts",
                                            "num_experts_per_tok",
                                            "moe_intermediate_size",
                                            "decoder_sparse_step",
                                            "mlp_only_layers",
                                            "router_aux_loss_coef",
                                            "quantization_config",
                                            "attention_bias",
                                            "mlp_bias",
                                            "pretraining_tp",
                                            "another"};

std::string drawn(const std::uint8_t* data, std::size_t size) {
  json c = valid()[size == 0 ? 0 : data[0] % valid().size()];
  for (std::size_t i = 1; i + 1 < size; i += 2)
    c[names[data[i] % names.size()]] = values()[data[i + 1] % values().size()];
  return c.dump();
}

void check(const std::string& text) {
  const mc::json_value config(mc::parse_json(text, "fuzz"), "fuzz", mc::exit_code::model);
  const mc::hf_model model = mc::read_hf_model(config, mc::hf_use::program);
  double weights = 1;
  std::visit(
      [&](const auto& m) {
        m.members.each(m, [](std::string_view, const auto& value) {
          if constexpr (std::is_arithmetic_v<std::remove_cvref_t<decltype(value)>>)
            require(value >= 0 && value <= 1e15);
        });
        require(m.contradiction() == nullptr);
        weights = 1.0 * m.layers * m.hidden;
        // Any matrix of a layer is at most ffn or heads x head_dim wide.
        require(weights * std::max({1.0 * m.ffn, 1.0 * m.vocabulary / m.layers,
                                    1.0 * m.positions / m.layers}) <
                0x1p55);
      },
      model);
  if (const auto* const m = std::get_if<mc::qwen3_moe>(&model))
    require(weights * m->experts * m->expert_ffn < 0x1p58);
  require(!mc::hf_model_text(model, "fuzz").empty());
  const mc::hf_model again = mc::read_hf_model(config, mc::hf_use::weights);
  const auto same = [&]<class Model>(const Model& m, const auto& fields) {
    require(mc::hf_difference(fields, std::get<Model>(again), m).empty());
  };
  if (const auto* const m = std::get_if<mc::gpt>(&model)) same(*m, mc::hf_gpt2::fields);
  if (const auto* const m = std::get_if<mc::qwen3>(&model)) same(*m, mc::hf_qwen3::fields);
  if (const auto* const m = std::get_if<mc::llama>(&model)) same(*m, mc::hf_llama::fields);
  if (const auto* const m = std::get_if<mc::qwen2>(&model)) same(*m, mc::hf_qwen2::fields);
  if (const auto* const m = std::get_if<mc::qwen3_moe>(&model)) same(*m, mc::hf_qwen3_moe::fields);
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const bool text = size == 0 || data[0] % 2 == 0;
  try {
    check(text ? std::string(reinterpret_cast<const char*>(data) + (size > 0), size - (size > 0))
               : drawn(data + 1, size - 1));
  } catch (const mc::error& e) {
    require(e.code() == mc::exit_code::model && std::string_view(e.what()).size() > 10);
  }
  return 0;
}
