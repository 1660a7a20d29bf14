// Training, evaluation and generation on devices whose memory the host cannot see, and on devices
// that do their work later. Between launches run/ uses the device's functions, and no kernel reads
// the memory on the host, so a device with memory of its own can take the place of the CPU.
#define BOOST_TEST_MODULE guarded_device
#include <boost/test/unit_test.hpp>

#include "guarded_device.hpp"
#include "seen_number.hpp"

#include <megacpp/comm/threads.hpp>
#include <megacpp/generate/generator.hpp>
#include <megacpp/model/gpt.hpp>
#include <megacpp/model/llama.hpp>
#include <megacpp/model/qwen3_moe.hpp>
#include <megacpp/options/requests.hpp>
#include <megacpp/product/cpu_products.hpp>
#include <megacpp/run/compiled.hpp>
#include <megacpp/run/session.hpp>
#include <megacpp/states/state_root.hpp>
#include <megacpp/train/evaluate.hpp>
#include <megacpp/train/trainer.hpp>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <kernels.hpp>
#include <laws/flagged_run.hpp>
#include <scratch.hpp>

#include <sys/wait.h>
#include <unistd.h>

using namespace mc;
using mc_test::device_counts;
using mc_test::guarded_device;
using mc_test::guarded_lane;
using mc_test::hosts_beside_device;
using mc_test::ranks_of_device;

namespace {

constexpr int sequence = 16, vocabulary = 17;

struct seeing : gpt {
  static constexpr family_name<seeing> family{"seeing"};
  constexpr var block(context& c, int kind, var x) const {
    const var y = gpt::block(c, kind, x), n{c.b, c.b->emit(mc_test::made_number, {y.id}, 0)},
              a = weight(c, "shift", "a", {hidden_extent()}, {}, normal_weights(std));
    return add_bias(y + var{c.b, c.b->emit(mc_test::filled, {y.id, n.id}, 0)},
                    var{c.b, c.b->emit(mc_test::taken, {n.id, a.id}, 0)});
  }
};

constexpr gpt dense() {
  gpt m;
  m.layers = 2, m.hidden = 16, m.heads = 4, m.ffn = 20, m.vocabulary = vocabulary;
  m.positions = sequence, m.dropout = 0.1;
  return m;
}
constexpr qwen3_moe mixture(int experts = 5) {
  qwen3_moe m;
  m.layers = 2, m.hidden = 16, m.heads = 4, m.kv_heads = 2, m.head_dim = 4, m.ffn = 20;
  m.expert_ffn = 8, m.experts = experts, m.experts_per_token = 2, m.vocabulary = vocabulary;
  m.positions = sequence, m.aux_loss = 0.1, m.bias_rate = 1e-3;
  return m;
}
/// A model with biases, untied, and with another norm, feed-forward and positions than the dense
/// one.
constexpr llama biased() {
  llama m;
  m.layers = 2, m.hidden = 16, m.heads = 4, m.kv_heads = 2, m.head_dim = 4, m.ffn = 20;
  m.vocabulary = vocabulary, m.positions = sequence, m.attention_bias = m.mlp_bias = true;
  m.tied = false;
  return m;
}

/// A family whose second block only adds a term to the stream that is computed from two parameters.
struct shifted : gpt {
  static constexpr family_name<shifted> family{"shifted"};
  static constexpr int kinds = 2;
  constexpr int kind_of(int layer) const { return layer; }
  constexpr var block(context& c, int kind, var x) const {
    if (kind == 0) return gpt::block(c, kind, x);
    const var a = weight(c, "shift", "a", {hidden_extent()}, {}, normal_weights(std)),
              b = weight(c, "shift", "b", {hidden_extent()}, {}, normal_weights(std));
    return add_bias(x, a + gelu(b));
  }
};

/// Returns the elements of a store.
std::vector<double> elements(memory_space& of, const std::byte* store, dtype t, std::int64_t n) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(n * size_of(t)));
  of.read(bytes.data(), store, std::ssize(bytes));
  std::vector<double> all;
  for (std::int64_t i = 0; i < n; ++i) all.push_back(stores::get(bytes.data(), t, i));
  return all;
}
/// Returns all results of a rank of a run: losses, norms, weights, logits.
std::vector<double> told(const program_view& p, device& on, communicator& c) { // of ranks
  std::vector<double> all;
  session s(p, on, purpose::training, c);
  s.weights().initialise(3);
  s.numbers().learning_rate = 1e-2, s.numbers().weight_decay = 0.1, s.numbers().clip = 0.5;
  std::vector<std::int32_t> tokens, labels, positions, documents;
  for (int i = 0; i < 8 * sequence; ++i) {
    tokens.push_back(i * i % vocabulary), labels.push_back((i + 1) * (i + 1) % vocabulary);
    positions.push_back(i % sequence % 9), documents.push_back(i / sequence * 2 + i % sequence / 9);
  }
  std::vector<batch_view> batches;
  const int mine = 8 / c.over(axis::dp).size();
  for (int n = 0; n < mine; n += p.numbers.batch.micro) {
    const int first = c.over(axis::dp).rank() * mine + n;
    batch_view& b = batches.emplace_back();
    b.tokens = tokens.data() + first * sequence, b.labels = labels.data() + first * sequence;
    b.first_sample = first;
    if (!p.numbers.batch.packed) continue;
    b.positions = positions.data() + first * sequence;
    b.documents = documents.data() + first * sequence;
  }
  for (int step = 0; step < 3; ++step) {
    all.push_back(s.evaluate(batches).sum);
    const step_result r = s.step(batches);
    if (!r.applied || !r.finite || r.norm <= 0.5) // on the thread of a rank
      throw std::logic_error("a step was not applied, or not clipped");
    all.insert(all.end(), {r.loss.sum, r.loss.count, r.loss.side, r.norm});
  }
  const auto tell = [&](const std::byte* store, dtype t, std::int64_t n) {
    const std::vector<double> x = elements(on, store, t, store != nullptr ? n : 0);
    all.insert(all.end(), x.begin(), x.end());
  };
  const precision_policy& roles = s.weights().precision();
  tell(s.weights().weights(), roles.weight, s.weights().total());
  tell(s.weights().masters(), roles.master, s.weights().entries().states);
  generator g(s.program(), on, s.weights(), {.sequences = 2, .tokens = sequence, .prompt = 5}, c);
  const std::vector<std::int32_t> prompts[] = {{1, 2, 3, 4, 5}, {7, 8}};
  std::vector<std::span<const std::int32_t>> more{prompts[0], prompts[1]};
  const std::int32_t next[] = {9, 11};
  for (int step = 0; step < 4; ++step) {
    g.append(more);
    for (int b = 0; b < 2; ++b)
      for (int t = 0; t < g.vocabulary(); ++t) all.push_back(g.logit(b, t));
    for (unsigned b = 0; b < 2; ++b) more[b] = {next + b, 1};
  }
  return all;
}

