// Folders of adapters on their way from one layout of the experts' factors to another, against the
// equations at the head of hf/adapter_tensors.hpp, and those that are refused.
#define BOOST_TEST_MODULE adapter_folders
#include <boost/test/unit_test.hpp>

#include <megacpp/hf/merge.hpp>
#include <megacpp/run/interpreter.hpp>

#include <filesystem>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <parity/folder_models.hpp>

namespace {

using test::json;
using test::open_file;

constexpr std::size_t E = 8, r = 2, H = 64, F = 32; // of the fixture
const std::string block = "base_model.model.model.layers.1.mlp.experts";

const mc::program_view& program() {
  static const mc::interpreted_program<mc::qwen3_moe> p(
      test::tiny_qwen3_moe_unbalanced,
      [] {
        mc::setup s{.ranks = {}, .batch = test::tiny_batch};
        s.adapter = {.rank = 4, .alpha = 8, .targets = {"q_proj", "v_proj", "experts"}};
        return s;
      }(),
      "tiny");
  static const mc::program_view view = p.view();
  return view;
}

/// A copy of the adapter that PEFT had after ten steps.
class copied_adapter {
public:
  explicit copied_adapter(const std::string& from = {}) {
    const auto source = test::fixtures("qwen3_moe").parent_path().parent_path() / "lora" /
                        "qwen3_moe_experts/adapter_after10";
    std::filesystem::create_directory(folder());
    for (const char* name : {"adapter_config.json", "adapter_model.safetensors"})
      test::write_text(
          file(name),
          test::read_text(((from.empty() ? source : std::filesystem::path(from)) / name).string()));
  }
  std::string folder() const { return *dir_ / "adapter"; }
  std::string file(const std::string& name) const { return folder() + "/" + name; }
  open_file tensors() const { return open_file(file("adapter_model.safetensors")); }
  json config() const { return json::parse(test::read_text(file("adapter_config.json"))); }
  void change_config(const std::function<void(json&)>& change) const {
    json c = config();
    change(c);
    test::write_text(file("adapter_config.json"), c.dump());
  }
  void change_tensors(const std::function<void(open_file&)>& change) const {
    open_file f = tensors();
    change(f);
    f.write(file("adapter_model.safetensors"));
  }
  /// Writes the adapter of this folder in another layout.
  copied_adapter in(mc::adapter_layout layout) const {
    const test::scratch_folder out;
    mc::export_adapter_folder(mc::adapter_in_folder(mc::model_folder(folder()), program()),
                              out / "new", program(), {}, layout, std::nullopt);
    return copied_adapter(out / "new");
  }

private:
  std::unique_ptr<test::scratch_folder> dir_ = std::make_unique<test::scratch_folder>();
};

bool same_tensors(const copied_adapter& a, const copied_adapter& b) {
  const open_file x = a.tensors(), y = b.tensors();
  return std::ranges::equal(x.tensors, y.tensors, [](const auto& s, const auto& t) {
    return s.first == t.first && s.second.shape == t.second.shape &&
           s.second.bytes == t.second.bytes;
  });
}

/// Leaves one of the experts' matrices of a file of PEFT, as PEFT names one alone.
void leave_one(const copied_adapter& folder, bool gate_up) {
  folder.change_tensors([&](open_file& f) {
    for (const int i : {0, 1})
      for (const char* factor : {".lora_A.weight", ".lora_B.weight"}) {
        const std::string outer =
            "base_model.model.model.layers." + std::to_string(i) + ".mlp.experts";
        if (!gate_up) {
          f.tensors.erase(outer + ".base_layer" + factor);
          continue;
        }
        f.tensors.erase(outer + factor);
        f.rename(outer + ".base_layer" + factor, outer + factor);
      }
  });
  folder.change_config([&](json& c) {
    c["target_parameters"] = {gate_up ? "mlp.experts.gate_up_proj" : "mlp.experts.down_proj"};
  });
}

void refused(const copied_adapter& folder, const std::string& part) {
  CHECK_REFUSED(mc::adapter_in_folder(mc::model_folder(folder.folder()), program()),
                mc::exit_code::model, part);
}

} // namespace

