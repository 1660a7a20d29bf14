// Folders whose weights are stored in fewer bits: FP8 in blocks as models are published in it, and
// NF4 of bitsandbytes, read, trained beside, merged and written; and such folders that are cut or
// contradict themselves.
#define BOOST_TEST_MODULE quantised_folders
#include <boost/test/unit_test.hpp>

#include <megacpp/hf/merge.hpp>
#include <megacpp/product/cpu_products.hpp>
#include <megacpp/run/interpreter.hpp>
#include <megacpp/run/session.hpp>
#include <megacpp/states/start.hpp>

#include <cmath>
#include <deque>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <kernels.hpp>
#include <nf4_arrays.hpp>
#include <parity/checks.hpp>
#include <parity/folder_models.hpp>
#include <scratch.hpp>

namespace {

using test::fixtures;

/// A family that transformers does not know.
struct own_qwen3 : mc::qwen3 {
  static constexpr mc::family_name<own_qwen3> family{"own"};
};

template <class Model> mc::interpreted_program<Model> program_of(const Model& m,
                                                                 mc::base_storage base,
                                                                 int rank = 4, mc::layout l = {}) {
  mc::setup s{.ranks = l, .batch = {.micro = 4, .sequence = 24}};
  if (rank > 0) s.adapter = {.rank = rank, .alpha = 8, .targets = {"all-linear"}, .base = base};
  return {m, s, "tiny"};
}

/// Writes the model of a folder anew with its linear layers in FP8, as DeepSeek-V3 and Qwen3 are
/// published: F8_E4M3 and BF16 scales of blocks of 128 by 128, and a config.json that says so. The
/// other tensors are F32 or, with `ones_in_f16`, ones.
void write_fp8(const mc::model_folder& from, const std::string& to, const mc::program_view& p,
               bool ones_in_f16 = false) {
  const mc::weights_in_folder weights(from, p);
  nlohmann::json config = mc::read_json(from.open("config.json")).raw();
  config["quantization_config"] = {{"quant_method", "fp8"},
                                   {"fmt", "e4m3"},
                                   {"activation_scheme", "dynamic"},
                                   {"weight_block_size", {128, 128}}};
  mc::detail::outgoing_model m;
  m.texts["config.json"] = config.dump();
  std::deque<std::vector<std::byte>> kept;
  const auto add = [&](std::string name, mc::storage_type type, std::vector<std::int64_t> shape,
                       std::vector<std::byte> bytes) {
    kept.push_back(std::move(bytes));
    m.tensors.push_back({std::move(name), type, std::move(shape),
                         [&all = kept.back()](const mc::byte_sink& out) { out(all); }});
  };
  const auto bytes_of = [](const auto& list) {
    const auto bytes = std::as_bytes(std::span(list));
    return std::vector<std::byte>(bytes.begin(), bytes.end());
  };
  for (const auto& t : weights.matches()) {
    const bool linear = t.ours.shape.size() == 2 && t.ours.name.find("proj") != std::string::npos;
    std::vector<double> buffer;
    std::vector<float> x;
    mc::weights_in_folder::read(t, buffer, [&](std::int64_t, std::span<const double> some) {
      x.insert(x.end(), some.begin(), some.end());
    });
    if (!linear && ones_in_f16) {
      add(t.ours.name, mc::storage_type::f16, t.ours.shape,
          bytes_of(std::vector<std::uint16_t>(x.size(), 0x3c00)));
      continue;
    }
    if (!linear) {
      add(t.ours.name, mc::storage_type::f32, t.ours.shape, bytes_of(x));
      continue;
    }
    const auto rows = static_cast<std::size_t>(t.ours.shape[0]),
               columns = static_cast<std::size_t>(t.ours.shape[1]),
               across = static_cast<std::size_t>(mc::fp8_blocks(t.ours.shape[1]));
    std::vector<float> absmax(static_cast<std::size_t>(mc::fp8_blocks(t.ours.shape[0])) * across);
    std::vector<mc::bf16> scales(absmax.size());
    std::vector<mc::e4m3> codes(x.size());
    for (std::size_t r = 0; r < rows; ++r)
      mc::fp8_absmax(std::span<const float>(x).subspan(r * columns, columns),
                     std::span(absmax).subspan(r / 128 * across, across));
    for (std::size_t b = 0; b < scales.size(); ++b) scales[b] = mc::fp8_scale<mc::bf16>(absmax[b]);
    for (std::size_t r = 0; r < rows; ++r)
      mc::fp8_quantise(std::span<const float>(x).subspan(r * columns, columns),
                       scales.data() + r / 128 * across, codes.data() + r * columns);
    add(t.ours.name, mc::storage_type::f8_e4m3, t.ours.shape, bytes_of(codes));
    add(t.ours.name + "_scale_inv", mc::storage_type::bf16,
        {mc::fp8_blocks(t.ours.shape[0]), mc::fp8_blocks(t.ours.shape[1])}, bytes_of(scales));
  }
  mc::folder_writer out(to);
  mc::detail::write_model(out, std::move(m), ~std::uint64_t{0});
  out.commit();
}

/// Writes a model of initial weights.
void write_random(const std::string& to, const mc::program_view& p) {
  mc::stores random(p, false);
  random.initialise(11);
  mc::save_model_folder(to, p, random);
}

std::vector<double> values_of(const mc::safetensors_file& f, const std::string& name) {
  return test::read<double>(f, name);
}

} // namespace