/// Ops whose kernels a test has launched.
std::set<std::string> launched;
std::mutex launched_mutex;

std::string text_of(const std::set<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : " ") + name;
  return text;
}
/// Returns the names in a that are not in b.
std::set<std::string> without(const std::set<std::string>& a, const std::set<std::string>& b) {
  std::set<std::string> left;
  for (const std::string& name : a)
    if (b.count(name) == 0) left.insert(name);
  return left;
}
const std::set<std::string> products_of_experts{"grouped_linear", "grouped_input_grad",
                                                "grouped_weight_grad"};

/// Checks that every rank has the results of the CPU on a device that is closed and on one that
/// defers. Returns the largest number of trips of a region.
template <class Program, class Guarded>
std::int32_t check(const Program& plain, const Guarded& guarded, const setup& s, int dp) {
  const mesh ranks = mesh_of(s.ranks, dp);
  const int count = ranks_of(ranks), threads = count == 1 ? 2 : 1;
  std::vector<std::vector<double>> want(static_cast<unsigned>(count)), got = want;
  std::int32_t trips = 0;
  const auto on_ranks = [&](auto run) {
    if (count == 1) run(self::hosts());
    else thread_ranks(ranks, std::chrono::seconds(60)).run(run);
  };
  on_ranks([&](communicator& c) {
    cpu open(product_type::widened, threads, product_rows::apart);
    const auto others = c.make_ranks(open);
    want[static_cast<unsigned>(c.rank())] = told(plain, open, *others);
  });
  for (const bool deferring : {false, true}) {
    std::vector<device_counts> counts(want.size());
    on_ranks([&](communicator& c) {
      guarded_device closed(product_type::widened, threads, product_rows::apart);
      if (deferring) closed.defer();
      ranks_of_device others(c, closed);
      const auto r = static_cast<unsigned>(c.rank());
      got[r] = told(guarded, closed, others);
      counts[r] = closed.counts();
      const std::lock_guard lock(launched_mutex);
      for (const auto& [op, n] : counts[r].launched) launched.insert(op);
      trips = std::max(trips, closed.most_trips());
    });
    for (std::size_t r = 0; r < got.size(); ++r) {
      BOOST_TEST(got[r].size() > 100u);
      BOOST_TEST(counts[r].bodies > (count == 1 ? 500 : 300));
      // Only products of no rows start nothing.
      BOOST_TEST(text_of(without(counts[r].idle, products_of_experts)) == "");
      BOOST_TEST((got[r] == want[r]),
                 "rank " << r << " of " << count << (deferring ? ", deferring" : ""));
    }
  }
  return trips;
}
template <class Model> std::int32_t check(const Model& m, const setup& s, int dp = 1) {
  const interpreted_program<Model> plain(m, s, "plain");
  const interpreted_program<Model, guarded_device> guarded(m, s, "guarded");
  return check(plain.view(), guarded.view(), s, dp);
}

