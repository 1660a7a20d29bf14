// Moments of bf16, rounded up or down by chance. Their mean is the exact value; the noise is a
// function of the seed, the step and the element, so that every layout rounds the same numbers; and
// they take half the memory.
#define BOOST_TEST_MODULE rounded_moments
#include <boost/test/unit_test.hpp>

#include <megacpp/comm/threads.hpp>
#include <megacpp/kernel/rows/adamw.hpp>
#include <megacpp/model/qwen3.hpp>
#include <megacpp/model/qwen3_moe.hpp>
#include <megacpp/product/cpu_products.hpp>
#include <megacpp/run/rank_program.hpp>
#include <megacpp/run/session.hpp>
#include <megacpp/states/state.hpp>

#include <bit>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include <kernels.hpp>
#include <scratch.hpp>

#include "outcome.hpp"

using namespace mc;

namespace {

constexpr qwen3 dense{.layers = 4,
                      .hidden = 24,
                      .heads = 4,
                      .kv_heads = 2,
                      .head_dim = 6,
                      .ffn = 36,
                      .vocabulary = 70,
                      .positions = 32};
constexpr qwen3_moe experts = [] {
  qwen3_moe m;
  m.layers = 2, m.hidden = 24, m.heads = 4, m.kv_heads = 2, m.head_dim = 6, m.expert_ffn = 12;
  m.experts = 4, m.experts_per_token = 2, m.vocabulary = 64, m.positions = 32, m.bias_rate = 1e-3;
  return m;
}();

precision_policy rounding(dtype values) {
  precision_policy p = values;
  p.moment = dtype::bf16;
  return p;
}

/// Both moments of every parameter in its logical order, and the losses of a run.
struct left {
  std::map<std::string, std::vector<double>> moments;
  std::vector<double> told;
  bool operator==(const left&) const = default;
};
const auto initial = [](stores& s, const program_view&) { s.initialise(1); };

const auto nothing = [](stores&, const program_view&, communicator&) {};

/// Returns the moments after `count` steps that follow `done` others: before(stores, program) sets
/// the weights of each rank, and after(stores, program, hosts) reads them at the end.
template <class Model, class Before, class After = decltype(nothing)>
left steps(const Model& m, const layout& l, int dp, const precision_policy& p, int count,
           std::uint64_t seed, Before before, int done = 0, After after = nothing) {
  const setup s{.ranks = l, .batch = {2, 32}, .precision = p};
  const interpreted_program<Model> program(m, s, "p");
  std::vector<test::batches> data;
  constexpr int micros = 4;
  for (int k = 0; k < micros; ++k) data.emplace_back(s, k);
  left all;
  std::mutex turn;
  thread_ranks(mesh_of(l, dp), std::chrono::seconds(20)).run([&](communicator& c) {
    cpu device(product_type::widened, 1);
    const auto others = c.make_ranks(device);
    session run(program.view(), device, purpose::training, *others);
    step_numbers& n = run.numbers();
    n.seed = seed, n.learning_rate = 1e-2, n.clip = 1, n.weight_decay = 0.1;
    before(run.weights(), program.view());
    const int each = micros / dp, first = c.coordinate()[static_cast<unsigned>(axis::dp)] * each;
    std::vector<batch_view> mine;
    for (int k = first; k < first + each; ++k)
      mine.push_back(data[static_cast<std::size_t>(k)].view(k));
    std::vector<double> told;
    for (int i = 0; i < count; ++i) {
      n.step = done + i;
      const step_result r = run.step(mine);
      told.push_back(r.loss.mean()), told.push_back(r.norm);
    }
    after(run.weights(), program.view(), c);
    const std::lock_guard lock(turn);
    all.told = told;
    const stores& held = run.weights();
    for_each_parameter(program.view(), [&](const parameter_ref& r) {
      if (r.info->update != update_rule::adamw) return;
      for (const std::byte* store : {held.first_moments(), held.second_moments()}) {
        auto& x = all.moments[r.name + (store == held.first_moments() ? " m" : " v")];
        x.resize(static_cast<std::size_t>(global_size(*r.v).n), NAN);
        held.held(r, {.states = true})
            .each_contiguous(
                {}, global_size(*r.v), [&](global_count at, std::int64_t i, std::int64_t k) {
                  for (std::int64_t e = 0; e < k; ++e)
                    x[static_cast<std::size_t>(at.n + e)] = held.element(store, dtype::bf16, i + e);
                });
      }
    });
  });
  return all;
}

} // namespace

