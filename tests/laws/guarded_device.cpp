// Training, evaluation and generation on devices whose memory the host cannot see: what run/ does
// between launches it does by the device's functions, so a device with memory of its own can take
// the place of the CPU. Of the kernels those that still look at the memory on the host are listed.
#define BOOST_TEST_MODULE guarded_device
#include <boost/test/unit_test.hpp>

#include "guarded_device.hpp"

#include <megacpp/checkpoint/state_root.hpp>
#include <megacpp/comm/threads.hpp>
#include <megacpp/generate/generator.hpp>
#include <megacpp/model/gpt.hpp>
#include <megacpp/model/llama.hpp>
#include <megacpp/model/qwen3_moe.hpp>
#include <megacpp/run/session.hpp>
#include <megacpp/train/state.hpp>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include <kernels.hpp>
#include <scratch.hpp>

#include <sys/wait.h>
#include <unistd.h>

using namespace mc;
using mc_test::guarded_communicator;
using mc_test::guarded_device;

namespace {

constexpr int sequence = 16, vocabulary = 17;

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
/// With biases, untied, and another norm, feed-forward and positions than the dense one.
constexpr llama biased() {
  llama m;
  m.layers = 2, m.hidden = 16, m.heads = 4, m.kv_heads = 2, m.head_dim = 4, m.ffn = 20;
  m.vocabulary = vocabulary, m.positions = sequence, m.attention_bias = m.mlp_bias = true;
  m.tied = false;
  return m;
}

/// A family whose second block adds what is computed of two parameters to the stream, nothing else.
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

/// All that a rank of a run tells: losses, norms, weights, logits.
std::vector<double> told(const program_view& p, device& on, communicator& c) {
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
  for (std::int64_t i = 0; i < s.weights().total(); ++i) all.push_back(s.weights().weight(i));
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

/// The largest number of trips of a region; every rank tells what it tells on the CPU.
template <class Model> std::int32_t check(const Model& m, const setup& s, int dp = 1) {
  const interpreted_program<Model> plain(m, s, "plain");
  const interpreted_program<Model, guarded_device> guarded(m, s, "guarded");
  const mesh ranks = mesh_of(s.ranks, dp);
  const int count = ranks_of(ranks), threads = count == 1 ? 2 : 1;
  std::vector<std::vector<double>> want(static_cast<unsigned>(count)), got = want;
  std::vector<std::int32_t> trips(want.size());
  std::vector<std::int64_t> launches(want.size());
  const auto on_open = [&](communicator& c) {
    cpu open(product_type::widened, threads, product_rows::apart);
    want[static_cast<unsigned>(c.rank())] = told(plain.view(), open, c);
  };
  const auto on_closed = [&](communicator& c) {
    guarded_device closed(product_type::widened, threads, product_rows::apart);
    guarded_communicator others(c, closed);
    const auto r = static_cast<unsigned>(c.rank());
    got[r] = told(guarded.view(), closed, others);
    trips[r] = closed.most_trips(), launches[r] = closed.launches();
  };
  if (count == 1) {
    on_open(self::of_process()), on_closed(self::of_process());
  } else {
    thread_ranks(ranks, std::chrono::seconds(60)).run(on_open);
    thread_ranks(ranks, std::chrono::seconds(60)).run(on_closed);
  }
  for (std::size_t r = 0; r < got.size(); ++r) {
    BOOST_TEST(got[r].size() > 100u);
    BOOST_TEST(launches[r] > (count == 1 ? 1000 : 500));
    BOOST_TEST((got[r] == want[r]), "rank " << r << " of " << count);
  }
  return trips[0];
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

/// Ops whose kernels look at the device's memory on the host, which no kernel of a GPU can. An op
/// outside the list that looks fails the test, and so does one inside it that no longer does: the
/// list only shrinks.
const std::set<std::string> looking{"adamw",
                                    "add_total",
                                    "balance_step",
                                    "clip_factor",
                                    "combine",
                                    "cross_entropy",
                                    "cross_entropy_grad",
                                    "dispatch",
                                    "dropout",
                                    "embedding_grad",
                                    "expert_load",
                                    "expert_rows",
                                    "grouped_input_grad",
                                    "grouped_linear",
                                    "grouped_weight_grad",
                                    "router_loss",
                                    "router_loss_grad",
                                    "router_statistics",
                                    "select",
                                    "sum_of_squares",
                                    "vocabulary_loss"};
/// An op that is in no family's graph: it adds a gradient to a main grad where the op that made the
/// gradient does not add by itself.
const std::set<std::string> in_no_run{"accumulate"};

std::string text_of(const std::set<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : " ") + name;
  return text;
}
/// Those of a that are not in b.
std::set<std::string> without(const std::set<std::string>& a, const std::set<std::string>& b) {
  std::set<std::string> left;
  for (const std::string& name : a)
    if (b.count(name) == 0) left.insert(name);
  return left;
}

} // namespace

BOOST_AUTO_TEST_CASE(a_run_is_the_same_where_the_host_sees_nothing) {
  const mc_test::looks seen;
  for (const dtype t : {dtype::f32, dtype::bf16}) {
    BOOST_TEST(check(dense(), {.batch = {2, sequence}, .type = t}) == 0);
    BOOST_TEST(check(mixture(), {.batch = {2, sequence, false, 9}, .type = t}) > 2);
    BOOST_TEST(check(mixture(), {.batch = {4, sequence}, .type = t, .again = recompute::full}) ==
               1);
    for (const numerics sums : {numerics::fast, numerics::batch_invariant}) {
      setup s{.batch = {2, sequence}, .type = t, .sums = sums};
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
  check(dense(), {.batch = {2, sequence}, .type = dtype::f64});
  check(mixture(), {.batch = {2, sequence}, .type = dtype::f64});
  check(dense(), {.ranks = {.tp = 2, .sequence_parallel = true}, .batch = {2, sequence}});
  check(biased(), {.ranks = {.tp = 4}, .batch = {2, sequence}}); // two ranks share a head of keys
  check(dense(), {.ranks = {.pp = 2}, .batch = {2, sequence}, .type = dtype::bf16});
  check(dense(), {.ranks = {.zero = 1}, .batch = {2, sequence}, .type = dtype::bf16}, 2);
  check(dense(), {.ranks = {.cp = 2, .zero = 1}, .batch = {2, sequence}}, 2);
  check(biased(), {.ranks = {.tp = 2, .pp = 2}, .batch = {2, sequence, true}});
  check(mixture(6), {.ranks = {.ep = 2}, .batch = {2, sequence, false, 9}}, 2);
  check(mixture(6),
        {.ranks = {.tp = 2, .pp = 2, .ep = 2, .etp = 2, .sequence_parallel = true},
         .batch = {2, sequence}},
        2);
  std::set<std::string> ops;
  kernel_table::all().each([&](const op_info* op, dtype) { ops.insert(op->name); });
  BOOST_TEST(text_of(without(ops, seen.launched())) == text_of(in_no_run));
  const std::string more = text_of(without(seen.looked(), looking)),
                    fewer = text_of(without(looking, seen.looked()));
  BOOST_TEST(more == "", "kernels look at the device's memory on the host: " << more);
  BOOST_TEST(fewer == "", "kernels no longer look; take them out of the list: " << fewer);
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
  const mc_test::looks seen;
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
  const mc_test::looks seen;
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