/// Returns whether a process that reads an address is stopped by it.
bool crashes(const std::byte* at) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGSEGV, SIG_DFL);
    ::_exit(*reinterpret_cast<const volatile char*>(at) == 0 ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV;
}

/// The mixture, in rounds, as a compiled program.
struct compiled_mixture {
  static constexpr qwen3_moe model = mixture();
  static constexpr mc::layout layout{};
  static constexpr batching batch{2, sequence, false, 9};
  using precision = fp32;
};
struct closed_mixture : compiled_mixture {
  using device = guarded_device;
};
constexpr setup compiled_numbers{.batch = compiled_mixture::batch};

/// Checks a family with ops of its own: one has a mirror outside of any region, and no op adds the
/// gradient of a parameter by itself.
void check_own() {
  seeing m;
  static_cast<gpt&>(m) = dense();
  const setup s{.batch = {2, sequence}};
  const auto with_own = [](auto table) {
    table.template add<&mc_test::made_number, float>();
    table.template add<&mc_test::filled, float>();
    table.template add<&mc_test::taken, float>();
    return table;
  };
  const interpreted_program<seeing> open(m, s, "plain", with_own(kernel_table<cpu>::all()));
  const interpreted_program<seeing, guarded_device> closed(
      m, s, "guarded", with_own(kernel_table<guarded_device>::all()));
  check(open.view(), closed.view(), s, 1);
}

} // namespace

BOOST_AUTO_TEST_CASE(a_run_is_the_same_where_the_host_sees_nothing) {
  const mc_test::looks_are_told here;
  for (const dtype t : {dtype::f32, dtype::bf16}) {
    BOOST_TEST(check(dense(), {.batch = {2, sequence}, .precision = t}) == 0);
    BOOST_TEST(check(mixture(), {.batch = {2, sequence, false, 9}, .precision = t}) > 2);
    BOOST_TEST(
        check(mixture(),
              {.batch = {4, sequence}, .precision = t, .recompute_policy = recompute::full}) == 1);
    for (const numerics sums : {numerics::fast, numerics::batch_invariant}) {
      setup s{.batch = {2, sequence}, .precision = t, .sums = sums};
      check(biased(), s);
      s.batch.packed = true;
      check(biased(), s);
      check(mixture(), s);
    }
  }
  shifted two;
  static_cast<gpt&>(two) = dense();
  check(two, {.batch = {2, sequence}});
  check(dense(), {.batch = {2, sequence}, .sums = numerics::batch_invariant});
  check(dense(), {.batch = {2, sequence}, .precision = dtype::f64});
  check(mixture(), {.batch = {2, sequence}, .precision = dtype::f64});
  check(dense(), {.ranks = {.tp = 2, .sequence_parallel = true}, .batch = {2, sequence}});
  check(biased(), {.ranks = {.tp = 4}, .batch = {2, sequence}}); // two ranks share a head of keys
  check(dense(), {.ranks = {.pp = 2}, .batch = {2, sequence}, .precision = dtype::bf16});
  check(dense(), {.ranks = {.zero = 1}, .batch = {2, sequence}, .precision = dtype::bf16}, 2);
  check(dense(), {.ranks = {.cp = 2, .zero = 1}, .batch = {2, sequence}}, 2);
  check(biased(), {.ranks = {.tp = 2, .pp = 2}, .batch = {2, sequence, true}});
  check(mixture(6), {.ranks = {.ep = 2}, .batch = {2, sequence, false, 9}}, 2);
  check(mixture(6),
        {.ranks = {.tp = 2, .pp = 2, .ep = 2, .etp = 2, .sequence_parallel = true},
         .batch = {2, sequence}},
        2);
  qwen3_moe dropping = mixture(6);
  dropping.capacity = 1;
  check(dropping, {.batch = {2, sequence}, .precision = dtype::bf16});
  check(dropping,
        {.ranks = {.ep = 2},
         .batch = {2, sequence},
         .precision = dtype::bf16,
         .sums = numerics::batch_invariant},
        2);
  check(mixture(6),
        {.ranks = {.tp = 2, .etp = 2}, .batch = {2, sequence}, .precision = dtype::bf16});
  constexpr lora adapter{.rank = 2, .alpha = 64, .base = base_storage::nf4};
  for (const dtype t : {dtype::f32, dtype::bf16})
    check(biased(), {.batch = {2, sequence}, .precision = t, .adapter = adapter});
  check(compiled_program<compiled_mixture>("plain"), compiled_program<closed_mixture>("guarded"),
        compiled_numbers, 1);
  check_own();
  std::set<std::string> ops;
  kernel_table<cpu>::all().each([&](const op_info* op, dtype) { ops.insert(op->name); });
  BOOST_TEST(text_of(without(ops, launched)) == "");
}

