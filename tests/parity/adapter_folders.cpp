// Folders of adapters on their way from one layout of the experts' factors to another, against the
// equations at the head of hf/adapter_tensors.hpp, and those that are refused.
#define BOOST_TEST_MODULE adapter_folders
#include <boost/test/unit_test.hpp>

#include <megacpp/hf/merge.hpp>
#include <megacpp/run/interpreter.hpp>

#include <filesystem>
#include <functional>
#include <iterator>
#include <map>
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
/// A folder as one of vLLM's that has another value of a field of its adapter_config.json.
copied_adapter with_field(const copied_adapter& of, const char* field, const json& value) {
  copied_adapter changed(of.folder());
  changed.change_config([&](json& c) { c[field] = value; });
  return changed;
}
mc::adapter_config config_of(const copied_adapter& folder) {
  return mc::read_adapter_config(mc::read_json(folder.file("adapter_config.json")));
}
/// Takes out the factors of layers beside experts that adapter_config.json leaves out.
copied_adapter without_left_out(const copied_adapter& of) {
  const mc::adapter_config config = config_of(of);
  of.change_tensors([&](open_file& f) {
    std::erase_if(f.tensors, [&](const auto& t) {
      constexpr std::size_t before = std::string_view("base_model.model.").size();
      const std::string layer = t.first.substr(before, t.first.find(".lora_") - before);
      return layer.find("experts") == std::string::npos && config.leaves_out(layer, false);
    });
  });
  return copied_adapter(of.folder());
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

// PEFT 0.19.1 and later take the names of dense MLPs for those of experts, where a model has both.
BOOST_AUTO_TEST_CASE(dense_blocks_beside_experts) {
  auto model = test::tiny_qwen3_moe_unbalanced;
  model.sparse_step = 2; // the first block is dense
  const auto exports = [&](mc::lora adapter, mc::adapter_layout layout) {
    mc::setup s{.ranks = {}, .batch = test::tiny_batch};
    s.adapter = adapter;
    const mc::interpreted_program<mc::qwen3_moe> p(model, s, "mixed");
    const mc::program_view view = p.view();
    mc::stores factors(view, false);
    const test::scratch_folder dir;
    mc::folder_writer out(dir / "in", mc::adapter_kind);
    mc::write_adapter_files(out, view, factors);
    out.commit();
    mc::export_adapter_folder(mc::adapter_in_folder(mc::model_folder(dir / "in"), view),
                              dir / "out", view, {}, layout, std::nullopt);
    return true;
  };
  const mc::lora all{.rank = 2, .alpha = 2, .targets = {"q_proj", "down_proj", "experts"}};
  CHECK_REFUSED(exports(all, mc::adapter_layout::peft), mc::exit_code::mismatch,
                "has mlp.down_proj, which PEFT 0.19.1 and later take for matrices of experts");
  BOOST_TEST(exports(all, mc::adapter_layout::peft_0_18));
  BOOST_TEST(exports(all, mc::adapter_layout::vllm));
  BOOST_TEST(
      exports({.rank = 2, .alpha = 2, .targets = {"q_proj", "experts"}}, mc::adapter_layout::peft));
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
          "is not one of the adapter of tiny; build a preset with adapter=");
  // What adapter_config.json does not name, readers leave out.
  refused(with_field(copied_adapter(), "target_modules", {"q_proj"}),
          "v_proj.lora_A.weight\" is of a layer that adapter_config.json does not name");
  refused(
      with_field(copied_adapter(), "target_parameters", json::array()),
      "experts.base_layer.lora_A.weight\" is of a layer that adapter_config.json does not name");
  refused(with_field(copied_adapter(), "exclude_modules", {"v_proj"}), "does not name");
  refused(with_field(of_vllm, "target_modules", {"q_proj", "v_proj", "gate_proj", "up_proj"}),
          ".down_proj.lora_A.weight\" is of a layer that adapter_config.json does not name");
  // Names of single experts tell the layout, where no tensor of them is left.
  refused(changed([](open_file& f) {
            std::erase_if(f.tensors, [](const auto& t) {
              return t.first.find("experts") != std::string::npos;
            });
          }),
          "is missing, though adapter_config.json names its layer");
}

