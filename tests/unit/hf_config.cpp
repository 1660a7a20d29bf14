// config.json as a model: what is supported becomes the model that transformers would make of it,
// with its number of parameters, and trains; what is not is refused with the field's name.
#define BOOST_TEST_MODULE hf_config
#include <boost/test/unit_test.hpp>

#include <megacpp/hf/models.hpp>
#include <megacpp/preset/models.hpp>
#include <megacpp/product/cpu_products.hpp>
#include <megacpp/run/session.hpp>

#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <kernels.hpp>
#include <scratch.hpp>

namespace {

using mc::exit_code;
using mc::hf_use;
using nlohmann::json;

mc::hf_model read(const std::string& text, hf_use use = hf_use::program,
                  std::vector<std::string>* told = nullptr) {
  return mc::read_hf_model({mc::parse_json(text, "config.json"), "config.json", exit_code::model},
                           use, told);
}

/// As transformers 4 and 5 write it.
json gpt2() {
  return {{"model_type", "gpt2"},
          {"architectures", {"GPT2LMHeadModel"}},
          {"n_layer", 2},
          {"n_embd", 12},
          {"n_head", 2},
          {"n_inner", nullptr},
          {"n_positions", 16},
          {"vocab_size", 31},
          {"attn_pdrop", 0.0},
          {"embd_pdrop", 0.0},
          {"resid_pdrop", 0.0},
          {"layer_norm_epsilon", 1e-5},
          {"activation_function", "gelu_new"},
          {"summary_type", "cls_index"},
          {"summary_first_dropout", 0.1},
          {"transformers_version", "5.23.0"},
          {"bos_token_id", 50256}};
}
/// As transformers 4 writes it.
json qwen3() {
  return {{"model_type", "qwen3"},
          {"architectures", {"Qwen3ForCausalLM"}},
          {"num_hidden_layers", 2},
          {"hidden_size", 12},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"head_dim", 4},
          {"intermediate_size", 20},
          {"vocab_size", 31},
          {"max_position_embeddings", 16},
          {"rms_norm_eps", 1e-6},
          {"rope_theta", 1000000.0},
          {"rope_scaling", nullptr},
          {"hidden_act", "silu"},
          {"attention_bias", false},
          {"attention_dropout", 0.0},
          {"initializer_range", 0.02},
          {"use_sliding_window", false},
          {"sliding_window", nullptr},
          {"max_window_layers", 2},
          {"tie_word_embeddings", true},
          {"torch_dtype", "bfloat16"},
          {"transformers_version", "4.51.0"}};
}
/// As transformers 5 writes the same.
json qwen3_five() {
  json c = qwen3();
  for (const char* old : {"rope_theta", "rope_scaling", "torch_dtype", "max_window_layers"})
    c.erase(old);
  c["rope_parameters"] = {{"rope_theta", 1000000.0}, {"rope_type", "default"}};
  c["dtype"] = "bfloat16";
  c["layer_types"] = {"full_attention", "full_attention"};
  return c;
}

/// As transformers 4 and 5 write the sparse one.
json qwen3_moe() {
  json c = qwen3();
  c["model_type"] = "qwen3_moe";
  c["architectures"] = {"Qwen3MoeForCausalLM"};
  c["tie_word_embeddings"] = false;
  c["num_experts"] = 6;
  c["num_experts_per_tok"] = 2;
  c["moe_intermediate_size"] = 10;
  c["norm_topk_prob"] = true;
  c["decoder_sparse_step"] = 1;
  c["mlp_only_layers"] = json::array();
  c["output_router_logits"] = false;
  c["router_aux_loss_coef"] = 0.001;
  return c;
}
json qwen3_moe_five() {
  json c = qwen3_moe();
  for (const char* old : {"rope_theta", "rope_scaling", "torch_dtype", "max_window_layers"})
    c.erase(old);
  c["rope_parameters"] = {{"rope_theta", 1000000.0}, {"rope_type", "default"}};
  c["dtype"] = "bfloat16";
  c["num_local_experts"] = c["num_experts"];
  c.erase("num_experts");
  return c;
}

/// As transformers 4 writes a Llama 3.1 and a Qwen2.5, and 5 the first.
json llama() {
  json c = qwen3();
  for (const char* other : {"use_sliding_window", "sliding_window", "max_window_layers"})
    c.erase(other);
  c["model_type"] = "llama", c["architectures"] = {"LlamaForCausalLM"};
  c["hidden_size"] = 16, c["rms_norm_eps"] = 1e-5, c["tie_word_embeddings"] = false;
  c["mlp_bias"] = false, c["pretraining_tp"] = 1;
  c["bos_token_id"] = 128000, c["eos_token_id"] = {128001, 128008, 128009};
  c["rope_scaling"] = {{"factor", 8.0},
                       {"high_freq_factor", 4.0},
                       {"low_freq_factor", 1.0},
                       {"original_max_position_embeddings", 8},
                       {"rope_type", "llama3"}};
  return c;
}
json llama_five() {
  json c = llama();
  c["rope_parameters"] = c["rope_scaling"];
  c["rope_parameters"]["rope_theta"] = c["rope_theta"];
  c["dtype"] = "bfloat16";
  for (const char* old : {"rope_theta", "rope_scaling", "torch_dtype"}) c.erase(old);
  return c;
}
json qwen2() {
  json c = qwen3();
  c["model_type"] = "qwen2", c["architectures"] = {"Qwen2ForCausalLM"};
  c["hidden_size"] = 16, c["sliding_window"] = 32;
  c.erase("head_dim"), c.erase("attention_bias");
  return c;
}
/// One of RoPE that is stretched as `scaling` says.
json scaled(json c, const json& scaling) {
  c["rope_scaling"] = scaling;
  return c;
}

