// Small models, and states of them on disk, for tests of saved states.
#pragma once

#include <boost/test/unit_test.hpp>

#include <megacpp/model/gpt.hpp>
#include <megacpp/options/resume.hpp>
#include <megacpp/run/session.hpp>
#include <megacpp/states/state.hpp>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <kernels.hpp>
#include <scratch.hpp>

namespace test::states {

using namespace mc;
using nlohmann::json;
namespace fs = std::filesystem;

inline std::uint64_t hash(std::string_view text) {
  return xxh64::of(std::as_bytes(std::span(text)));
}

constexpr gpt small{
    .layers = 1, .hidden = 8, .heads = 1, .ffn = 8, .vocabulary = 11, .positions = 8};
constexpr setup small_setup{.batch = {.micro = 1, .sequence = 8}};

/// A family that transformers does not know.
struct own : gpt {
  static constexpr family_name<own> family{"own"};
};

/// The stores of a program, with moments that are not zero.
template <class Model> struct trained {
  interpreted_program<Model> program;
  mc::stores stores;

  explicit trained(const Model& m, setup s = small_setup, std::uint64_t seed = 1)
      : program(m, s, "small"), stores(program.view(), true) {
    stores.initialise(seed);
    for (std::int64_t i = 0; i < stores.total(); ++i) {
      mc::stores::set(stores.first_moments(), stores.precision().moment, i,
                      static_cast<double>(i) / 64);
      mc::stores::set(stores.second_moments(), stores.precision().moment, i,
                      static_cast<double>(i * i));
    }
  }
  const program_view& view() const { return program.view(); }
  void save(state_root& root, std::int64_t step, std::int64_t keep = 0) const {
    root.save(step, keep, [&](folder_writer& out) {
      json state;
      save_flags(state, options());
      write_state(out, view(), stores, {step, 4 * step}, state);
    });
  }
};

struct two_states {
  scratch_folder dir;
  trained<gpt> model{small};
  std::string root = dir / "root", newer = root + "/iter_0000002";

  two_states() {
    state_root r(root);
    model.save(r, 1);
    model.save(r, 2);
  }
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(newer)) names.push_back(entry.path());
    std::sort(names.begin(), names.end());
    return names;
  }
  /// Rewrites the newer state's own file, with a seal that matches.
  void change(const std::function<void(json&)>& f) const {
    const std::string path = newer + "/" + state_file_name;
    json whole = json::parse(read_text(path));
    f(whole["state"]);
    whole["xxh64"] = detail::seal_of(whole["state"]);
    write_text(path, whole.dump());
  }
  /// Replaces a file of the state, with its checksum.
  void replace(const std::string& name, const std::string& bytes) const {
    write_text(newer + "/" + name, bytes);
    change([&](json& state) {
      state["files"][name] = {{"bytes", bytes.size()},
                              {"xxh64", {fmt::format("{:016x}", hash(bytes))}}};
    });
  }
};

inline std::int64_t newest_step(const std::string& root) {
  const auto found = newest_state(model_folder(root), [](const std::string&) { return true; });
  return found ? found->state->state().field<std::int64_t>("step") : -1;
}

} // namespace test::states