// A Qwen3-MoE as 30B-A3B is published in FP8, in names, shapes and config: it is fine-tuned beside
// NF4, merged, and written in bf16.
BOOST_AUTO_TEST_CASE(published_fp8) {
  mc::qwen3_moe model = test::tiny_qwen3_moe_unbalanced;
  model.hidden = 256, model.expert_ffn = 192; // blocks that are not whole
  const test::scratch_folder dir;
  const auto plain = program_of(model, mc::base_storage::plain, 0),
             trained = program_of(model, mc::base_storage::nf4);
  mc::stores decoded(plain.view(), false);
  write_random(dir / "plain", plain.view());
  write_fp8(mc::model_folder(dir / "plain"), dir / "fp8", plain.view());

  // Every weight is within half a step of FP8 of what it was: 2^-4 of itself, or 2^-10 of 448
  // scales.
  mc::load_model_folder(dir / "fp8", plain.view(), decoded);
  const mc::safetensors_file before(dir / "plain/model.safetensors");
  for (const mc::hf_tensor& t : test::tensors_of(plain.view())) {
    const auto was = values_of(before, t.name),
               is = t.values(decoded, decoded.weights(), mc::dtype::f32);
    double most = 0;
    for (const double x : was) most = std::max(most, std::abs(x));
    for (std::size_t i = 0; i < was.size(); ++i)
      if (std::abs(is[i] - was[i]) > std::abs(was[i]) / 16 + most / 448 / 1024 * 1.01)
        BOOST_TEST(false, t.name << "[" << i << "]: " << is[i] << " for " << was[i]);
  }

  mc::cpu device(mc::product_type::widened, 1);
  mc::session s(trained.view(), device, mc::purpose::training);
  mc::found_model found = *mc::find_saved(dir / "fp8", false);
  const mc::adapter_base base =
      mc::load_start(found, {}, trained.view(), s.weights(), 7, mc::self::hosts());
  const auto taken =
      test::take_ten_steps(s, fixtures("qwen3").parent_path().parent_path() / "lora/qwen3");
  BOOST_TEST(taken.norms.back() > 0);
  {
    mc::folder_writer out(dir / "adapter", mc::adapter_kind);
    mc::write_adapter_files(out, trained.view(), s.weights(), mc::self::hosts(), base);
    out.commit();
  }
  const mc::adapter_in_folder adapter(mc::model_folder(dir / "adapter"), trained.view());
  BOOST_TEST(adapter.base().is_of(base));
  // What is merged is the published model, or the numbers of NF4 that the adapter was trained
  // beside: with these a plain program has the loss of the one that was trained.
  for (const bool through : {false, true}) {
    mc::merging change(trained.view(), adapter);
    const std::string to = dir / (through ? "merged-nf4" : "merged");
    mc::export_model_folder(mc::model_folder(dir / "fp8"), to, trained.view(),
                            through ? mc::storage_type::f32 : mc::storage_type::bf16,
                            mc::hf_shard_limit, mc::self::hosts(), {},
                            {.change = &change, .through_nf4 = through});
    const mc::safetensors_file written(to + "/model.safetensors");
    for (std::size_t i = 0; i < written->size(); ++i)
      BOOST_TEST((written.tensors()[i].type ==
                  (through ? mc::storage_type::f32 : mc::storage_type::bf16)));
    BOOST_TEST(!mc::read_json(to + "/config.json").has("quantization_config"));
    mc::session served(plain.view(), device, mc::purpose::inference);
    mc::load_model_folder(to, plain.view(), served.weights());
    const test::labelled_tokens given = test::forward_of("qwen3");
    const double loss = served.evaluate(given.view()).mean(),
                 of_trained = s.evaluate(given.view()).mean();
    BOOST_TEST(std::abs(loss - of_trained) <= (through ? 1e-6 : 0.05) * of_trained);
  }
}