/// A configuration with some fields set, erased where the value is the text "erased".
json with(json c, const json& changes) {
  for (const auto& [name, value] : changes.items())
    if (value == "erased") c.erase(name);
    else c[name] = value;
  return c;
}

/// Parameters of transformers' models, from the shapes of their weights.
std::int64_t counted(const json& c) {
  const auto n = [&](const char* name) { return c.at(name).get<std::int64_t>(); };
  if (c.at("model_type") == "gpt2") {
    const std::int64_t H = n("n_embd"), V = n("vocab_size"),
                       F = c.value("n_inner", json()).is_null() ? 4 * H : n("n_inner");
    const std::int64_t block = 2 * 2 * H + H * 3 * H + 3 * H + H * H + H + 2 * H * F + F + H;
    return V * H + n("n_positions") * H + n("n_layer") * block + 2 * H +
           (c.value("tie_word_embeddings", true) ? 0 : V * H);
  }
  const std::int64_t H = n("hidden_size"), V = n("vocab_size"), A = n("num_attention_heads"),
                     K = c.value("num_key_value_heads", A),
                     D = c.value("head_dim", c.at("model_type") == "qwen3" ? 128 : H / A),
                     F = n("intermediate_size"), L = n("num_hidden_layers");
  const auto flag = [&](const char* name) { return c.value(name, false) ? 1 : 0; };
  const bool norms = c.at("model_type") == "qwen3" || c.at("model_type") == "qwen3_moe",
             qkv = c.at("model_type") == "qwen2" || flag("attention_bias") == 1;
  const std::int64_t attention = 2 * H + 2 * H * A * D + 2 * H * K * D + (norms ? 2 * D : 0) +
                                 (qkv ? (A + 2 * K) * D : 0) + flag("attention_bias") * H +
                                 flag("mlp_bias") * (2 * F + H);
  std::int64_t networks = 0;
  for (std::int64_t l = 0; l < L; ++l) {
    bool sparse =
        c.at("model_type") == "qwen3_moe" && (l + 1) % c.value("decoder_sparse_step", 1) == 0;
    if (sparse)
      for (const json& dense : c.value("mlp_only_layers", json::array()))
        sparse = sparse && dense != l;
    if (!sparse) {
      networks += 3 * H * F;
      continue;
    }
    const std::int64_t E = n(c.contains("num_experts") ? "num_experts" : "num_local_experts");
    networks += E * H + E * 3 * H * n("moe_intermediate_size");
  }
  return V * H + L * attention + networks + H + (c.value("tie_word_embeddings", false) ? 0 : V * H);
}

/// One step of the interpreted program on random tokens, in double.
template <class Model> void check_it_trains(const Model& m) {
  constexpr int batch = 2, sequence = 16;
  mc::setup s;
  s.batch = {batch, sequence}, s.precision = mc::dtype::f64;
  const mc::interpreted_program<Model> program(m, s, "read");
  mc::cpu device(mc::product_type::automatic, 1);
  mc::session run(program.view(), device, mc::purpose::training);
  run.weights().initialise(5);
  std::mt19937 random(7);
  std::vector<std::int32_t> tokens(batch * sequence), labels(tokens.size());
  for (auto& t : tokens)
    t = static_cast<std::int32_t>(random() % static_cast<unsigned>(m.vocabulary));
  for (auto& t : labels)
    t = static_cast<std::int32_t>(random() % static_cast<unsigned>(m.vocabulary));
  mc::batch_view data;
  data.tokens = tokens.data(), data.labels = labels.data();
  run.numbers().learning_rate = 1e-2;
  std::vector<double> losses;
  for (int step = 0; step < 3; ++step) losses.push_back(run.step(data).loss.mean());
  // Small weights guess evenly at first; and steps on one batch make it likelier.
  BOOST_TEST(std::abs(losses[0] - std::log(m.vocabulary)) < 0.05, losses[0]);
  BOOST_TEST(losses[2] < losses[0]);
}

