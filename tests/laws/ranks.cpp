// A session on one of several ranks: its collectives are those that `describe` lists, in the order of
// the tasks; and ranks that are threads compute what one rank does.
#define BOOST_TEST_MODULE ranks
#include <boost/test/unit_test.hpp>

#include <megacpp/inspect/description.hpp>
#include <megacpp/preset/models.hpp>
#include <megacpp/run/session.hpp>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include <kernels.hpp>
#include <simulated_communicator.hpp>

using namespace mc;

namespace {

constexpr qwen3 small_qwen{.layers = 2,
                           .hidden = 32,
                           .heads = 4,
                           .kv_heads = 2,
                           .head_dim = 8,
                           .ffn = 48,
                           .vocabulary = 64,
                           .positions = 32};
constexpr gpt small_gpt{
    .layers = 2, .hidden = 32, .heads = 4, .ffn = 64, .vocabulary = 64, .positions = 32};

/// A call of a communicator, as both sides tell it.
using call = std::tuple<collective, std::uint8_t, std::int64_t, int>; // axes, bytes, line

/// One rank of a mesh on which the others hold what it holds: what it asks for is written down, and
/// each part of what it gets is its own.
class recording_communicator final : public communicator {
public:
  recording_communicator(const mesh& m, int rank) : communicator(m, rank) {}
  std::vector<call> calls;

private:
  ticket begin(const exchange& x, const group& g) override {
    const std::int64_t size = size_of(x.type);
    if (g.size() > 1)
      calls.emplace_back(x.what, x.over.bits, x.elements_in(g.size()) * size, x.line.number);
    const auto part = static_cast<std::size_t>(x.count * size);
    const auto* const in = static_cast<const std::byte*>(x.in);
    auto* const out = static_cast<std::byte*>(x.out);
    if (x.what == collective::all_gather || x.what == collective::all_to_all)
      for (int i = 0; i < g.size(); ++i)
        std::memcpy(out + static_cast<std::size_t>(i) * part, in, part);
    else if (in != out) std::memcpy(out, in, part);
    return {0};
  }
  void finish(ticket) override {}
};

/// Batches of one replica, tokens of which some have no label.
struct batches {
  std::vector<std::int32_t> tokens, labels;
  int micro, sequence;

  explicit batches(const setup& s, int number) : micro(s.batch.micro), sequence(s.batch.sequence) {
    for (int i = 0; i < micro * sequence; ++i) {
      const int x = (i * 7 + number * 13 + i / 5) % 64;
      tokens.push_back(x), labels.push_back(x % 9 == number ? -1 : (x * 3 + 1) % 64);
    }
  }
  batch_view view(int number) const {
    return {.tokens = tokens.data(), .labels = labels.data(), .first_sample = number * micro};
  }
};

/// The calls of a step of one micro-batch by its tasks: nodes in the order in which they stand.
std::vector<call> listed(const program_view& p, const mesh& ranks) {
  std::vector<call> calls;
  const stage_shape s = stage_of(p, 0);
  for (const task& t : training_step(s.training, 1)) {
    if (t.what != action::run) continue;
    const graph& g = *p.part(s.uses[t.use].part).g;
    for (int i = 0; i < g.node_count; ++i)
      if (t.when.holds(g.at_node(i).when))
        for (const transfer& x : node_wire(g, g.at_node(i), ranks))
          calls.emplace_back(x.what, x.over.bits, x.bytes, g.at_node(i).line.number);
  }
  return calls;
}

mesh mesh_with(const layout& l, int dp) {
  mesh m(l);
  m.size[static_cast<unsigned>(axis::dp)] = dp;
  m.size[static_cast<unsigned>(axis::edp)] = dp * l.cp * l.tp / (l.ep * l.expert_tp());
  return m;
}

template <class Model> void records(const Model& m, const setup& s, int dp, const char* name) {
  const interpreted_program<Model> p(m, s, name);
  const mesh ranks = mesh_with(s.ranks, dp);
  recording_communicator c(ranks, ranks_of(ranks) - 1);
  cpu device(product_type::widened, 1);
  session run(p.view(), device, purpose::training, c);
  run.weights().initialise(1);
  const batches b(s, 0);
  run.step(b.view(0));
  BOOST_TEST((c.calls == listed(p.view(), ranks)), name << ": other calls, or another order");
  std::map<call, std::int64_t> by_describe, made;
  for (const collective_entry& e : collectives_of(p.view(), ranks))
    by_describe[{e.call.what, e.call.over.bits, e.call.bytes, e.by->line.number}] += e.per_step;
  for (const call& x : c.calls) ++made[x];
  BOOST_TEST((made == by_describe), name);
  BOOST_TEST(made.size() > 3u, name);
}

/// Losses and norms of a few steps, of `replicas` micro-batches each.
template <class Model>
std::vector<double> numbers_of(const Model& m, const setup& s, int dp, int replicas) {
  const interpreted_program<Model> p(m, s, "ranks");
  const mesh ranks = mesh_with(s.ranks, dp);
  std::vector<std::vector<double>> all(static_cast<std::size_t>(ranks_of(ranks)));
  std::vector<batches> data;
  for (int r = 0; r < replicas; ++r) data.emplace_back(s, r);
  const auto steps = [&](communicator& c) {
    cpu device(product_type::widened, 1);
    session run(p.view(), device, purpose::training, c);
    run.weights().initialise(1);
    run.numbers().learning_rate = 1e-2, run.numbers().clip = 1;
    std::vector<batch_view> mine;
    const int first = c.coordinate()[static_cast<unsigned>(axis::dp)] * (replicas / dp);
    for (int k = first; k < first + replicas / dp; ++k)
      mine.push_back(data[static_cast<std::size_t>(k)].view(k));
    for (int i = 0; i < 4; ++i) {
      const step_result r = run.step(mine);
      for (double x : {r.loss.mean(), r.norm}) all[static_cast<std::size_t>(c.rank())].push_back(x);
    }
  };
  if (all.size() == 1) steps(self::of_process());
  else mc_test::simulated_ranks(ranks).run(steps);
  for (const auto& of_rank : all) BOOST_TEST((of_rank == all[0]), "ranks tell different numbers");
  return all[0];
}

template <class Model> void equals_one_rank(const Model& m, setup s, int dp, const char* name) {
  s.type = dtype::f64;
  const std::vector<double> got = numbers_of(m, s, dp, 2);
  s.ranks = {};
  const std::vector<double> want = numbers_of(m, s, 1, 2);
  for (std::size_t i = 0; i < want.size(); ++i)
    BOOST_TEST(std::abs(got[i] - want[i]) <= 1e-10 * std::abs(want[i]),
               name << ": number " << i << " is " << got[i] << ", of one rank " << want[i]);
  BOOST_TEST(want.front() > want[want.size() - 2], name << " does not learn");
}

} // namespace