namespace {

/// A family that transformers does not know: its states have the registry's names.
struct own : gpt {
  static constexpr family_name<own> family{"own"};
};

template <class Model> void check_states(const Model& m, dtype t, bool deferring) {
  const setup s{.batch = {2, sequence}, .precision = t};
  const interpreted_program<Model> plain(m, s, "same");
  const interpreted_program<Model, guarded_device> guarded(m, s, "same");
  guarded_device closed(product_type::widened, 2);
  if (deferring) closed.defer();
  session trained(guarded.view(), closed, purpose::training),
      resumed(guarded.view(), closed, purpose::training);
  trained.weights().initialise(5), resumed.weights().initialise(6);
  trained.numbers().learning_rate = 1e-2;
  const std::vector<std::int32_t> tokens(2 * sequence, 3);
  trained.step(batch_view{tokens.data(), tokens.data()});
  const test::scratch_folder dir;
  state_root(dir / "root").save(1, 0, [&](folder_writer& out) {
    write_state(out, guarded.view(), trained.weights(), {1, 2}, nlohmann::json::object());
  });
  const auto found =
      newest_state(model_folder(dir / "root"), [](const std::string&) { return true; });
  BOOST_TEST_REQUIRE(found.has_value());
  const auto load = [&](const program_view& p, stores& to) {
    load_weights(found->folder, p, to);
    BOOST_TEST(load_moments(found->folder, found->state->state(), p, to).samples == 2);
  };
  stores open(plain.view(), true);
  load(plain.view(), open), load(guarded.view(), resumed.weights());
  const auto all = [](memory_space& of, const stores& x) {
    std::vector<std::vector<double>> e;
    const auto add = [&](const std::byte* store, dtype type) {
      e.push_back(elements(of, store, type, store != nullptr ? x.entries().states : 0));
    };
    add(x.weights(), x.precision().weight), add(x.masters(), x.precision().master);
    add(x.first_moments(), x.precision().moment), add(x.second_moments(), x.precision().moment);
    return e;
  };
  const auto want = all(closed, trained.weights());
  BOOST_TEST((all(closed, resumed.weights()) == want));
  BOOST_TEST((all(host_memory::of_process(), open) == want));
  BOOST_TEST(resumed.weights().nonfinite() == "");
  resumed.weights().set_weight(7, std::nan(""));
  BOOST_TEST(resumed.weights().nonfinite() != "");
}

} // namespace

BOOST_AUTO_TEST_CASE(states_are_saved_and_loaded_where_the_host_sees_nothing) {
  const mc_test::looks_are_told here;
  gpt m = dense();
  m.dropout = 0;
  for (const dtype t : {dtype::f32, dtype::bf16}) {
    own o;
    static_cast<gpt&>(o) = m;
    for (const bool deferring : {false, true})
      check_states(m, t, deferring), check_states(o, t, deferring);
  }
}