BOOST_AUTO_TEST_CASE(layouts_of_experts) {
  const copied_adapter of_peft;
  const copied_adapter earlier = of_peft.in(mc::adapter_layout::peft_0_18),
                       of_vllm = of_peft.in(mc::adapter_layout::vllm);
  BOOST_TEST(same_tensors(of_peft.in(mc::adapter_layout::peft), of_peft));
  for (const copied_adapter* other : {&earlier, &of_vllm}) { // the folder says which layout it has
    BOOST_TEST(!same_tensors(*other, of_peft));
    BOOST_TEST(same_tensors(other->in(mc::adapter_layout::peft), of_peft));
  }
  BOOST_TEST(same_tensors(earlier.in(mc::adapter_layout::vllm), of_vllm));

  const open_file now = of_peft.tensors(), before = earlier.tensors(), apart = of_vllm.tensors();
  const std::string lora_a = ".lora_A.weight", lora_b = ".lora_B.weight";
  bool all = true;
  for (const bool gate_up : {true, false}) {
    const std::string name = block + (gate_up ? ".base_layer" : "");
    const std::size_t out = gate_up ? 2 * F : H, in = gate_up ? H : F;
    const auto a = now.floats(name + lora_a), b = now.floats(name + lora_b),
               old_a = before.floats(name + lora_a), old_b = before.floats(name + lora_b);
    for (std::size_t e = 0; e < E; ++e) {
      const std::string expert = block + "." + std::to_string(e) + ".";
      const auto first = apart.floats(expert + (gate_up ? "gate_proj" : "down_proj") + lora_a),
                 again = apart.floats(expert + (gate_up ? "up_proj" : "down_proj") + lora_a);
      auto second = apart.floats(expert + (gate_up ? "gate_proj" : "down_proj") + lora_b);
      if (gate_up) {
        const auto up = apart.floats(expert + "up_proj" + lora_b);
        second.insert(second.end(), up.begin(), up.end());
      }
      BOOST_REQUIRE((first.size() == r * in && second.size() == out * r));
      for (std::size_t j = 0; j < r; ++j) {
        for (std::size_t i = 0; i < in; ++i) {
          const float x = a[(e * r + j) * in + i];
          all = all && old_b[i * r * E + j * E + e] == x && first[j * in + i] == x &&
                again[j * in + i] == x;
        }
        for (std::size_t o = 0; o < out; ++o) {
          const float x = b[o * r * E + j * E + e];
          all = all && old_a[(e * r + j) * out + o] == x && second[o * r + j] == x;
        }
      }
    }
  }
  BOOST_TEST(all);
  BOOST_TEST(apart.tensors.size() == 2 * (2 * 2 + E * 3 * 2));
  BOOST_TEST(of_vllm.config().at("target_parameters").empty());
  BOOST_TEST(of_vllm.config().at("target_modules").size() == 2 + E * 3);
}

// With one matrix alone there is no inner wrapper, so that its factors have the outer one's name.
BOOST_AUTO_TEST_CASE(one_matrix_of_experts) {
  const test::scratch_folder dir;
  for (const bool gate_up : {true, false}) {
    const copied_adapter one;
    leave_one(one, gate_up);
    const mc::adapter_in_folder found(mc::model_folder(one.folder()), program());
    BOOST_TEST(found.has("mlp.experts.gate_up_proj", 1) == gate_up);
    BOOST_TEST(found.has("mlp.experts.down_proj", 1) == !gate_up);
    BOOST_TEST(same_tensors(one.in(mc::adapter_layout::peft), one));
    BOOST_TEST(
        same_tensors(one.in(mc::adapter_layout::peft_0_18).in(mc::adapter_layout::peft), one));
    CHECK_REFUSED(mc::export_adapter_folder(found, dir / "none", program(), {},
                                            mc::adapter_layout::vllm, std::nullopt),
                  mc::exit_code::mismatch, "vLLM takes all or none");
    BOOST_TEST(!std::filesystem::exists(dir / "none"));
  }
}

BOOST_AUTO_TEST_CASE(folders_that_are_refused) {
  const copied_adapter of_vllm = copied_adapter().in(mc::adapter_layout::vllm);
  const auto changed = [&](const std::function<void(open_file&)>& change) {
    copied_adapter c(of_vllm.folder());
    c.change_tensors(change);
    return c;
  };
  refused(
      changed([](open_file& f) { f.tensors.at(block + ".3.up_proj.lora_A.weight").bytes[5] ^= 1; }),
      ".3.up_proj.lora_A.weight\" differs from \"" + block + ".3.gate_proj.lora_A.weight\"");
  refused(changed([](open_file& f) { f.tensors.erase(block + ".7.down_proj.lora_B.weight"); }),
          ".7.down_proj.lora_B.weight\" is missing, though another of the experts' factors");
  refused(changed([](open_file& f) {
            for (const char* factor : {"A", "B"})
              f.rename(block + ".2.gate_proj.lora_" + factor + ".weight",
                       block + ".8.gate_proj.lora_" + factor + ".weight");
          }),
          ".2.gate_proj.lora_A.weight\" is missing");
  refused(changed([](open_file& f) {
            for (auto at = f.tensors.begin(); at != f.tensors.end();)
              at = at->first.starts_with(block) ? f.tensors.erase(at) : std::next(at);
          }),
          "is missing, though adapter_config.json names its layer");
  refused(changed([](open_file& f) {
            f.tensors["base_model.model.transformer.h.0.attn.c_attn.lora_A.weight"] =
                f.tensors.begin()->second;
          }),
          "is of no layer of tiny; the adapter is of another model");
  refused(changed([](open_file& f) {
            f.tensors["base_model.model.model.layers.1.self_attn.k_proj.lora_A.weight"] =
                f.tensors.begin()->second;
          }),
          "lora-targets=q_proj,v_proj,experts");
}