const std::vector<std::pair<const char*, json>>& supported() {
  static const std::vector<std::pair<const char*, json>> all{
      {"GPT-2", gpt2()},
      {"GPT-2, an odd number of heads of odd width", with(gpt2(), {{"n_embd", 15}, {"n_head", 3}})},
      {"GPT-2, one head, an odd ffn", with(gpt2(), {{"n_head", 1}, {"n_inner", 17}})},
      {"GPT-2, not tied", with(gpt2(), {{"tie_word_embeddings", false}})},
      {"GPT-2, dropout", with(gpt2(), {{"embd_pdrop", 0.1}, {"resid_pdrop", 0.1}})},
      {"GPT-2, as first released",
       {{"model_type", "gpt2"},
        {"n_layer", 3},
        {"n_embd", 8},
        {"n_head", 4},
        {"n_positions", 16},
        {"n_ctx", 16},
        {"vocab_size", 29},
        {"attn_pdrop", 0},
        {"embd_pdrop", 0},
        {"resid_pdrop", 0},
        {"initializer_range", 0.01},
        {"activation_function", "gelu_pytorch_tanh"},
        {"task_specific_params", {{"text-generation", {{"max_length", 50}}}}}}},
      {"Qwen3, transformers 4", qwen3()},
      {"Qwen3, transformers 5", qwen3_five()},
      {"Qwen3, not tied", with(qwen3(), {{"tie_word_embeddings", false}})},
      {"Qwen3, tied by neither version's default",
       with(qwen3_five(), {{"tie_word_embeddings", "erased"}})},
      {"Qwen3, one key and value head", with(qwen3_five(), {{"num_key_value_heads", 1}})},
      {"Qwen3, an odd number of heads, head_dim unlike H/A",
       with(qwen3(), {{"num_attention_heads", 3}, {"num_key_value_heads", 3}, {"head_dim", 10}})},
      {"Qwen3, head_dim of the default", with(qwen3(), {{"head_dim", "erased"}})},
      {"Qwen3, a sliding window in every layer, transformers 4",
       with(qwen3(),
            {{"use_sliding_window", true}, {"sliding_window", 5}, {"max_window_layers", 0}})},
      {"Qwen3, a sliding window in every layer, transformers 5",
       with(qwen3_five(), {{"use_sliding_window", true},
                           {"sliding_window", 5},
                           {"layer_types", {"sliding_attention", "sliding_attention"}}})},
      {"Qwen3, a window that no layer uses",
       with(qwen3(),
            {{"use_sliding_window", true}, {"sliding_window", 5}, {"max_window_layers", 2}})},
      {"Qwen3, yarn",
       scaled(qwen3(),
              {{"rope_type", "yarn"}, {"factor", 2.0}, {"original_max_position_embeddings", 8}})},
      {"Llama, transformers 4", llama()},
      {"Llama, transformers 5", llama_five()},
      {"Llama, as first released",
       {{"model_type", "llama"},
        {"num_hidden_layers", 2},
        {"hidden_size", 16},
        {"num_attention_heads", 4},
        {"intermediate_size", 20},
        {"vocab_size", 29},
        {"max_position_embeddings", 16},
        {"max_sequence_length", nullptr}}},
      {"Llama, biases, linear",
       with(scaled(llama(), {{"type", "linear"}, {"factor", 2}}),
            {{"attention_bias", true}, {"mlp_bias", true}, {"tie_word_embeddings", true}})},
      {"Qwen2", qwen2()},
      {"Qwen2, yarn, a window",
       with(scaled(qwen2(), {{"type", "yarn"}, {"factor", 4.0}}),
            {{"use_sliding_window", true}, {"max_window_layers", 0}, {"sliding_window", 5}})},
      {"Qwen3-MoE, linear, transformers 5",
       with(qwen3_moe_five(), {{"rope_parameters",
                                {{"rope_theta", 1e6}, {"rope_type", "linear"}, {"factor", 2.0}}}})},
      {"Qwen3-MoE, transformers 4", qwen3_moe()},
      {"Qwen3-MoE, transformers 5", qwen3_moe_five()},
      {"Qwen3-MoE, every second layer",
       with(qwen3_moe(), {{"num_hidden_layers", 5}, {"decoder_sparse_step", 2}})},
      {"Qwen3-MoE, dense layers by name, all experts, weights as they are",
       with(qwen3_moe_five(), {{"num_hidden_layers", 4},
                               {"mlp_only_layers", {0, 3}},
                               {"num_experts_per_tok", 6},
                               {"norm_topk_prob", false},
                               {"tie_word_embeddings", true}})},
      {"Qwen3-MoE, no layer with experts", with(qwen3_moe(), {{"mlp_only_layers", {0, 1}},
                                                              {"head_dim", "erased"},
                                                              {"num_attention_heads", 3},
                                                              {"num_key_value_heads", 1}})},
      {"Qwen3-MoE, a sliding window",
       with(qwen3_moe_five(), {{"use_sliding_window", true}, {"sliding_window", 5}})},
  };
  return all;
}

BOOST_AUTO_TEST_CASE(supported_configurations_train_and_have_their_parameters) {
  BOOST_TEST(supported().size() >= 12u);
  for (const auto& [name, config] : supported()) BOOST_TEST_CONTEXT(name)
  std::visit(
      [&config = config](const auto& m) {
        mc::setup s;
        s.batch = {2, 16};
        const mc::interpreted_program<std::decay_t<decltype(m)>> p(m, s, "read");
        BOOST_TEST(p.view().parameters == counted(config));
        check_it_trains(m);
      },
      read(config.dump()));
}

BOOST_AUTO_TEST_CASE(numbers_reach_their_members) {
  const auto model = std::get<mc::qwen3>(
      read(with(qwen3_five(), {{"use_sliding_window", true},
                               {"sliding_window", 5},
                               {"initializer_range", 0.03},
                               {"rms_norm_eps", 1e-5},
                               {"layer_types", {"sliding_attention", "sliding_attention"}}})
               .dump()));
  BOOST_TEST(model.rope_theta == 1e6);
  BOOST_TEST(model.window == 5);
  BOOST_TEST(model.std == 0.03);
  BOOST_TEST(model.eps == 1e-5);
  BOOST_TEST(
      std::get<mc::qwen3>(read(with(qwen3(), {{"rope_theta", "erased"}}).dump())).rope_theta ==
      1e4);
  BOOST_TEST(std::get<mc::qwen3>(
                 read(with(qwen3(), {{"use_sliding_window", true}, {"sliding_window", 5}}).dump()))
                 .window == 0);
  const auto gpt = std::get<mc::gpt>(
      read(with(gpt2(), {{"embd_pdrop", 0.2}, {"resid_pdrop", 0.2}, {"layer_norm_epsilon", 1e-4}})
               .dump()));
  BOOST_TEST(gpt.dropout == 0.2);
  BOOST_TEST(gpt.eps == 1e-4);
  BOOST_TEST(gpt.bias);
}