namespace {

/// Trains as flags say, with threads of this process as ranks, from the newest state in the folder
/// if there is one, and evaluates the saved model. Returns the files of the last state.
template <class Device, class Model>
std::string trained(const Model& m, const setup& s, int dp, const std::string& folder,
                    const std::string& text, bool deferring = false) {
  const interpreted_program<Model, Device> program(m, s, "same");
  const program_view& p = program.view();
  const mesh ranks = mesh_of(s.ranks, dp);
  for (const char* const steps : {"1", "2"}) {
    test::flag_values flags{
        {"data-path", text},     {"split", "80,20,0"},       {"train-iters", steps},
        {"save", folder},        {"global-batch-size", "4"}, {"lr", "1e-2"},
        {"lr-decay-iters", "2"}, {"eval-iters", "1"},        {"eval-interval", "1"}};
    if (*steps == '2') flags.emplace_back("load", folder);
    options o = test::options_of(flags);
    std::vector<training_start> starts;
    starts.push_back(prepare_start(p, o));
    while (std::ssize(starts) < ranks_of(ranks)) starts.push_back(for_another_rank(starts[0], {}));
    thread_ranks(ranks, std::chrono::seconds(60)).run([&](communicator& c) {
      Device on(product_type::widened, 1);
      training_start& start = starts[static_cast<std::size_t>(c.rank())];
      const auto run = [&](const planes& both) {
        trainer(p, training_request_of(p, o, dp), on, std::move(start), {}, both).run();
        const options e = test::options_of({{"data-path", text}, {"load", folder}});
        run_evaluation(p, evaluation_request_of(e), on, both);
      };
      if constexpr (std::is_same_v<Device, guarded_device>) {
        if (deferring) on.defer();
        hosts_beside_device hosts(c, on);
        ranks_of_device others(c, on);
        run({hosts, others});
        if (on.counts().exchanged == 0) throw std::logic_error("ranks have moved nothing");
      } else {
        const auto others = c.make_ranks(on);
        run({c, *others});
      }
    });
  }
  std::string all;
  for (const char* const file : {"model.safetensors", "optimizer.safetensors"})
    all += test::read_text(folder + "/" + step_folder_name(2) + "/" + file);
  return all;
}

} // namespace

