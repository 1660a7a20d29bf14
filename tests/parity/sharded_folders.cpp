// Models in several files: tensors are the same bytes however a model was cut, indexes that do not
// tell the truth are refused, and no more than a block of a tensor is held in memory.
#define BOOST_TEST_MODULE sharded_folders
#include <boost/test/unit_test.hpp>

#include <megacpp/hf/export_folder.hpp>
#include <megacpp/hf/model_folder.hpp>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <parity/folder_models.hpp>

namespace {

namespace fs = std::filesystem;
using mc::exit_code;
using nlohmann::json;
using test::bare_program;
using test::open_file;
using test::weights;

constexpr std::uint64_t small = 100'000; // bytes: a fixture becomes several files

/// All tensors of a folder's files.
std::map<std::string, open_file::tensor> tensors_in(const std::string& folder) {
  std::map<std::string, open_file::tensor> all;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().extension() == ".safetensors")
      for (auto& [name, t] : open_file(entry.path()).tensors) {
        BOOST_TEST(all.count(name) == 0u, name);
        all[name] = t;
      }
  return all;
}
bool same(const std::map<std::string, open_file::tensor>& a,
          const std::map<std::string, open_file::tensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.first == y.first && x.second.type == y.second.type &&
           x.second.shape == y.second.shape && x.second.bytes == y.second.bytes;
  });
}
json index_of(const std::string& folder) {
  return json::parse(test::read_text(folder + "/model.safetensors.index.json"));
}

template <class Model> void check_cut_and_joined(const std::string& family, const Model& model) {
  const bare_program<Model> p(model);
  const std::string original = (test::fixtures(family) / "model").string();
  const auto expected = tensors_in(original);
  mc::stores s(p, false), t(p, false);
  mc::load_model_folder(original, p, s);
  const test::scratch_folder dir;

  const mc::saved_model saved = mc::save_model_folder(dir / "cut", p, s, {}, small);
  BOOST_TEST(saved.files > 2u);
  BOOST_TEST(saved.tensors == expected.size());
  BOOST_TEST(!fs::exists(dir / "cut/model.safetensors"));
  BOOST_TEST(same(tensors_in(dir / "cut"), expected));
  const json index = index_of(dir / "cut");
  BOOST_TEST(index.at("metadata").at("total_size") == saved.bytes);
  BOOST_TEST(index.at("weight_map").size() == expected.size());
  for (const auto& [name, file] : index.at("weight_map").items())
    BOOST_TEST(open_file((dir / "cut") + "/" + std::string(file)).tensors.count(name) == 1u);
  for (const auto& entry : fs::directory_iterator(dir / "cut"))
    if (entry.path().extension() == ".safetensors") {
      const open_file file(entry.path());
      std::size_t bytes = 0;
      for (const auto& [name, x] : file.tensors) bytes += x.bytes.size();
      BOOST_TEST((bytes <= small || file.tensors.size() == 1));
    }

  mc::load_model_folder(dir / "cut", p, t);
  BOOST_TEST((weights(t) == weights(s)));
  mc::save_model_folder(dir / "joined", p, t);
  BOOST_TEST(same(tensors_in(dir / "joined"), expected));

  // Without the weights in memory, and over itself; what the other cut left is gone.
  mc::export_model_folder(dir / "cut", dir / "cut", p, {}, mc::hf_shard_limit);
  BOOST_TEST(test::read_text(dir / "cut/model.safetensors") ==
             test::read_text(dir / "joined/model.safetensors"));
  BOOST_TEST(!fs::exists(dir / "cut/model.safetensors.index.json"));
}
BOOST_AUTO_TEST_CASE(gpt2_cut_and_joined) { check_cut_and_joined("gpt2", test::tiny_gpt2); }
BOOST_AUTO_TEST_CASE(qwen3_cut_and_joined) { check_cut_and_joined("qwen3", test::tiny_qwen3); }
BOOST_AUTO_TEST_CASE(qwen3_moe_cut_and_joined) {
  check_cut_and_joined("qwen3_moe", test::tiny_qwen3_moe);
}