// The mean over all noise of a rounded number is the number, and each result is one of its
// neighbours.
BOOST_AUTO_TEST_CASE(rounding_by_chance_has_no_bias) {
  for (const float x : {1.0f, 1.00390625f, 3.14159265f, -2.7182818e-5f, 1e-30f, -6.25e20f, 0.0f}) {
    double sum = 0;
    for (std::uint32_t noise = 0; noise < 65536; ++noise) {
      const auto y = convert<double>(rows::rounded_moments::rounded(x, noise));
      BOOST_REQUIRE(std::abs(y - static_cast<double>(x)) <=
                    0x1p-7 * std::abs(static_cast<double>(x)));
      sum += y;
    }
    BOOST_TEST(sum / 65536 == static_cast<double>(x));
  }
  constexpr float largest = std::numeric_limits<float>::max();
  for (const float x : {largest, -largest, 0x1.ffp127f})
    for (const std::uint32_t noise : {0u, 1u, 0xffffu})
      BOOST_TEST(std::isfinite(convert<double>(rows::rounded_moments::rounded(x, noise))));
  BOOST_TEST(std::signbit(convert<double>(rows::rounded_moments::rounded(-0.0f, 0xffff))));
  BOOST_TEST(std::isnan(convert<double>(rows::rounded_moments::rounded(NAN, 5))));
  BOOST_TEST(convert<double>(rows::rounded_moments::rounded(INFINITY, 0xffff)) == INFINITY);
}

// A random number is a function of the seed, the step, the parameter and the logical element: not
// of the element's address, nor of the one that was asked for before. Each moment has half of its
// bits.
BOOST_AUTO_TEST_CASE(noise_is_of_the_logical_element) {
  using rows::rounded_moments;
  // A parameter (4, 6) as a whole, and the last three of its columns on a rank, behind another
  // parameter.
  const rounded_moments::origin
      whole[] = {{0, 24, 9, {{1, 1, 0}, {1, 1, 0}, {4, 4, 0}, {6, 6, 0}}}},
      part[] = {{0, 3, 3, {{1, 1, 0}, {1, 1, 0}, {1, 1, 0}, {3, 3, 0}}},
                {64, 12, 9, {{1, 1, 0}, {1, 1, 0}, {4, 4, 0}, {6, 3, 3}}}};
  std::int64_t seed = 7, step = 2;
  const rounded_moments all{0, 1, whole, &seed, &step}, some{0, 2, part, &seed, &step};
  const auto words = [&] {
    std::vector<std::uint32_t> w;
    rounded_moments::state in_order(all);
    for (std::int64_t i = 0; i < 24; ++i) w.push_back(in_order.number(i));
    return w;
  };
  const std::vector<std::uint32_t> want = words();
  rounded_moments::state back(all), of_part(some);
  for (std::int64_t i = 23; i >= 0; --i)
    BOOST_TEST(back.number(i) == want[static_cast<std::size_t>(i)]);
  for (std::int64_t i = 0; i < 80; ++i) {
    const std::uint32_t w = of_part.number(i);
    if (i >= 64 && i < 76) {
      const std::int64_t row = (i - 64) / 3, column = 3 + (i - 64) % 3;
      BOOST_TEST(w == want[static_cast<std::size_t>(row * 6 + column)]);
    } else if (i >= 3) {
      BOOST_TEST(w == 0u); // padding
    }
  }
  const auto others = [&] {
    const std::vector<std::uint32_t> w = words();
    std::size_t same = 0;
    for (std::size_t i = 0; i < w.size(); ++i) same += w[i] == want[i];
    return w.size() - same;
  };
  BOOST_TEST(others() == 0u);
  step = 3;
  BOOST_TEST(others() == 24u);
  step = 2, seed = 8;
  BOOST_TEST(others() == 24u);
  seed = 7;
  bf16 m[16], v[16];
  rounded_moments::state s(all);
  const vec<float, 16> x(1.00390625f); // half way between two neighbours
  all.store<float>(s, m, v, lanes<16>{0}, x, x);
  int differ = 0;
  for (int k = 0; k < 16; ++k) {
    differ += convert<float>(m[k]) != convert<float>(v[k]);
    BOOST_TEST(convert<float>(m[k]) >= 1.0f);
  }
  BOOST_TEST((differ > 2 && differ < 14), differ);
}