// Whole runs: values that ranks compute with go over the plane of ranks, through the device alone;
// values that they agree on and write go over the plane of hosts, which moves no memory of a
// device.
BOOST_AUTO_TEST_CASE(a_trained_run_is_the_same_where_the_host_sees_nothing) {
  const mc_test::looks_are_told here;
  const auto same = [](const auto& m, const setup& s, int dp, bool deferring) {
    const test::scratch_folder dir;
    test::write_text(dir / "text", test::text_of_101_bytes().substr(0, 1000));
    const std::string want = trained<cpu>(m, s, dp, dir / "open", dir / "text"),
                      got = trained<guarded_device>(m, s, dp, dir / "closed", dir / "text",
                                                    deferring);
    BOOST_TEST(want.size() > 10'000u);
    BOOST_TEST((got == want));
  };
  gpt plain = dense();
  plain.vocabulary = 101;
  qwen3_moe experts = mixture(6);
  experts.vocabulary = 101;
  same(plain, {.ranks = {.tp = 2, .sequence_parallel = true}, .batch = {2, sequence}}, 1, false);
  same(plain, {.ranks = {.pp = 2}, .batch = {2, sequence}, .precision = dtype::bf16}, 2, true);
  same(plain, {.ranks = {.cp = 2, .zero = 1}, .batch = {2, sequence}}, 2, true);
  for (const bool deferring : {false, true})
    same(experts, {.ranks = {.ep = 2}, .batch = {2, sequence}}, 2, deferring);
}

BOOST_AUTO_TEST_CASE(a_program_runs_on_the_device_it_is_made_for) {
  const setup s{.batch = {2, sequence}};
  const interpreted_program<gpt> plain(dense(), s, "plain");
  const interpreted_program<gpt, guarded_device> guarded(dense(), s, "guarded");
  cpu open(product_type::automatic, 1);
  guarded_device closed(product_type::automatic, 1);
  const auto refused = [](const program_view& p, device& on) {
    BOOST_CHECK_EXCEPTION(session(p, on, purpose::training), error, [](const error& e) {
      return std::string(e.what()).find("a device of another type") != std::string::npos;
    });
  };
  refused(plain.view(), closed), refused(guarded.view(), open);
}

// The host may not read values within a step: how often a region runs, the norm, the token count.
BOOST_AUTO_TEST_CASE(a_look_at_the_memory_of_a_device_is_the_end) {
  const mc_test::looks_are_told here;
  const interpreted_program<qwen3_moe, guarded_device> program(
      mixture(), {.batch = {2, sequence, false, 9}}, "guarded");
  guarded_device closed(product_type::widened, 1);
  session s(program.view(), closed, purpose::training);
  s.weights().initialise(3);
  const std::vector<std::int32_t> tokens(2 * sequence, 3);
  const batch_view batch{tokens.data(), tokens.data()};
  const std::byte* const begin = s.activations().data();
  BOOST_TEST(crashes(begin));
  BOOST_TEST(crashes(begin + s.activations().size() - 1));
  for (const std::byte* store : {s.weights().weights(), s.weights().gradients(),
                                 s.weights().first_moments(), s.weights().second_moments()})
    BOOST_TEST(crashes(store));
  s.gradients(batch);
  const std::byte* const sums = closed.last_read(); // loss, token count, norm
  BOOST_TEST((sums >= begin && sums < begin + s.activations().size()));
  BOOST_TEST(crashes(sums));
  bool looked = false;
  closed.before_launches([&](const node& n) {
    if (looked || n.region < 0) return;
    looked = true;
    BOOST_TEST(closed.last_read() != sums); // counts of experts, for their mirror
    BOOST_TEST(crashes(closed.last_read()));
  });
  s.step(batch);
  BOOST_TEST(looked);
}

namespace {

constexpr setup in_rounds(recompute again = recompute::none) {
  return {.batch = {2, sequence, false, 9}, .precision = dtype::f32, .recompute_policy = again};
}
/// Trains a step of two micro-batches in a session on a device.
template <class Model> void train_one(const Model& m, const setup& s, guarded_device& on) {
  const interpreted_program<Model, guarded_device> program(m, s, "guarded");
  session run(program.view(), on, purpose::training);
  run.weights().initialise(3);
  run.numbers().learning_rate = 1e-2;
  std::vector<std::int32_t> tokens;
  for (int i = 0; i < 4 * sequence; ++i) tokens.push_back((i * 7 + i / 5) % vocabulary);
  const std::vector<batch_view> batches{
      {tokens.data(), tokens.data()}, {tokens.data() + 2 * sequence, tokens.data() + 2 * sequence}};
  run.step(batches);
  generator g(run.program(), on, run.weights(), {.sequences = 1, .tokens = sequence, .prompt = 3});
  const std::vector<std::int32_t> prompt{1, 2, 3};
  const std::vector<std::span<const std::int32_t>> more{prompt};
  g.append(more);
}
/// Returns whether the kernel of this op, if it read the memory, would end the process with this
/// sentence.
template <class Model> bool look_is_the_end(const Model& m, const setup& s, const std::string& op,
                                            bool at_end, bool deferring = false) {
  int pipe[2];
  if (::pipe(pipe) != 0) return false;
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGSEGV, SIG_DFL);
    ::dup2(pipe[1], STDERR_FILENO);
    const mc_test::looks_are_told here;
    guarded_device closed(product_type::widened, 1);
    if (deferring) closed.defer();
    closed.look_in(op, at_end);
    train_one(m, s, closed);
    ::_exit(0);
  }
  ::close(pipe[1]);
  std::string said;
  char block[256];
  for (ssize_t n; (n = ::read(pipe[0], block, sizeof block)) > 0;)
    said.append(block, static_cast<std::size_t>(n));
  ::close(pipe[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV &&
         said.find("the kernel of " + op + " looks at") != std::string::npos;
}

} // namespace

// There are two ops of each kind.
BOOST_AUTO_TEST_CASE(a_kernel_that_looks_ends_the_run) {
  for (const char* const op : {"linear_gelu_kept", "dropout", "layer_norm", "layer_norm_gain_grad",
                               "vocabulary_loss", "add_total", "adamw", "clip_factor", "embedding",
                               "embedding_grad", "cached_attention", "select"})
    for (const bool at_end : {false, true})
      for (const bool deferring : {false, true})
        BOOST_TEST(look_is_the_end(dense(), {.batch = {2, sequence}}, op, at_end, deferring), op);
  for (const char* const op : {"route", "router_statistics", "expert_rows", "dispatch",
                               "grouped_linear", "combine", "balance_step"})
    for (const bool at_end : {false, true})
      for (const bool deferring : {false, true})
        BOOST_TEST(look_is_the_end(mixture(), in_rounds(), op, at_end, deferring), op);
  BOOST_TEST(!look_is_the_end(mixture(), in_rounds(), "linear_gelu_kept",
                              false)); // it is not in this model
}

// There is one mirror for each layer with experts and each micro-batch, for which the forward pass
// waits once. The backward pass and recomputation neither copy nor wait.
BOOST_AUTO_TEST_CASE(the_counts_of_experts_reach_the_host_once) {
  constexpr std::int64_t layers = 2, micros = 2, prefill = 1;
  for (const recompute again : {recompute::none, recompute::selective, recompute::full})
    for (const bool deferring : {false, true}) {
      guarded_device closed(product_type::widened, 1);
      if (deferring) closed.defer();
      train_one(mixture(), in_rounds(again), closed);
      BOOST_TEST(closed.most_trips() > 1);
      BOOST_TEST(closed.counts().mirrors == layers * (micros + prefill));
      BOOST_TEST(closed.counts().waits == layers * (micros + prefill));
    }
}

BOOST_AUTO_TEST_CASE(a_mirror_that_does_not_add_up_ends_the_run) {
  guarded_device closed(product_type::widened, 1);
  closed.break_mirrors();
  BOOST_CHECK_EXCEPTION(train_one(mixture(), in_rounds(), closed), error, [](const error& e) {
    return std::string(e.what()).find("the counts of experts of layer 0 add up to 65 rows") !=
           std::string::npos;
  });
}

namespace {

/// Adds one number to another.
struct add_one_row {
  const double* from;
  double* to;
  template <class Team> void operator()(const Team& /*team*/, std::int64_t /*row*/) const {
    *to += *from;
  }
};
/// Returns the result of two lanes from x = 0, y = 0: the first one adds 1 to x many times, then
/// the second one adds x to y, behind the event if it waits for that.
double made_by_two_lanes(guarded_device& on, bool waits) {
  constexpr int times = 20;
  const arena memory(on, 3 * sizeof(double), "three numbers", "more memory");
  auto* const numbers = reinterpret_cast<double*>(memory.data());
  const double begin[] = {1, 0, 0};
  on.write(memory.data(), begin, sizeof begin);
  auto& first = static_cast<guarded_lane&>(on.main_lane());
  const auto made = on.make_lane();
  auto& second = static_cast<guarded_lane&>(*made);
  const auto written = on.make_event(), added = on.make_event();
  first.record(*written);
  second.wait(*written);
  for (int i = 0; i < times; ++i) for_one(first, add_one_row{numbers, numbers + 1});
  first.record(*added);
  if (waits) second.wait(*added);
  for_one(second, add_one_row{numbers + 1, numbers + 2});
  double y = 0;
  on.read(&y, memory.data() + 2 * sizeof y, sizeof y);
  return y / times;
}

} // namespace

// Each lane keeps its order. Only events order two lanes.
BOOST_AUTO_TEST_CASE(lanes_are_ordered_by_events_alone) {
  guarded_device on(product_type::widened, 1);
  on.defer();
  int wrong = 0;
  for (int i = 0; i < 50; ++i) {
    BOOST_TEST(made_by_two_lanes(on, true) == 1.0);
    wrong += made_by_two_lanes(on, false) != 1.0;
  }
  BOOST_TEST(wrong > 0);
}

namespace {

/// A body that notes when it runs.
struct moment_row {
  std::int64_t* at; ///< memory of the host, which only a body of a test may write
  template <class Team> void operator()(const Team& /*team*/, std::int64_t /*row*/) const {
    *at = monotonic_nanoseconds();
  }
};

} // namespace

// An event comes between the work that was started before it and the work that was started after
// it, whenever the host has started them.
BOOST_AUTO_TEST_CASE(an_event_has_the_time_of_its_lane) {
  for (const bool deferring : {false, true}) {
    guarded_device on(product_type::widened, 1);
    if (deferring) on.defer();
    auto& lane = static_cast<guarded_lane&>(on.main_lane());
    const auto between = on.make_event();
    std::int64_t before = 0, after = 0;
    for_one(lane, moment_row{&before});
    lane.record(*between);
    for_one(lane, moment_row{&after});
    const std::int64_t started = monotonic_nanoseconds(), at = between->reached();
    BOOST_TEST((before <= at && at <= after));
    BOOST_TEST((at >= started) == deferring);
  }
}

// A session and the generator of its samples use one lane in turn. The lane enlarges its memory for
// the later one, and the earlier one goes on with the bits that it computes alone.
BOOST_AUTO_TEST_CASE(a_session_goes_on_behind_a_larger_generator) {
  const auto trained = [](bool samples, bool deferring) {
    const interpreted_program<gpt, guarded_device> program(
        dense(), {.batch = {1, 4}, .precision = dtype::bf16}, "guarded"); // products copy operands
    guarded_device on(product_type::widened, 2);
    if (deferring) on.defer();
    session s(program.view(), on, purpose::training);
    s.weights().initialise(3);
    s.numbers().learning_rate = 1e-2;
    const std::vector<std::int32_t> tokens{1, 2, 3, 4};
    std::vector<double> all;
    for (int step = 0; step < 3; ++step) {
      const lane_room before = on.main_lane().room();
      all.push_back(s.step(batch_view{tokens.data(), tokens.data()}).loss.sum);
      if (!samples || step != 1) continue;
      generator g(s.program(), on, s.weights(),
                  {.sequences = 8, .tokens = sequence, .prompt = sequence - 1});
      const std::vector<std::int32_t> prompt(sequence - 1, 5);
      const std::vector<std::span<const std::int32_t>> more(8, prompt);
      g.append(more);
      const lane_room now = on.main_lane().room();
      BOOST_TEST((now.scratch > before.scratch || now.workspace > before.workspace));
      BOOST_TEST(g.planned().kernels.scratch == now.scratch);
    }
    for (std::int64_t i = 0; i < s.weights().total(); ++i) all.push_back(s.weights().weight(i));
    return all;
  };
  for (const bool deferring : {false, true})
    BOOST_TEST((trained(true, deferring) == trained(false, deferring)));
}

BOOST_AUTO_TEST_CASE(a_lane_has_room_of_its_own) {
  cpu on(product_type::widened, 1);
  const auto other = on.make_lane();
  on.main_lane().reserve({.scratch = 100, .workspace = 200});
  BOOST_TEST(other->room().scratch == 0);
  BOOST_TEST(other->scratch() == nullptr);
  other->reserve({.scratch = 300});
  BOOST_TEST(other->room().scratch == 300);
  BOOST_TEST(on.main_lane().room().scratch == 100);
  BOOST_TEST(other->scratch() != on.main_lane().scratch());
  const std::byte* const before = on.main_lane().scratch();
  on.main_lane().reserve({.scratch = 50, .workspace = 50}); // the lane has more memory
  BOOST_TEST(on.main_lane().scratch() == before);
  BOOST_TEST(on.main_lane().room().workspace == 200);
}

// Times are the device's: nothing is told before the step is over. Then every launch and every task
// is told in the order in which the device has come to them, nodes within their tasks.
BOOST_AUTO_TEST_CASE(times_are_those_of_the_device) {
  struct told_times final : step_clock {
    std::map<std::string, std::int64_t> nodes;
    std::int64_t in_nodes = 0, in_tasks = 0, first = 0, last = 0;
    bool in_order = true;
    void node(const graph& g, int i, std::int64_t nanoseconds) override {
      ++nodes[g.at_node(i).op->name];
      in_order = in_order && nanoseconds >= 0;
      in_nodes += nanoseconds;
    }
    void task(const mc::task&, std::int64_t began, std::int64_t ended) override {
      in_order = in_order && last <= began && began <= ended;
      if (first == 0) first = began;
      in_tasks += ended - began, last = ended;
    }
  };
  for (const bool deferring : {false, true}) {
    const interpreted_program<gpt, guarded_device> program(dense(), {.batch = {2, sequence}},
                                                           "guarded");
    guarded_device closed(product_type::widened, 1);
    if (deferring) closed.defer();
    session s(program.view(), closed, purpose::training);
    s.weights().initialise(3);
    const std::vector<std::int32_t> tokens(2 * sequence, 3);
    told_times told;
    s.profile(&told);
    const auto before = closed.counts().launched;
    bool early = false;
    closed.before_launches([&](const node&) { early = early || !told.nodes.empty(); });
    const std::int64_t began = monotonic_nanoseconds();
    s.step(batch_view{tokens.data(), tokens.data()});
    const std::int64_t ended = monotonic_nanoseconds();
    auto launched_now = closed.counts().launched;
    for (const auto& [op, n] : before)
      if ((launched_now[op] -= n) == 0) launched_now.erase(op);
    BOOST_TEST(!early);
    BOOST_TEST((told.nodes == launched_now));
    BOOST_TEST(told.in_order);
    BOOST_TEST((began <= told.first && told.last <= ended));
    BOOST_TEST((told.in_nodes > 0 && told.in_nodes <= told.in_tasks));
    // The next step tells nothing about a step that fails in the middle.
    const batch_view batch{tokens.data(), tokens.data()};
    BOOST_CHECK_THROW(s.step(2,
                             [&](int micro, batch_view& b) {
                               if (micro == 1) throw std::runtime_error("no batch");
                               b = batch;
                               return true;
                             }),
                      std::runtime_error);
    told.nodes.clear(), told.last = 0;
    s.step(batch);
    BOOST_TEST((told.nodes == launched_now));
    s.profile(nullptr);
    s.step(batch);
    BOOST_TEST((told.nodes == launched_now));
  }
}

// Work for a device reaches that device alone.
BOOST_AUTO_TEST_CASE(two_devices_see_nothing_of_each_other) {
  guarded_device first(product_type::widened, 1), second(product_type::widened, 1);
  train_one(dense(), {.batch = {2, sequence}}, first);
  const device_counts before = first.counts();
  BOOST_TEST(second.counts().bodies == 0);
  train_one(mixture(), in_rounds(), second);
  BOOST_TEST(first.counts().bodies == before.bodies);
  BOOST_TEST(first.counts().products == before.products);
  BOOST_TEST((first.counts().launched == before.launched));
  BOOST_TEST(second.counts().bodies > 100);
  BOOST_TEST(second.counts().products > 10);
}