BOOST_AUTO_TEST_CASE(types_are_converted_on_the_way) {
  const bare_program p(test::tiny_qwen3);
  const std::string original = (test::fixtures("qwen3") / "model").string();
  const test::scratch_folder dir;
  mc::export_model_folder(original, dir / "half", p, mc::storage_type::bf16, small);
  const auto whole = tensors_in(original), half = tensors_in(dir / "half");
  BOOST_TEST(half.size() == whole.size());
  for (const auto& [name, t] : half) {
    BOOST_TEST((t.type == mc::storage_type::bf16));
    const std::string& from = whole.at(name).bytes;
    for (std::size_t i = 0; i < t.bytes.size() / 2; ++i) {
      float x = 0;
      mc::bf16 y;
      std::memcpy(&x, from.data() + 4 * i, 4), std::memcpy(&y, t.bytes.data() + 2 * i, 2);
      BOOST_REQUIRE(y.bits == mc::bf16(x).bits);
    }
  }
  json config = json::parse(test::read_text(dir / "half/config.json"));
  BOOST_TEST(config.at("torch_dtype") == "bfloat16");
  // bf16 widened and rounded again is itself; without a type each tensor keeps its own.
  mc::export_model_folder(dir / "half", dir / "wide", p, mc::storage_type::f32);
  mc::export_model_folder(dir / "wide", dir / "back", p, mc::storage_type::bf16);
  BOOST_TEST(same(tensors_in(dir / "back"), half));
  mc::export_model_folder(dir / "half", dir / "kept", p, {});
  BOOST_TEST(same(tensors_in(dir / "kept"), half));
  config = json::parse(test::read_text(dir / "kept/config.json"));
  BOOST_TEST(config.at("torch_dtype") == "bfloat16");
}

BOOST_AUTO_TEST_CASE(what_goes_along) {
  const bare_program p(test::tiny_gpt2);
  const test::copied_model from("gpt2");
  from.change_config([](json& c) { c["eos_token_id"] = 7, c["pad_token_id"] = 9; });
  test::write_text(from.file("generation_config.json"), "{\"temperature\": 0.5}");
  test::write_text(from.file("characters.json"), "{\"characters\": [3]}");
  from.change_tensors([](open_file& f) {
    f.tensors["lm_head.weight"] = f.tensors["transformer.wte.weight"];
    f.tensors["transformer.h.0.attn.bias"] = {mc::storage_type::u8, {4}, "\1\1\1\1"};
  });
  const test::scratch_folder dir;
  mc::export_model_folder(from.folder(), dir / "to", p, {});
  const json config = json::parse(test::read_text(dir / "to/config.json"));
  BOOST_TEST(config.at("eos_token_id") == 7);
  BOOST_TEST(config.at("pad_token_id") == 9);
  BOOST_TEST(test::read_text(dir / "to/generation_config.json") == "{\"temperature\": 0.5}");
  BOOST_TEST(test::read_text(dir / "to/characters.json") == "{\"characters\": [3]}");
  BOOST_TEST(same(tensors_in(dir / "to"), tensors_in((test::fixtures("gpt2") / "model").string())));
  // A program without biases takes what has none, and transformers wants them all.
  mc::gpt bare = test::tiny_gpt2;
  bare.bias = false;
  const bare_program without(bare);
  from.change_tensors([](open_file& f) {
    std::erase_if(f.tensors, [](const auto& x) { return x.first.ends_with(".bias"); });
  });
  mc::export_model_folder(from.folder(), dir / "bare", without, {});
  const auto written = tensors_in(dir / "bare");
  BOOST_TEST(written.size() == 28u);
  BOOST_TEST(written.at("transformer.h.1.mlp.c_fc.bias").bytes == std::string(4 * 256, '\0'));
}

/// A fixture in several files, damaged: refused with the part in the sentence by load and export
/// alike, and neither the weights nor the target change.
void refused(const std::function<void(const std::string& folder)>& damage,
             const std::string& part) {
  const bare_program p(test::tiny_gpt2);
  mc::stores s(p, false);
  const test::scratch_folder dir;
  const std::string folder = dir / "cut";
  mc::export_model_folder(test::fixtures("gpt2") / "model", folder, p, {}, small);
  s.initialise(9);
  const std::vector<float> before = weights(s);
  damage(folder);
  CHECK_REFUSED(mc::load_model_folder(folder, p, s), exit_code::model, part);
  CHECK_REFUSED(mc::export_model_folder(folder, dir / "to", p, {}), exit_code::model, part);
  BOOST_TEST((weights(s) == before));
  BOOST_TEST(!fs::exists(dir / "to"));
}
void index_refused(const std::function<void(json& weight_map)>& damage, const std::string& part) {
  refused(
      [&](const std::string& folder) {
        json index = index_of(folder);
        damage(index.at("weight_map"));
        test::write_text(folder + "/model.safetensors.index.json", index.dump());
      },
      part);
}
const std::string norm = "transformer.ln_f.weight";

BOOST_AUTO_TEST_CASE(indexes_that_do_not_tell_the_truth) {
  index_refused([](json& m) { m[norm] = "../model.safetensors"; }, "is not the plain name");
  index_refused([](json& m) { m[norm] = "/etc/passwd"; }, "is not the plain name");
  index_refused([](json& m) { m[norm] = "model-00009-of-00009.safetensors"; },
                "has no file model-00009-of-00009.safetensors");
  index_refused([](json& m) { m.erase(norm); }, "is not listed for this file");
  index_refused([](json& m) { m["transformer.ln_g.weight"] = m[norm]; },
                "lists tensor \"transformer.ln_g.weight\" in model-");
  index_refused([](json& m) { m[norm] = m["transformer.wte.weight"]; }, "which does not have it");
  index_refused([](json& m) { m.clear(); }, "names no tensor");
  index_refused([](json& m) { m = 3; }, "an object is needed");
}

