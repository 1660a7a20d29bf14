// What tests of model folders need: programs without kernels, and models that can be damaged.
#pragma once

#include <boost/test/unit_test.hpp>

#include <megacpp/hf/model_folder.hpp>

#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <parity/fixtures.hpp>
#include <scratch.hpp>

namespace test {

using nlohmann::json;

/// As much of a program as folders need: forward graphs and registry, without kernels.
template <class Model> class bare_program {
public:
  explicit bare_program(const Model& m, mc::dtype type = mc::dtype::f32, mc::layout ranks = {})
      : model_(m) {
    mc::setup s;
    s.ranks = ranks, s.batch = test::tiny_batch, s.precision = type;
    const auto used = mc::used_kinds(m);
    std::vector<int> layers(static_cast<unsigned>(used.count) + 2);
    layers.front() = layers.back() = 1;
    for (int l = 0; l < m.layers; ++l) {
      view_.kind_of.push_back(used.index(m.kind_of(l)));
      ++layers[static_cast<unsigned>(1 + view_.kind_of.back())];
    }
    const auto add = [&](mc::part_kind part, int kind) {
      graphs_.push_back(std::make_unique<mc::graph>(mc::forward_graph(m, s, part, kind)));
    };
    add(mc::part_kind::stem, 0);
    for (int k = 0; k < used.count; ++k) add(mc::part_kind::block, used.kind(k));
    add(mc::part_kind::loss, 0);
    for (const auto& g : graphs_) BOOST_REQUIRE(g->wrong.code == mc::fault::none);
    std::vector<const mc::graph*> all;
    for (const auto& g : graphs_) all.push_back(g.get());
    stores_ = mc::make_registry(all, layers);
    view_.name = "tiny", view_.family = mc::family_of<Model>(), view_.numbers = s;
    view_.layers = m.layers, view_.hidden = m.hidden, view_.vocabulary = m.vocabulary;
    view_.model = mc::view_of_model(model_);
    view_.stores = &stores_;
    view_.parts.resize(static_cast<std::size_t>(used.count + mc::other_parts));
    for (int i = 0; i <= used.count + 1; ++i) view_.parts[static_cast<std::size_t>(i)] = part(i);
  }
  bare_program(const bare_program&) = delete;
  bare_program& operator=(const bare_program&) = delete;

  const mc::program_view& view() const { return view_; }
  operator const mc::program_view&() const { return view_; }

  /// Makes the last rows of the vocabulary tables padding, as tensor parallelism does.
  void pad_vocabulary(int valid) {
    for (const auto& g : graphs_)
      for (int i = 0; i < g->parameter_count; ++i)
        if (auto& info = g->parameters[static_cast<unsigned>(i)]; info.valid_rows > 0)
          info.valid_rows = valid;
    view_.vocabulary = valid;
    model_.vocabulary = valid;
    view_.model = mc::view_of_model(model_);
  }

private:
  mc::part_view part(int index) const {
    mc::part_view v;
    v.g = graphs_[static_cast<unsigned>(index)].get(), v.index = index;
    return v;
  }

  Model model_;
  std::vector<std::unique_ptr<mc::graph>> graphs_;
  mc::registry stores_{};
  mc::program_view view_;
};

inline std::vector<float> weights(const mc::stores& s) {
  const auto* const w = reinterpret_cast<const float*>(s.weights());
  return {w, w + s.total()};
}

/// A file in memory that can be changed and written.
struct open_file {
  struct tensor {
    mc::storage_type type;
    std::vector<std::int64_t> shape;
    std::string bytes;
  };
  std::map<std::string, tensor> tensors;

  explicit open_file(const std::string& path) {
    const mc::safetensors_file file(path);
    for (std::size_t i = 0; i < file->size(); ++i) {
      const mc::file_tensor t = file.tensors()[i];
      tensors[std::string(t.name)] = {
          t.type,
          {t.shape.begin(), t.shape.end()},
          {reinterpret_cast<const char*>(t.bytes.data()), t.bytes.size()}};
    }
  }
  void write(const std::string& path) const {
    std::vector<mc::tensor_spec> specs;
    for (const auto& [name, t] : tensors) specs.push_back({name, t.type, t.shape});
    std::string file;
    mc::safetensors_layout(specs).write(
        [&](std::span<const std::byte> b) {
          file.append(reinterpret_cast<const char*>(b.data()), b.size());
        },
        [&](const mc::tensor_spec& t, const mc::byte_sink& sink) {
          sink(std::as_bytes(std::span(tensors.at(t.name).bytes)));
        });
    test::write_text(path, file);
  }
  void rename(const std::string& from, const std::string& to) {
    auto node = tensors.extract(from);
    node.key() = to;
    tensors.insert(std::move(node));
  }
  std::vector<float> floats(const std::string& name) const {
    const std::string& bytes = tensors.at(name).bytes;
    std::vector<float> x(bytes.size() / sizeof(float));
    std::memcpy(x.data(), bytes.data(), bytes.size());
    return x;
  }
};

/// A copy of a fixture's model, to be damaged.
class copied_model {
public:
  explicit copied_model(const std::string& family) {
    std::filesystem::create_directory(folder());
    for (const char* name : {"config.json", "generation_config.json", "model.safetensors"})
      test::write_text(file(name),
                       test::read_text((test::fixtures(family) / "model" / name).string()));
  }
  std::string folder() const { return dir_ / "model"; }
  std::string file(const std::string& name) const { return folder() + "/" + name; }
  void change_config(const std::function<void(json&)>& change) const {
    json config = json::parse(test::read_text(file("config.json")));
    change(config);
    test::write_text(file("config.json"), config.dump());
  }
  void change_tensors(const std::function<void(open_file&)>& change) const {
    open_file f(file("model.safetensors"));
    change(f);
    f.write(file("model.safetensors"));
  }

private:
  scratch_folder dir_;
};

} // namespace test
