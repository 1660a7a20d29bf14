// Programs of several ranks: the calls of a rank's steps are those that `describe` lists, in their
// order, over every axis; ranks that are threads compute the same as one rank; and the measured
// times of a step cover its tasks and exchanges.
#define BOOST_TEST_MODULE ranks
#include <boost/test/unit_test.hpp>

#include <megacpp/comm/agreement.hpp>
#include <megacpp/comm/threads.hpp>
#include <megacpp/comm/timed.hpp>
#include <megacpp/inspect/description.hpp>
#include <megacpp/inspect/timeline.hpp>
#include <megacpp/io/json_file.hpp>
#include <megacpp/options/loop.hpp>
#include <megacpp/preset/models.hpp>
#include <megacpp/product/cpu_products.hpp>
#include <megacpp/run/session.hpp>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include <kernels.hpp>

#include "outcome.hpp"

using namespace mc;
using test::batches;
using test::close_to;
using test::outcome;
using test::outcome_of;

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

constexpr qwen3_moe small_moe = [] {
  qwen3_moe m;
  m.layers = 4, m.hidden = 32, m.heads = 4, m.kv_heads = 2, m.head_dim = 8, m.expert_ffn = 16;
  m.experts = 8, m.experts_per_token = 2, m.vocabulary = 64, m.positions = 32, m.ffn = 48;
  m.mlp_only = {1}, m.shared_ffn = 16, m.aux_loss = 0.1, m.router_z_loss = 0.01;
  m.bias_rate = 1e-3, m.aux_per_sequence = true;
  return m;
}();
/// A mixture in which every token goes to every expert, so that each is chosen equally often.
constexpr qwen3_moe all_experts = [] {
  qwen3_moe m = small_moe;
  m.experts_per_token = m.experts;
  return m;
}();
constexpr gpt tied_gpt = [] {
  gpt m = small_gpt;
  m.layers = 4, m.tied = true;
  return m;
}();

/// A call of a communicator, as both sides describe it.
using call = std::tuple<collective, std::uint8_t, std::int64_t, int>; // axes, bytes, line
std::string text_of(const call& c) {
  axis_set over;
  over.bits = std::get<1>(c);
  return std::string(name_of(std::get<0>(c))) + " over " + name_of(over) + " of " +
         std::to_string(std::get<2>(c)) + " bytes, line " + std::to_string(std::get<3>(c));
}

/// A rank of a mesh whose calls are recorded. The other ranks are imagined with the same values:
/// they give as many elements to sums, and their own shards are its shard, rotated by as many n-ths
/// as they are ranks away. So a count of experts is equal for all experts.
class recording_communicator final : public communicator {
public:
  recording_communicator(const mesh& m, int rank, reduced_bits bits = reduced_bits::of_rank_order)
      : communicator(m, rank, plane::ranks, bits) {}
  std::unique_ptr<communicator> ranks_for(device&) override { return nullptr; }
  std::vector<call> calls;

private:
  ticket begin(const exchange& x, const group& g, lane*) override {
    const std::int64_t size = size_of(x.type), n = g.size();
    if (n > 1)
      calls.emplace_back(x.what, x.over.bits,
                         (x.what == collective::receive ? x.count : x.elements_in(g.size())) * size,
                         x.line.number);
    const auto* const in = static_cast<const std::byte*>(x.in);
    auto* const out = static_cast<std::byte*>(x.out);
    const std::int64_t given = x.elements_in(g.size()), taken = x.elements_out(g.size());
    for (std::int64_t i = 0; in != out && i < taken; ++i) {
      const std::int64_t part = std::max<std::int64_t>(1, x.count), away = i / part - g.rank() + n,
                         turned = (i + part / n * away) % part;
      const std::int64_t from =
          x.what == collective::all_gather ? turned : i % std::max<std::int64_t>(1, given);
      if (given == 0 && x.what == collective::receive) // some number of elements of a stream
        stores::set(out, x.type, i, std::sin(static_cast<double>(i)));
      else if (given == 0) std::memset(out + i * size, 0, static_cast<std::size_t>(size));
      else std::memcpy(out + i * size, in + from * size, static_cast<std::size_t>(size));
    }
    return {0};
  }
  void finish(lane&, ticket) override {}
  std::size_t finish_any(std::span<const ticket> /*any*/) override { return 0; }
};

