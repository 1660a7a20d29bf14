// A training run on ranks that are threads, with its files, ends where that of one rank does,
// whatever the layout; and one that stops and goes on has the same bits as one that did not.
#define BOOST_TEST_MODULE runs_of_ranks
#include <boost/test/unit_test.hpp>

#include <megacpp/cli/commands.hpp>
#include <megacpp/product/devices.hpp>
#include <megacpp/run/interpreter.hpp>

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <kernels.hpp>
#include <laws/flagged_run.hpp>
#include <scratch.hpp>

using namespace mc;

namespace {

constexpr int sequence = 24, global_batch = 8;

constexpr gpt tied_gpt{.layers = 4,
                       .hidden = 32,
                       .heads = 4,
                       .ffn = 64,
                       .vocabulary = 101,
                       .positions = sequence,
                       .dropout = 0.2};
constexpr qwen3_moe mixture = [] {
  qwen3_moe m;
  m.layers = 2, m.hidden = 32, m.heads = 4, m.kv_heads = 2, m.head_dim = 16, m.ffn = 48;
  m.expert_ffn = 24, m.experts = 4, m.experts_per_token = 2, m.mlp_only = {0};
  m.bias_rate = 0.001, m.shared_ffn = 16, m.router_z_loss = 0.01, m.vocabulary = 101;
  return m;
}();

/// Trains as one process does: a program in this layout, on as many replicas as the flags say.
template <class Model> void train(const Model& m, const layout& l, int dp, dtype type,
                                  const std::string& data, test::flag_values flags, int micro = 2) {
  const interpreted_program<Model> program(
      m, {.ranks = l, .batch = {.micro = micro, .sequence = sequence}, .precision = type},
      "laid out");
  const mesh ranks = mesh_of(l, dp);
  flags.insert(flags.end(), {{"data-path", data},
                             {"tokenizer-type", "byte"},
                             {"global-batch-size", std::to_string(global_batch)},
                             {"lr", "1e-2"},
                             {"lr-decay-iters", "20"},
                             {"weight-decay", "0.1"},
                             {"clip-grad", "0.5"},
                             {"product-type", "widened"}, // and not what a measurement says
                             {"eval-iters", "2"},
                             {"eval-interval", "2"},
                             {"check-collectives", "true"},
                             {"ranks", std::to_string(ranks_of(ranks))}});
  options o = test::options_of(flags);
  BOOST_TEST((ranks_of_run(program.view(), static_cast<int>(o.machine.ranks())) == ranks));
  training_start start = prepare_start(program.view(), o);
  process_ranks alone;
  detail::compute(ranks, program.view(), command::train, o,
                  detail::request_of(ranks, program.view(), command::train, o), std::move(start),
                  alone, make_device);
}

/// Returns the largest difference between the numbers of two files of tensors, relative to the
/// largest number of each tensor; more than 1 for other tensors.
double difference(const std::string& root, const std::string& other, int step, const char* file) {
  const auto path = [&](const std::string& r) { return r + "/" + step_folder_name(step); };
  const model_folder a(path(root)), b(path(other));
  const safetensors_file x(a.open(file)), y(b.open(file));
  if (x->size() != y->size()) return 2;
  double most = 0;
  for (std::size_t i = 0; i < x->size(); ++i) {
    const file_tensor &t = x.tensors()[i], &u = y.tensors()[i];
    if (t.name != u.name || t.bytes.size() != u.bytes.size()) return 2;
    std::vector<double> v(t.bytes.size() / static_cast<std::size_t>(bits_of(t.type) / 8)), w(v);
    read_values(t, std::span(v)), read_values(u, std::span(w));
    double largest = 1e-3, apart = 0;
    for (std::size_t k = 0; k < v.size(); ++k)
      largest = std::max(largest, std::abs(v[k])), apart = std::max(apart, std::abs(v[k] - w[k]));
    most = std::max(most, apart / largest);
  }
  return most;
}

template <class Model>
void ends_as_one_rank(const Model& m, const layout& l, int dp, const std::string& rampup = "") {
  const test::scratch_folder dir;
  test::write_text(dir / "text", test::text_of_101_bytes());
  const auto run = [&](const layout& ranks, int replicas, const char* to) {
    test::flag_values flags{{"train-iters", "4"}, {"save", dir / to}};
    if (!rampup.empty()) flags.emplace_back("rampup-batch-size", rampup);
    train(m, ranks, replicas, dtype::f64, dir / "text", flags);
  };
  run({}, 1, "one"), run(l, dp, "many");
  for (const char* file : {"model.safetensors", "optimizer.safetensors"}) {
    const double apart = difference(dir / "one", dir / "many", 4, file);
    BOOST_TEST(apart <= 1e-9, file << " differs by " << apart << " under tp " << l.tp << " pp "
                                   << l.pp << " cp " << l.cp << " ep " << l.ep << " zero " << l.zero
                                   << " dp " << dp);
  }
}

template <class Model> void goes_on(const Model& m, const layout& l, int dp, dtype type) {
  const test::scratch_folder dir;
  test::write_text(dir / "text", test::text_of_101_bytes());
  const auto run = [&](const char* to, const char* steps, bool loads) {
    test::flag_values flags{{"train-iters", steps}, {"save", dir / to}};
    if (loads) flags.emplace_back("load", dir / to);
    train(m, l, dp, type, dir / "text", flags);
  };
  run("whole", "5", false);
  run("parts", "2", false), run("parts", "5", true);
  for (const char* file : {"model.safetensors", "optimizer.safetensors"})
    BOOST_TEST(difference(dir / "whole", dir / "parts", 5, file) == 0, file);
}

/// Returns the results of an evaluation behind two steps: its loss, and the number of tokens.
std::pair<double, std::int64_t> validated(const layout& l, int dp, int micro) {
  const test::scratch_folder dir;
  test::write_text(dir / "text", test::text_of_101_bytes());
  train(tied_gpt, l, dp, dtype::f64, dir / "text",
        {{"train-iters", "2"}, {"save", dir / "to"}, {"split", "70,30"}}, micro);
  const state_file state(model_folder((dir / "to") + "/" + step_folder_name(2)));
  const auto v = state.state().field<json_value>("validation");
  return {v.field<double>("loss"), v.field<std::int64_t>("tokens")};
}

/// Tests steps of 2, 2, 4, 6, 8, 8 sequences: START and an INCREMENT for every 4 of the first 12
/// samples. A run that goes on has its place in the data, and the flag, from the state.
void grows() {
  const test::scratch_folder dir;
  test::write_text(dir / "text", test::text_of_101_bytes());
  const auto run = [&](const char* to, const char* steps, bool loads) {
    test::flag_values flags{{"train-iters", steps}, {"save", dir / to}};
    if (loads) flags.emplace_back("load", dir / to);
    else flags.emplace_back("rampup-batch-size", "2 2 12");
    train(tied_gpt, {.pp = 2}, 1, dtype::f32, dir / "text", flags);
  };
  const auto consumed = [&](const char* root, int step) {
    const state_file state(model_folder((dir / root) + "/" + step_folder_name(step)));
    return state.state().field<std::int64_t>("consumed_samples");
  };
  run("whole", "6", false);
  BOOST_TEST(consumed("whole", 6) == 2 + 2 + 4 + 6 + 8 + 8);
  int sum = 0;
  for (const auto& [step, batches] : {std::pair{1, 2}, {3, 2 + 4}, {4, 6}}) {
    run("parts", std::to_string(step).c_str(), step > 1);
    BOOST_TEST(consumed("parts", step) == (sum += batches));
  }
  run("parts", "6", true);
  for (const char* file : {"model.safetensors", "optimizer.safetensors"})
    BOOST_TEST(difference(dir / "whole", dir / "parts", 6, file) == 0, file);
}

} // namespace

