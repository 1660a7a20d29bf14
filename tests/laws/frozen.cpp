// Frozen parameters: a run reads them and leaves them as they are, has only their weights, and
// trains all others as if none were frozen.
#define BOOST_TEST_MODULE frozen_parts
#include <boost/test/unit_test.hpp>

#include <megacpp/comm/threads.hpp>
#include <megacpp/hf/export_folder.hpp>
#include <megacpp/hf/model_folder.hpp>
#include <megacpp/model/gpt.hpp>
#include <megacpp/model/qwen3.hpp>
#include <megacpp/model/qwen3_moe.hpp>
#include <megacpp/run/rank_program.hpp>
#include <megacpp/run/session.hpp>
#include <megacpp/states/state.hpp>

#include <array>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <kernels.hpp>
#include <scratch.hpp>

#include "outcome.hpp"

using namespace mc;
using test::close_to;
using test::outcome;
using test::outcome_of;

namespace {

constexpr gpt tied{
    .layers = 2, .hidden = 32, .heads = 4, .ffn = 64, .vocabulary = 64, .positions = 32};
constexpr qwen3 untied{.layers = 2,
                       .hidden = 32,
                       .heads = 4,
                       .kv_heads = 2,
                       .head_dim = 8,
                       .ffn = 48,
                       .vocabulary = 64,
                       .positions = 32,
                       .tied = false};
constexpr qwen3_moe experts = [] {
  qwen3_moe m;
  m.layers = 2, m.hidden = 32, m.heads = 4, m.kv_heads = 2, m.head_dim = 8, m.expert_ffn = 16;
  m.experts = 8, m.experts_per_token = 2, m.vocabulary = 64, m.positions = 32;
  m.shared_ffn = 16, m.aux_loss = 0.1, m.bias_rate = 1e-3, m.tied = false;
  return m;
}();

constexpr frozen all_but_the_head{"blocks", "embedding"};

/// A step without clipping changes every parameter that is not frozen to the same bits as in a run
/// that freezes nothing, and leaves the frozen ones.
template <class Model, class Stays>
void trains_the_rest(const Model& m, const frozen& f, dtype t, const char* name, Stays stays) {
  setup s{.batch = {2, 32}, .precision = t};
  const outcome before = outcome_of(m, s, 1, 2, {.clip = 0, .steps = 0}),
                whole = outcome_of(m, s, 1, 2, {.clip = 0, .steps = 1});
  s.frozen = f;
  const outcome part = outcome_of(m, s, 1, 2, {.clip = 0, .steps = 1});
  const interpreted_program<Model> p(m, s, "p");
  for_each_parameter(p.view(), [&](const parameter_ref& r) {
    BOOST_TEST(r.info->frozen == stays(r), name << ": " << r.name);
    const auto& want = stays(r) ? before : whole;
    BOOST_TEST((part.weights.at(r.name) == want.weights.at(r.name)), name << ": " << r.name);
  });
  BOOST_TEST(part.numbers[0] == whole.numbers[0], name); // the loss
  BOOST_TEST(part.numbers[1] < whole.numbers[1], name);  // a norm of fewer gradients
}

/// Returns the parameter with a name.
parameter_ref held_by(const program_view& p, const std::string& name) {
  parameter_ref found;
  for_each_parameter(p, [&](const parameter_ref& r) {
    if (r.name == name) found = r;
  });
  return found;
}

template <class Model>
void equals_one_rank(const Model& m, const frozen& f, const layout& l, int dp, const char* name) {
  setup s{.ranks = l, .batch = {2, 32}, .precision = dtype::f64, .frozen = f};
  const outcome got = outcome_of(m, s, dp, 2);
  s.ranks = {};
  close_to(got, outcome_of(m, s, 1, 2), 1e-10, name);
}

} // namespace