/// Checks that the calls of rank `rank` in a step of `micros` micro-batches are those that
/// `describe` lists for its stage, and that all stages together have the sums that it prints.
template <class Model>
void records(const Model& m, const setup& s, int dp, const char* name, int micros = 1) {
  const interpreted_program<Model> p(m, s, name);
  const mesh ranks = mesh_of(s.ranks, dp);
  std::map<call, std::int64_t> by_describe, made;
  for (const collective_row& e : collectives_of(p.view(), ranks))
    by_describe[{e.call.what, e.call.over.bits, e.call.bytes, e.line.number}] += e.per_step;
  for (int stage = 0; stage < s.ranks.pp; ++stage) {
    const int of_stage = ranks_of(ranks) / s.ranks.pp, rank = of_stage * stage + of_stage * 2 / 3;
    recording_communicator c(ranks, rank);
    BOOST_TEST_REQUIRE(c.coordinate()[static_cast<unsigned>(axis::pp)] == stage);
    cpu device(product_type::widened, 1);
    session run(p.view(), device, purpose::training, c);
    run.weights().initialise(1);
    const double norm =
        run.step(std::vector<batch_view>(static_cast<std::size_t>(micros), batches(s, 0).view(0)))
            .norm;
    const bool counts_tokens = stage + 1 == s.ranks.pp; // the norm is divided by it
    BOOST_TEST((norm > 0 && (std::isfinite(norm) || !counts_tokens)),
               name << ": the norm is " << norm);
    std::vector<call> listed;
    for (const step_call& x : calls_of(p.view(), ranks, stage, micros))
      listed.emplace_back(x.call.what, x.call.over.bits, x.call.bytes, x.line.number);
    BOOST_TEST(c.calls.size() == listed.size(), name << ": stage " << stage << " makes "
                                                     << c.calls.size() << " calls, and "
                                                     << listed.size() << " are listed");
    const auto [got, want] =
        std::mismatch(c.calls.begin(), c.calls.end(), listed.begin(), listed.end());
    if (got != c.calls.end() && want != listed.end())
      BOOST_ERROR(name << ": call " << got - c.calls.begin() << " of stage " << stage << " is "
                       << text_of(*got) << ", and listed is " << text_of(*want));
    for (const call& x : c.calls)
      if (std::get<0>(x) != collective::receive && std::get<2>(x) > 0) ++made[x];
  }
  if (micros == 1) BOOST_TEST((made == by_describe), name);
  std::uint8_t over = 0; // the step calls every axis of the layout
  for (const auto& [x, times] : made) over |= std::get<1>(x);
  const bool experts = s.ranks.ep * s.ranks.etp > 1;
  for (int a = 0; a < axes; ++a)
    if (const auto one = static_cast<axis>(a);
        ranks.of(one) > 1 && (experts || !expert_axes.has(one)))
      BOOST_TEST((over >> a & 1) == 1, name << ": nothing over " << name_of(one));
}

/// Compares ranks with one rank that has the same two micro-batches, one after another or together.
template <class Model>
void equals_one_rank(const Model& m, setup s, int dp, const char* name, const test::how& h = {}) {
  s.precision = dtype::f64;
  test::how apart = h;
  apart.together = false;
  const outcome got = outcome_of(m, s, dp, 2, apart);
  s.ranks = {}, s.batch.expert_rows = 0, s.batch.micro *= h.together ? 2 : 1;
  const outcome want = outcome_of(m, s, 1, 2, h);
  close_to(got, want, 1e-10, name);
  BOOST_TEST(want.numbers.front() > want.numbers[want.numbers.size() - 2],
             name << " does not learn");
}

} // namespace

BOOST_AUTO_TEST_CASE(the_calls_of_a_step_are_those_that_describe_lists) {
  const batching b{4, 32};
  const layout tp2sp{.tp = 2, .sequence_parallel = true};
  records(small_gpt, {.ranks = {.tp = 2}, .batch = b}, 1, "tp 2");
  records(small_gpt, {.ranks = tp2sp, .batch = b}, 2, "tp 2 sp dp 2", 3);
  records(small_qwen, {.ranks = {.cp = 2}, .batch = b}, 3, "cp 2 dp 3");
  records(small_qwen, {.ranks = {.cp = 2, .zero = 1}, .batch = b}, 3, "zero 1, cp 2 dp 3");
  records(small_gpt, {.ranks = {.zero = 1}, .batch = b, .precision = dtype::bf16}, 2,
          "zero 1, dp 2");
  records(small_qwen,
          {.ranks = {.tp = 2, .cp = 2, .sequence_parallel = true},
           .batch = b,
           .precision = dtype::bf16},
          2, "tp 2 sp cp 2 dp 2");
  records(small_qwen,
          {.ranks = {.tp = 2, .cp = 4, .sequence_parallel = true},
           .batch = b,
           .recompute_policy = recompute::selective},
          1, "tp 2 sp cp 4, recomputed");
}

BOOST_AUTO_TEST_CASE(the_calls_of_experts_are_those_that_describe_lists) {
  const batching b{4, 32};
  records(small_moe, {.ranks = {.ep = 4}, .batch = b}, 4, "ep 4");
  records(small_moe, {.ranks = {.ep = 4}, .batch = b, .sums = numerics::batch_invariant}, 8,
          "ep 4 edp 2, sequence by sequence", 2);
  layout l{.tp = 2, .ep = 2, .etp = 2, .sequence_parallel = true};
  records(small_moe, {.ranks = l, .batch = b}, 2, "tp 2 sp dp 2, ep 2 etp 2");
  // Rows for three of a rank's experts in one round, and for the fourth in another. Rows of all
  // ranks are equal.
  const int rows = 3 * 4 * (4 * 32 / 2);
  for (const recompute again : {recompute::none, recompute::selective, recompute::full})
    for (const dtype t : {dtype::f32, dtype::bf16})
      records(
          all_experts,
          {.ranks = l, .batch = {4, 32, false, rows}, .precision = t, .recompute_policy = again}, 4,
          "tp 2 sp dp 4, ep 2 etp 2 edp 2, in rounds", 2);
  records(all_experts, {.ranks = l, .batch = {4, 32, false, rows}}, 2, "in rounds");
}

