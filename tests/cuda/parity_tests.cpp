// Programs for CUDA over the stand-in, on emulated blocks, against what transformers computed: the
// whole path of mc::cuda, and of a run none but its device.
#define BOOST_TEST_MODULE cuda_parity
#include <boost/test/unit_test.hpp>

#include <cuda/emulated_launch.hpp>
#include <cuda/machine.hpp>

#include <megacpp/inspect/memory_need.hpp>
#include <megacpp/inspect/work.hpp>
#include <megacpp/product/cpu_products.hpp>
#include <megacpp/product/cuda/devices.hpp>
#include <megacpp/run/interpreter.hpp>
#include <megacpp/states/state.hpp>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <kernels.hpp>
#include <laws/outcome.hpp>
#include <parity/checks.hpp>
#include <scratch.hpp>

namespace {

template <class Model>
void on_cuda(const Model& m,
             void (*check)(const mc::program_view&, mc::device&, const std::string&),
             const std::string& family) {
  const mc::interpreted_program<Model, mc::cuda> p(m, {.batch = test::tiny_batch}, "tiny");
  test::machine_with_device machine;
  check(p.view(), machine.device(), family);
}

/// Ten steps of the fixture in bf16.
template <class Device, class Model>
test::steps_taken steps_in_bf16(const Model& m, Device& device, const std::string& family) {
  const mc::interpreted_program<Model, Device> p(
      m, {.batch = test::tiny_batch, .precision = mc::dtype::bf16}, "tiny");
  mc::session s(p.view(), device, mc::purpose::training);
  mc::load_model_folder(test::fixtures(family) / "model", p.view(), s.weights());
  return test::take_ten_steps(s, test::fixtures(family));
}
/// Values that bf16 holds are rounded at the same places as on a CPU, but of sums in another order:
/// by a step of bf16, 2^-8, here and there, which averages out over the 96 tokens of a loss. A token
/// whose experts are others for it changes more.
template <class Model>
void in_bf16_as_on_cpus(const Model& m, const std::string& family, bool experts = false,
                        const std::string& at_once = "", const mc::grouped_library& grouped = {},
                        const stand_in::machine& has = {}) {
  test::machine_with_device machine(mc::product_rows::together, false, nullptr, grouped, has);
  mc::cpu cpu(mc::product_type::widened, 1);
  const test::steps_taken mine = steps_in_bf16(m, machine.device(), family),
                          theirs = steps_in_bf16(m, cpu, family);
  double loss = 0, norm = 0;
  BOOST_TEST_REQUIRE(mine.losses.size() == 10u);
  for (std::size_t i = 0; i < 10; ++i) {
    loss = std::max(loss, test::relative(mine.losses[i], theirs.losses[i]));
    norm = std::max(norm, test::relative(mine.norms[i], theirs.norms[i]));
  }
  BOOST_TEST_MESSAGE(family << " in bf16: losses " << loss << ", gradient norms " << norm);
  const std::string by = machine.device().products().describe(mc::dtype::bf16);
  BOOST_TEST((by.find(", products of experts at once by " + at_once) != std::string::npos) ==
                 !at_once.empty(),
             by);
  // On one rank an expert has as many rows on average as the tokens' choices give it.
  for (const mc::product_shape& shape : machine.device().products().shapes())
    if (shape.groups > 0) {
      BOOST_TEST(shape.M == test::tiny_batch.micro * test::tiny_batch.sequence);
      BOOST_TEST(shape.group_rows ==
                 shape.M * test::tiny_qwen3_moe.experts_per_token / shape.groups);
    }
  BOOST_TEST(loss <= (experts ? 4e-3 : 1e-3));
  BOOST_TEST(norm <= (experts ? 4e-2 : 5e-3));
}

/// The loss of 15 tokens before and after a step, of three sequences or packed into two documents each.
template <class Device>
std::pair<double, double> losses_of_few(Device& device, mc::dtype type, bool packed = false) {
  const mc::interpreted_program<mc::gpt, Device> p(
      test::tiny_gpt2, {.batch = {.micro = 3, .sequence = 5, .packed = packed}, .precision = type},
      "tiny");
  mc::session s(p.view(), device, mc::purpose::training);
  s.weights().initialise(1);
  s.numbers().learning_rate = 1e-2;
  std::vector<std::int32_t> tokens(15), labels(15);
  for (int i = 0; i < 15; ++i) {
    tokens[static_cast<std::size_t>(i)] = i * 7 % 128;
    labels[static_cast<std::size_t>(i)] = (i * 7 + 7) % 128;
  }
  mc::batch_view batch;
  batch.tokens = tokens.data(), batch.labels = labels.data();
  const std::vector<std::int32_t> documents{0, 0, 1, 1, 1, 0, 1, 1, 1, 1, 0, 0, 0, 0, 1};
  if (packed) batch.documents = documents.data();
  const double first = s.step(std::vector{batch}).loss.mean();
  return {first, s.step(std::vector{batch}).loss.mean()};
}

/// Losses and gradient norms of steps over three packed sequences of 70 tokens in bf16: documents of
/// one token and of many, one that ends with its sequence, one in two pieces, numbers that are none
/// of a loader, and in each step others.
template <class Device, class Model>
std::vector<double> told_of_documents(const Model& m, Device& device) {
  constexpr std::int32_t S = 70, rows = 3 * S;
  const mc::interpreted_program<Model, Device> p(
      m, {.batch = {.micro = 3, .sequence = S, .packed = true}, .precision = mc::dtype::bf16},
      "tiny");
  mc::session s(p.view(), device, mc::purpose::training);
  s.weights().initialise(1);
  s.numbers().learning_rate = 1e-3;
  std::vector<double> told;
  for (std::int32_t step = 0; step < 4; ++step) {
    std::vector<std::int32_t> tokens, labels, documents;
    for (std::int32_t i = 0; i < rows; ++i) {
      const std::int32_t t = i % S, b = i / S, odd = t % 7;
      tokens.push_back((i * 7 + step) % 128), labels.push_back((i * 7 + step + 7) % 128);
      documents.push_back(step == 0   ? b // one document
                          : step == 1 ? t // of a token each
                          : step == 2 ? (t < 9        ? 0
                                         : t < 10     ? 1
                                         : t < 40     ? 2
                                         : t < 50 + b ? 0
                                                      : 3)
                                      : INT32_MIN + odd * odd % 4); // in turn
    }
    mc::batch_view batch;
    batch.tokens = tokens.data(), batch.labels = labels.data();
    batch.documents = documents.data();
    const mc::step_result r = s.step(batch);
    told.insert(told.end(), {r.loss.mean(), r.norm});
  }
  return told;
}

/// What steps of several micro-batches, an evaluation, and steps without dropping anything give.
template <class Model>
std::vector<double> told_of_steps(mc::cuda& device, const Model& m, int steps, mc::layout ranks) {
  const mc::interpreted_program<Model, mc::cuda> p(
      m,
      {.ranks = ranks,
       .batch = {.micro = 3, .sequence = 5, .micro_batches = ranks.schedule != nullptr ? 4 : 0}},
      "tiny");
  mc::session s(p.view(), device, mc::purpose::training);
  s.weights().initialise(1);
  std::vector<double> told;
  for (int step = 0; step < steps; ++step) {
    std::vector<std::int32_t> tokens(60), labels(60);
    for (std::size_t i = 0; i < 60; ++i) {
      tokens[i] = static_cast<std::int32_t>(i * 7 + static_cast<std::size_t>(step)) % 128;
      labels[i] = (tokens[i] + 7) % 128;
    }
    std::vector<mc::batch_view> batches(step % 4 == 3 ? 4 : 3);
    for (std::size_t k = 0; k < batches.size(); ++k) {
      batches[k].tokens = tokens.data() + 15 * k, batches[k].labels = labels.data() + 15 * k;
      batches[k].first_sample = static_cast<std::int64_t>(3 * k);
    }
    s.numbers().learning_rate = 1e-2 / (step + 1);
    s.numbers().clip = step < 5 ? 1 : 0.5;
    const mc::step_result r = s.step(batches);
    told.insert(told.end(), {r.loss.mean(), r.norm});
    if (step % 2 == 1) {
      told.push_back(s.evaluate(batches).mean());
      told.push_back(s.evaluate(batches, true).mean());
    }
  }
  return told;
}

/// What a session reserves of a device is what its program plans, but for mirrors, which the host has;
/// steps reserve nothing.
template <class Model> void reserves_what_it_plans(const Model& m, mc::dtype type) {
  const mc::interpreted_program<Model, mc::cuda> p(
      m, {.batch = test::tiny_batch, .precision = type}, "tiny");
  test::machine_with_device machine;
  const std::int64_t before = stand_in::count().reserved;
  mc::session s(p.view(), machine.device(), mc::purpose::training);
  const auto reserved = [before] { return stand_in::count().reserved - before; };
  const mc::memory_items& planned = s.planned();
  BOOST_TEST(reserved() == planned.total() - planned.mirrors);
  s.weights().initialise(1);
  const std::vector<std::int32_t> ids(
      static_cast<std::size_t>(test::tiny_batch.micro * test::tiny_batch.sequence), 1);
  mc::batch_view batch;
  batch.tokens = batch.labels = ids.data();
  for (int i = 0; i < 3; ++i) s.step(batch);
  BOOST_TEST(reserved() == planned.total() - planned.mirrors);
}

/// A model of a family that is small, with its own values of the rest.
template <class Model> constexpr Model small() {
  Model m;
  m.layers = 2, m.hidden = 16, m.heads = 2, m.vocabulary = 64, m.positions = 16;
  if constexpr (requires { m.head_dim; }) m.head_dim = 8, m.kv_heads = 1;
  if constexpr (requires { m.experts; }) {
    m.expert_ffn = 8, m.experts = 4, m.experts_per_token = 2;
    m.aux_loss = 0.1, m.bias_rate = 1e-3;
  } else {
    m.ffn = 24;
  }
  return m;
}
constexpr mc::batching small_batch{.micro = 2, .sequence = 16};

/// What two steps of two micro-batches tell and leave on CUDA.
template <class Model>
test::outcome two_steps(const Model& m, const mc::setup& s, bool together = false) {
  stand_in::begin({.seed = test::blocks().streams});
  return test::outcome_of<test::on_gpu>(m, s, 1, 2, {.steps = 2, .together = together});
}
/// It is what they tell and leave on a CPU.
template <class Model> void as_on_cpus(const Model& m, mc::setup s, const char* name) {
  s.batch.micro = small_batch.micro, s.batch.sequence = small_batch.sequence;
  const test::outcome mine = two_steps(m, s), theirs = test::outcome_of(m, s, 1, 2, {.steps = 2});
  if (s.precision.activation == mc::dtype::f32) return test::close_to(mine, theirs, 2e-5, name);
  for (std::size_t i = 0; i < theirs.numbers.size(); ++i) {
    const double off = test::relative(mine.numbers[i], theirs.numbers[i]);
    BOOST_TEST_MESSAGE(name << ": " << (i % 2 == 0 ? "loss " : "norm ") << off);
    BOOST_TEST(off <= (i % 2 == 0 ? 1e-3 : 5e-3), name);
  }
}

/// A session that trains on a device, and the bytes of what it keeps.
template <class Model, class Device> struct trained {
  mc::interpreted_program<Model, Device> program;
  Device& on;
  mc::session run;
  test::batches data;

  trained(const Model& m, const mc::setup& s, Device& device)
      : program(m, s, "tiny"),
        on(device),
        run(program.view(), device, mc::purpose::training),
        data(s, 0) {
    run.weights().initialise(1);
    run.numbers().learning_rate = 1e-2;
  }
  /// Losses and norms of so many steps.
  std::vector<double> steps(int count) {
    std::vector<double> told;
    for (int i = 0; i < count; ++i) {
      const mc::step_result r = run.step(std::vector(2, data.view(0)));
      told.insert(told.end(), {r.loss.mean(), r.norm});
    }
    return told;
  }
  std::string bytes(const std::byte* store, mc::dtype type, std::int64_t count) const {
    std::string all(static_cast<std::size_t>(count * size_of(type)), ' ');
    on.read(all.data(), store, std::ssize(all));
    return all;
  }
  std::string moments() const {
    const mc::stores& s = run.weights();
    const std::int64_t n = s.entries().states;
    return bytes(s.first_moments(), s.precision().moment, n) +
           bytes(s.second_moments(), s.precision().moment, n);
  }
  std::string kept() const {
    const mc::stores& s = run.weights();
    std::string all = bytes(s.weights(), s.precision().weight, s.total()) + moments();
    if (!s.precision().updates_weights())
      all += bytes(s.masters(), s.precision().master, s.entries().states);
    return all;
  }
};

/// What steps tell that go on, on one device, from a state that was saved on another. Not a bit of
/// what is kept is lost.
template <class From, class To, class Model>
std::vector<double> told_across(const Model& m, const mc::setup& s, From& from, To& to) {
  const test::scratch_folder dir;
  trained<Model, From> before(m, s, from);
  std::vector<double> told = before.steps(2);
  {
    mc::folder_writer out(dir / "state");
    mc::write_state(out, before.program.view(), before.run.weights(), {2, 8},
                    nlohmann::json::object());
    out.commit();
  }
  trained<Model, To> behind(m, s, to);
  const mc::model_folder folder(dir / "state");
  const mc::state_file file(folder);
  mc::load_weights(folder, behind.program.view(), behind.run.weights());
  const mc::run_position at =
      mc::load_moments(folder, file.state(), behind.program.view(), behind.run.weights());
  BOOST_TEST(at.step == 2);
  BOOST_TEST((behind.kept() == before.kept()));
  behind.run.numbers().step = at.step;
  const std::vector<double> more = behind.steps(2);
  told.insert(told.end(), more.begin(), more.end());
  return told;
}

/// The host's waits in a step of one micro-batch and in one of three, each the second of its kind,
/// and in an evaluation. Weights stay as they are, so that no product is given a number of rows that
/// it has not been checked with.
template <class Model> std::vector<std::int64_t> waits_of(const Model& m) {
  test::machine_with_device machine;
  trained<Model, mc::cuda> t(m, {.batch = small_batch}, machine.device());
  t.run.numbers().learning_rate = 0;
  const auto waits = [](auto f) {
    f();
    const std::int64_t before = stand_in::count().waits;
    f();
    return stand_in::count().waits - before;
  };
  std::vector<std::int64_t> all;
  for (const int micros : {1, 3}) {
    const std::vector<mc::batch_view> batches(static_cast<std::size_t>(micros), t.data.view(0));
    all.push_back(waits([&] { t.run.step(batches); }));
  }
  all.push_back(waits([&] { t.run.evaluate(t.data.view(0)); }));
  return all;
}

} // namespace