BOOST_AUTO_TEST_CASE(what_is_not_frozen_trains_as_it_would_alone) {
  const auto in_blocks = [](const parameter_ref& r) { return r.layer >= 0; };
  const auto one_of = [](std::initializer_list<const char*> names) {
    return [all = std::set<std::string>(names.begin(), names.end())](const parameter_ref& r) {
      return all.count(r.local_name) == 1;
    };
  };
  for (const dtype t : {dtype::f32, dtype::bf16}) {
    trains_the_rest(tied, {"blocks"}, t, "blocks of a tied model", in_blocks);
    trains_the_rest(experts, {"blocks"}, t, "experts", in_blocks);
    trains_the_rest(
        tied, {"embedding", "attn.q", "mlp.fc.bias"}, t, "tables and more",
        one_of({"wte.weight", "wpe.weight", "attn.q.weight", "attn.q.bias", "mlp.fc.bias"}));
    trains_the_rest(untied, {"head", "mlp.up_proj"}, t, "the head and more",
                    one_of({"model.norm.weight", "lm_head.weight", "mlp.up_proj.weight"}));
    trains_the_rest(untied, all_but_the_head, t, "all but the head", [](const parameter_ref& r) {
      return r.layer >= 0 || r.name == "model.embed_tokens.weight";
    });
    trains_the_rest(experts, {"mlp.gate"}, t, "routers",
                    one_of({"mlp.gate.weight", "mlp.gate.e_score_correction_bias"}));
  }
}

BOOST_AUTO_TEST_CASE(ranks_of_any_layout_freeze_what_one_does) {
  equals_one_rank(tied, {"blocks"}, {.tp = 2, .sequence_parallel = true}, 2, "tp 2 sp dp 2");
  equals_one_rank(tied, {"embedding"}, {.pp = 2, .zero = 1}, 2, "zero 1 pp 2 dp 2, a tied table");
  equals_one_rank(untied, all_but_the_head, {.cp = 2, .zero = 1}, 2, "zero 1 cp 2 dp 2");
  equals_one_rank(untied, all_but_the_head, {.tp = 2, .pp = 2}, 1, "tp 2 pp 2");
  equals_one_rank(experts, {"self_attn", "mlp.experts"},
                  {.tp = 2, .ep = 2, .etp = 1, .sequence_parallel = true, .zero = 1}, 2,
                  "zero 1 tp 2 sp dp 2 ep 2");
}

// Frozen parameters have weights alone: bytes by a closed form, on one rank and on each of two that
// share the rest.
BOOST_AUTO_TEST_CASE(what_is_frozen_has_nothing_but_weights) {
  const std::int64_t head = std::int64_t{untied.vocabulary} * untied.hidden, norm = 64; // a line
  for (const dtype t : {dtype::f32, dtype::bf16})
    for (const int zero : {0, 1}) {
      const setup s{
          .ranks = {.zero = zero}, .batch = {2, 32}, .precision = t, .frozen = all_but_the_head};
      const interpreted_program<qwen3> p(untied, s, "p");
      const interpreted_program<qwen3> whole(
          untied, {.ranks = {.zero = zero}, .batch = {2, 32}, .precision = t}, "w");
      // The bytes of a rank, and the expected ones. Boost.Test may not check on threads of ranks.
      std::array<std::vector<std::pair<std::int64_t, std::int64_t>>, 2> of_rank;
      thread_ranks(mesh_of(s.ranks, 2)).run([&](communicator& c) {
        const rank_program program(p.view(), c);
        const stores mine(program.view(), true, c.coordinate(), host_memory::of_process(),
                          c.ranks());
        const registry& r = mine.entries();
        // The head's table and the last norm's gain are two buckets. If ranks share them, a layer
        // is padded to shares of whole lines, which the table is already.
        const std::int64_t main = size_of(accumulator_of(t)), ranks = 1 + zero,
                           trained = head + norm * ranks;
        const memory_items m = memory_of_stores(sizes_of(r), p.view().numbers.precision),
                           planned = memory_of_stage(p.view(), 0, true, c.ranks());
        of_rank[static_cast<std::size_t>(c.rank())] = {
            {r.gradients, trained},
            {r.states, trained / ranks},
            {m.gradients, r.gradients * main},
            {m.moments, 2 * r.states * main},
            {m.masters, t == dtype::bf16 ? r.states * main : 0},
            {mine.bytes(), m.weights + m.gradients + m.masters + m.moments},
            {planned.gradients, m.gradients},
            {planned.masters, m.masters},
            {planned.moments, m.moments}};
      });
      for (const auto& all : of_rank) {
        BOOST_TEST(all.size() == 9);
        for (const auto& [has, should] : all) BOOST_TEST(has == should);
      }
      BOOST_TEST(memory_of_stage(p.view()).weights == memory_of_stage(whole.view()).weights);
    }
}