// Both spellings and all that may be left out become the same numbers.
BOOST_AUTO_TEST_CASE(scaled_rope_reaches_its_members) {
  using enum mc::rope_type;
  const auto of = [](const json& c) {
    return std::visit(
        []<class Model>(const Model& m) {
          if constexpr (requires { m.rope_scaling; }) return m.rope_scaling;
          else return mc::rope_stretch{};
        },
        read(c.dump()));
  };
  const mc::rope_stretch of_llama{llama3, 8, 8, 1, 4};
  BOOST_TEST((of(llama()) == of_llama && of(llama_five()) == of_llama));
  BOOST_TEST((of(qwen3()) == mc::rope_stretch{}));
  BOOST_TEST((of(scaled(qwen3(), {{"type", "default"}})) == mc::rope_stretch{}));
  BOOST_TEST((of(scaled(qwen3(), {{"rope_type", "linear"}, {"type", "linear"}, {"factor", 3}})) ==
              mc::rope_stretch{linear, 3}));
  json without = llama();
  without["rope_scaling"].erase("original_max_position_embeddings");
  BOOST_TEST((of(without) == mc::rope_stretch{llama3, 8, 16, 1, 4}));
  const auto with_yarn = [&](json more) {
    more["rope_type"] = "yarn", more["factor"] = 4.0;
    return of(scaled(qwen2(), more));
  };
  const mc::rope_stretch plain{yarn, 4};
  BOOST_TEST((with_yarn({}) == plain));
  BOOST_TEST((with_yarn({{"original_max_position_embeddings", 16}, {"beta_fast", 32.0}}) == plain));
  BOOST_TEST((with_yarn({{"beta_slow", nullptr}, {"beta_fast", 0}, {"truncate", true}}) == plain));
  BOOST_TEST((with_yarn({{"mscale", 1.0}, {"mscale_all_dim", 0}}) == plain));
  const mc::rope_stretch more{yarn, 4, 4, 2, 20, 0, false};
  BOOST_TEST((with_yarn({{"original_max_position_embeddings", 4},
                         {"beta_slow", 2},
                         {"beta_fast", 20},
                         {"truncate", false}}) == more));
  BOOST_TEST(with_yarn({{"attention_factor", 1.25}}).attention == 1.25);
  const double m = (0.1 * 0.707 * std::log(4.0) + 1) / (0.1 * 0.5 * std::log(4.0) + 1);
  BOOST_TEST(std::abs(with_yarn({{"mscale", 0.707}, {"mscale_all_dim", 0.5}}).attention - m) <
             1e-15);
  BOOST_TEST(
      mc::hf_model_text(read(scaled(qwen2(), {{"type", "linear"}, {"factor", 2}}).dump()), "x")
          .find(".rope_scaling = {.type = rope_type::linear, .factor = 2, .original = 0, ") !=
      std::string::npos);
}

// Llama-3.2-1B and Qwen2.5-0.5B as published are presets.
BOOST_AUTO_TEST_CASE(published_dense_configurations_are_the_presets) {
  const auto same = [](const auto& preset, const mc::hf_model& found) {
    const auto want = mc::numbers_of(preset),
               ours = mc::numbers_of(std::get<std::decay_t<decltype(preset)>>(found));
    BOOST_REQUIRE((want.size() == ours.size() && !ours.empty()));
    for (std::size_t i = 0; i < want.size(); ++i)
      BOOST_TEST(want[i].value == ours[i].value, want[i].name);
  };
  same(mc::preset::llama3_2_1b, read(R"({
    "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "bos_token_id": 128000, "eos_token_id": 128001, "head_dim": 64, "hidden_act": "silu",
    "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 8192,
    "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama",
    "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8,
    "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 32.0,
    "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192,
    "rope_type": "llama3"}, "rope_theta": 500000.0, "tie_word_embeddings": true,
    "torch_dtype": "bfloat16", "transformers_version": "4.45.0.dev0", "use_cache": true,
    "vocab_size": 128256})"));
  same(mc::preset::qwen2_5_0_5b, read(R"({
    "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
    "eos_token_id": 151643, "hidden_act": "silu", "hidden_size": 896, "initializer_range": 0.02,
    "intermediate_size": 4864, "max_position_embeddings": 32768, "max_window_layers": 24,
    "model_type": "qwen2", "num_attention_heads": 14, "num_hidden_layers": 24,
    "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
    "sliding_window": 32768, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
    "transformers_version": "4.40.1", "use_cache": true, "use_mrope": false,
    "use_sliding_window": false, "vocab_size": 151936})"));
}