// Two batches of 75 windows are evaluated, which do not depend on micro-batch or layout.
BOOST_AUTO_TEST_CASE(an_evaluation_measures_the_same_text_for_any_micro_batch_and_layout) {
  const auto [loss, tokens] = validated({}, 1, 1);
  BOOST_TEST(tokens == 2 * global_batch * sequence);
  for (const auto& [l, dp, micro] : {std::tuple(layout{}, 1, 2), std::tuple(layout{}, 1, 8),
                                     std::tuple(layout{}, 2, 4), std::tuple(layout{.tp = 2}, 2, 1)})
    BOOST_TEST_CONTEXT("tp " << l.tp << " dp " << dp << " micro-batch " << micro) {
      const auto other = validated(l, dp, micro);
      BOOST_TEST(other.second == tokens);
      BOOST_TEST(std::abs(other.first - loss) <= 1e-9 * loss, other.first << " and " << loss);
    }
}

BOOST_AUTO_TEST_CASE(a_run_of_several_ranks_ends_as_that_of_one) {
  ends_as_one_rank(tied_gpt, {}, 2);
  ends_as_one_rank(tied_gpt, {.zero = 1}, 4);
  ends_as_one_rank(tied_gpt, {.tp = 2, .sequence_parallel = true}, 1);
  ends_as_one_rank(tied_gpt, {.pp = 4}, 1);
  ends_as_one_rank(tied_gpt, {.pp = 2, .virtual_stages = 2}, 1);
  ends_as_one_rank(tied_gpt, {.pp = 3, .cut = {.layers = {0, 3, 1}}, .zero = 1}, 2);
  ends_as_one_rank(tied_gpt, {.tp = 2, .pp = 2, .cp = 2, .sequence_parallel = true, .zero = 1}, 2);
  ends_as_one_rank(mixture, {.ep = 2, .zero = 1}, 2);
  ends_as_one_rank(mixture, {.tp = 2, .pp = 2, .ep = 2, .etp = 2, .sequence_parallel = true}, 2);
}