BOOST_AUTO_TEST_CASE(the_calls_of_a_step_are_those_that_describe_lists) {
  const batching b{4, 32};
  records(small_gpt, {.ranks = {.tp = 2}, .batch = b}, 1, "tp 2");
  records(small_gpt, {.ranks = {.tp = 2, .sequence_parallel = true}, .batch = b}, 2,
          "tp 2 sp dp 2");
  records(small_qwen, {.ranks = {.cp = 2}, .batch = b}, 3, "cp 2 dp 3");
  records(small_qwen,
          {.ranks = {.tp = 2, .cp = 2, .sequence_parallel = true}, .batch = b, .type = dtype::bf16},
          2, "tp 2 sp cp 2 dp 2");
  records(small_qwen,
          {.ranks = {.tp = 2, .cp = 4, .sequence_parallel = true},
           .batch = b,
           .again = recompute::selective},
          1, "tp 2 sp cp 4, recomputed");
}

BOOST_AUTO_TEST_CASE(several_ranks_compute_what_one_does) {
  const batching b{2, 32};
  equals_one_rank(small_gpt, {.batch = b}, 2, "dp 2");
  equals_one_rank(small_gpt, {.ranks = {.tp = 2}, .batch = b}, 1, "tp 2");
  equals_one_rank(small_gpt, {.ranks = {.tp = 2, .sequence_parallel = true}, .batch = b}, 1,
                  "tp sp");
  equals_one_rank(small_qwen, {.ranks = {.cp = 2}, .batch = b}, 1, "cp 2");
  equals_one_rank(small_qwen, {.ranks = {.tp = 2, .cp = 2, .sequence_parallel = true}, .batch = b},
                  2, "tp 2 sp cp 2 dp 2");
}

BOOST_AUTO_TEST_CASE(other_ranks_than_the_layout_has_are_refused) {
  const interpreted_program<gpt> p(small_gpt, {.ranks = {.tp = 2}, .batch = {2, 32}}, "wide"),
      stages(small_gpt, {.ranks = {.pp = 2}, .batch = {2, 32}}, "deep");
  cpu device(product_type::widened, 1);
  const auto refused = [&](const program_view& v, const mesh& m, const char* why) {
    recording_communicator c(m, 0);
    BOOST_CHECK_EXCEPTION(session(v, device, purpose::training, c), error, [&](const error& e) {
      return e.code() == exit_code::mismatch &&
             std::string(e.what()).find(why) != std::string::npos;
    });
  };
  refused(p.view(), mesh_with({.tp = 4}, 1), "over 2 ranks of tp and was given 4");
  refused(p.view(), mesh_with({}, 1), "over at least 2 ranks");
  refused(stages.view(), mesh_with({.pp = 2}, 1), "has several pipeline stages");
}
