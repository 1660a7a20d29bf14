// Weights as Hugging Face folders: what transformers saved is loaded and saved again byte for byte,
// and every spelling met in public models is read.
#define BOOST_TEST_MODULE folders
#include <boost/test/unit_test.hpp>

#include <megacpp/hf/export_folder.hpp>
#include <megacpp/hf/tokenizer_files.hpp>
#include <megacpp/states/find_saved.hpp>
#include <megacpp/states/state.hpp>

#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <parity/folder_models.hpp>

namespace {

using mc::exit_code;
using nlohmann::json;
using test::bare_program;
using test::copied_model;
using test::open_file;
using test::weights;

template <class Model> void check_round_trip(const std::string& family, const Model& model) {
  const bare_program<Model> p(model);
  mc::stores s(p, false);
  const std::filesystem::path original = test::fixtures(family) / "model";
  mc::load_model_folder(original, p, s);
  const test::scratch_folder dir;
  mc::save_model_folder(dir / "saved", p, s);
  BOOST_TEST((test::read_text(dir / "saved/model.safetensors") ==
              test::read_text((original / "model.safetensors").string())));

  // Every field that both write says the same. transformers 5 spells some otherwise.
  json ours = json::parse(test::read_text(dir / "saved/config.json"));
  json theirs = json::parse(test::read_text((original / "config.json").string()));
  BOOST_TEST(ours.at("torch_dtype") == theirs.at("dtype"));
  if (theirs.contains("num_local_experts"))
    BOOST_TEST(ours.at("num_experts") == theirs.at("num_local_experts"));
  if (theirs.contains("rope_parameters"))
    BOOST_TEST(ours.at("rope_theta") == theirs.at("rope_parameters").at("rope_theta"));
  int compared = 0;
  for (const auto& [name, value] : ours.items()) {
    // A fixture's n_inner is null, which means 4 n_embd; token ids and windows that are off differ.
    const std::set<std::string> other{"n_inner", "bos_token_id", "eos_token_id",
                                      "max_window_layers"};
    if (!theirs.contains(name) || other.count(name) != 0) continue;
    BOOST_TEST(value == theirs.at(name), name << " is " << value << ", not " << theirs.at(name));
    ++compared;
  }
  BOOST_TEST(compared >= 16);

  mc::stores again(p, true);
  mc::load_model_folder(dir / "saved", p, again);
  BOOST_TEST((weights(again) == weights(s)));
  mc::save_model_folder(dir / "saved", p, again); // over itself
  mc::load_model_folder(dir / "saved", p, again);
  BOOST_TEST((weights(again) == weights(s)));
}

BOOST_AUTO_TEST_CASE(gpt2_round_trip) { check_round_trip("gpt2", test::tiny_gpt2); }
BOOST_AUTO_TEST_CASE(qwen3_round_trip) { check_round_trip("qwen3", test::tiny_qwen3); }
BOOST_AUTO_TEST_CASE(qwen3_moe_round_trip) { check_round_trip("qwen3_moe", test::tiny_qwen3_moe); }

// Blocks of large tensors are read on all threads: as stored, and transposed.
BOOST_AUTO_TEST_CASE(any_number_of_threads_reads_the_same) {
  const bare_program p(mc::gpt{
      .layers = 1, .hidden = 256, .heads = 4, .ffn = 1024, .vocabulary = 1100, .positions = 32});
  mc::stores original(p, false);
  original.initialise(5);
  const test::scratch_folder dir;
  mc::save_model_folder(dir / "saved", p, original);
  const int before = mc::thread_count();
  for (const int threads : {1, 3, 16}) {
    mc::set_thread_count(threads);
    for (const bool training : {false, true}) {
      mc::stores s(p, training);
      mc::load_model_folder(dir / "saved", p, s);
      BOOST_TEST((weights(s) == weights(original)), threads << " threads");
    }
  }
  mc::set_thread_count(before);
}

// The form that transformers 5 has in memory, and may save.
BOOST_AUTO_TEST_CASE(fused_experts_are_read) {
  const bare_program p(test::tiny_qwen3_moe);
  mc::stores expected(p, false), s(p, false);
  mc::load_model_folder(test::fixtures("qwen3_moe") / "model", p, expected);
  const copied_model copy("qwen3_moe");
  const auto fuse = [](open_file& f, std::int64_t experts) {
    for (int l = 0; l < 2; ++l) {
      const std::string scope = fmt::format("model.layers.{}.mlp.experts.", l);
      open_file::tensor both{mc::storage_type::f32, {experts, 64, 64}, ""}, down = both;
      down.shape = {experts, 64, 32};
      for (int e = 0; e < 8; ++e) {
        const auto take = [&](const char* name) {
          return f.tensors.extract(fmt::format("{}{}.{}.weight", scope, e, name)).mapped().bytes;
        };
        both.bytes += take("gate_proj"); // gate rows first
        both.bytes += take("up_proj");
        down.bytes += take("down_proj");
      }
      f.tensors[scope + "gate_up_proj"] = both, f.tensors[scope + "down_proj"] = down;
    }
  };
  copy.change_tensors([&](open_file& f) { fuse(f, 8); });
  BOOST_TEST(open_file(copy.file("model.safetensors")).tensors.size() ==
             2u * (2 + 4 + 2 + 1 + 2) + 3);
  mc::load_model_folder(copy.folder(), p, s);
  BOOST_TEST((weights(s) == weights(expected)));
  // And exported as transformers 4 has it.
  const test::scratch_folder dir;
  mc::export_model_folder(copy.folder(), dir / "m", p, {});
  BOOST_TEST((test::read_text(dir / "m/model.safetensors") ==
              test::read_text((test::fixtures("qwen3_moe") / "model/model.safetensors").string())));

  const std::string name = "model.layers.1.mlp.experts.gate_up_proj";
  const auto damaged = [&](const std::function<void(open_file&)>& damage, const char* says) {
    copy.change_tensors(damage);
    CHECK_REFUSED(mc::load_model_folder(copy.folder(), p, s), exit_code::model, says);
  };
  damaged(
      [&](open_file& f) {
        f.tensors[name].shape = {4, 128, 64};
      },
      "gate_up_proj\" has the shape [64, 64], but tiny needs [32, 64]");
  damaged([&](open_file& f) { f.tensors[name].shape = {16, 32, 64}; }, "has the shape [16, 64]");
  damaged([&](open_file& f) { f.tensors[name].shape = {512, 64}; }, "is not one of tiny's");
  damaged([&](open_file& f) { f.tensors[name].shape = {64, 1, 512}; }, "is not one of tiny's");
  damaged(
      [&](open_file& f) {
        f.tensors[name].shape = {std::int64_t{1} << 50, 0, 64}, f.tensors[name].bytes = "";
      },
      "is not one of tiny's");
}

BOOST_AUTO_TEST_CASE(mixed_layers_are_told) {
  mc::qwen3_moe model = test::tiny_qwen3_moe;
  model.layers = 5, model.sparse_step = 2, model.mlp_only = {3};
  const bare_program p(model);
  mc::stores s(p, false), t(p, false);
  s.initialise(4);
  const test::scratch_folder dir;
  mc::save_model_folder(dir / "m", p, s);
  const json config = json::parse(test::read_text(dir / "m/config.json"));
  BOOST_TEST(config.at("decoder_sparse_step") == 2);
  BOOST_TEST(config.at("mlp_only_layers") == json({3}));
  BOOST_TEST(config.at("num_experts") == 8);
  const open_file file(dir / "m/model.safetensors");
  for (int l = 0; l < 5; ++l) {
    const std::string scope = fmt::format("model.layers.{}.mlp.", l);
    BOOST_TEST(file.tensors.count(scope + "experts.7.down_proj.weight") == (l == 1 ? 1u : 0u));
    BOOST_TEST(file.tensors.count(scope + "down_proj.weight") == (l == 1 ? 0u : 1u));
  }
  mc::load_model_folder(dir / "m", p, t);
  BOOST_TEST((weights(s) == weights(t)));
  model.mlp_only = {1};
  const bare_program other(model);
  mc::stores u(other, false);
  CHECK_REFUSED(mc::load_model_folder(dir / "m", other, u), exit_code::model,
                "layer 1 has experts there and one MLP in the program");
  model.mlp_only = {}, model.shared_ffn = 16;
  const bare_program shared(model);
  mc::stores v(shared, false);
  CHECK_REFUSED(mc::save_model_folder(dir / "v", shared, v), exit_code::mismatch, "shared expert");
  // Its own state has no config.json, which is not why.
  std::filesystem::create_directory(dir / "state");
  CHECK_REFUSED(mc::export_model_folder(dir / "state", dir / "v", shared, {}), exit_code::mismatch,
                "shared expert");
}

BOOST_AUTO_TEST_CASE(parts_of_a_fused_tensor_lie_side_by_side) {
  const bare_program p(test::tiny_gpt2);
  mc::stores s(p, false);
  mc::load_model_folder(test::fixtures("gpt2") / "model", p, s);
  const open_file file((test::fixtures("gpt2") / "model/model.safetensors").string());
  const auto fused = file.floats("transformer.h.1.attn.c_attn.weight"); // (64, 192)
  const std::vector<float> w = weights(s);
  int seen = 0;
  mc::for_each_parameter(p, [&](const mc::parameter_ref& r) {
    for (const auto& [name, first] : {std::pair{"q", 0}, std::pair{"k", 64}, std::pair{"v", 128}}) {
      if (r.name != std::string("layers.1.attn.") + name + ".weight") continue;
      ++seen;
      for (int out = 0; out < 64; ++out)
        for (int in = 0; in < 64; ++in)
          BOOST_REQUIRE(w[static_cast<std::size_t>(r.offset + out * 64 + in)] ==
                        fused[static_cast<std::size_t>(in * 192 + first + out)]);
    }
  });
  BOOST_TEST(seen == 3);
}

BOOST_AUTO_TEST_CASE(every_element_has_one_place) {
  const bare_program<mc::gpt> gpt2(test::tiny_gpt2);
  const bare_program<mc::qwen3> qwen3(test::tiny_qwen3);
  const bare_program<mc::qwen3_moe> moe(test::tiny_qwen3_moe);
  for (const mc::program_view* p : {&gpt2.view(), &qwen3.view(), &moe.view()}) {
    const mc::stores s(*p, false);
    std::set<std::int64_t> places;
    std::int64_t elements = 0, parameters = 0;
    for (const mc::hf_tensor& t : mc::hf_family_of(*p).tensors(*p)) {
      elements += t.elements();
      // By short stretches, as large tensors are moved by longer ones.
      const std::int64_t step = 7;
      for (std::int64_t first = 0; first < t.elements(); first += step) {
        const std::int64_t count = std::min(step, t.elements() - first);
        t.each(s, {}, first, count, [&](std::int64_t i, std::int64_t at) {
          BOOST_REQUIRE(i >= first);
          BOOST_REQUIRE(i < first + count);
          places.insert(at);
        });
      }
    }
    mc::for_each_parameter(*p, [&](const mc::parameter_ref& r) { parameters += r.count.n; });
    BOOST_TEST(elements == parameters);
    BOOST_TEST(static_cast<std::int64_t>(places.size()) == parameters);
  }
}

BOOST_AUTO_TEST_CASE(the_first_release_had_no_prefix_and_held_masks) {
  const bare_program p(test::tiny_gpt2);
  mc::stores expected(p, false), s(p, false);
  mc::load_model_folder(test::fixtures("gpt2") / "model", p, expected);
  const copied_model copy("gpt2");
  copy.change_tensors([](open_file& f) {
    std::vector<std::string> names;
    for (const auto& [name, t] : f.tensors) names.push_back(name);
    for (const std::string& name : names)
      f.rename(name, name.substr(std::string("transformer.").size()));
    for (int l = 0; l < 2; ++l) {
      f.tensors[fmt::format("h.{}.attn.bias", l)] = {
          mc::storage_type::u8, {1, 1, 32, 32}, std::string(1024, '\1')};
      f.tensors[fmt::format("h.{}.attn.masked_bias", l)] = {
          mc::storage_type::f32, {}, std::string(4, '\0')};
    }
  });
  copy.change_config([](json& c) { // and its configuration had other fields
    c.erase("dtype"), c.erase("tie_word_embeddings"), c.erase("n_inner"),
        c.erase("scale_attn_weights");
    c["n_ctx"] = 32;
  });
  mc::load_model_folder(copy.folder(), p, s);
  BOOST_TEST((weights(s) == weights(expected)));

  copy.change_tensors(
      [](open_file& f) { f.tensors["transformer.ln_f.bias"] = f.tensors["ln_f.bias"]; });
  CHECK_REFUSED(mc::load_model_folder(copy.folder(), p, s), exit_code::model,
                "is the same weight as tensor");
}

// As AutoModel saves them, which has no head; Qwen3-Embedding is published so.
template <class Model> void check_without_prefix(const std::string& family, const Model& model) {
  const bare_program<Model> p(model);
  mc::stores expected(p, false), s(p, false);
  mc::load_model_folder(test::fixtures(family) / "model", p, expected);
  const copied_model copy(family);
  const std::string prefix = "model.";
  copy.change_tensors([&](open_file& f) {
    std::vector<std::string> names;
    for (const auto& [name, t] : f.tensors) names.push_back(name);
    for (const std::string& name : names)
      if (name.starts_with(prefix)) f.rename(name, name.substr(prefix.size()));
  });
  mc::load_model_folder(copy.folder(), p, s);
  BOOST_TEST((weights(s) == weights(expected)));
  copy.change_tensors(
      [&](open_file& f) { f.tensors[prefix + "norm.weight"] = f.tensors["norm.weight"]; });
  CHECK_REFUSED(mc::load_model_folder(copy.folder(), p, s), exit_code::model,
                "is the same weight as tensor");
}
BOOST_AUTO_TEST_CASE(names_may_lack_their_prefix) {
  check_without_prefix("qwen3", test::tiny_qwen3);
  check_without_prefix("qwen3_moe", test::tiny_qwen3_moe);
}

BOOST_AUTO_TEST_CASE(wrappers_that_were_saved_along_are_named) {
  const bare_program p(test::tiny_qwen3);
  mc::stores s(p, false);
  for (const auto& [from, to, says] :
       {std::tuple{"", "_orig_mod.", "which torch.compile puts there"},
        {"", "module.", "which DistributedDataParallel and DeepSpeed put there"},
        {"", "base_model.model.", "which an adapter (PEFT) puts there"},
        {"model.layers.0.", "model.layers.0._orig_mod.", "which torch.compile puts there"}}) {
    const copied_model copy("qwen3");
    copy.change_tensors([from = std::string(from), to = std::string(to)](open_file& f) {
      std::vector<std::string> names;
      for (const auto& [name, t] : f.tensors) names.push_back(name);
      for (const std::string& name : names)
        if (name.starts_with(from)) f.rename(name, to + name.substr(from.size()));
    });
    CHECK_REFUSED(mc::load_model_folder(copy.folder(), p, s), exit_code::model, says);
  }
}

BOOST_AUTO_TEST_CASE(a_tied_head_may_be_stored_too_if_it_is_equal) {
  const bare_program p(test::tiny_gpt2);
  mc::stores s(p, false);
  const copied_model copy("gpt2");
  copy.change_tensors(
      [](open_file& f) { f.tensors["lm_head.weight"] = f.tensors["transformer.wte.weight"]; });
  mc::load_model_folder(copy.folder(), p, s);
  copy.change_tensors([](open_file& f) { f.tensors["lm_head.weight"].bytes[5] ^= 1; });
  CHECK_REFUSED(mc::load_model_folder(copy.folder(), p, s), exit_code::model,
                "tensor \"lm_head.weight\" is not equal to");
  copy.change_tensors([](open_file& f) {
    auto& head = f.tensors["lm_head.weight"] = f.tensors["transformer.wte.weight"];
    std::swap(head.shape[0], head.shape[1]);
  });
  CHECK_REFUSED(mc::load_model_folder(copy.folder(), p, s), exit_code::model,
                "tensor \"lm_head.weight\" is not equal to");
}

BOOST_AUTO_TEST_CASE(untied_heads_are_saved_and_loaded) {
  mc::gpt model = test::tiny_gpt2;
  model.tied = false;
  const bare_program untied(model);
  const bare_program tied(test::tiny_gpt2);
  mc::stores s(untied, false), t(untied, false), other(tied, false);
  s.initialise(1);
  const test::scratch_folder dir;
  mc::save_model_folder(dir / "m", untied, s);
  BOOST_TEST(open_file(dir / "m/model.safetensors").tensors.count("lm_head.weight") == 1u);
  mc::load_model_folder(dir / "m", untied, t);
  BOOST_TEST((weights(s) == weights(t)));
  CHECK_REFUSED(mc::load_model_folder(dir / "m", tied, other), exit_code::model,
                "tie_word_embeddings is false there and true in the program");
}

/// The fixture with every tensor in another type.
void convert(open_file& f, mc::storage_type type) {
  for (auto& [name, t] : f.tensors) {
    std::string out;
    for (const float x : f.floats(name)) {
      const auto append = [&](const auto& y) {
        out.append(reinterpret_cast<const char*>(&y), sizeof y);
      };
      if (type == mc::storage_type::f64) append(static_cast<double>(x));
      if (type == mc::storage_type::bf16) append(mc::bf16(x).bits);
      // Halves are truncated by this test; every one that it makes is normal or zero.
      const auto bits = std::bit_cast<std::uint32_t>(x);
      const std::uint32_t exponent = (bits >> 23) & 255;
      const std::uint32_t half =
          exponent < 113 ? 0 : ((exponent - 112) << 10) | ((bits >> 13) & 1023);
      if (type == mc::storage_type::f16)
        append(static_cast<std::uint16_t>(((bits >> 16) & 0x8000) | half));
    }
    t.type = type, t.bytes = out;
  }
}

BOOST_AUTO_TEST_CASE(weights_are_converted_from_four_types) {
  const bare_program p(test::tiny_qwen3);
  mc::stores expected(p, false);
  mc::load_model_folder(test::fixtures("qwen3") / "model", p, expected);
  const std::vector<float> whole = weights(expected);
  for (const auto& [type, bound] :
       {std::pair{mc::storage_type::f64, 0.0}, std::pair{mc::storage_type::bf16, 0x1p-8},
        std::pair{mc::storage_type::f16, 0x1p-10}}) {
    const copied_model copy("qwen3");
    copy.change_tensors([t = type](open_file& f) { convert(f, t); });
    mc::stores s(p, true);
    mc::load_model_folder(copy.folder(), p, s);
    const std::vector<float> read = weights(s);
    for (std::size_t i = 0; i < whole.size(); ++i) {
      const double error = std::abs(static_cast<double>(read[i]) - static_cast<double>(whole[i]));
      BOOST_REQUIRE(error <=
                    bound * std::abs(static_cast<double>(whole[i])) + (bound > 0 ? 0x1p-14 : 0));
    }
  }
}

BOOST_AUTO_TEST_CASE(bf16_training_saves_masters_and_inference_its_own_type) {
  const bare_program p(test::tiny_qwen3, mc::dtype::bf16);
  const std::filesystem::path original = test::fixtures("qwen3") / "model";
  const test::scratch_folder dir;
  mc::stores training(p, true);
  mc::load_model_folder(original, p, training);
  mc::save_model_folder(dir / "training", p, training);
  BOOST_TEST((test::read_text(dir / "training/model.safetensors") ==
              test::read_text((original / "model.safetensors").string())));

  mc::stores inference(p, false);
  mc::load_model_folder(original, p, inference);
  mc::save_model_folder(dir / "inference", p, inference);
  const open_file whole((original / "model.safetensors").string());
  open_file rounded = whole;
  convert(rounded, mc::storage_type::bf16);
  const open_file saved(dir / "inference/model.safetensors");
  for (const auto& [name, t] : saved.tensors)
    BOOST_TEST((t.type == mc::storage_type::bf16 && t.bytes == rounded.tensors.at(name).bytes));
  BOOST_TEST(json::parse(test::read_text(dir / "inference/config.json")).at("torch_dtype") ==
             "bfloat16");
  // Masters hold what the file holds, weights their rounding.
  BOOST_TEST((std::memcmp(training.weights(), inference.weights(),
                          static_cast<std::size_t>(p.view().stores->total * 2)) == 0));
}

BOOST_AUTO_TEST_CASE(double_programs_save_doubles) {
  const bare_program p(test::tiny_gpt2, mc::dtype::f64);
  mc::stores s(p, false), t(p, true);
  s.initialise(3);
  const test::scratch_folder dir;
  mc::save_model_folder(dir / "m", p, s);
  mc::load_model_folder(dir / "m", p, t);
  BOOST_TEST((std::memcmp(s.weights(), t.weights(), static_cast<std::size_t>(s.total()) * 8) == 0));
}

BOOST_AUTO_TEST_CASE(a_model_without_biases_is_one_whose_biases_are_zero) {
  mc::gpt model = test::tiny_gpt2;
  model.bias = false;
  const bare_program p(model);
  const bare_program with(test::tiny_gpt2);
  mc::stores s(p, false), t(p, false), full(with, false);
  s.initialise(7);
  const test::scratch_folder dir;
  const std::string file = dir / "m/model.safetensors";
  mc::save_model_folder(dir / "m", p, s);
  mc::load_model_folder(dir / "m", p, t);
  BOOST_TEST((weights(s) == weights(t)));
  // Transformers' model has them all.
  mc::load_model_folder(dir / "m", with, full);
  const open_file saved(file);
  BOOST_TEST(saved.tensors.size() == 28u);
  int biases = 0;
  for (const auto& [name, x] : saved.tensors)
    if (name.ends_with(".bias"))
      BOOST_TEST((++biases, x.bytes == std::string(x.bytes.size(), '\0')), name);
  BOOST_TEST(biases == 13);

  open_file bare = saved;
  std::erase_if(bare.tensors, [](const auto& x) { return x.first.ends_with(".bias"); });
  bare.write(file);
  mc::load_model_folder(dir / "m", p, t);
  BOOST_TEST((weights(s) == weights(t)));
  CHECK_REFUSED(mc::load_model_folder(dir / "m", with, full), exit_code::model,
                "bias\" is missing; tiny needs it");

  open_file biased = saved;
  biased.tensors["transformer.h.1.mlp.c_fc.bias"].bytes.replace(4 * 200, 4,
                                                                std::string("\0\0\0\x3f", 4));
  biased.write(file);
  CHECK_REFUSED(mc::load_model_folder(dir / "m", p, t), exit_code::model,
                "tensor \"transformer.h.1.mlp.c_fc.bias\" is not zero (element 200 is 0.5)");
}

BOOST_AUTO_TEST_CASE(padded_rows_are_left_out_and_loaded_as_zero) {
  bare_program p(test::tiny_qwen3);
  p.pad_vocabulary(150);
  mc::stores s(p, true), t(p, true);
  s.initialise(2);
  t.initialise(3);
  for (std::int64_t i = 0; i < t.total(); ++i) t.set_weight(i, 5);
  const test::scratch_folder dir;
  mc::save_model_folder(dir / "m", p, s);
  BOOST_TEST(open_file(dir / "m/model.safetensors").tensors.at("lm_head.weight").shape.front() ==
             150);
  BOOST_TEST(json::parse(test::read_text(dir / "m/config.json")).at("vocab_size") == 150);
  mc::load_model_folder(dir / "m", p, t);
  mc::for_each_parameter(p, [&](const mc::parameter_ref& r) {
    for (std::int64_t i = r.offset; i < r.offset + r.count.n; ++i)
      BOOST_REQUIRE(t.weight(i) == s.weight(i));
  });
}

/// A family that transformers does not know.
struct own_gpt : mc::gpt {
  static constexpr mc::family_name<own_gpt> family{"own"};
};

// Neither has a state such rows, in whichever form.
BOOST_AUTO_TEST_CASE(padded_rows_are_left_out_of_states_and_loaded_as_zero) {
  const auto check = [](auto&& p, std::string_view form) {
    p.pad_vocabulary(120);
    mc::stores s(p, true), t(p, true);
    s.initialise(2);
    for (std::int64_t i = 0; i < t.total(); ++i) {
      t.set_weight(i, 5);
      mc::stores::set(s.first_moments(), s.precision().moment, i, 0.5 + static_cast<double>(i));
    }
    const test::scratch_folder dir;
    mc::state_root root(dir / "root");
    root.save(1, 0, [&](mc::folder_writer& out) {
      mc::write_state(out, p, s, {1, 4}, json::object());
    });
    const auto found = mc::find_saved(dir / "root", true);
    BOOST_REQUIRE((found && found->state));
    BOOST_TEST(found->state->state().template field<std::string>("weights") == form);
    mc::load_weights(found->folder, p, t);
    mc::load_moments(found->folder, found->state->state(), p, t);
    mc::for_each_parameter(p, [&](const mc::parameter_ref& r) {
      const std::int64_t valid = mc::unpadded_size(*r.v, *r.info).n;
      for (std::int64_t i = r.offset; i < r.offset + r.count.n; ++i) {
        BOOST_REQUIRE(t.weight(i) == s.weight(i));
        BOOST_REQUIRE(mc::stores::get(t.first_moments(), t.precision().moment, i) ==
                      (i < r.offset + valid ? 0.5 + static_cast<double>(i) : 0));
      }
    });
  };
  check(bare_program(test::tiny_gpt2), mc::huggingface_files);
  check(bare_program(own_gpt{test::tiny_gpt2}), mc::registry_files);
}

BOOST_AUTO_TEST_CASE(sliding_windows_are_described) {
  mc::qwen3 model = test::tiny_qwen3;
  model.window = 8;
  const bare_program p(model);
  const bare_program whole(test::tiny_qwen3);
  mc::stores s(p, false);
  const test::scratch_folder dir;
  mc::save_model_folder(dir / "m", p, s);
  mc::load_model_folder(dir / "m", p, s);
  CHECK_REFUSED(mc::load_model_folder(dir / "m", whole, s), exit_code::model,
                "sliding_window is 8 there and 0 in the program");
  const copied_model copy("qwen3");
  CHECK_REFUSED(mc::load_model_folder(copy.folder(), p, s), exit_code::model,
                "sliding_window is 0 there and 8 in the program");
  copy.change_config([](json& c) {
    c["layer_types"] = {"full_attention", "sliding_attention"}, c["sliding_window"] = 8;
    c["use_sliding_window"] = true;
  });
  CHECK_REFUSED(mc::load_model_folder(copy.folder(), whole, s), exit_code::model,
                "field \"layer_types\" lets 1 of 2 layers attend through a sliding window");
  copy.change_config([](json& c) {
    c["layer_types"] = {"sliding_attention", "sliding_attention"};
  });
  mc::load_model_folder(copy.folder(), p, s);
}

// A bias of queries, keys or values is one vector there; files of the first Llamas have the inverse
// frequencies of every layer besides; RoPE goes out as transformers 4.51 spells it.
BOOST_AUTO_TEST_CASE(biases_and_stretched_rope_go_out_and_come_back) {
  mc::llama model;
  model.layers = 2, model.hidden = 24, model.heads = 4, model.kv_heads = 2, model.head_dim = 6;
  model.ffn = 20, model.vocabulary = 40, model.positions = 64, model.attention_bias = true;
  model.mlp_bias = true, model.rope_scaling = {mc::rope_type::llama3, 8, 32, 1, 4};
  const bare_program p(model);
  mc::stores s(p, false), again(p, false);
  s.initialise(5);
  for (std::int64_t i = 0; i < p.view().parameters; ++i)
    s.set_weight(i, 0.001 * static_cast<double>(i % 997));
  const test::scratch_folder dir;
  mc::save_model_folder(dir / "m", p, s);
  const std::string weights_file = dir / "m/model.safetensors";
  open_file f(weights_file);
  const auto shape = [&](const std::string& name) {
    return f.tensors.at("model.layers.1." + name).shape;
  };
  using dims = std::vector<std::int64_t>;
  BOOST_TEST((shape("self_attn.q_proj.bias") == dims{24}));
  BOOST_TEST((shape("self_attn.k_proj.bias") == dims{12}));
  BOOST_TEST((shape("self_attn.v_proj.weight") == dims{12, 24}));
  BOOST_TEST((shape("self_attn.o_proj.bias") == dims{24}));
  BOOST_TEST((shape("mlp.gate_proj.bias") == dims{20}));
  BOOST_TEST(f.tensors.size() == 2u * (9 + 7) + 3);
  for (int l = 0; l < 2; ++l)
    f.tensors[fmt::format("model.layers.{}.self_attn.rotary_emb.inv_freq", l)] = {
        mc::storage_type::f32, {3}, std::string(12, '\1')};
  f.write(weights_file);
  mc::load_model_folder(dir / "m", p, again);
  BOOST_TEST((weights(again) == weights(s)));

  const json config = json::parse(test::read_text(dir / "m/config.json"));
  const json stretched{{"rope_type", "llama3"},
                       {"factor", 8.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 32}};
  BOOST_TEST(config.at("rope_scaling") == stretched);
  BOOST_TEST(config.at("eos_token_id").is_null());
  mc::llama other = model;
  other.rope_scaling.factor = 4;
  const bare_program q(other);
  mc::stores of_q(q, false);
  CHECK_REFUSED(mc::load_model_folder(dir / "m", q, of_q), exit_code::model,
                "rope_scaling is {.type = rope_type::llama3, .factor = 8, ");
  const auto written = [&](const mc::rope_stretch& r) {
    other.rope_scaling = r;
    const bare_program x(other);
    return mc::hf_family_of(x).config(x).at("rope_scaling");
  };
  BOOST_TEST(written({}).is_null());
  const json linear{{"rope_type", "linear"}, {"factor", 2.5}};
  BOOST_TEST(written({mc::rope_type::linear, 2.5}) == linear);
  json yarn{{"rope_type", "yarn"}, {"factor", 2.0}, {"beta_fast", 32.0}, {"beta_slow", 1.0}};
  BOOST_TEST(written({mc::rope_type::yarn, 2}) == yarn);
  yarn["original_max_position_embeddings"] = 16, yarn["attention_factor"] = 1.5;
  yarn["truncate"] = false, yarn["beta_slow"] = 2.0;
  BOOST_TEST(written({mc::rope_type::yarn, 2, 16, 2, 32, 1.5, false}) == yarn);
}

BOOST_AUTO_TEST_CASE(a_token_that_ends_texts_comes_before_those_that_do) {
  const auto with_seven = [](const char* text) {
    return json::parse(mc::with_end_token(text, "generation_config.json", 7));
  };
  BOOST_TEST(with_seven("{}") == json::parse(R"({"eos_token_id": 7})"));
  BOOST_TEST(with_seven(R"({"eos_token_id": null, "top_k": 20})") ==
             json::parse(R"({"eos_token_id": 7, "top_k": 20})"));
  BOOST_TEST(with_seven(R"({"eos_token_id": 3})").at("eos_token_id") == json::array({7, 3}));
  BOOST_TEST(with_seven(R"({"eos_token_id": [3, 7, 4]})").at("eos_token_id") ==
             json::array({7, 3, 4}));
  const std::string same = R"({"eos_token_id": 7,   "top_k": 20})";
  BOOST_TEST(mc::with_end_token(same, "generation_config.json", 7) == same);
  CHECK_REFUSED(mc::with_end_token("[1]", "generation_config.json", 7), exit_code::model,
                "generation_config.json");
}

BOOST_AUTO_TEST_CASE(published_vocabularies_have_their_end_of_text) {
  mc::gpt model = test::tiny_gpt2;
  model.layers = 1, model.hidden = 4, model.heads = 1, model.ffn = 4, model.vocabulary = 50257;
  const bare_program p(model);
  mc::stores s(p, false);
  const test::scratch_folder dir;
  const std::vector<std::pair<std::string, std::string>> extra{{"model-card.safetensors", "text"}};
  mc::save_model_folder(dir / "m", p, s, extra);
  BOOST_TEST(json::parse(test::read_text(dir / "m/config.json")).at("eos_token_id") == 50256);
  BOOST_TEST(json::parse(test::read_text(dir / "m/generation_config.json")).at("eos_token_id") ==
             50256);
  BOOST_TEST(test::read_text(dir / "m/model-card.safetensors") == "text");
  const auto ends = [](auto m) {
    m.layers = 1, m.hidden = 4, m.heads = m.kv_heads = 1, m.head_dim = m.ffn = 4;
    const bare_program x(m);
    const json c = mc::hf_family_of(x).config(x);
    return std::pair{c.at("bos_token_id"), c.at("eos_token_id")};
  };
  BOOST_TEST((ends(mc::llama{}) == std::pair{json(128000), json(128001)}));
  BOOST_TEST((ends(mc::qwen2{}) == std::pair{json(151643), json(151645)}));
}

} // namespace