// A state has no moments of frozen parameters, and their weights to the bit. A run that freezes
// others takes only its weights.
BOOST_AUTO_TEST_CASE(a_state_of_frozen_parts_is_whole) {
  for (const dtype t : {dtype::f32, dtype::bf16}) {
    const setup s{.batch = {2, 32}, .precision = t, .frozen = all_but_the_head};
    const interpreted_program<qwen3> p(untied, s, "p"),
        other(untied, {.batch = {2, 32}, .precision = t}, "p");
    stores saved(p.view(), true);
    saved.initialise(7);
    for (std::int64_t i = 0; i < saved.entries().states; ++i)
      stores::set(saved.first_moments(), dtype::f32, i, static_cast<double>(i));
    const test::scratch_folder dir;
    {
      folder_writer out(dir / "state");
      write_state(out, p.view(), saved, {1, 2}, nlohmann::json::object());
      out.commit();
    }
    const model_folder folder(dir / "state");
    const state_file file(folder);
    stores again(p.view(), true), whole(other.view(), true);
    load_weights(folder, p.view(), again);
    load_moments(folder, file.state(), p.view(), again);
    load_weights(folder, other.view(), whole);
    for (const storage_type as : {storage_type::f32, storage_type::bf16}) { // exports agree
      const std::string mine = dir / ("mine" + std::to_string(static_cast<int>(as))),
                        others = dir / ("others" + std::to_string(static_cast<int>(as)));
      export_model_folder(dir / "state", mine, p.view(), as);
      export_model_folder(dir / "state", others, other.view(), as);
      BOOST_TEST((test::read_text(mine + "/model.safetensors") ==
                  test::read_text(others + "/model.safetensors")));
    }
    for_each_parameter(p.view(), [&](const parameter_ref& r) {
      bool same = true;
      for (std::int64_t i = r.offset; i < r.offset + r.count.n; ++i)
        same = same && again.weight(i) == saved.weight(i);
      BOOST_TEST(same, r.name);
    });
    const auto head = held_by(p.view(), "lm_head.weight");
    saved.each_state(head.offset, head.count.n, [&](std::int64_t, std::int64_t at, std::int64_t n) {
      bool same = n == head.count.n;
      for (std::int64_t i = at; i < at + n; ++i)
        same =
            same && again.element(again.first_moments(), dtype::f32, i) == static_cast<double>(i);
      BOOST_TEST(same);
    });
    BOOST_CHECK_EXCEPTION(
        load_moments(folder, file.state(), other.view(), whole), error, [](const error& e) {
          return std::string(e.what()).find("is missing; the state is of another model") !=
                 std::string::npos;
        });
  }
}

// Stages and replicas, some of which have only frozen weights, write the same file as one rank.
BOOST_AUTO_TEST_CASE(ranks_that_are_frozen_save_what_one_does) {
  const setup alone{.batch = {2, 32}, .precision = dtype::bf16, .frozen = all_but_the_head};
  const auto saved = [&](const layout& l, int dp, const std::string& folder) {
    setup s = alone;
    s.ranks = l;
    const interpreted_program<qwen3> p(untied, s, "p");
    thread_ranks(mesh_of(l, dp), std::chrono::seconds(20)).run([&](communicator& c) {
      const rank_program program(p.view(), c);
      stores mine(program.view(), true, c.coordinate(), host_memory::of_process(), c.ranks());
      mine.initialise(3);
      const auto write = [&](folder_writer&& out) {
        write_state(out, p.view(), mine, {1, 2}, nlohmann::json::object(), {}, hf_shard_limit, c);
        out.commit();
      };
      if (c.rank() == 0) write(folder_writer(folder));
      else write(folder_writer::of_another_rank());
    });
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(folder))
      files[entry.path().filename().string()] = test::read_text(entry.path().string());
    return files;
  };
  const test::scratch_folder dir;
  const auto want = saved({}, 1, dir / "one");
  BOOST_TEST((saved({.pp = 2}, 1, dir / "pp") == want));
  BOOST_TEST((saved({.tp = 2, .pp = 2, .zero = 1}, 2, dir / "zero") == want));
}

BOOST_AUTO_TEST_CASE(names_that_mean_nothing_are_refused) {
  const auto said = [](const frozen& f) {
    try {
      const interpreted_program<qwen3> p(untied, {.batch = {2, 32}, .frozen = f}, "p");
    } catch (const error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  BOOST_TEST(said({"blocks", "embedding"}).empty());
  for (const char* name :
       {"block", "embed", "embedding.", "embedding.weights", "attention.q", "layers.0", "", "."})
    BOOST_TEST(said({"mlp", name}).find(std::string("MEGA-C009, frozen(") + name + ")") !=
                   std::string::npos,
               name << ": " << said({"mlp", name}));
  BOOST_TEST(said({"blocks", "embedding", "head"}).find("MEGA-C009, frozen: everything") !=
             std::string::npos);
}