BOOST_AUTO_TEST_CASE(the_calls_of_stages_are_those_that_describe_lists) {
  const batching b{4, 32};
  records(tied_gpt, {.ranks = {.tp = 2, .pp = 2}, .batch = b}, 2, "pp 2 tp 2 dp 2");
  records(tied_gpt, {.ranks = {.tp = 2, .pp = 4, .sequence_parallel = true}, .batch = b}, 1,
          "pp 4 tp 2 sp");
  records(tied_gpt, {.ranks = {.pp = 2, .virtual_stages = 2}, .batch = b}, 1, "pp 2 virtual 2", 4);
  records(tied_gpt, {.ranks = {.pp = 2, .virtual_stages = 2}, .batch = b}, 1, "pp 2 virtual 2");
  records(tied_gpt,
          {.ranks = {.pp = 3, .cut = {.layers = {0, 3, 1}}, .schedule = &gpipe},
           .batch = {.micro = 4, .sequence = 32, .micro_batches = 5}},
          1, "pp 3 cut unevenly, GPipe", 5);
  records(small_moe,
          {.ranks = {.tp = 2, .pp = 2, .cp = 2, .ep = 2, .etp = 2, .sequence_parallel = true},
           .batch = b},
          2, "pp 2 tp 2 sp cp 2 dp 2, ep 2 etp 2 edp 2");
}