BOOST_AUTO_TEST_CASE(files_that_do_not_fit_together) {
  const auto shard = [](const std::string& folder, const std::string& tensor) {
    return folder + "/" + index_of(folder).at("weight_map").at(tensor).get<std::string>();
  };
  const std::string table = "transformer.wte.weight";
  refused([&](const std::string& f) { fs::remove(shard(f, norm)); }, "has no file model-");
  refused([&](const std::string& f) { fs::resize_file(shard(f, norm), 40); },
          "is not a valid safetensors file");
  refused(
      [&](const std::string& f) {
        open_file file(shard(f, norm)); // a second copy of a tensor
        file.tensors[table] = open_file(shard(f, table)).tensors.at(table);
        file.write(shard(f, norm));
      },
      "is not listed for this file");
  refused(
      [&](const std::string& f) {
        open_file file(shard(f, norm));
        file.tensors.at(norm).shape = {8, 8};
        file.write(shard(f, norm));
      },
      "has the shape [8, 8], but tiny needs [64]");
  // Consistent, but not the whole model.
  refused(
      [&](const std::string& f) {
        json index = index_of(f);
        open_file file(shard(f, norm));
        file.tensors.erase(norm);
        file.write(shard(f, norm));
        index.at("weight_map").erase(norm);
        test::write_text(f + "/model.safetensors.index.json", index.dump());
      },
      "index.json: tensor \"transformer.ln_f.weight\" is missing");
  refused(
      [&](const std::string& f) {
        fs::rename(shard(f, norm), f + "/../elsewhere");
        fs::create_symlink(f + "/../elsewhere", shard(f, norm));
      },
      "is a symbolic link, and links are not followed out of a model folder; copy the folder with "
      "cp -rL");
}

// As the hub's cache lays models out: snapshots/REVISION/model.safetensors -> ../../blobs/HASH.
BOOST_AUTO_TEST_CASE(the_hubs_cache_is_copied_first) {
  const bare_program p(test::tiny_gpt2);
  mc::stores s(p, false);
  const test::scratch_folder dir;
  fs::create_directories(dir / "snapshots/revision");
  fs::create_directories(dir / "blobs");
  const test::copied_model from("gpt2");
  for (const char* name : {"config.json", "model.safetensors"}) {
    fs::copy_file(from.file(name), dir / (std::string("blobs/") + name));
    fs::create_symlink(std::string("../../blobs/") + name,
                       dir / (std::string("snapshots/revision/") + name));
  }
  CHECK_REFUSED(mc::load_model_folder(dir / "snapshots/revision", p, s), exit_code::model,
                "huggingface-cli download --local-dir");
  fs::copy(dir / "snapshots/revision", dir / "copy"); // follows links
  mc::load_model_folder(dir / "copy", p, s);
}

// Sanitizers reserve memory of their own.
#if !defined(MEGACPP_SANITIZED)
/// Runs f in a child process that may reserve so many further bytes of private memory.
int with_memory_for(std::uint64_t bytes, const std::function<int()>& f) {
  const pid_t child = ::fork();
  if (child == 0) {
    std::ifstream pages("/proc/self/statm");
    std::uint64_t size = 0, resident = 0, shared = 0, text = 0, library = 0, data = 0;
    pages >> size >> resident >> shared >> text >> library >> data;
    const std::uint64_t limit = data * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)) + bytes;
    const rlimit r{limit, limit};
    if (::setrlimit(RLIMIT_DATA, &r) != 0) ::_exit(77);
    try {
      ::_exit(f());
    } catch (...) {
      ::_exit(1);
    }
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

BOOST_AUTO_TEST_CASE(memory_is_a_block_of_a_tensor) {
  mc::gpt model = test::tiny_gpt2;
  model.vocabulary = 1 << 18; // a table of 64 MiB
  const bare_program p(model);
  const test::scratch_folder dir;
  mc::stores s(p, false);
  s.initialise(1);
  constexpr std::uint64_t room = 8u << 20;
  const int status = with_memory_for(room, [&] {
    mc::save_model_folder(dir / "one", p, s);
    mc::export_model_folder(dir / "one", dir / "cut", p, mc::storage_type::bf16, 1 << 20);
    mc::load_model_folder(dir / "one", p, s);
    mc::load_model_folder(dir / "cut", p, s);
    return 0;
  });
  BOOST_TEST(status == 0);
  // The measure is one: a copy of the table does not fit.
  BOOST_TEST(with_memory_for(room, [&] {
               const volatile std::size_t copy = std::size_t{1} << 24; // else clang leaves it out
               std::vector<float> table(copy);
               return static_cast<volatile float&>(table[copy / 2]) == 0 ? 2 : 3;
             }) == 1);
}
#endif

} // namespace
