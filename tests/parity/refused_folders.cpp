// Hugging Face folders that are none, or of another model: each is refused in one sentence that
// names the file and the field or tensor, and the weights stay as they were.
#define BOOST_TEST_MODULE refused_folders
#include <boost/test/unit_test.hpp>

#include <megacpp/hf/model_folder.hpp>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <parity/folder_models.hpp>

namespace {

using mc::exit_code;
using nlohmann::json;
using test::bare_program;
using test::copied_model;
using test::open_file;
using test::weights;

/// A fixture damaged in one way is refused with the part in the sentence, and nothing was loaded.
template <class Model> void refused(const std::string& family, const Model& model,
                                    const std::function<void(const copied_model&)>& damage,
                                    const std::string& part) {
  const bare_program<Model> p(model);
  mc::stores s(p, true);
  s.initialise(9);
  const std::vector<float> before = weights(s);
  const copied_model copy(family);
  damage(copy);
  CHECK_REFUSED(mc::load_model_folder(copy.folder(), p, s), exit_code::model, part);
  const auto said = test::refusal_of([&] { mc::load_model_folder(copy.folder(), p, s); });
  BOOST_TEST(said->says(copy.folder()), said->text);
  BOOST_TEST((weights(s) == before), part << ": weights changed");
}
void refused(const std::function<void(const copied_model&)>& damage, const std::string& part) {
  refused("gpt2", test::tiny_gpt2, damage, part);
}
void tensors_refused(const std::function<void(open_file&)>& damage, const std::string& part) {
  refused([&](const copied_model& m) { m.change_tensors(damage); }, part);
}

BOOST_AUTO_TEST_CASE(folders_that_are_none) {
  const bare_program p(test::tiny_gpt2);
  mc::stores s(p, false);
  const test::scratch_folder dir;
  CHECK_REFUSED(mc::load_model_folder(dir / "none", p, s), exit_code::model, "does not exist");
  test::write_text(dir / "file", "x");
  CHECK_REFUSED(mc::load_model_folder(dir / "file", p, s), exit_code::model, "is not a folder");
  refused([](const copied_model& m) { std::filesystem::remove(m.file("config.json")); },
          "has no file config.json");
  refused([](const copied_model& m) { std::filesystem::remove(m.file("model.safetensors")); },
          "has no file model.safetensors");
}

BOOST_AUTO_TEST_CASE(configurations_of_other_models) {
  const auto gpt2 = [](const std::string& name, const json& value, const std::string& part) {
    refused(
        "gpt2", test::tiny_gpt2,
        [&](const copied_model& m) { m.change_config([&](json& c) { c[name] = value; }); }, part);
  };
  gpt2("model_type", "llama", "model_type is llama there and gpt2 in the program");
  gpt2("model_type", 3, "field \"model_type\" is the number 3, but a string is needed");
  gpt2("n_layer", 12, "n_layer is 12 there and 2 in the program");
  gpt2("n_head", 8, "n_head is 8 there and 4 in the program");
  gpt2("n_inner", 128, "n_inner is 128 there and 256 in the program");
  gpt2("n_positions", 1024, "n_positions is 1024 there and 32 in the program");
  gpt2("vocab_size", 50257, "vocab_size is 50257 there and 128 in the program");
  gpt2("vocab_size", nullptr, "has no field \"vocab_size\"");
  gpt2("layer_norm_epsilon", 1e-6, "layer_norm_epsilon is 1e-06 there and 1e-05 in the program");
  gpt2("activation_function", "relu",
       "field \"activation_function\" is \"relu\", but this model_type is computed with gelu_new");
  gpt2("scale_attn_weights", false, "field \"scale_attn_weights\" is false, but scores are always");
  gpt2("scale_attn_by_inverse_layer_idx", true,
       "field \"scale_attn_by_inverse_layer_idx\" is true, but");
  gpt2("add_cross_attention", true, "field \"add_cross_attention\" is true, but");
  gpt2("tie_word_embeddings", false, "tie_word_embeddings is false there and true in the program");
  gpt2("quantization_config", {{"quant_method", "gptq"}},
       "field \"quantization_config\" has quant_method gptq; models are read as they are");
  gpt2("quantization_config", {{"quant_method", "fp8"}},
       "field \"quantization_config\" has no weight_block_size");
  gpt2("quantization_config", {{"quant_method", "fp8"}, {"weight_block_size", {64, 64}}},
       "field \"quantization_config\" has weight_block_size [64,64]");
  gpt2("quantization_config", {{"quant_method", "bitsandbytes"}, {"load_in_8bit", true}},
       "field \"quantization_config\" has no load_in_4bit");
  gpt2("quantization_config",
       {{"quant_method", "bitsandbytes"}, {"load_in_4bit", true}, {"bnb_4bit_quant_type", "fp4"}},
       "field \"quantization_config\" has bnb_4bit_quant_type");
  refused(
      [](const copied_model& m) {
        m.change_config([](json& c) { c["n_layer"] = 3, c["n_embd"] = 32; });
      },
      "n_layer is 3 there and 2 in the program, n_embd is 32 there and 64 in the program, n_inner "
      "is 128");
  refused(
      [](const copied_model& m) {
        test::write_text(m.file("config.json"), "{\"model_type\": \"gpt2\"");
      },
      "is not valid JSON");

  const auto qwen3 = [](const std::string& name, const json& value, const std::string& part) {
    refused(
        "qwen3", test::tiny_qwen3,
        [&](const copied_model& m) { m.change_config([&](json& c) { c[name] = value; }); }, part);
  };
  qwen3("num_hidden_layers", 28, "\"layer_types\" has 2 entries and \"num_hidden_layers\" is 28");
  refused(
      "qwen3", test::tiny_qwen3,
      [](const copied_model& m) {
        m.change_config([](json& c) { c.erase("layer_types"), c["num_hidden_layers"] = 28; });
      },
      "num_hidden_layers is 28 there and 2 in the program");
  qwen3("hidden_size", 1024, "hidden_size is 1024 there and 64 in the program");
  qwen3("num_attention_heads", 16, "num_attention_heads is 16 there and 4 in the program");
  qwen3("num_key_value_heads", 4, "num_key_value_heads is 4 there and 2 in the program");
  qwen3("head_dim", nullptr, "field \"head_dim\" is null, but transformers does not take");
  qwen3("intermediate_size", 97, "intermediate_size is 97 there and 96 in the program");
  qwen3("max_position_embeddings", 32, "max_position_embeddings is 32 there and 64 in the program");
  qwen3("rms_norm_eps", 1e-5, "rms_norm_eps is 1e-05 there and 1e-06 in the program");
  qwen3("rope_parameters", {{"rope_theta", 1e6}, {"rope_type", "default"}},
        "rope_theta is 1000000 there and 10000 in the program");
  qwen3("rope_parameters", {{"rope_theta", 1e4}, {"rope_type", "yarn"}, {"factor", 4}},
        "rope_scaling is {.type = rope_type::yarn, .factor = 4, .original = 0, .slow = 1, "
        ".fast = 32, .attention = 0, .truncated = true} there and {} in the program");
  qwen3("rope_parameters", {{"rope_theta", 1e4}, {"rope_type", "dynamic"}, {"factor", 4}},
        "field \"rope_parameters.rope_type\" is \"dynamic\", but RoPE of the types default, ");
  qwen3("rope_scaling", {{"type", "linear"}, {"factor", 2}},
        "field \"rope_scaling\" and \"rope_parameters\" say different things");
  qwen3("hidden_act", "gelu",
        "field \"hidden_act\" is \"gelu\", but this model_type is computed with silu");
  qwen3("attention_bias", true, "field \"attention_bias\" is true, but");
  qwen3("tie_word_embeddings", true, "tie_word_embeddings is true there and false in the program");
  qwen3("layer_types", {"full_attention"},
        "field \"layer_types\" has 1 entries and \"num_hidden_layers\" is 2");
  qwen3("layer_types", {"full_attention", "linear_attention"},
        "field \"layer_types\" has \"linear_attention\"");
  refused(
      "qwen3", test::tiny_qwen3,
      [](const copied_model& m) {
        m.change_config([](json& c) { c.erase("rope_parameters"), c["rope_theta"] = 5e6; });
      },
      "rope_theta is 5000000 there and 10000 in the program");
}

BOOST_AUTO_TEST_CASE(tensors_of_other_models) {
  tensors_refused([](open_file& f) { f.tensors.erase("transformer.h.1.ln_2.weight"); },
                  "model.safetensors: tensor \"transformer.h.1.ln_2.weight\" is missing; tiny "
                  "needs it, with the shape [64]");
  tensors_refused(
      [](open_file& f) {
        f.tensors["transformer.h.2.ln_2.weight"] = f.tensors["transformer.h.1.ln_2.weight"];
      },
      "tensor \"transformer.h.2.ln_2.weight\" is not one of tiny's");
  tensors_refused(
      [](open_file& f) {
        f.tensors["transformer.wpe.weight"].shape = {64, 32};
      },
      "tensor \"transformer.wpe.weight\" has the shape [64, 32], but tiny needs [32, 64]");
  tensors_refused(
      [](open_file& f) { f.tensors["transformer.wpe.weight"].type = mc::storage_type::i32; },
      "tensor \"transformer.wpe.weight\" is of type I32");
  refused(
      [](const copied_model& m) {
        std::filesystem::resize_file(m.file("model.safetensors"), 400000);
      },
      "is not a valid safetensors file");
  refused(
      [](const copied_model& m) { std::filesystem::resize_file(m.file("model.safetensors"), 0); },
      "is empty");
}

// A rank may read its boxes of a folder, but not write a file without the others
// (unit/files_of_ranks).
BOOST_AUTO_TEST_CASE(what_one_rank_does_not_hold_is_not_saved) {
  const bare_program p(test::tiny_gpt2, mc::dtype::f32, {.tp = 2});
  mc::stores s(p, false);
  const test::scratch_folder dir;
  CHECK_REFUSED(mc::save_model_folder(dir / "m", p, s), exit_code::mismatch,
                "is laid out over at least 2 ranks");
  mc::program_view other = p.view();
  other.family = {"gpt2", &typeid(int)}; // of another struct
  CHECK_REFUSED(mc::save_model_folder(dir / "m", other, s), exit_code::mismatch,
                "has no Hugging Face form: nothing can be exported");
  BOOST_TEST(!std::filesystem::exists(dir / "m"));
}

} // namespace
