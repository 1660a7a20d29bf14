// Ranks that share a model find the same continuation of a text as one rank does, and all of them
// the same.
#define BOOST_TEST_MODULE generation_on_ranks
#include <boost/test/unit_test.hpp>

#include <megacpp/comm/threads.hpp>
#include <megacpp/generate/generator.hpp>
#include <megacpp/model/gpt.hpp>
#include <megacpp/model/qwen2.hpp>
#include <megacpp/model/qwen3.hpp>
#include <megacpp/model/qwen3_moe.hpp>
#include <megacpp/product/cpu_products.hpp>
#include <megacpp/run/rank_program.hpp>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include <kernels.hpp>

using namespace mc;

namespace {

constexpr int words = 61; // more rows where tp cuts them

constexpr gpt tied_gpt{
    .layers = 2, .hidden = 32, .heads = 4, .ffn = 64, .vocabulary = words, .positions = 32};
constexpr qwen3 grouped = [] {
  qwen3 m;
  m.layers = 2, m.hidden = 32, m.heads = 4, m.kv_heads = 2, m.head_dim = 8, m.ffn = 48;
  m.vocabulary = words, m.positions = 32, m.rope_scaling = {rope_type::yarn, 4, 8};
  return m;
}();
constexpr qwen2 biased = [] {
  qwen2 m;
  m.layers = 2, m.hidden = 32, m.heads = 4, m.kv_heads = 2, m.head_dim = 8, m.ffn = 48;
  m.vocabulary = words, m.positions = 32;
  return m;
}();
constexpr qwen3_moe mixture = [] {
  qwen3_moe m;
  m.layers = 2, m.hidden = 32, m.heads = 4, m.kv_heads = 2, m.head_dim = 8, m.ffn = 48;
  m.expert_ffn = 16, m.experts = 4, m.experts_per_token = 2, m.mlp_only = {0};
  m.vocabulary = words, m.positions = 32;
  return m;
}();

/// Returns the logits before every token of two prompts, each continued by its likeliest tokens.
std::vector<double> logits_of(const program_view& p, communicator& c) {
  const rank_program of_rank(p, c);
  cpu device(product_type::widened, 1, product_rows::apart);
  stores weights(of_rank.view(), false, c.coordinate(), device, c.ranks());
  weights.initialise(3);
  const auto others = c.make_ranks(device);
  generator g(of_rank.view(), device, weights, {.sequences = 2, .tokens = 20, .prompt = 7},
              *others);
  std::vector<std::int32_t> texts[2] = {{5, 17, 2, 40, 40, 9, 60}, {1, 0, 33}};
  std::vector<double> all;
  std::vector<std::span<const std::int32_t>> more{texts[0], texts[1]};
  for (int step = 0; step < 6; ++step) {
    g.append(more);
    for (int b = 0; b < 2; ++b) {
      std::int32_t likeliest = 0;
      for (std::int32_t t = 0; t < words; ++t) {
        all.push_back(g.logit(b, t));
        if (all.back() > g.logit(b, likeliest)) likeliest = t;
      }
      texts[b].push_back(likeliest);
    }
    for (std::size_t b = 0; b < 2; ++b) more[b] = std::span(texts[b]).last(1);
  }
  return all;
}

template <class Model> void finds_what_one_rank_does(const Model& m, const layout& l, int dp) {
  const auto made = [&](const layout& ranks) {
    return std::make_unique<interpreted_program<Model>>(
        m, setup{.ranks = ranks, .batch = {2, 32}, .precision = dtype::f64}, "writes");
  };
  const std::vector<double> want = logits_of(made({})->view(), self::hosts());
  const auto program = made(l);
  const mesh ranks = mesh_of(l, dp);
  std::vector<std::vector<double>> got(static_cast<std::size_t>(ranks_of(ranks)));
  thread_ranks(ranks).run([&](communicator& c) {
    got[static_cast<std::size_t>(c.rank())] = logits_of(program->view(), c);
  });
  for (const auto& of_rank : got) {
    BOOST_TEST((of_rank == got[0]), "ranks find different logits");
    BOOST_REQUIRE(of_rank.size() == want.size());
    double most = 0;
    for (std::size_t i = 0; i < want.size(); ++i)
      most = std::max(most, std::abs(of_rank[i] - want[i]));
    BOOST_TEST(most <= 1e-10, "tp " << l.tp << " pp " << l.pp << " cp " << l.cp << " ep " << l.ep
                                    << " dp " << dp << ": a logit differs by " << most);
  }
}

} // namespace

BOOST_AUTO_TEST_CASE(ranks_write_what_one_rank_does) {
  finds_what_one_rank_does(tied_gpt, {.tp = 2}, 1);
  finds_what_one_rank_does(tied_gpt, {.tp = 4, .sequence_parallel = true}, 1);
  finds_what_one_rank_does(tied_gpt, {.cp = 2, .zero = 1}, 2);
  finds_what_one_rank_does(grouped, {.tp = 2, .cp = 2, .sequence_parallel = true}, 1);
  finds_what_one_rank_does(grouped, {.tp = 4}, 1); // two ranks share a head of keys
  finds_what_one_rank_does(biased, {.tp = 4, .sequence_parallel = true}, 1);
  finds_what_one_rank_does(mixture, {.ep = 2}, 2);
  finds_what_one_rank_does(mixture, {.tp = 2, .ep = 2, .etp = 2, .sequence_parallel = true}, 2);
}

// The last stage sends the others its logits, with one chunk of layers on each stage or several.
BOOST_AUTO_TEST_CASE(stages_write_what_one_rank_does) {
  constexpr gpt deep = [] {
    gpt m = tied_gpt;
    m.layers = 4, m.tied = true;
    return m;
  }();
  finds_what_one_rank_does(deep, {.pp = 2}, 1);
  finds_what_one_rank_does(deep, {.pp = 2, .virtual_stages = 2}, 2);
  finds_what_one_rank_does(deep, {.pp = 4, .cut = {.layers = {0, 2, 1, 1}}}, 1);
  finds_what_one_rank_does(mixture, {.tp = 2, .pp = 2, .ep = 2, .sequence_parallel = true}, 1);
}