// PEFT and vLLM match patterns with the names that a file has: those of single experts in the
// layout vllm, and of the module of all experts in PEFT's.
BOOST_AUTO_TEST_CASE(patterns_of_experts) {
  const copied_adapter of_peft, of_vllm = of_peft.in(mc::adapter_layout::vllm);
  for (const char* pattern : {"gate_proj", "experts\\.3\\.down_proj", "layers.1.mlp.*"}) {
    refused(with_field(of_vllm, "alpha_pattern", {{pattern, 3}}), "numbers of its own");
    refused(with_field(of_vllm, "rank_pattern", {{pattern, 1}}), "numbers of its own");
  }
  // In PEFT's layouts each matrix of all experts may have numbers of its own.
  const copied_adapter all_by_pattern = with_field(
      with_field(with_field(of_peft, "r", 1), "rank_pattern", {{".*", r}}), "lora_alpha", 1);
  const double alpha = of_peft.config().at("lora_alpha");
  const copied_adapter by_pattern = with_field(all_by_pattern, "alpha_pattern", {{".*", alpha}}),
                       other = with_field(of_peft, "alpha_pattern", {{"down_proj", 3 * alpha}});
  BOOST_TEST(same_tensors(by_pattern.in(mc::adapter_layout::peft_0_18).in(mc::adapter_layout::peft),
                          of_peft));
  const auto factors_of = [](const copied_adapter& folder) {
    const mc::adapter_in_folder in(mc::model_folder(folder.folder()), program());
    std::map<std::string, double> all;
    for (const auto& m : in.matches()) all[m.ours.name] = m.factor;
    return all;
  };
  const auto plain = factors_of(of_peft);
  BOOST_TEST((factors_of(by_pattern) == plain));
  for (const auto& [name, times] : factors_of(other)) {
    const bool of_down = name.find("experts.lora_B") != std::string::npos; // outermost
    BOOST_TEST(times == plain.at(name) * (of_down ? 3 : 1), name);
  }
  refused(with_field(of_peft, "rank_pattern", {{"gate_up_proj", 5}}),
          "has rank 5 for model.layers.0.mlp.experts.gate_up_proj, but the adapter of tiny has "
          "rank 4 there");
  const test::scratch_folder dir;
  const auto written = [&](const copied_adapter& from, mc::adapter_layout layout) {
    mc::export_adapter_folder(mc::adapter_in_folder(mc::model_folder(from.folder()), program()),
                              dir / "new", program(), {}, layout, std::nullopt);
  };
  // Each of these means experts in one of the layouts alone.
  const copied_adapter gate = with_field(of_peft, "alpha_pattern", {{"gate_proj", 3}}),
                       all = with_field(of_vllm, "rank_pattern", {{"experts.down_proj", 1}});
  CHECK_REFUSED(written(gate, mc::adapter_layout::vllm), mc::exit_code::mismatch,
                "gives model.layers.0.mlp.experts.0.gate_proj numbers of its own, which it would "
                "not have in the layout vllm");
  CHECK_REFUSED(written(other, mc::adapter_layout::vllm), mc::exit_code::mismatch,
                "gives model.layers.0.mlp.experts.0.down_proj numbers of its own");
  CHECK_REFUSED(written(all, mc::adapter_layout::peft), mc::exit_code::mismatch,
                "gives model.layers.0.mlp.experts.down_proj numbers of its own, which it would "
                "not have in the layout peft");
  BOOST_TEST(same_tensors(gate.in(mc::adapter_layout::peft), of_peft));
  BOOST_TEST(same_tensors(all.in(mc::adapter_layout::vllm), of_vllm));
}

// Python's re and std::regex must read an expression alike.
BOOST_AUTO_TEST_CASE(expressions) {
  const copied_adapter of_peft;
  const std::string longest(100000, 'a'); // std::regex would take more stack than there is
  for (const char* text : {"q_proj\\Z", "\\Aq_proj", "(q)\\1", "[[:alpha:]]_proj", "[]q]_proj",
                           "q_proj++", "(?P<x>q_proj)", "(q_proj", longest.c_str()}) {
    refused(with_field(of_peft, "alpha_pattern", {{text, 3}}), "no expression that is read");
    refused(with_field(of_peft, "target_modules", text), "no expression that is read");
  }
  const mc::adapter_config c =
      config_of(with_field(of_peft, "alpha_pattern", {{"layers[.]\\d+\\.self_attn.[qk]_proj", 7}}));
  BOOST_TEST(c.scale_of("model.layers.12.self_attn.k_proj") == 3.5);
  BOOST_TEST(c.scale_of("model.layers.12.self_attn.v_proj") == c.scale_of(""));
}

// A layer that an expression of target_modules names must be in the file.
BOOST_AUTO_TEST_CASE(layers_named_by_an_expression) {
  const copied_adapter of_peft;
  const auto without = [&](const json& targets, const char* layer) {
    copied_adapter c = with_field(of_peft, "target_modules", targets);
    c.change_tensors([&](open_file& f) {
      for (const char* factor : {".lora_A.weight", ".lora_B.weight"})
        f.tensors.erase(std::string("base_model.model.model.layers.") + layer + factor);
    });
    return without_left_out(c);
  };
  const char* const q = "1.self_attn.q_proj";
  for (const char* text :
       {".*\\.[qv]_proj", "model\\.layers\\.\\d+\\.self_attn\\.q_proj", "all-linear", "All-Linear"})
    refused(without(text, q), "q_proj.lora_A.weight\" is missing, though adapter_config.json");
  // These name the layer not, as re.fullmatch has it.
  for (const char* text : {"q_proj", "layers\\..*", ".*\\.0\\..*", ".*v_proj"}) {
    const mc::adapter_in_folder found(mc::model_folder(without(text, q).folder()), program());
    BOOST_TEST(!found.has("self_attn.q_proj", 1));
    BOOST_TEST(found.has("self_attn.q_proj", 0) == (std::string_view(text) == ".*\\.0\\..*"));
  }
}