// A state of a family that transformers does not know has its weights in the program's own form. A
// base that is plain loads them, and one in NF4 says that it does not.
BOOST_AUTO_TEST_CASE(base_in_the_form_of_the_program) {
  const own_qwen3 model{test::tiny_qwen3};
  const auto wrote = program_of(model, mc::base_storage::plain, 0),
             reads = program_of(model, mc::base_storage::plain),
             refuses = program_of(model, mc::base_storage::nf4);
  mc::stores s(wrote.view(), true), plain(reads.view(), true), coded(refuses.view(), true);
  s.initialise(2);
  const test::scratch_folder dir;
  mc::state_root root(dir / "root");
  root.save(1, 0, [&](mc::folder_writer& out) {
    mc::write_state(out, wrote.view(), s, {1, 4}, nlohmann::json::object());
  });
  const mc::model_folder state = std::move(mc::find_saved(dir / "root", false)->folder);
  mc::load_weights(state, reads.view(), plain, 3);
  std::vector<double> before, after;
  mc::for_each_parameter(wrote.view(), [&](const mc::parameter_ref& r) {
    for (std::int64_t i = 0; i < r.count.n; ++i) before.push_back(s.weight(r.offset + i));
  });
  mc::for_each_parameter(reads.view(), [&](const mc::parameter_ref& r) {
    for (std::int64_t i = 0; !r.info->added && i < r.count.n; ++i)
      after.push_back(plain.weight(r.offset + i));
  });
  BOOST_TEST((before == after));
  BOOST_CHECK_EXCEPTION(
      mc::load_weights(state, refuses.view(), coded, 3), mc::error, [](const mc::error& e) {
        return e.code() == mc::exit_code::mismatch &&
               std::string(e.what()).find("not quantised while they load") != std::string::npos;
      });
}

// Weights that are decoded take the type of the embedding, and F16 is no type that is written: the
// export asks for another one, with which each number is what the folder means.
BOOST_AUTO_TEST_CASE(beside_f16) {
  const test::scratch_folder dir;
  const auto plain = program_of(test::tiny_qwen3, mc::base_storage::plain, 0);
  write_fp8(mc::model_folder((fixtures("qwen3") / "model").string()), dir / "fp8", plain.view(),
            true);
  BOOST_CHECK_EXCEPTION(mc::export_model_folder(dir / "fp8", dir / "out", plain.view(), {}),
                        mc::error, [](const mc::error& e) {
                          return std::string(e.what()).find("would be F16") != std::string::npos;
                        });
  mc::export_model_folder(dir / "fp8", dir / "out", plain.view(), mc::storage_type::f32);
  mc::stores decoded(plain.view(), false);
  mc::load_model_folder(dir / "fp8", plain.view(), decoded);
  const mc::safetensors_file written(dir / "out/model.safetensors");
  for (const mc::hf_tensor& t : test::tensors_of(plain.view()))
    BOOST_TEST(
        (values_of(written, t.name) == t.values(decoded, decoded.weights(), mc::dtype::f32)));
}