BOOST_AUTO_TEST_CASE(a_batch_grows_with_the_samples_of_the_run) {
  grows();
  ends_as_one_rank(tied_gpt, {.zero = 1}, 2, "4 4 6");
}

BOOST_AUTO_TEST_CASE(a_run_of_ranks_that_stops_and_goes_on_has_the_bits_of_one_that_did_not) {
  goes_on(tied_gpt, {.tp = 2, .pp = 2, .sequence_parallel = true, .zero = 1}, 2, dtype::bf16);
  goes_on(tied_gpt, {.pp = 2, .virtual_stages = 2, .zero = 1}, 2, dtype::f32);
  goes_on(mixture, {.tp = 2, .ep = 2, .etp = 2, .zero = 1}, 2, dtype::f32);
}

BOOST_AUTO_TEST_CASE(ranks_that_no_number_of_replicas_makes_are_refused) {
  const interpreted_program<qwen3_moe> p(
      mixture, {.ranks = {.tp = 2, .ep = 4, .etp = 1}, .batch = {2, sequence}}, "wide");
  const auto asked = [&](int n, int processes = 1) { return ranks_of_run(p.view(), n, processes); };
  BOOST_TEST((asked(0) == mesh_of(p.view().numbers.ranks, 2))); // two replicas share the experts
  BOOST_TEST((asked(8) == mesh_of(p.view().numbers.ranks, 4)));
  const auto refused = test::refusal_of([&] { static_cast<void>(asked(6)); });
  BOOST_REQUIRE(refused);
  BOOST_TEST((refused->code == exit_code::mismatch && refused->says("a multiple of 4")));
  // The number of processes is the one that a launcher has started.
  BOOST_TEST((asked(0, 12) == mesh_of(p.view().numbers.ranks, 6)));
  BOOST_TEST((asked(8, 8) == mesh_of(p.view().numbers.ranks, 4)));
  for (const auto& [n, says] :
       {std::pair(0,
                  "6 processes were started, but they must be a "
                  "multiple of 4, such as 4 or 8: wide is laid out over tp 2"),
        std::pair(4, "--ranks is 4, but 6 processes were started")}) {
    const auto other = test::refusal_of([&, asks = n] { static_cast<void>(asked(asks, 6)); });
    BOOST_REQUIRE(other);
    BOOST_TEST((other->code == exit_code::mismatch && other->says(says)));
  }
}