// Qwen3-30B-A3B as published is mc::preset::qwen3_30b_a3b.
BOOST_AUTO_TEST_CASE(a_published_sparse_configuration_is_the_preset) {
  const mc::hf_model read_one = read(R"({
    "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "bos_token_id": 151643, "decoder_sparse_step": 1, "eos_token_id": 151645, "head_dim": 128,
    "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
    "intermediate_size": 6144, "max_position_embeddings": 40960, "max_window_layers": 48,
    "mlp_only_layers": [], "model_type": "qwen3_moe", "moe_intermediate_size": 768,
    "norm_topk_prob": true, "num_attention_heads": 32, "num_experts": 128,
    "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4,
    "output_router_logits": false, "rms_norm_eps": 1e-06, "rope_scaling": null,
    "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001, "sliding_window": null,
    "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.51.0",
    "use_cache": true, "use_sliding_window": false, "vocab_size": 151936})");
  const auto preset = mc::numbers_of(mc::preset::qwen3_30b_a3b),
             ours = mc::numbers_of(std::get<mc::qwen3_moe>(read_one));
  BOOST_REQUIRE((preset.size() == ours.size() && !ours.empty()));
  for (std::size_t i = 0; i < preset.size(); ++i)
    BOOST_TEST(preset[i].value == ours[i].value, preset[i].name);
}

// Qwen3-0.6B as published is mc::preset::qwen3_0_6b.
BOOST_AUTO_TEST_CASE(a_published_configuration_is_the_preset) {
  const mc::hf_model read_one = read(R"({
    "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu",
    "hidden_size": 1024, "initializer_range": 0.02, "intermediate_size": 3072,
    "max_position_embeddings": 40960, "max_window_layers": 28, "model_type": "qwen3",
    "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000, "sliding_window": null,
    "tie_word_embeddings": true, "torch_dtype": "bfloat16", "transformers_version": "4.51.0",
    "use_cache": true, "use_sliding_window": false, "vocab_size": 151936})");
  const auto preset = mc::numbers_of(mc::preset::qwen3_0_6b),
             ours = mc::numbers_of(std::get<mc::qwen3>(read_one));
  BOOST_REQUIRE((preset.size() == ours.size() && !ours.empty()));
  for (std::size_t i = 0; i < preset.size(); ++i)
    BOOST_TEST(preset[i].value == ours[i].value, preset[i].name);
}

BOOST_AUTO_TEST_CASE(a_model_is_written_as_cpp) {
  const std::string text = mc::hf_model_text(
      read(with(qwen3(), {{"rms_norm_eps", 1e-7}, {"rope_theta", 1234567.5}}).dump()), "tiny");
  BOOST_TEST(text.starts_with("inline constexpr qwen3 tiny{\n    .layers = 2,"));
  for (const char* member : {".tied = true,", ".eps = 1e-07,", ".rope_theta = 1234567.5,",
                             ".window = 0,", ".head_dim = 4,"})
    BOOST_TEST(text.find(member) != std::string::npos, member);
  const std::string sparse = mc::hf_model_text(
      read(with(qwen3_moe(), {{"num_hidden_layers", 9}, {"mlp_only_layers", {8, 2, 2}}}).dump()),
      "tiny");
  BOOST_TEST(sparse.find(".sparse_step = 1,\n    .mlp_only = {2, 8},\n    .tied = false,") !=
             std::string::npos);
}

/// One field changed, and a part of the sentence.
struct wrong {
  json base, change;
  const char* says;
};

