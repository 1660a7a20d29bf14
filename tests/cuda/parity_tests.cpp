// Programs for CUDA over the stand-in, on emulated blocks, against what transformers computed: the
// whole path of mc::cuda, and of a run none but its device.
#define BOOST_TEST_MODULE cuda_parity
#include <boost/test/unit_test.hpp>

#include <cuda/emulated_launch.hpp>
#include <cuda/machine.hpp>

#include <megacpp/cli/memory_check.hpp>
#include <megacpp/inspect/work.hpp>
#include <megacpp/product/cpu_products.hpp>
#include <megacpp/product/cuda/devices.hpp>
#include <megacpp/run/interpreter.hpp>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <kernels.hpp>
#include <parity/checks.hpp>

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
  return test::take_ten_steps(s, family);
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

} // namespace

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
  mc::gpt m = test::tiny_gpt2;
  m.vocabulary = 1 << 15;
  for (const mc::dtype type : {mc::dtype::f32, mc::dtype::bf16}) {
    const mc::interpreted_program<mc::gpt, mc::cuda> p(
        m, {.batch = {.micro = 1, .sequence = 2}, .precision = type}, "tiny");
    const auto counts = mc::make_cuda_device(typeid(mc::cuda), {.threads = 1, .sizes_alone = true});
    const std::int64_t needed =
        mc::need_of(p.view(), mc::command::train, mc::mesh::one_rank(), *counts).largest;
    stand_in::begin({.bytes = static_cast<std::size_t>(needed), .cublaslt = CUBLAS_VERSION});
    const auto on = mc::make_cuda_device(typeid(mc::cuda), {.threads = 1});
    const mc::session s(p.view(), *on, mc::purpose::training);
    BOOST_TEST(stand_in::count().most_reserved > s.planned().total());
    const mc::product_speed measured(*on, type);
    BOOST_TEST(stand_in::count().most_reserved <= needed);
  }
}