// A folder that bitsandbytes quantised keeps its codes: written and read again it has the same
// bits, and a program that quantises the plain weights itself has the same loss as one that reads
// them.
BOOST_AUTO_TEST_CASE(written_nf4) {
  const test::scratch_folder dir;
  const auto p = program_of(test::tiny_qwen3, mc::base_storage::nf4),
             plain = program_of(test::tiny_qwen3, mc::base_storage::plain, 0);
  const mc::model_folder from((fixtures("qwen3") / "model").string());
  const std::uint64_t sum = mc::checksum_of_values(from, p.view());
  const auto write = [&](const mc::model_folder& in, const char* to) {
    mc::export_model_folder(in, dir / to, p.view(), std::nullopt, mc::hf_shard_limit,
                            mc::self::hosts(), {}, {.nf4_of = sum});
  };
  write(from, "nf4");
  const mc::model_folder nf4(dir / "nf4");
  write(nf4, "again");
  BOOST_TEST((test::read_text(dir / "nf4/model.safetensors") ==
              test::read_text(dir / "again/model.safetensors")));
  BOOST_TEST(mc::detail::plain_checksum(nf4) == sum);
  const auto skipped = [&](const char* folder) {
    return mc::read_json(mc::model_folder(dir / folder).open("config.json"))
        .field<mc::json_value>("quantization_config")
        .field<std::vector<std::string>>("llm_int8_skip_modules");
  };
  BOOST_TEST(skipped("nf4") == std::vector<std::string>{"lm_head"},
             boost::test_tools::per_element());
  // A router stays plain, and the folder says so.
  const auto moe = program_of(test::tiny_qwen3_moe_unbalanced, mc::base_storage::nf4);
  mc::export_model_folder(mc::model_folder((fixtures("qwen3_moe") / "model").string()), dir / "moe",
                          moe.view(), std::nullopt, mc::hf_shard_limit, mc::self::hosts(), {},
                          {.nf4_of = 1});
  for (const auto& module : skipped("moe"))
    BOOST_TEST((module == "lm_head" || module.ends_with(".mlp.gate")), module);
  BOOST_TEST(skipped("moe").size() == 3u);

  // The numbers are those that bitsandbytes kept of the same weights, but for the last bits of the
  // offset.
  const mc::safetensors_file theirs(
      (fixtures("qwen3").parent_path().parent_path() / "lora/qwen3_nf4/nf4.safetensors").string());
  mc::stores s(plain.view(), false);
  mc::load_model_folder(nf4, plain.view(), s);
  int compared = 0;
  for (const mc::hf_tensor& t : test::tensors_of(plain.view())) {
    if (!theirs->find(t.name + ".dequantised")) continue;
    ++compared;
    const double error = test::relative(t.values(s, s.weights(), mc::dtype::f32),
                                        values_of(theirs, t.name + ".dequantised"));
    BOOST_TEST(error <= 1e-6, t.name << ": " << error);
  }
  BOOST_TEST(compared == 14);

  mc::cpu device(mc::product_type::widened, 1);
  const test::labelled_tokens given = test::forward_of("qwen3");
  std::vector<double> losses;
  for (const mc::model_folder* folder : {&from, &nf4}) {
    mc::session s(p.view(), device, mc::purpose::inference);
    mc::load_weights(*folder, p.view(), s.weights(), 3);
    losses.push_back(s.evaluate(given.view()).mean());
  }
  mc::session decoded(plain.view(), device, mc::purpose::inference);
  mc::load_weights(nf4, plain.view(), decoded.weights());
  BOOST_TEST(losses[0] == losses[1]);
  BOOST_TEST(test::relative(decoded.evaluate(given.view()).mean(), losses[0]) <= 1e-6);
}

// GPT-2's Conv1D has (in, out) in files, and q, k and v as one. bitsandbytes quantises it as the matrix
// (out, in) of a linear layer, with one offset for all three; so do programs and what they write.
BOOST_AUTO_TEST_CASE(gpt2_in_nf4) {
  mc::gpt model = test::tiny_gpt2;
  model.hidden = 128, model.ffn = 320;
  const test::scratch_folder dir;
  const auto plain = program_of(model, mc::base_storage::plain, 0),
             trained = program_of(model, mc::base_storage::nf4);
  mc::stores decoded(plain.view(), false);
  write_random(dir / "plain", plain.view());
  mc::export_model_folder(mc::model_folder(dir / "plain"), dir / "nf4", trained.view(), {},
                          mc::hf_shard_limit, mc::self::hosts(), {}, {.nf4_of = 1});
  mc::load_model_folder(dir / "nf4", plain.view(), decoded);
  const mc::safetensors_file before(dir / "plain/model.safetensors"),
      in_nf4(dir / "nf4/model.safetensors");
  int matrices = 0;
  for (const mc::hf_tensor& t : test::tensors_of(plain.view())) {
    const std::vector<double> was = values_of(before, t.name),
                              is = t.values(decoded, decoded.weights(), mc::dtype::f32);
    if (t.name.find(".c_") == std::string::npos || !t.name.ends_with(".weight")) {
      BOOST_TEST((is == was), t.name);
      continue;
    }
    ++matrices;
    const auto in = static_cast<std::size_t>(t.shape[0]),
               out = static_cast<std::size_t>(t.shape[1]);
    std::vector<float> matrix(was.size());
    for (std::size_t i = 0; i < in; ++i)
      for (std::size_t o = 0; o < out; ++o)
        matrix[o * in + i] = static_cast<float>(was[i * out + o]);
    const test::nf4_arrays a = test::nf4_quantised(matrix);
    const std::vector<float> kept = a.range<float>(0, matrix.size());
    bool same = true;
    for (std::size_t i = 0; i < in; ++i)
      for (std::size_t o = 0; o < out; ++o)
        same = same && is[i * out + o] == static_cast<double>(kept[o * in + i]);
    BOOST_TEST(same, t.name);
    const auto codes = in_nf4.tensors().at(t.name).bytes;
    BOOST_TEST((std::ranges::equal(codes, std::as_bytes(std::span(a.codes)))), t.name);
  }
  BOOST_TEST(matrices == 8);

  // A program that quantises the plain weights has the bits of one that reads NF4, and computes what
  // one of the decoded weights does; so does a merge with an adapter that adds nothing.
  mc::cpu device(mc::product_type::widened, 1);
  const test::labelled_tokens given = test::forward_of("gpt2");
  std::vector<std::vector<std::byte>> stored;
  for (const char* folder : {"plain", "nf4"}) {
    mc::session s(trained.view(), device, mc::purpose::inference);
    mc::load_weights(mc::model_folder(dir / folder), trained.view(), s.weights(), 3);
    const std::byte* const begin = s.weights().weights();
    stored.emplace_back(begin, begin + trained.view().stores->weight_bytes());
    mc::session other(plain.view(), device, mc::purpose::inference);
    mc::load_weights(mc::model_folder(dir / "nf4"), plain.view(), other.weights());
    BOOST_TEST(test::relative(s.evaluate(given.view()).mean(),
                              other.evaluate(given.view()).mean()) <= 1e-6);
  }
  BOOST_TEST((stored[0] == stored[1]));
  mc::export_model_folder(mc::model_folder(dir / "plain"), dir / "rounded", trained.view(), {},
                          mc::hf_shard_limit, mc::self::hosts(), {}, {.through_nf4 = true});
  const mc::safetensors_file rounded(dir / "rounded/model.safetensors");
  for (const mc::hf_tensor& t : test::tensors_of(plain.view()))
    BOOST_TEST((values_of(rounded, t.name) == t.values(decoded, decoded.weights(), mc::dtype::f32)),
               t.name);
  // Parts that share a nested block with others cannot be stored by themselves.
  model.hidden = 64;
  CHECK_REFUSED(program_of(model, mc::base_storage::nf4), mc::exit_code::mismatch,
                "no whole nested blocks");
}