const std::vector<wrong>& refused() {
  const double huge = 1e30;
  static const std::vector<wrong> all{
      // What megacpp computes otherwise.
      {qwen3(), {{"hidden_act", "gelu"}}, "\"hidden_act\" is \"gelu\", but"},
      {qwen3(), {{"attention_bias", true}}, "\"attention_bias\" is true"},
      {llama(),
       {{"rope_scaling", {{"rope_type", "dynamic"}, {"factor", 4.0}}}},
       "\"rope_scaling.rope_type\" is \"dynamic\", but RoPE of the types"},
      {qwen2(),
       {{"rope_scaling", {{"type", "longrope"}, {"factor", 4.0}}}},
       "\"rope_scaling.type\" is \"longrope\""},
      {llama_five(),
       {{"rope_parameters", {{"rope_type", "proportional"}}}},
       "\"rope_parameters.rope_type\" is \"proportional\""},
      {qwen3(), {{"rope_scaling", {{"type", "linear"}}}}, "\"rope_scaling.factor\" is missing"},
      {qwen3(),
       {{"rope_scaling", {{"type", "linear"}, {"factor", 0.5}}}},
       "\"rope_scaling.factor\" is 0.5, but must be from 1"},
      {qwen3(),
       {{"rope_scaling", {{"type", "linear"}, {"factor", "2"}}}},
       "\"rope_scaling.factor\" is the string \"2\""},
      {qwen3(),
       {{"rope_scaling", {{"type", "linear"}, {"factor", 2}, {"beta_fast", 3}}}},
       "\"rope_scaling.beta_fast\" is set, but RoPE of type \"linear\" has no such number"},
      {qwen3(),
       {{"rope_scaling", {{"type", "linear"}, {"rope_type", "yarn"}, {"factor", 2}}}},
       "\"rope_scaling.type\" is \"linear\" and \"rope_scaling.rope_type\" is \"yarn\""},
      {llama(),
       {{"rope_scaling", {{"rope_type", "llama3"}, {"factor", 8}, {"low_freq_factor", 1}}}},
       "\"rope_scaling.high_freq_factor\" is missing"},
      {llama(),
       {{"rope_scaling",
         {{"rope_type", "llama3"},
          {"factor", 8},
          {"low_freq_factor", 4},
          {"high_freq_factor", 4}}}},
       "\"rope_scaling.high_freq_factor\" is 4 and \"rope_scaling.low_freq_factor\" is 4"},
      {llama(),
       {{"rope_scaling", {{"type", "yarn"}, {"factor", 8}, {"beta_fast", 1}, {"beta_slow", 2}}}},
       "\"rope_scaling.beta_fast\" is 1 and \"rope_scaling.beta_slow\" is 2"},
      {llama(),
       {{"rope_scaling", {{"type", "yarn"}, {"factor", 8}, {"attention_factor", 0}}}},
       "\"rope_scaling.attention_factor\" is 0, but must be"},
      {llama(),
       {{"rope_theta", 1}, {"rope_scaling", {{"type", "yarn"}, {"factor", 8}}}},
       "\"rope_theta\" is 1, but yarn"},
      {llama(),
       {{"rope_scaling", {{"type", "yarn"}, {"factor", 8}, {"truncate", nullptr}}}},
       "\"rope_scaling.truncate\" is null"},
      {llama(),
       {{"rope_theta", "erased"},
        {"rope_scaling", {{"type", "linear"}, {"factor", 4}, {"rope_theta", 1e4}}},
        {"rope_parameters", {{"type", "linear"}, {"factor", 4}, {"rope_theta", 1e6}}}},
       "\"rope_parameters.rope_theta\" is 1000000 and \"rope_scaling.rope_theta\" is 10000"},
      {llama(),
       {{"rope_theta", "erased"},
        {"rope_scaling", {{"type", "linear"}, {"factor", 4}}},
        {"rope_parameters", {{"type", "linear"}, {"factor", 4}, {"rope_theta", 1e6}}}},
       "\"rope_parameters.rope_theta\" stands in one of"},
      {llama(),
       {{"rope_parameters", {{"rope_type", "default"}}}},
       "\"rope_scaling\" and \"rope_parameters\" say different things"},
      {llama(), {{"hidden_act", "gelu"}}, "\"hidden_act\" is \"gelu\""},
      {llama(), {{"use_sliding_window", true}}, "\"use_sliding_window\" is true, but"},
      {llama(), {{"sliding_window", 4}}, "\"sliding_window\" is not one that megacpp knows"},
      {llama(), {{"rope_interleaved", true}}, "\"rope_interleaved\" is true, but RoPE turns"},
      {llama(), {{"head_dim", 3}}, "\"head_dim\" is 3, but RoPE"},
      {llama(), {{"num_key_value_heads", 3}}, "\"num_key_value_heads\" is 3, but"},
      {llama(), {{"architectures", {"Qwen2ForCausalLM"}}}, "\"architectures\" is [Qwen2For"},
      {qwen2(), {{"attention_bias", true}}, "\"attention_bias\" is not one that megacpp knows"},
      {qwen2(), {{"use_mrope", true}}, "\"use_mrope\" is true"},
      {qwen2(), {{"num_key_value_heads", "erased"}}, "has no field \"num_key_value_heads\""},
      {qwen2(),
       {{"use_sliding_window", true}, {"sliding_window", 8}, {"max_window_layers", 1}},
       "\"max_window_layers\" lets 1 of 2 layers"},
      {qwen3(),
       {{"rope_scaling", {{"rope_type", "default"}, {"factor", 4.0}}}},
       "\"rope_scaling.factor\" is set"},
      {qwen3_five(),
       {{"rope_parameters", {{"rope_theta", 1e6}, {"partial_rotary_factor", 0.5}}}},
       "\"rope_parameters.partial_rotary_factor\" is set"},
      {qwen3(),
       {{"use_sliding_window", true}, {"sliding_window", 8}, {"max_window_layers", 1}},
       "\"max_window_layers\" lets 1 of 2 layers"},
      {qwen3_five(),
       {{"layer_types", {"full_attention", "linear_attention"}}},
       "\"layer_types\" has \"linear_attention\""},
      {qwen3_five(),
       {{"quantization_config", {{"quant_method", "gptq"}}}},
       "\"quantization_config\""},
      {gpt2(), {{"activation_function", "relu"}}, "\"activation_function\" is \"relu\""},
      {gpt2(), {{"scale_attn_weights", false}}, "\"scale_attn_weights\" is false"},
      {gpt2(), {{"scale_attn_by_inverse_layer_idx", true}}, "\"scale_attn_by_inverse_layer_idx\""},
      {gpt2(), {{"add_cross_attention", true}}, "\"add_cross_attention\" is true"},
      {gpt2(), {{"attn_pdrop", 1.5}}, "\"attn_pdrop\" is 1.5, but must be from 0 to 1"},
      {gpt2(), {{"pruned_heads", {{"0", {1}}}}}, "\"pruned_heads\""},
      {gpt2(), {{"model_type", "mistral"}}, "\"model_type\" is \"mistral\", but megacpp has"},
      {gpt2(), {{"architectures", {"GPT2DoubleHeadsModel"}}}, "\"architectures\" is [GPT2Double"},
      {llama(), {{"architectures", {"Qwen2Model"}}}, "\"architectures\" is [Qwen2Model"},
      {llama(), {{"architectures", {"LlamaForSequenceClassification"}}}, "is [LlamaForSequence"},
      {qwen3_moe(), {{"qkv_bias", true}}, "\"qkv_bias\" is true"},
      {qwen3_moe(), {{"use_qk_norm", false}}, "\"use_qk_norm\" is false"},
      {qwen3_moe(),
       {{"shared_expert_intermediate_size", 16}},
       "\"shared_expert_intermediate_size\" is 16"},
      // Fields that are not known.
      {gpt2(), {{"hidden_size", 12}}, "\"hidden_size\" is not one that megacpp knows"},
      {qwen3(), {{"attention_sinks", 4}}, "\"attention_sinks\" is not one that megacpp knows"},
      {qwen3(), {{"num_experts", 8}}, "\"num_experts\" is not one that megacpp knows"},
      {qwen3(),
       {{"attention_sinks", 4}, {"n_shared_experts", 1}, {"alibi", nullptr}, {"mup", true}},
       "fields \"attention_sinks\", \"mup\", \"n_shared_experts\" are none that megacpp knows"},
      // A null, where a missing field is not Python's None.
      {gpt2(), {{"scale_attn_weights", nullptr}}, "\"scale_attn_weights\" is null, but"},
      {gpt2(), {{"tie_word_embeddings", nullptr}}, "\"tie_word_embeddings\" is null, but"},
      {gpt2(), {{"activation_function", nullptr}}, "\"activation_function\" is null, but"},
      {gpt2(), {{"resid_pdrop", nullptr}}, "\"resid_pdrop\" is null, but"},
      {llama(), {{"rms_norm_eps", nullptr}}, "\"rms_norm_eps\" is null, but"},
      {llama(), {{"rope_theta", nullptr}}, "\"rope_theta\" is null, but"},
      {qwen3(), {{"head_dim", nullptr}}, "\"head_dim\" is null, but"},
      {qwen3_five(),
       {{"rope_parameters", {{"rope_theta", nullptr}, {"rope_type", "default"}}}},
       "\"rope_parameters.rope_theta\" is null"},
      {qwen3_moe(), {{"decoder_sparse_step", nullptr}}, "\"decoder_sparse_step\" is null, but"},
      // Contradictions.
      {gpt2(), {{"n_head", 5}}, "\"n_embd\" is 12 and \"n_head\" is 5"},
      {gpt2(), {{"n_ctx", 17}}, "\"n_ctx\" is 17 and \"n_positions\" is 16"},
      {gpt2(), {{"embd_pdrop", 0.1}}, "\"embd_pdrop\" is 0.1 and \"resid_pdrop\" is 0"},
      {qwen3(), {{"num_key_value_heads", 3}}, "\"num_key_value_heads\" is 3, but"},
      {qwen3(), {{"head_dim", 5}}, "\"head_dim\" is 5, but RoPE"},
      {qwen3(),
       {{"dtype", "float32"}},
       "\"dtype\" is \"float32\" and \"torch_dtype\" is \"bfloat16\""},
      {qwen3_five(),
       {{"rope_theta", 5e6}},
       "\"rope_parameters.rope_theta\" is 1000000 and \"rope_theta\" is 5000000"},
      {qwen3_five(), {{"layer_types", {"full_attention"}}}, "\"layer_types\" has 1 entries"},
      {qwen3_five(),
       {{"layer_types", {"sliding_attention", "sliding_attention"}}},
       "but \"use_sliding_window\" is not true"},
      {qwen3_moe(),
       {{"num_local_experts", 5}},
       "\"num_experts\" is 6 and \"num_local_experts\" is 5"},
      {qwen3_moe(), {{"num_experts_per_tok", 7}}, "\"num_experts_per_tok\" is 7, but there are 6"},
      {qwen3_moe(), {{"mlp_only_layers", {2}}}, "\"mlp_only_layers\" has layer 2 and"},
      {qwen3_moe(), {{"mlp_only_layers", {-1}}}, "\"mlp_only_layers\" has layer -1"},
      {qwen3_moe(), {{"num_hidden_layers", 300}, {"mlp_only_layers", {256}}}, "up to 255 alone"},
      {qwen3_moe(),
       {{"decoder_sparse_step", 0}},
       "\"decoder_sparse_step\" is 0, but must be from 1"},
      {qwen3_moe(),
       {{"use_sliding_window", true}, {"sliding_window", 4}},
       "\"max_window_layers\" is 2, but"},
      {qwen3_moe(), {{"num_experts", "erased"}}, "has no field \"num_experts\""},
      {qwen3_moe(), {{"num_experts", 1 << 20}}, "must be from 1 to 2048"},
      {qwen3_moe(),
       {{"n_shared_experts", 1}},
       "\"n_shared_experts\" is not one that megacpp knows"},
      {qwen3_moe(), {{"layer_types", {"full_attention"}}}, "\"layer_types\" is not one"},
      {qwen3_moe(), {{"router_aux_loss_coef", -1}}, "\"router_aux_loss_coef\" is -1"},
      // Numbers that are none, or beyond what a program can have.
      {gpt2(), {{"n_layer", "2"}}, "\"n_layer\" is the string \"2\", but a whole number"},
      {gpt2(), {{"n_layer", 2.0}}, "\"n_layer\" is the number 2.0, but a whole number"},
      {gpt2(), {{"n_layer", 0}}, "\"n_layer\" is 0, but must be from 1"},
      {gpt2(), {{"n_layer", -2}}, "\"n_layer\" is -2, but must be from 1"},
      {gpt2(), {{"n_layer", 1 << 20}}, "\"n_layer\" is 1048576, but must be from 1 to 2048"},
      {gpt2(),
       {{"vocab_size", 1LL << 40}},
       "\"vocab_size\" is 1099511627776, which is out of range"},
      {gpt2(), {{"n_embd", huge}}, "\"n_embd\" is the number 1e+30"},
      {gpt2(), {{"n_embd", true}}, "\"n_embd\" is the value true"},
      {gpt2(), {{"vocab_size", "erased"}}, "has no field \"vocab_size\""},
      {gpt2(), {{"layer_norm_epsilon", -1e-5}}, "\"layer_norm_epsilon\" is -1e-05"},
      {gpt2(), {{"tie_word_embeddings", 1}}, "\"tie_word_embeddings\" is the number 1"},
      {qwen3(), {{"rope_theta", 0}}, "\"rope_theta\" is 0, but must be from 1"},
      {qwen3(), {{"rope_theta", {1}}}, "\"rope_theta\" is a list, but a number"},
      {qwen3(),
       {{"rope_scaling", "default"}},
       "\"rope_scaling\" is the string \"default\", but an object"},
      {qwen3(),
       {{"num_attention_heads", 1 << 15}, {"num_key_value_heads", 1}, {"head_dim", 1 << 14}},
       "their product must be at most"},
      {qwen3(), {{"hidden_act", 3}}, "\"hidden_act\" is the number 3, but a string"},
      {qwen3_five(), {{"layer_types", {1, 2}}}, "\"layer_types[0]\" is the number 1"},
  };
  return all;
}

