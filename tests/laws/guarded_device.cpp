// Training, evaluation and generation on a device whose memory the host cannot see: what run/ does
// between launches it does by the device's functions, so a device with memory of its own can take
// the place of the CPU.
#define BOOST_TEST_MODULE guarded_device
#include <boost/test/unit_test.hpp>

#include "guarded_device.hpp"

#include <megacpp/checkpoint/state_root.hpp>
#include <megacpp/generate/generator.hpp>
#include <megacpp/model/gpt.hpp>
#include <megacpp/model/qwen3_moe.hpp>
#include <megacpp/run/session.hpp>
#include <megacpp/train/state.hpp>

#include <cmath>
#include <cstdint>
#include <vector>

#include <kernels.hpp>
#include <scratch.hpp>

#include <sys/wait.h>
#include <unistd.h>

using namespace mc;
using mc_test::guarded_device;

namespace {

constexpr int sequence = 16, vocabulary = 17;

constexpr gpt dense() {
  gpt m;
  m.layers = 2, m.hidden = 12, m.heads = 3, m.ffn = 20, m.vocabulary = vocabulary;
  m.positions = sequence, m.dropout = 0.1;
  return m;
}
constexpr qwen3_moe mixture() {
  qwen3_moe m;
  m.layers = 2, m.hidden = 12, m.heads = 3, m.kv_heads = 3, m.head_dim = 4, m.ffn = 20;
  m.expert_ffn = 7, m.experts = 5, m.experts_per_token = 2, m.vocabulary = vocabulary;
  m.positions = sequence, m.aux_loss = 0.1, m.bias_rate = 1e-3;
  return m;
}

/// All that a run tells: losses, norms, weights, logits.
std::vector<double> told(const program_view& p, device& on) {
  std::vector<double> all;
  session s(p, on, purpose::training);
  s.weights().initialise(3);
  s.numbers().learning_rate = 1e-2, s.numbers().weight_decay = 0.1, s.numbers().clip = 0.5;
  std::vector<std::int32_t> tokens, labels;
  for (int i = 0; i < 8 * sequence; ++i)
    tokens.push_back(i * i % vocabulary), labels.push_back((i + 1) * (i + 1) % vocabulary);
  std::vector<batch_view> batches;
  for (int first = 0; first < 8; first += p.numbers.batch.micro)
    batches.push_back({tokens.data() + first * sequence, labels.data() + first * sequence, first});
  for (int step = 0; step < 3; ++step) {
    all.push_back(s.evaluate(batches).sum);
    const step_result r = s.step(batches);
    BOOST_TEST((r.applied && r.finite));
    BOOST_TEST(r.norm > 0.5); // clipped
    all.insert(all.end(), {r.loss.sum, r.loss.count, r.loss.side, r.norm});
  }
  for (std::int64_t i = 0; i < s.weights().total(); ++i) all.push_back(s.weights().weight(i));
  generator g(p, on, s.weights(), {.sequences = 2, .tokens = sequence, .prompt = 5});
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

/// The largest number of trips of a region; a run tells what it tells on the CPU.
template <class Model> std::int32_t check(const Model& m, const setup& s) {
  const interpreted_program<Model> plain(m, s, "plain");
  const interpreted_program<Model, guarded_device> guarded(m, s, "guarded");
  cpu open(product_type::widened, 2, product_rows::apart);
  guarded_device closed(product_type::widened, 2, product_rows::apart);
  const std::vector<double> want = told(plain.view(), open), got = told(guarded.view(), closed);
  BOOST_TEST(got.size() > 100u);
  BOOST_TEST((got == want));
  BOOST_TEST(closed.launches() > 1000);
  return closed.most_trips();
}

/// True if a process that looks at an address is stopped by it.
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

} // namespace

BOOST_AUTO_TEST_CASE(a_run_is_the_same_where_the_host_sees_nothing) {
  for (const dtype t : {dtype::f32, dtype::bf16}) {
    BOOST_TEST(check(dense(), {.batch = {2, sequence}, .type = t}) == 0);
    BOOST_TEST(check(mixture(), {.batch = {2, sequence, false, 9}, .type = t}) > 2);
    BOOST_TEST(check(mixture(), {.batch = {4, sequence}, .type = t, .again = recompute::full}) ==
               1);
  }
}

namespace {

/// A family that transformers does not know: its states have the registry's names.
struct own : gpt {
  static constexpr family_name<own> family{"own"};
};

template <class Model> void check_states(const Model& m, dtype t) {
  const setup s{.batch = {2, sequence}, .type = t};
  const interpreted_program<Model> plain(m, s, "same");
  const interpreted_program<Model, guarded_device> guarded(m, s, "same");
  guarded_device closed(product_type::widened, 2);
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
    BOOST_TEST(load_moments(found->folder, found->file.state(), p, to).samples == 2);
  };
  stores open(plain.view(), true);
  load(plain.view(), open), load(guarded.view(), resumed.weights());
  const auto all = [](const stores& x) {
    std::vector<double> e;
    for (std::int64_t i = 0; i < x.total(); ++i) {
      e.push_back(x.weight(i)), e.push_back(x.element(x.weights(), x.type(), i));
      for (const std::byte* store : {x.first_moments(), x.second_moments()})
        e.push_back(x.element(store, x.main_type(), i));
    }
    return e;
  };
  BOOST_TEST((all(resumed.weights()) == all(trained.weights())));
  BOOST_TEST((all(open) == all(trained.weights())));
  BOOST_TEST(resumed.weights().nonfinite() == "");
  resumed.weights().set_weight(7, std::nan(""));
  BOOST_TEST(resumed.weights().nonfinite() != "");
}

} // namespace

BOOST_AUTO_TEST_CASE(states_are_saved_and_loaded_where_the_host_sees_nothing) {
  gpt m = dense();
  m.dropout = 0;
  for (const dtype t : {dtype::f32, dtype::bf16}) {
    check_states(m, t);
    own o;
    static_cast<gpt&>(o) = m;
    check_states(o, t);
  }
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

// What the host may not read within a step: how often a region runs, the norm, the token count.
BOOST_AUTO_TEST_CASE(a_look_at_the_memory_of_a_device_is_the_end) {
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
  struct watcher final : step_clock { // called between the nodes of a task
    guarded_device& on;
    bool& looked;
    const std::byte* sums;
    watcher(guarded_device& d, bool& l, const std::byte* s) : on(d), looked(l), sums(s) {}
    void node(const graph& g, int i, std::int64_t /*nanoseconds*/) override {
      if (looked || g.region_count == 0 || g.at_node(i).region < 0) return;
      looked = true;
      BOOST_TEST(on.last_read() != sums); // the number of rounds
      BOOST_TEST(crashes(on.last_read()));
    }
  } watch(closed, looked, sums);
  s.profile(&watch);
  s.step(batch);
  BOOST_TEST(looked);
}