BOOST_AUTO_TEST_CASE(folders_that_contradict_themselves) {
  const test::scratch_folder dir;
  const auto p = program_of(test::tiny_qwen3, mc::base_storage::nf4),
             plain = program_of(test::tiny_qwen3, mc::base_storage::plain, 0);
  const mc::model_folder from((fixtures("qwen3") / "model").string());
  mc::export_model_folder(from, dir / "nf4", p.view(), std::nullopt, mc::hf_shard_limit,
                          mc::self::hosts(), {}, {.nf4_of = 1});
  write_fp8(from, dir / "fp8", plain.view());
  const std::string weight = "model.layers.0.mlp.up_proj.weight";
  const auto refused = [&](const char* of, const std::function<void(test::open_file&)>& change,
                           const std::string& says) {
    std::filesystem::copy(dir / of, dir / "copy",
                          std::filesystem::copy_options::recursive |
                              std::filesystem::copy_options::overwrite_existing);
    test::open_file f(dir / "copy/model.safetensors");
    change(f);
    f.write(dir / "copy/model.safetensors");
    mc::stores s(p.view(), false);
    CHECK_REFUSED(mc::load_model_folder(dir / "copy", p.view(), s), mc::exit_code::model, says);
  };
  const auto without = [&](const std::string& end) {
    return [&, end](test::open_file& f) { f.tensors.erase(weight + end); };
  };
  refused("fp8", without("_scale_inv"), "is missing; it decodes");
  refused("nf4", without(".absmax"), "is missing; it decodes");
  refused("nf4", without(".nested_quant_map"), "is missing; it decodes");
  refused("nf4", without(".quant_state.bitsandbytes__nf4"), "is missing; it decodes");
  refused("nf4", without(""), "decodes no tensor");
  refused(
      "fp8",
      [&](test::open_file& f) {
        auto& t = f.tensors.at(weight + "_scale_inv");
        t.shape = {2, 1}, t.bytes += t.bytes;
      },
      "has 2 elements, but 1 decode");
  refused(
      "fp8", [&](test::open_file& f) { f.tensors.at(weight + "_scale_inv").shape = {1}; },
      "has the shape [1], but [1, 1] is that of the blocks");
  refused(
      "nf4",
      [&](test::open_file& f) {
        auto& t = f.tensors.at(weight);
        t.shape = {t.shape[0] - 1, 1}, t.bytes.pop_back();
      },
      "weights take");
  refused(
      "nf4", [&](test::open_file& f) { f.tensors.at(weight + ".quant_map").bytes[0] ^= 1; },
      "other than that of nf4");
}