BOOST_AUTO_TEST_CASE(what_cannot_be_honoured_is_refused_by_name) {
  BOOST_TEST(refused().size() >= 12u);
  for (const wrong& w : refused())
    CHECK_REFUSED(read(with(w.base, w.change).dump()), exit_code::model, w.says);
}

BOOST_AUTO_TEST_CASE(malformed_configurations_are_refused) {
  const std::string whole = gpt2().dump();
  for (std::size_t n = 0; n < whole.size(); ++n)
    BOOST_TEST(test::refusal_of([&] { read(whole.substr(0, n)); }).has_value());
  CHECK_REFUSED(read("{\"n_layer\":2," + whole.substr(1)), exit_code::model,
                "\"n_layer\" appears twice");
  const std::string deep = std::string(100, '[') + std::string(100, ']');
  CHECK_REFUSED(read("{\"id2label\":" + deep + "," + whole.substr(1)), exit_code::model,
                "nested deeper");
  CHECK_REFUSED(read("{}"), exit_code::model, "has no field \"model_type\"");
}

// What transformers does not read for these model types: SmolLM2's, Unsloth's, KoGPT2's and others'
// published files have it.
BOOST_AUTO_TEST_CASE(fields_that_change_nothing_change_nothing) {
  const auto same = [](const json& base, const json& more) {
    std::vector<std::string> told;
    BOOST_TEST(mc::hf_model_text(read(with(base, more).dump(), hf_use::program, &told), "x") ==
                   mc::hf_model_text(read(base.dump()), "x"),
               more.dump());
    read(with(base, more).dump(), hf_use::weights);
    return told;
  };
  for (const json& more : {json{{"is_llama_config", true},
                                {"rope_interleaved", false},
                                {"transformers.js_config", {{"kv_cache_dtype", {{"fp16", "x"}}}}}},
                           json{{"unsloth_fixed", true}, {"unsloth_version", "2025.1"}},
                           json{{"use_sliding_window", false}, {"sliding_window", 4096}},
                           json{{"max_sequence_length", 2048}},
                           json{{"attention_bias", nullptr}, {"attention_dropout", nullptr}}})
    BOOST_TEST(same(llama(), more).empty());
  BOOST_TEST(
      same(qwen3_moe(),
           {{"qkv_bias", false}, {"use_qk_norm", true}, {"shared_expert_intermediate_size", 0}})
          .empty());
  // AutoModel saves a model under the name of its body.
  BOOST_TEST(same(gpt2(), {{"architectures", {"GPT2Model"}}}).empty());
  BOOST_TEST(same(llama(), {{"architectures", {"LlamaModel"}}}).empty());
  BOOST_TEST(same(qwen3(), {{"architectures", {"Qwen3Model"}}}).empty());
  BOOST_TEST(same(gpt2(), {{"output_past", true},
                           {"_num_labels", 1},
                           {"author", "a"},
                           {"created_date", "2021-04-28"},
                           {"license", "CC-BY-NC-SA 4.0"}})
                 .empty());
  // Told, since training, or code of the folder's own, may differ.
  const auto says = [](const std::vector<std::string>& told, const char* what) {
    BOOST_REQUIRE(told.size() == 1u);
    BOOST_TEST(told[0].find(what) != std::string::npos, told[0]);
  };
  says(same(gpt2(), {{"attn_pdrop", 0.1}}), "config.json: field \"attn_pdrop\" is 0.1, but");
  says(same(gpt2(), {{"attn_pdrop", "erased"}}), "field \"attn_pdrop\" is 0.1, but training has");
  for (const json& base : {llama(), qwen2(), qwen3(), qwen3_moe()})
    says(same(base, {{"attention_dropout", 0.25}}), "field \"attention_dropout\" is 0.25, but");
  says(same(qwen3(), {{"auto_map", {{"AutoModelForCausalLM", "modeling.Mine"}}}}),
       "field \"auto_map\" names code of the folder's own");
}

// How a model was trained is no matter to its weights.
BOOST_AUTO_TEST_CASE(weights_are_read_whatever_the_dropout_was) {
  const json c = with(gpt2(), {{"attn_pdrop", 0.1}, {"embd_pdrop", 0.3}});
  read(c.dump(), hf_use::weights);
  BOOST_TEST(test::refusal_of([&] { read(c.dump()); }).has_value());
  CHECK_REFUSED(read(with(qwen3(), {{"hidden_act", "gelu"}}).dump(), hf_use::weights),
                exit_code::model, "hidden_act");
}

} // namespace