// Stages have different layers. In an exchange of all stages each makes the same calls, in the same
// order and of the same size, or has nothing to add (deepspeedai/DeepSpeed#7208: tied weights
// reduced in an order of each rank's own; NVIDIA/Megatron-LM#3401: an all-reduce of as many numbers
// as a stage had layers).
BOOST_AUTO_TEST_CASE(all_stages_make_the_calls_of_all_stages_in_one_order) {
  const auto check = [](const auto& m, const setup& s, int dp, const char* name) {
    const interpreted_program p(m, s, name);
    std::vector<std::vector<step_call>> of;
    for (int stage = 0; stage < s.ranks.pp; ++stage) {
      of.emplace_back();
      for (const step_call& x : calls_of(p.view(), mesh_of(s.ranks, dp), stage, 2 * s.ranks.pp))
        if (x.call.over.has(axis::pp) && x.call.what != collective::send &&
            x.call.what != collective::receive)
          of.back().push_back(x);
    }
    for (const auto& calls : of) {
      BOOST_TEST_REQUIRE(calls.size() == of[0].size(), name);
      for (std::size_t i = 0; i < calls.size(); ++i) {
        std::int64_t most = 0;
        for (const auto& others : of) most = std::max(most, others[i].call.bytes);
        const step_call &x = calls[i], &first = of[0][i];
        BOOST_TEST((x.call.what == first.call.what && x.call.over == first.call.over), name);
        BOOST_TEST((x.call.bytes == most || x.call.bytes == 0), name << ": call " << i);
      }
    }
    BOOST_TEST(!of[0].empty(), name);
  };
  const batching b{4, 32};
  check(tied_gpt, {.ranks = {.pp = 4}, .batch = b}, 1, "pp 4, tied");
  check(tied_gpt, {.ranks = {.tp = 2, .pp = 2, .sequence_parallel = true, .zero = 1}, .batch = b},
        2, "zero 1, pp 2 tp 2 sp dp 2, tied");
  check(small_moe, {.ranks = {.tp = 2, .pp = 4, .ep = 2, .etp = 2}, .batch = b}, 2,
        "pp 4 tp 2 dp 2, ep 2 etp 2, experts in some layers");
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

// Two heads of keys and values are on four ranks, or on two: each rank works with the head that its
// queries read, whose gradient is the sum over the ranks that do. The norm counts it once.
BOOST_AUTO_TEST_CASE(ranks_that_share_heads_of_keys_compute_what_one_does) {
  const batching b{2, 32};
  const layout tp4{.tp = 4}, tp4sp{.tp = 4, .sequence_parallel = true};
  equals_one_rank(small_qwen, {.ranks = tp4, .batch = b}, 1, "tp 4, two kv heads");
  equals_one_rank(small_qwen, {.ranks = tp4sp, .batch = b}, 1, "tp 4 sp, two kv heads");
  qwen3 one_head = small_qwen;
  one_head.kv_heads = 1;
  equals_one_rank(one_head,
                  {.ranks = {.tp = 4, .cp = 2, .sequence_parallel = true, .zero = 1},
                   .batch = b,
                   .recompute_policy = recompute::full,
                   .sums = numerics::batch_invariant},
                  2, "zero 1, tp 4 sp cp 2 dp 2, one kv head");
  records(small_qwen, {.ranks = tp4sp, .batch = {4, 32}}, 2, "tp 4 sp dp 2, two kv heads", 2);
}

// Replicas share the optimizer's states, each with its share of every bucket.
BOOST_AUTO_TEST_CASE(replicas_that_share_the_optimizer_compute_what_one_rank_does) {
  const batching b{2, 32};
  equals_one_rank(small_gpt, {.ranks = {.zero = 1}, .batch = b}, 1, "zero 1, dp 1");
  equals_one_rank(small_gpt, {.ranks = {.zero = 1}, .batch = b}, 2, "zero 1, dp 2");
  equals_one_rank(small_qwen, {.ranks = {.cp = 2, .zero = 1}, .batch = b}, 1, "zero 1, cp 2");
  equals_one_rank(small_qwen,
                  {.ranks = {.tp = 2, .cp = 2, .sequence_parallel = true, .zero = 1}, .batch = b},
                  2, "zero 1, tp 2 sp cp 2 dp 2");
  equals_one_rank(tied_gpt, {.ranks = {.pp = 2, .zero = 1}, .batch = b}, 2,
                  "zero 1, pp 2 dp 2, tied");
  equals_one_rank(
      small_moe,
      {.ranks = {.tp = 2, .ep = 2, .etp = 1, .sequence_parallel = true, .zero = 1}, .batch = b}, 2,
      "zero 1, tp 2 sp dp 2, ep 2 edp 2");
}

// A shared sum is added in the order of the ranks, as the whole one is, and so is its update. Only
// the norm, which does not clip here, adds up in another order.
BOOST_AUTO_TEST_CASE(a_shared_optimizer_leaves_the_same_bits) {
  precision_policy narrow = dtype::f32;
  narrow.wire = dtype::bf16;
  for (const precision_policy p :
       {precision_policy(dtype::f32), precision_policy(dtype::bf16), narrow}) {
    setup s{.ranks = {.cp = 2}, .batch = {2, 32}, .precision = p};
    const outcome apart = outcome_of(small_qwen, s, 2, 2, {.clip = 0});
    s.ranks.zero = 1;
    const outcome shared = outcome_of(small_qwen, s, 2, 2, {.clip = 0});
    BOOST_TEST((shared.weights == apart.weights));
  }
}

// A policy may send gradients in a narrower type than it keeps them in. Each rank's gradient and
// the sum are rounded, so the norm is off by no more than two roundings.
BOOST_AUTO_TEST_CASE(gradients_are_sent_in_the_type_of_the_wire) {
  setup s{.ranks = {.zero = 1}, .batch = {2, 32}};
  const outcome exact = outcome_of(small_gpt, s, 4, 4, {.clip = 0});
  s.precision.wire = dtype::bf16;
  const outcome sent = outcome_of(small_gpt, s, 4, 4, {.clip = 0});
  // A sum of loads, whose sign is a step, is sent unrounded, since it is no gradient.
  setup of_experts{.ranks = {.ep = 2}, .batch = {2, 32}};
  const outcome balanced = outcome_of(small_moe, of_experts, 2, 2, {.clip = 0, .steps = 1});
  of_experts.precision.wire = dtype::bf16;
  const outcome narrow = outcome_of(small_moe, of_experts, 2, 2, {.clip = 0, .steps = 1});
  int biases = 0;
  for (const auto& [name, w] : balanced.weights) {
    if (!name.ends_with("e_score_correction_bias")) continue;
    BOOST_TEST((narrow.weights.at(name) == w), name);
    ++biases;
  }
  BOOST_TEST(biases == 3);
  BOOST_TEST(sent.numbers[0] == exact.numbers[0]);
  BOOST_TEST(sent.numbers[1] != exact.numbers[1]);
  BOOST_TEST(std::abs(sent.numbers[1] / exact.numbers[1] - 1) < 2 * 0x1p-8);
}

// Each stage has its own layers, and the norm is that of all of them.
BOOST_AUTO_TEST_CASE(stages_of_a_pipeline_compute_what_one_rank_does) {
  const batching b{2, 32};
  equals_one_rank(small_gpt, {.ranks = {.pp = 2}, .batch = b}, 1, "pp 2");
  equals_one_rank(tied_gpt, {.ranks = {.pp = 2}, .batch = b}, 1, "pp 2, tied");
  equals_one_rank(tied_gpt, {.ranks = {.tp = 2, .pp = 2, .sequence_parallel = true}, .batch = b}, 1,
                  "pp 2 tp 2 sp, tied");
}

namespace {

/// A GPT that shares parameters in every way. Its blocks use a gain at two places as it is and
/// replicated, and compute on it; they use a matrix that is cut for two products. By their kind
/// they use a gain of the stem, as it is and replicated, and another one as it is, which the stem
/// replicates; or a gain of the head, replicated alone, which stages before the last two lack.
struct sharing : gpt {
  static constexpr int kinds = 2;
  constexpr int kind_of(int layer) const { return layer < 2 ? 0 : 1; }

  constexpr var gain(context& c, const char* scope, bool lent) const {
    parameter_info info = ones();
    info.tied = lent;
    return weight(c, scope, "weight", {hidden_extent()}, {}, info);
  }
  constexpr var normed(context& c, var x, var gain) const {
    return rms_norm(x, to(gain, axis::tp, beside(c.stream)), eps);
  }
  constexpr var stem(context& c, var words) const {
    const var x = normed(c, gpt::stem(c, words), gain(c, "first", false));
    const var whole = to(gain(c, "whole", false), axis::tp, replicate);
    const var n = rms_norm(to(x, axis::tp, replicate), whole, eps);
    const var u = gelu(column_parallel(c, "early.up", n, {{dim::ffn, ffn}}, bias, std));
    return x + row_parallel(c, "early.down", u, 1, hidden_extent(), bias, std);
  }
  constexpr var final_norm(context& c, var x) const {
    return normed(c, gpt::final_norm(c, x), gain(c, "last", false));
  }
  constexpr var block(context& c, int kind, var x) const {
    const extent width{dim::ffn, ffn};
    const var g = gain(c, "own", false), lent = gain(c, kind == 0 ? "first" : "last", true);
    const var up = weight(c, "up", "weight", {width, hidden_extent()},
                          on(axis::tp, shard(dim::ffn)), normal_weights(std));
    const var own = normed(c, kind == 0 ? normed(c, x, gain(c, "whole", true)) : x, g);
    const var y = kind == 0 ? normed(c, own, lent) : own;
    const auto wide = [&](var by) {
      return linear(rms_norm(to(y, axis::tp, replicate), by, eps), up);
    };
    const auto whole = [&](var by) { return to(by, axis::tp, replicate); };
    const var u = swiglu(wide(whole(g)), wide(gelu(whole(g)))), v = wide(whole(lent));
    const var z = y + row_parallel(c, "down", swiglu(u, v), 1, hidden_extent(), bias, std);
    return gpt::block(c, 0, kind == 0 ? normed(c, z, lent) : z);
  }
};

/// A GPT with a branch that reads nothing but copies of the stream.
struct branch_of_copies : gpt {
  constexpr var block(context& c, int /*kind*/, var x) const {
    const var g = weight(c, "gain", "weight", {hidden_extent()}, {}, ones());
    const var n = rms_norm(to(x, axis::tp, replicate), to(g, axis::tp, replicate), eps);
    const var u = gelu(column_parallel(c, "up", n, {{dim::ffn, ffn}}, bias, std));
    return x + row_parallel(c, "down", u, 1, hidden_extent(), bias, std);
  }
};

} // namespace

// A received stream stays until the backward pass has read it, under whatever name.
BOOST_AUTO_TEST_CASE(a_stream_that_is_read_as_a_copy_outlives_the_forward_pass) {
  branch_of_copies m;
  static_cast<gpt&>(m) = small_gpt;
  m.layers = 4;
  equals_one_rank(m, {.ranks = {.tp = 2}, .batch = {2, 16}}, 1, "tp 2, copies");
  equals_one_rank(m, {.ranks = {.tp = 2, .pp = 2}, .batch = {2, 16}}, 1, "tp 2 pp 2, copies");
}

// Each state of a parameter collects its own gradient, and each stage holds the parameters that its
// parts use.
BOOST_AUTO_TEST_CASE(parameters_that_are_shared_are_those_of_one_rank) {
  sharing m;
  static_cast<gpt&>(m) = small_gpt;
  m.layers = 4, m.hidden = 16, m.ffn = 16;
  for (const bool tied : {false, true}) {
    m.tied = tied;
    const batching b{2, 16};
    const auto equals = [&](const layout& l, int dp, const char* name) {
      equals_one_rank(m, {.ranks = l, .batch = b}, dp, name);
    };
    equals({.tp = 2}, 1, "tp 2, shared");
    equals({.tp = 2, .cp = 2, .sequence_parallel = true, .zero = 1}, 2,
           "tp 2 sp cp 2 dp 2, shared");
    equals({.pp = 4}, 1, "pp 4, shared");
    equals({.tp = 2, .pp = 2}, 1, "tp 2 pp 2, shared");
    equals({.tp = 2, .pp = 2, .sequence_parallel = true, .virtual_stages = 2}, 1,
           "pp 2 in two chunks, tp 2 sp, shared");
    equals({.pp = 2, .zero = 1}, 2, "zero 1, pp 2 dp 2, shared");
  }
}

// Ranks share experts, in one round and in several, whatever tokens choose.
BOOST_AUTO_TEST_CASE(ranks_that_share_experts_compute_what_one_does) {
  const batching b{2, 32};
  equals_one_rank(small_moe, {.ranks = {.ep = 2}, .batch = b}, 2, "ep 2");
  equals_one_rank(small_moe, {.ranks = {.tp = 2, .etp = 2}, .batch = b}, 1, "etp 2");
  for (const int rows : {0, 90, 37})
    for (const numerics sums : {numerics::fast, numerics::batch_invariant})
      for (const bool twice : {false, true})
        equals_one_rank(small_moe,
                        {.ranks = {.tp = 2, .ep = 2, .etp = 2, .sequence_parallel = true},
                         .batch = {2, 32, false, rows},
                         .recompute_policy = twice ? recompute::full : recompute::none,
                         .sums = sums},
                        2, "tp 2 sp dp 2, ep 2 etp 2");
  equals_one_rank(small_moe, {.ranks = {.cp = 2, .ep = 4, .etp = 1}, .batch = b}, 2,
                  "cp 2 dp 2, ep 4");
}

// The load is that of a micro-batch, wherever its tokens lie, or that of the micro-batches of all
// replicas: then one rank has them in one.
BOOST_AUTO_TEST_CASE(the_load_of_experts_is_balanced_over_ranks) {
  const setup spread{.ranks = {.tp = 2, .cp = 2, .ep = 2, .etp = 2, .sequence_parallel = true},
                     .batch = {2, 32}};
  const setup replicas{.ranks = {.ep = 2}, .batch = {2, 32}, .recompute_policy = recompute::full};
  qwen3_moe m = small_moe;
  m.aux_per_sequence = false;
  equals_one_rank(m, spread, 2, "aux loss, tp 2 sp cp 2 dp 2, ep 2 etp 2 edp 2");
  m.aux_global = true;
  equals_one_rank(m, spread, 2, "global aux loss, tp 2 sp cp 2 dp 2, ep 2 etp 2 edp 2",
                  {.together = true});
  equals_one_rank(m, replicas, 2, "global aux loss, dp 2, ep 2", {.together = true});
  records(m, {.ranks = {.tp = 2, .pp = 2, .ep = 4, .sequence_parallel = true}, .batch = {4, 32}}, 2,
          "global aux loss, tp 2 sp pp 2 dp 2, ep 4", 2);
}

// Tokens come first by their position in the micro-batch, not by their rank.
BOOST_AUTO_TEST_CASE(an_expert_of_a_capacity_takes_the_first_tokens_of_all_ranks) {
  qwen3_moe m = small_moe;
  m.capacity = 0.75;
  const batching b{2, 32};
  equals_one_rank(m, {.ranks = {.cp = 2, .ep = 4, .etp = 1}, .batch = b}, 2, "capacity, cp 2 dp 2");
  equals_one_rank(m, {.ranks = {.tp = 2, .ep = 2, .sequence_parallel = true}, .batch = b}, 1,
                  "capacity, tp 2 sp, ep 2");
  const layout all{.tp = 2, .cp = 2, .ep = 2, .etp = 2, .sequence_parallel = true};
  equals_one_rank(m, {.ranks = all, .batch = b, .recompute_policy = recompute::full}, 2,
                  "capacity, tp 2 sp cp 2 dp 2, ep 2 etp 2 edp 2");
  m.capacity = 8; // no token is dropped
  equals_one_rank(m, {.ranks = all, .batch = b}, 2, "capacity of all tokens");
  records(m, {.ranks = all, .batch = {4, 32}}, 2, "capacity", 2);
}

// Every token goes to the same two of eight experts: half of the ranks or more have none, and take
// part in every exchange, forward and backward (PaddlePaddle/PaddleFormers#3010: a rank without
// tokens left its all-to-all out, and the others waited).
BOOST_AUTO_TEST_CASE(ranks_whose_experts_nobody_chose_exchange_all_the_same) {
  equals_one_rank(small_moe, {.ranks = {.cp = 2, .ep = 4, .etp = 1}, .batch = {2, 32}}, 2,
                  "cp 2 dp 2, ep 4", {.one_token = true});
  for (const int rows : {0, 50})
    equals_one_rank(small_moe,
                    {.ranks = {.tp = 2, .ep = 4, .etp = 1, .sequence_parallel = true},
                     .batch = {2, 32, false, rows},
                     .recompute_policy = recompute::full},
                    2, "tp 2 sp dp 2, ep 4", {.one_token = true});
}

namespace {

constexpr int traced_micros = 3, first_traced = 2, last_traced = 3;

/// Returns the measured times of two steps on every rank.
std::vector<std::string> measured(const program_view& p, const mesh& ranks) {
  std::vector<std::string> all;
  const batches data(p.numbers, 0);
  const std::vector<batch_view> micros(traced_micros, data.view(0));
  std::atomic<int> faults = 0; // Boost.Test counts checks of one thread only
  thread_ranks(ranks).run([&](communicator& c) {
    cpu device(product_type::widened, 1);
    const auto others = c.make_ranks(device);
    timed_communicator timed(*others, device);
    session run(p, device, purpose::training, timed);
    run.weights().initialise(1);
    timeline t(p, &timed, traced_micros, last_traced - first_traced + 1);
    run.step(micros);
    for (int step = first_traced; step <= last_traced; ++step) {
      t.begin(step), run.profile(&t);
      run.step(micros);
      t.end(), run.profile(nullptr);
    }
    t.begin(4), run.profile(&t); // the step is given up, and leaves no records
    if (run.step(1, [](int, batch_view&) { return false; }).has_value()) ++faults;
    t.end(false), run.profile(nullptr);
    if (timed.left_out() != 0) ++faults;
    std::vector<std::string> packed = agreement(c).gather(t.packed(c));
    if (c.rank() == 0) all = std::move(packed);
  });
  BOOST_TEST(faults == 0);
  return all;
}

struct traced_event {
  std::int64_t begin, end; // nanoseconds
  std::string name;
  nlohmann::json args;
};
/// Returns the events of a trace by rank and track, in their order.
using traced_tracks = std::map<std::pair<int, int>, std::vector<traced_event>>;
traced_tracks tracks_of(const std::string& text) {
  traced_tracks tracks;
  const nlohmann::json trace = nlohmann::json::parse(text);
  std::int64_t before = 0;
  for (const nlohmann::json& e : trace.at("traceEvents")) {
    if (e.at("ph") != "X") continue;
    const auto ns = [&](const char* of) { return std::llround(e.at(of).get<double>() * 1e3); };
    BOOST_TEST(ns("ts") >= before);
    before = ns("ts");
    tracks[{e.at("pid"), e.at("tid")}].push_back(
        {before, before + ns("dur"), e.at("name"), e.at("args")});
  }
  return tracks;
}

} // namespace

// The trace of a run holds every task and every exchange of its steps once, and every moment of a
// step is computing, communication or waiting.
BOOST_AUTO_TEST_CASE(a_trace_shows_the_tasks_and_the_exchanges_of_a_step) {
  enum { steps = 1, tasks, communication, idle };
  const setup s{.ranks = {.tp = 2, .pp = 2, .sequence_parallel = true, .zero = 1},
                .batch = {2, 32}};
  const interpreted_program<gpt> program(tied_gpt, s, "a \"name\"");
  const program_view& p = program.view();
  const mesh ranks = mesh_of(s.ranks, 2);
  const std::vector<std::string> packed = measured(p, ranks);
  BOOST_REQUIRE(packed.size() == 8u);
  const std::string text = trace_text(p, ranks, packed);
  BOOST_TEST(text.starts_with(trace_begin));
  std::map<int, std::string> names;
  const nlohmann::json trace = nlohmann::json::parse(text);
  for (const nlohmann::json& e : trace.at("traceEvents"))
    if (e.at("name") == "process_name") names[e.at("pid")] = e.at("args").at("name");
  traced_tracks tracks = tracks_of(text);
  const auto within = [](const traced_event& e, const traced_event& step) {
    return step.begin <= e.begin && e.end <= step.end;
  };
  for (int r = 0; r < 8; ++r) {
    BOOST_TEST(names.at(r) == "rank " + std::to_string(r) + " (tp " + std::to_string(r % 2) +
                                  ", dp " + std::to_string(r / 2 % 2) + ", pp " +
                                  std::to_string(r / 4) + ")");
    for (int track = steps; track <= idle; ++track) {
      const std::vector<traced_event>& of = tracks[{r, track}];
      for (std::size_t i = 1; i < of.size(); ++i) BOOST_TEST(of[i].begin >= of[i - 1].end);
    }
    const std::vector<traced_event>& taken = tracks[{r, steps}];
    BOOST_REQUIRE(taken.size() == 2u);
    std::vector<std::string> done, listed;
    std::vector<call> made, calls;
    const int stage = r / 4;
    const stage_shape shape = stage_of(p, stage);
    for (const traced_event& step : taken) {
      std::vector<traced_event> waits; // communication or idle, ordered below
      std::int64_t moving = 0, waiting = 0;
      for (const traced_event& e : tracks[{r, tasks}])
        if (within(e, step))
          done.push_back(e.name + (e.args.contains("micro_batch")
                                       ? " of micro-batch " + e.args["micro_batch"].dump()
                                       : ""));
      for (const traced_event& e : tracks[{r, communication}]) {
        if (!within(e, step)) continue;
        waits.push_back(e), moving += e.end - e.begin;
        const std::string line = e.args.value("line", "");
        const std::string what = e.name.substr(0, e.name.find(" over "));
        std::uint8_t over = 0;
        for (int a = 0; a < axes; ++a)
          if (const std::string axis_name = std::string(" ") + name_of(static_cast<axis>(a));
              (e.name + " ").find(axis_name + " ") != std::string::npos)
            over |= static_cast<std::uint8_t>(1u << a);
        for (int k = 0; k <= static_cast<int>(collective::barrier); ++k)
          if (what == name_of(static_cast<collective>(k)))
            made.emplace_back(static_cast<collective>(k), over, e.args["bytes"],
                              line.empty() ? 0 : std::stoi(line.substr(line.find(':') + 1)));
      }
      for (const traced_event& e : tracks[{r, idle}]) {
        if (!within(e, step)) continue;
        waits.push_back(e), waiting += e.end - e.begin;
        BOOST_TEST(e.name != "waiting for rank " + std::to_string(r));
        BOOST_TEST(e.name.starts_with("waiting for rank "));
      }
      std::stable_sort(waits.begin(), waits.end(), [](const auto& a, const auto& b) {
        return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
      });
      for (std::size_t i = 1; i < waits.size(); ++i) BOOST_TEST(waits[i].begin >= waits[i - 1].end);
      const auto told = [&](const char* what) { return step.args[what].get<double>() * 1e6; };
      const auto length = static_cast<double>(step.end - step.begin);
      BOOST_TEST(told("communication_ms") == static_cast<double>(moving),
                 boost::test_tools::tolerance(1e-6));
      BOOST_TEST(told("idle_ms") == static_cast<double>(waiting),
                 boost::test_tools::tolerance(1e-6));
      BOOST_TEST(told("compute_ms") > 0);
      BOOST_TEST(told("compute_ms") + told("communication_ms") + told("idle_ms") == length,
                 boost::test_tools::tolerance(1e-6));
      for (const task& t : training_step(shape.training, traced_micros)) {
        mc::text<160> name;
        spell(name, t, {shape.uses.begin(), static_cast<std::size_t>(shape.uses.size())});
        listed.emplace_back(name.c_str());
      }
      for (const step_call& x : calls_of(p, ranks, stage, traced_micros))
        calls.emplace_back(x.call.what, x.call.over.bits, x.call.bytes, x.line.number);
    }
    std::size_t events = 0;
    for (int track : {tasks, communication}) events += tracks[{r, track}].size();
    BOOST_TEST(events == listed.size() + calls.size()); // no event lies between the steps
    BOOST_TEST(done == listed, boost::test_tools::per_element());
    std::sort(made.begin(), made.end()), std::sort(calls.begin(), calls.end());
    BOOST_TEST((made == calls), "rank " << r << " makes " << made.size() << " exchanges, and "
                                        << calls.size() << " are listed, or others");
  }
}

// Processes on several machines have different clocks, which are set by barriers, since no rank
// leaves a barrier before all have entered it. Clocks that may be equal are left as they are.
BOOST_AUTO_TEST_CASE(clocks_of_ranks_are_set_by_what_they_have_met_at) {
  using namespace mc::detail;
  const std::vector<clock_reading> first{{100, 160}, {200, 230}, {300, 390}};
  BOOST_TEST(ahead_of(first, first) == 0);
  BOOST_TEST(ahead_of(first, {{155, 161}, {229, 231}, {310, 395}}) == 0);
  BOOST_TEST(ahead_of({}, {}) == 0);
  for (const std::int64_t hour :
       {std::int64_t{3'600'000'000'000}, -std::int64_t{7'200'000'000'000}}) {
    std::vector<clock_reading> other{{155, 161}, {229, 231}, {310, 395}};
    for (clock_reading& c : other) c.entered += hour, c.left += hour;
    const std::int64_t apart = ahead_of(first, other) - hour;
    BOOST_TEST((apart >= -1 && apart <= 31), apart); // uncertainty after the second barrier
  }
  const interpreted_program<gpt> program(small_gpt, {.ranks = {.tp = 2}, .batch = {2, 32}}, "tp");
  const mesh ranks = mesh_of({.tp = 2}, 1);
  std::vector<std::string> packed = measured(program.view(), ranks);
  const traced_tracks same = tracks_of(trace_text(program.view(), ranks, packed));
  rank_times other = rank_times::unpacked(packed[1]);
  const std::int64_t hour = 3'600'000'000'000;
  for (clock_reading& c : other.clocks) c.entered += hour, c.left += hour;
  for (timed_step& x : other.steps) x.began += hour, x.ended += hour;
  for (timed_task& x : other.tasks) x.began += hour, x.ended += hour;
  for (sent_exchange& x : other.exchanges) x.started += hour, x.waited += hour, x.done += hour;
  packed[1] = other.packed();
  traced_tracks set = tracks_of(trace_text(program.view(), ranks, packed));
  for (const auto& [track, events] : same)
    if (track.second <= 3) BOOST_TEST(set[track].size() == events.size());
  const std::int64_t began = same.at({1, 1})[0].begin - same.at({0, 1})[0].begin,
                     begins = set[{1, 1}][0].begin - set[{0, 1}][0].begin;
  BOOST_TEST(std::abs(begins - began) < hour / 1000);
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
  const interpreted_program<gpt> alone(small_gpt, {.batch = {2, 32}}, "alone");
  BOOST_CHECK_EXCEPTION(
      session(alone.view(), device, purpose::training, self::hosts()), error, [](const error& e) {
        return std::string(e.what()).find("was given a communicator of hosts") != std::string::npos;
      });
  const interpreted_program<gpt> invariant(
      small_gpt, {.ranks = {.tp = 2}, .batch = {2, 32}, .sums = numerics::batch_invariant}, "same");
  recording_communicator by_library(mesh_of({.tp = 2}, 1), 0, reduced_bits::of_library);
  BOOST_CHECK_EXCEPTION(
      session(invariant.view(), device, purpose::training, by_library), error, [](const error& e) {
        return std::string(e.what()).find("an order of a library's own") != std::string::npos;
      });
  refused(p.view(), mesh_of({.tp = 4}, 1), "over 2 ranks of tp and was given 4");
  refused(p.view(), mesh_of({}, 1), "over at least 2 ranks");
  refused(stages.view(), mesh_of({.pp = 4}, 1), "over 2 ranks of pp and was given 4");
}

// With interleaved stages, micro-batches come in groups of as many as there are stages. GPipe has
// memory for as many as it was built for.
BOOST_AUTO_TEST_CASE(numbers_of_micro_batches_that_a_schedule_does_not_run_are_refused) {
  const auto refused = [&](const setup& s, int micros, int nearest) {
    const interpreted_program<gpt> p(tied_gpt, s, "deep");
    BOOST_TEST(nearest_micros(p.view(), micros) == nearest);
    cpu device(product_type::widened, 1);
    recording_communicator c(mesh_of(s.ranks, 1), 0);
    session run(p.view(), device, purpose::training, c);
    const std::vector<batch_view> all(static_cast<std::size_t>(micros), batches(s, 0).view(0));
    const std::string said = std::to_string(nearest) + " micro-batches are the nearest";
    BOOST_CHECK_EXCEPTION(run.step(all), error, [&](const error& e) {
      return e.code() == exit_code::usage && std::string(e.what()).find(said) != std::string::npos;
    });
    BOOST_TEST(c.calls.empty());
    options o;
    o.training.global_batch_size.read(std::to_string(micros * s.batch.micro), "");
    const std::string size = "the nearest size is " + std::to_string(nearest * s.batch.micro);
    BOOST_CHECK_EXCEPTION(loop_request_of(p.view(), o), error, [&](const error& e) {
      return e.code() == exit_code::usage && std::string(e.what()).find(size) != std::string::npos;
    });
  };
  refused({.ranks = {.pp = 2, .virtual_stages = 2}, .batch = {2, 32}}, 3, 4);
  refused({.ranks = {.pp = 2, .schedule = &gpipe},
           .batch = {.micro = 2, .sequence = 32, .micro_batches = 4}},
          7, 4);
}