// In double, where layouts differ by 1e-16, every moment has the bits of one rank's.
BOOST_AUTO_TEST_CASE(every_layout_rounds_the_same_numbers) {
  const precision_policy p = rounding(dtype::f64);
  const auto compare = [&](const auto& m, const layout& l, int dp, const char* name) {
    const left want = steps(m, {}, 1, p, 3, 7, initial), got = steps(m, l, dp, p, 3, 7, initial);
    for (const auto& [moment, x] : want.moments) {
      auto y = got.moments.at(moment); // padding may add rows to a vocabulary
      y.resize(x.size());
      BOOST_TEST((x == y), name << ": " << moment);
    }
    for (std::size_t i = 0; i < want.told.size(); ++i)
      BOOST_TEST(std::abs(got.told[i] - want.told[i]) <= 1e-9 * want.told[i], name);
  };
  compare(dense, {.tp = 2}, 1, "tp 2");
  compare(dense, {.tp = 2, .sequence_parallel = true, .zero = 1}, 2, "zero 1 tp 2 sp dp 2");
  compare(dense, {.pp = 2, .zero = 1}, 2, "zero 1 pp 2 dp 2");
  compare(dense, {.cp = 2, .zero = 1}, 1, "zero 1 cp 2");
  compare(dense, {.zero = 1}, 4, "zero 1 dp 4");
  compare(dense, {.pp = 2, .virtual_stages = 2, .zero = 1}, 2, "zero 1 pp 2 virtual 2 dp 2");
  compare(dense, {.tp = 2, .cp = 2, .zero = 1}, 2, "zero 1 tp 2 cp 2 dp 2");
  compare(dense, {.pp = 4}, 1, "pp 4, a tied table");
  compare(experts, {.pp = 2, .ep = 2, .zero = 1}, 2, "zero 1 pp 2 ep 2 dp 2");
  compare(experts, {.tp = 2, .ep = 2, .etp = 1}, 1, "tp 2 ep 2");
  compare(experts, {.ep = 2, .zero = 1}, 4, "zero 1 ep 2 dp 4");
}

BOOST_AUTO_TEST_CASE(noise_is_of_the_seed_and_the_step) {
  const precision_policy p = rounding(dtype::bf16);
  const left one = steps(dense, {}, 1, p, 1, 7, initial);
  BOOST_TEST((steps(dense, {}, 1, p, 1, 7, initial) == one));
  const left other = steps(dense, {}, 1, p, 1, 8, initial);
  BOOST_TEST(one.told[0] == other.told[0]);
  const auto differ = [](const std::vector<double>& x, const std::vector<double>& y) {
    std::int64_t n = 0;
    for (std::size_t i = 0; i < x.size(); ++i) n += x[i] != y[i];
    return static_cast<double>(n) / static_cast<double>(x.size());
  };
  // A third of the uniform remainders rounds the other way.
  for (const auto& [name, x] : one.moments)
    if (x.size() > 500)
      BOOST_TEST(std::abs(differ(x, other.moments.at(name)) - 1.0 / 3) < 0.15, name);
}

// A state keeps moments to the bit, and a run of any layout continues from it as if it had not
// ended.
BOOST_AUTO_TEST_CASE(a_run_goes_on_to_the_bit) {
  const precision_policy p = rounding(dtype::bf16);
  const auto check = [&](const layout& l, int dp, const char* name) {
    const test::scratch_folder dir;
    const left want = steps(dense, l, dp, p, 4, 7, initial);
    const auto save = [&](const stores& w, const program_view& v, communicator& c) {
      const auto write = [&](folder_writer&& out) {
        write_state(out, v, w, {2, 8}, nlohmann::json::object(), {}, hf_shard_limit, c);
        out.commit();
      };
      if (c.rank() == 0) write(folder_writer(dir / "state"));
      else write(folder_writer::of_another_rank());
    };
    steps(dense, l, dp, p, 2, 7, initial, 0, save);
    const auto load = [&](stores& into, const program_view& v) {
      const model_folder folder(dir / "state");
      const state_file file(folder);
      load_weights(folder, v, into);
      load_moments(folder, file.state(), v, into);
    };
    const left got = steps(dense, l, dp, p, 2, 7, load, 2);
    BOOST_TEST((got.moments == want.moments), name);
    BOOST_TEST((got.told == std::vector<double>(want.told.begin() + 4, want.told.end())), name);
  };
  check({}, 1, "one rank");
  check({.tp = 2, .sequence_parallel = true}, 1, "tp 2 sp");
  check({.pp = 2}, 1, "pp 2");
  check({.zero = 1}, 2, "zero 1 dp 2");
}

// A parameter takes four bytes less, beside a few numbers for each parameter of each layer.
BOOST_AUTO_TEST_CASE(moments_take_half_the_memory) {
  const interpreted_program<qwen3> wide(dense, {.batch = {2, 32}, .precision = dtype::bf16}, "p"),
      narrow(dense, {.batch = {2, 32}, .precision = rounding(dtype::bf16)}, "p");
  const registry& r = *narrow.view().stores;
  std::int64_t origins = 0;
  for_each_parameter(narrow.view(), [&](const parameter_ref&) { ++origins; });
  const memory_items a = memory_of_stage(wide.view()), b = memory_of_stage(narrow.view());
  BOOST_TEST(a.moments - b.moments == 4 * r.states - origins * numbers_of_origin * 8);
  BOOST_TEST(a.masters == b.masters);
  BOOST_TEST(stores(narrow.view(), true).bytes() ==
             b.weights + b.gradients + b.masters + b.moments);
}