// An expression that could be tried in very many ways is given up.
BOOST_AUTO_TEST_CASE(expressions_that_take_too_long) {
  refused(with_field(copied_adapter(), "target_modules", "(.*)*(.*)*(.*)*[xyz]"),
          "the expression \"(.*)*(.*)*(.*)*[xyz]\" of an adapter_config.json takes too long");
}

// Fields that choose among the layers of target_modules, as peft/tuners/tuners_utils.py has them.
BOOST_AUTO_TEST_CASE(layers_that_fields_choose) {
  const copied_adapter of_peft;
  const auto without_q = [&](const json& fields) {
    copied_adapter c(of_peft.folder());
    c.change_config([&](json& config) { config.update(fields); });
    c.change_tensors([&](open_file& f) {
      for (const char* factor : {".lora_A.weight", ".lora_B.weight"})
        f.tensors.erase("base_model.model.model.layers.1.self_attn.q_proj" + std::string(factor));
    });
    return c;
  };
  for (const json& means : std::vector<json>{
           {{"layers_to_transform", 1}},
           {{"layers_to_transform", {0, 1}}},
           {{"layers_to_transform", json::array()}},
           {{"layers_to_transform", {1}}, {"layers_pattern", "layers"}},
           {{"layers_to_transform", {1}}, {"layers_pattern", {"h", "layers"}}},
           {{"layers_pattern", "h"}},
           {{"exclude_modules", {"k_proj", "0.self_attn.q_proj"}}},
           {{"exclude_modules", ".*_proj\\.q"}},
           {{"target_modules", {"model.layers.1.self_attn.q_proj"}}, {"layers_to_transform", {0}}}})
    refused(without_left_out(without_q(means)),
            "q_proj.lora_A.weight\" is missing, though adapter_config.json");
  for (const json& means_not :
       std::vector<json>{{{"layers_to_transform", 0}},
                         {{"layers_to_transform", {0, 2}}},
                         {{"layers_to_transform", {1}}, {"layers_pattern", "h"}},
                         {{"exclude_modules", {"q_proj"}}},
                         {{"exclude_modules", {"layers.1.self_attn.q_proj"}}},
                         {{"exclude_modules", ".*\\.1\\..*"}}}) {
    const copied_adapter folder = without_left_out(without_q(means_not));
    const mc::adapter_in_folder found(mc::model_folder(folder.folder()), program());
    BOOST_TEST(found.has("self_attn.q_proj", 0) ==
                   config_of(folder).names("model.layers.0.self_attn.q_proj", false),
               means_not.dump());
  }
  refused(without_q({{"target_modules", "all-linear"}, {"layers_to_transform", {0}}}),
          "which PEFT refuses");
  refused(without_q({{"exclude_modules", "q_proj\\Z"}}), "no expression that is read");
}

// PEFT has laid experts out as today since 0.19.1: in 0.19.0 it exchanged them as before.
BOOST_AUTO_TEST_CASE(versions_of_layouts) {
  const copied_adapter of_peft;
  for (const auto& [version, layout] :
       std::map<std::string, mc::adapter_layout>{{"0.18.1", mc::adapter_layout::peft_0_18},
                                                 {"0.19", mc::adapter_layout::peft_0_18},
                                                 {"0.19.0", mc::adapter_layout::peft_0_18},
                                                 {"0.19.1", mc::adapter_layout::peft},
                                                 {"0.20.0.dev0", mc::adapter_layout::peft},
                                                 {"1.0.0", mc::adapter_layout::peft}})
    BOOST_TEST((config_of(with_field(of_peft, "peft_version", version)).layout == layout), version);
  BOOST_TEST((config_of(of_peft.in(mc::adapter_layout::peft)).layout == mc::adapter_layout::peft));
}

// The type of what is exported holds every factor.
BOOST_AUTO_TEST_CASE(types_of_factors) {
  const auto type_of = [](mc::storage_type one, mc::storage_type others) {
    const copied_adapter folder;
    folder.change_tensors([&](open_file& f) {
      bool first = true;
      for (auto& [name, t] : f.tensors) {
        t.type = first ? one : others, first = false;
        const auto size = static_cast<std::size_t>(mc::bits_of(t.type) / 8);
        t.bytes.assign(t.bytes.size() / 4 * size, '\0');
      }
    });
    return mc::adapter_in_folder(mc::model_folder(folder.folder()), program()).type();
  };
  using enum mc::storage_type;
  BOOST_TEST((type_of(f64, f32) == f64 && type_of(f32, f64) == f64 && type_of(bf16, f64) == f64));
  BOOST_TEST(
      (type_of(bf16, bf16) == bf16 && type_of(bf16, f32) == f32 && type_of(f16, f16) == f32));
}