// However many micro-batches a step has, the host waits as often as in an evaluation: for what it
// tells at its end. Of experts it waits for their counts, once a layer and micro-batch.
BOOST_AUTO_TEST_CASE(a_step_waits_for_nothing_before_its_end) {
  auto moe = small<mc::qwen3_moe>();
  moe.bias_rate = 0;
  const auto dense = waits_of(small<mc::gpt>()), experts = waits_of(moe);
  const std::int64_t end = dense[2], each = moe.layers;
  BOOST_TEST(dense == (std::vector{end, end, end}), boost::test_tools::per_element());
  BOOST_TEST(experts == (std::vector{end + each, end + 3 * each, end + each}),
             boost::test_tools::per_element());
}

// Each token that is decoded is one graph, once there is one, and has the logits of kernels that are
// started one by one.
BOOST_AUTO_TEST_CASE(a_decoded_token_is_a_graph) {
  const auto logits = [](bool graphs) {
    test::machine_with_device machine;
    machine.device().keep_work(graphs);
    auto& lane = static_cast<mc::cuda_lane&>(machine.device().main_lane());
    constexpr auto m = small<mc::gpt>();
    trained<mc::gpt, mc::cuda> t(m, {.batch = small_batch}, machine.device());
    mc::generator g(t.program.view(), machine.device(), t.run.weights(),
                    {.sequences = 1, .tokens = m.positions, .prompt = 4});
    std::vector<double> told;
    const auto append = [&](std::vector<std::int32_t> tokens) {
      const std::span<const std::int32_t> all[] = {tokens};
      g.append(all);
      for (std::int32_t v = 0; v < m.vocabulary; ++v) told.push_back(g.logit(0, v));
    };
    append({5, 6, 7, 8});
    append({9}), append({10});
    for (std::int32_t i = 0; i < 6; ++i) {
      const std::int64_t before = lane.graphs_started();
      append({20 + i});
      BOOST_TEST(lane.graphs_started() == before + (graphs ? 1 : 0));
    }
    return told;
  };
  BOOST_TEST(logits(true) == logits(false), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(families_train_as_on_cpus) {
  as_on_cpus(small<mc::llama>(), {}, "Llama");
  as_on_cpus(small<mc::qwen2>(), {}, "Qwen2");
  as_on_cpus(small<mc::llama>(), {.precision = mc::dtype::bf16}, "Llama in bf16");
  as_on_cpus(small<mc::qwen2>(), {.precision = mc::dtype::bf16}, "Qwen2 in bf16");
}
BOOST_AUTO_TEST_CASE(what_shapes_a_step_does_so_as_on_cpus) {
  constexpr auto moe = small<mc::qwen3_moe>();
  as_on_cpus(moe, {.batch = {.expert_rows = 37}}, "experts in rounds of rows");
  auto of_room = moe;
  of_room.capacity = 0.75;
  as_on_cpus(of_room, {}, "experts of a capacity");
  as_on_cpus(small<mc::gpt>(), {.frozen = {"embedding", "attn"}}, "a part that is frozen");
  as_on_cpus(moe, {.frozen = {"mlp.gate", "head"}}, "experts, a part of which is frozen");
  as_on_cpus(small<mc::gpt>(), {.precision = mc::bf16_moments::policy}, "bf16_moments");
}

// Under batch_invariant a step leaves the same bits however its sequences lie in micro-batches.
BOOST_AUTO_TEST_CASE(batch_invariant_steps_have_the_bits_of_their_sequences) {
  const auto same = [](const auto& m) {
    mc::setup s{.batch = small_batch, .sums = mc::numerics::batch_invariant};
    const test::outcome apart = two_steps(m, s);
    s.batch.micro *= 2;
    return two_steps(m, s, true).weights == apart.weights;
  };
  auto moe = small<mc::qwen3_moe>();
  moe.aux_per_sequence = true;
  BOOST_TEST(same(small<mc::gpt>()));
  BOOST_TEST(same(moe));
}

// What is computed again has the same bits, but for GELU alone, which a kernel of its own computes.
BOOST_AUTO_TEST_CASE(full_recomputation_has_the_same_bits) {
  const auto as_once = [](const auto& m, mc::dtype type, mc::recompute again) {
    const auto told = [&](mc::recompute r) {
      return two_steps(m, {.batch = small_batch, .precision = type, .recompute_policy = r});
    };
    const test::outcome a = told(again), once = told(mc::recompute::none);
    return a.numbers == once.numbers && a.weights == once.weights;
  };
  BOOST_TEST(as_once(small<mc::gpt>(), mc::dtype::f32, mc::recompute::full));
  BOOST_TEST(as_once(small<mc::qwen3_moe>(), mc::dtype::bf16, mc::recompute::full));
  BOOST_TEST(!as_once(small<mc::gpt>(), mc::dtype::f32, mc::recompute::selective));
}

// The chance that rounds moments is that of a CPU: they differ where sums in another order lie at
// the other side of a threshold.
BOOST_AUTO_TEST_CASE(moments_are_rounded_as_on_cpus) {
  mc::gpt m = small<mc::gpt>();
  m.bias = false; // that of keys has a gradient of rounding errors
  mc::setup s{.batch = small_batch};
  s.precision.moment = mc::dtype::bf16;
  const auto rounded = [&](auto& device) {
    trained t(m, s, device);
    t.steps(2);
    return t.moments();
  };
  test::machine_with_device machine;
  mc::cpu cpu(mc::product_type::widened, 1);
  const std::string mine = rounded(machine.device()), theirs = rounded(cpu);
  BOOST_TEST_REQUIRE(mine.size() == theirs.size());
  std::size_t others = 0;
  for (std::size_t i = 0; i < mine.size(); i += 2) others += mine.compare(i, 2, theirs, i, 2) != 0;
  BOOST_TEST_MESSAGE(others << " of " << mine.size() / 2 << " moments are rounded to others");
  BOOST_TEST(others <= mine.size() / 2 / 100);
}

// States of bf16, those of experts, too, go from CUDA to a CPU and back.
BOOST_AUTO_TEST_CASE(states_go_from_one_to_the_other) {
  const auto go = [](const auto& m, const char* name) {
    const mc::setup s{.batch = small_batch, .precision = mc::dtype::bf16};
    test::machine_with_device machine;
    mc::cuda& gpu = machine.device();
    mc::cpu cpu(mc::product_type::widened, 1);
    trained whole(m, s, cpu);
    const std::vector<double> want = whole.steps(4);
    for (const auto& told : {told_across(m, s, gpu, cpu), told_across(m, s, cpu, gpu)})
      for (std::size_t i = 0; i < want.size(); ++i) {
        const double off = test::relative(told[i], want[i]);
        BOOST_TEST_MESSAGE(name << ": " << (i % 2 == 0 ? "loss " : "norm ") << off);
        BOOST_TEST(off <= (i % 2 == 0 ? 4e-3 : 4e-2), name);
      }
  };
  go(small<mc::gpt>(), "GPT");
  go(small<mc::qwen3_moe>(), "experts");
}

// Steps that are started as graphs have the bits of steps whose kernels are started one by one: of
// other batches, learning rates, seeds of dropout and numbers of micro-batches each time, and of
// another threshold of clipping, which the graphs hold.
BOOST_AUTO_TEST_CASE(steps_as_graphs_have_the_same_bits) {
  constexpr int steps = 8;
  mc::gpt dropping = test::tiny_gpt2;
  dropping.dropout = 0.1;
  mc::layout one{.at = {}}; // whose micro-batches have the same memory
  const auto told = [&](const auto& m, bool graphs, std::int64_t& started) {
    test::machine_with_device machine;
    machine.device().keep_work(graphs);
    const std::vector<double> r = told_of_steps(machine.device(), m, steps, one);
    started = static_cast<mc::cuda_lane&>(machine.device().main_lane()).graphs_started();
    return r;
  };
  std::int64_t with = 0, without = 0;
  BOOST_TEST(told(dropping, true, with) == told(dropping, false, without),
             boost::test_tools::per_element());
  BOOST_TEST(without == 0);
  BOOST_TEST(with > steps * 3); // of each micro-batch, but for the first ones
  one.schedule = &mc::gpipe;    // each has memory of its own
  BOOST_TEST(told(dropping, true, with) == told(dropping, false, without),
             boost::test_tools::per_element());
  BOOST_TEST(with > steps);
  one.schedule = nullptr;
  // The host waits for the counts of experts, whose tasks are started one by one; the others are not.
  BOOST_TEST(told(test::tiny_qwen3_moe_unbalanced, true, with) ==
                 told(test::tiny_qwen3_moe_unbalanced, false, without),
             boost::test_tools::per_element());
  BOOST_TEST(with > 0);
}

// Another session on the device, which needs more room of the lane, moves it: what was kept before is
// of no use any more.
BOOST_AUTO_TEST_CASE(graphs_do_not_outlive_the_room_that_they_use) {
  const auto told = [](bool graphs) {
    test::machine_with_device machine;
    machine.device().keep_work(graphs);
    const mc::interpreted_program<mc::gpt, mc::cuda> few(
        test::tiny_gpt2, {.batch = {.micro = 2, .sequence = 4}}, "few"),
        many(test::tiny_gpt2, {.batch = {.micro = 8, .sequence = 16}}, "many");
    const std::vector<std::int32_t> ids(128, 3);
    mc::batch_view batch;
    batch.tokens = batch.labels = ids.data();
    const auto session = [&](const auto& p) {
      auto s = std::make_unique<mc::session>(p.view(), machine.device(), mc::purpose::training);
      s->weights().initialise(1), s->numbers().learning_rate = 1e-2;
      return s;
    };
    std::vector<double> losses;
    const auto step = [&](mc::session& s) { losses.push_back(s.step(batch).loss.mean()); };
    const auto first = session(few);
    for (int i = 0; i < 3; ++i) step(*first);
    const mc::lane_room before = machine.device().main_lane().room();
    const auto second = session(many);
    BOOST_TEST(machine.device().main_lane().room().scratch > before.scratch);
    for (int i = 0; i < 3; ++i) step(*first), step(*second);
    return losses;
  };
  BOOST_TEST(told(true) == told(false), boost::test_tools::per_element());
}

// Products want what they read where planned buffers begin, however many rows lie before it.
BOOST_AUTO_TEST_CASE(any_number_of_tokens) {
  test::machine_with_device machine;
  mc::cpu cpu(mc::product_type::widened, 1);
  for (const mc::dtype type : {mc::dtype::f32, mc::dtype::bf16, mc::dtype::f64}) {
    const auto mine = losses_of_few(machine.device(), type), theirs = losses_of_few(cpu, type);
    const double bound = type == mc::dtype::bf16 ? 2e-3 : type == mc::dtype::f32 ? 1e-5 : 1e-12;
    BOOST_TEST(test::relative(mine.first, theirs.first) <= bound);
    BOOST_TEST(test::relative(mine.second, theirs.second) <= bound);
    BOOST_TEST(mine.second < mine.first);
    // GELU is computed in the products, but for fp64: fc1's in training, and what goes back to it.
    const std::string by = machine.device().products().describe(type);
    BOOST_TEST((by.find(", with a kernel for GELU behind 2 products") != std::string::npos) ==
                   (type == mc::dtype::f64),
               by);
  }
}

// cuDNN computes attention where tokens stand at 0, 1, 2, ..., also of several documents.
BOOST_AUTO_TEST_CASE(documents_in_bf16) {
  for (const bool packed : {false, true}) {
    test::machine_with_device machine;
    mc::cpu cpu(mc::product_type::widened, 1);
    const auto mine = losses_of_few(machine.device(), mc::dtype::bf16, packed),
               theirs = losses_of_few(cpu, mc::dtype::bf16, packed);
    BOOST_TEST(test::relative(mine.first, theirs.first) <= 2e-3);
    BOOST_TEST(test::relative(mine.second, theirs.second) <= 2e-3);
    const mc::attention_source& by = *machine.device().attention();
    BOOST_TEST(by.describe() ==
               "by cuDNN " + mc::dotted_version(CUDNN_VERSION) + ", deterministic");
    for (const std::string& why : by.left()) BOOST_ERROR(why);
  }
}
BOOST_AUTO_TEST_CASE(steps_of_packed_documents) {
  const auto near = [](const auto& m) {
    test::machine_with_device machine;
    mc::cpu cpu(mc::product_type::widened, 1);
    const auto mine = told_of_documents(m, machine.device()), theirs = told_of_documents(m, cpu);
    for (std::size_t i = 0; i < theirs.size(); ++i) {
      const double off = test::relative(mine[i], theirs[i]);
      BOOST_TEST_MESSAGE((i % 2 == 0 ? "loss " : "norm ") << theirs[i] << " " << off);
      BOOST_TEST(off <= (i % 2 == 0 ? 1e-3 : 5e-3));
    }
    BOOST_TEST(machine.device().attention()->left().empty());
    return theirs;
  };
  mc::qwen3 windowed = test::tiny_qwen3;
  windowed.positions = 128;
  const auto whole = near(windowed);
  windowed.window = 11;
  BOOST_TEST(near(windowed) != whole);
  mc::gpt gpt = test::tiny_gpt2;
  gpt.positions = 128;
  near(gpt);
}
BOOST_AUTO_TEST_CASE(in_bf16_gpt2) { in_bf16_as_on_cpus(test::tiny_gpt2, "gpt2"); }
BOOST_AUTO_TEST_CASE(in_bf16_qwen3) { in_bf16_as_on_cpus(test::tiny_qwen3, "qwen3"); }
BOOST_AUTO_TEST_CASE(in_bf16_qwen3_moe) {
  in_bf16_as_on_cpus(test::tiny_qwen3_moe_unbalanced, "qwen3_moe", true);
}
BOOST_AUTO_TEST_CASE(in_bf16_qwen3_moe_with_experts_at_once) {
  in_bf16_as_on_cpus(test::tiny_qwen3_moe_unbalanced, "qwen3_moe", true, "CUTLASS", test::cutlass);
  in_bf16_as_on_cpus(test::tiny_qwen3_moe_unbalanced, "qwen3_moe", true, "cuBLASLt", test::cutlass,
                     test::with_grouped_cublaslt);
}

BOOST_AUTO_TEST_CASE(gpt2_logits_and_loss) {
  on_cuda(test::tiny_gpt2, &test::check_logits_and_loss, "gpt2");
}
BOOST_AUTO_TEST_CASE(gpt2_gradients) { on_cuda(test::tiny_gpt2, &test::check_gradients, "gpt2"); }
BOOST_AUTO_TEST_CASE(gpt2_ten_steps) { on_cuda(test::tiny_gpt2, &test::check_ten_steps, "gpt2"); }
BOOST_AUTO_TEST_CASE(qwen3_logits_and_loss) {
  on_cuda(test::tiny_qwen3, &test::check_logits_and_loss, "qwen3");
}
BOOST_AUTO_TEST_CASE(qwen3_gradients) {
  on_cuda(test::tiny_qwen3, &test::check_gradients, "qwen3");
}
BOOST_AUTO_TEST_CASE(qwen3_ten_steps) {
  on_cuda(test::tiny_qwen3, &test::check_ten_steps, "qwen3");
}
BOOST_AUTO_TEST_CASE(qwen3_moe_logits_and_loss) {
  on_cuda(test::tiny_qwen3_moe_unbalanced, &test::check_logits_and_loss, "qwen3_moe");
}
BOOST_AUTO_TEST_CASE(qwen3_moe_gradients) {
  on_cuda(test::tiny_qwen3_moe_unbalanced, &test::check_gradients, "qwen3_moe");
}
BOOST_AUTO_TEST_CASE(qwen3_moe_ten_steps) {
  on_cuda(test::tiny_qwen3_moe_unbalanced, &test::check_ten_steps, "qwen3_moe");
}

BOOST_AUTO_TEST_CASE(a_session_reserves_what_it_plans) {
  for (const mc::dtype type : {mc::dtype::f32, mc::dtype::bf16}) {
    reserves_what_it_plans(test::tiny_gpt2, type);
    reserves_what_it_plans(test::tiny_qwen3_moe, type);
  }
}

// The head's weight is larger than all values of two tokens, and its check has memory of its own then.
BOOST_AUTO_TEST_CASE(what_checks_take_beside_the_plan_is_needed) {
  const auto is_counted = [](const auto& m, mc::dtype type, int tokens = 2) {
    const mc::interpreted_program<std::decay_t<decltype(m)>, mc::cuda> p(
        m, {.batch = {.micro = 1, .sequence = tokens}, .precision = type}, "tiny");
    const auto counts = mc::make_cuda_device(typeid(mc::cuda), {.threads = 1, .sizes_alone = true});
    const std::int64_t needed =
        mc::need_of(p.view(), mc::planned_work::training, mc::mesh::one_rank(), *counts).largest;
    stand_in::begin({.bytes = static_cast<std::size_t>(needed), .cublaslt = CUBLAS_VERSION});
    const auto on = mc::make_cuda_device(typeid(mc::cuda), {.threads = 1});
    const mc::session s(p.view(), *on, mc::purpose::training);
    BOOST_TEST(stand_in::count().most_reserved > s.planned().total());
    if (tokens > 2) BOOST_TEST(s.planned().values() > mc::product_speed::bytes_of(type));
    const mc::product_speed measured(*on, type);
    BOOST_TEST(stand_in::count().most_reserved <= needed);
  };
  mc::gpt m = test::tiny_gpt2;
  m.vocabulary = 1 << 15;
  is_counted(m, mc::dtype::f32);
  is_counted(m, mc::dtype::bf16);
  m.hidden = 192, m.positions = 96; // now the values are more than the product that is measured
  is_counted(m, mc::dtype::bf16, 96);
  // A kernel for all experts is checked with four of their matrices.
  auto moe = small<mc::qwen3_moe>();
  moe.expert_ffn = 1 << 15, moe.experts = 2, moe.experts_per_token = 1;
  is_counted(moe, mc::dtype::bf16);
}
