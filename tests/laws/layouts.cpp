// Ten steps under any layout end where those of one rank do: under layouts that meet every pair of
// choices, which are found by search, under every axis alone, and under products of all of them.
#define BOOST_TEST_MODULE layouts
#include <boost/test/unit_test.hpp>

#include <megacpp/preset/models.hpp>

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <kernels.hpp>

#include "outcome.hpp"

using namespace mc;
using test::close_to;
using test::outcome;
using test::outcome_of;

namespace {

/// The choices that a run is built with. The first value of each is that of one rank.
namespace by {
enum choice {
  tp,
  sequence_parallel,
  cp,
  pp,
  schedule,
  virtual_stages,
  cut,
  ep,
  etp,
  zero,
  recomputed,
  packed,
  tied,
  dropout,
  capacity,
  rounds,
  replicas
};
}
using by::choice;
constexpr int choices = 17;
constexpr const char* names[choices] = {
    "tp",   "sp",        "cp",     "pp",   "schedule", "virtual",  "cut",    "ep", "etp",
    "zero", "recompute", "packed", "tied", "dropout",  "capacity", "rounds", "dp"};
using row = std::array<int, choices>;
constexpr int sizes[] = {1, 2, 4};
constexpr int sequence = 32;

enum cuts { even, listed, first, counted };
int layers_of(const row& r) { return r[by::cut] == counted ? 7 : 8; }

/// The layout of a row whose ranks fold; nothing for a row without a legal layout. Replicas are
/// doubled until they have all experts.
struct laid_out {
  setup s;
  int dp = 1, micros = 1; // micro-batches of one replica
  bool legal = false;
};
laid_out lay_out(const row& r) {
  laid_out x;
  layout& l = x.s.ranks;
  l.tp = sizes[r[by::tp]], l.cp = sizes[r[by::cp]], l.pp = sizes[r[by::pp]],
  l.ep = sizes[r[by::ep]];
  l.etp = sizes[r[by::etp]], l.sequence_parallel = r[by::sequence_parallel] != 0;
  l.virtual_stages = 1 + r[by::virtual_stages], l.zero = r[by::zero];
  if (r[by::schedule] != 0) l.schedule = &gpipe;
  if (l.pp == 1 && (r[by::schedule] != 0 || r[by::virtual_stages] != 0 || r[by::cut] != even))
    return x;
  if (l.tp == 1 && l.sequence_parallel) return x;
  if (r[by::capacity] != 0 && r[by::rounds] != 0) return x;
  const int all = l.pp * l.virtual_stages, layers = layers_of(r);
  if (r[by::cut] == listed) { // the stem alone, and most layers in the middle
    for (int v = 1; v < all; ++v) l.cut.layers[static_cast<unsigned>(v)] = 1;
    l.cut.layers[static_cast<unsigned>(all / 2)] = static_cast<std::int16_t>(layers - (all - 2));
  }
  if (r[by::cut] == first) {
    l.cut.first = l.virtual_stages;
    while (l.cut.first < layers && mc::detail::check_cut(l, layers).code != fault::none)
      l.cut.first += l.virtual_stages;
  }
  if (r[by::cut] == counted) l.cut.embedding = true;
  if (mc::detail::check_cut(l, layers).code != fault::none) return x;
  x.micros = l.virtual_stages > 1 ? l.pp : 2;
  x.s.batch = {.micro = 1, .sequence = sequence, .packed = r[by::packed] != 0};
  if (r[by::schedule] != 0) x.s.batch.micro_batches = x.micros;
  x.s.recompute_policy = r[by::recomputed] == 0   ? recompute::none
                         : r[by::recomputed] == 1 ? recompute::selective
                                                  : recompute::full;
  x.dp = sizes[r[by::replicas]];
  while (x.dp * l.tp * l.cp % (l.ep * l.etp) != 0) x.dp *= 2;
  x.legal = x.dp * l.tp * l.cp * l.pp <= 16;
  return x;
}
std::string text_of(const row& r) {
  std::string text;
  for (int c = 0; c < choices; ++c)
    if (r[static_cast<unsigned>(c)] != 0)
      text += std::string(text.empty() ? "" : ", ") + names[c] + " " +
              std::to_string(r[static_cast<unsigned>(c)]);
  return text.empty() ? "one rank" : text;
}

/// Returns rows that meet every pair of choices that some legal row has. Of many random rows with a
/// missing pair, the one with most such pairs is added, again and again.
std::vector<row> covering(const row& levels, unsigned seed) {
  std::mt19937 random(seed);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  std::map<std::array<int, 4>, bool> met;
  const auto pairs = [](const row& r, auto f) {
    for (int a = 0; a < choices; ++a)
      for (int b = a + 1; b < choices; ++b)
        f(std::array{a, r[static_cast<unsigned>(a)], b, r[static_cast<unsigned>(b)]});
  };
  for (int a = 0; a < choices; ++a)
    for (int b = a + 1; b < choices; ++b)
      for (int x = 0; x < levels[static_cast<unsigned>(a)]; ++x)
        for (int y = 0; y < levels[static_cast<unsigned>(b)]; ++y) met[{a, x, b, y}] = false;
  std::vector<row> rows;
  for (auto& [pair, done] : met) {
    if (done) continue;
    row best{};
    int most = 0;
    for (int tries = 0, legal = 0; tries < 3000 && legal < 60; ++tries) {
      row r{};
      for (int c = 0; c < choices; ++c)
        r[static_cast<unsigned>(c)] = below(levels[static_cast<unsigned>(c)]);
      r[static_cast<unsigned>(pair[0])] = pair[1], r[static_cast<unsigned>(pair[2])] = pair[3];
      if (!lay_out(r).legal) continue;
      ++legal;
      int more = 0;
      pairs(r, [&](const std::array<int, 4>& p) { more += met[p] ? 0 : 1; });
      if (more > most) most = more, best = r;
    }
    if (most == 0) continue; // no layout has both choices
    rows.push_back(best);
    pairs(best, [&](const std::array<int, 4>& p) { met[p] = true; });
  }
  return rows;
}

gpt model_of(const gpt*, const row& r) {
  gpt m{.layers = 8, .hidden = 16, .heads = 4, .ffn = 32, .vocabulary = 64, .positions = sequence};
  m.layers = layers_of(r), m.tied = r[by::tied] != 0, m.dropout = r[by::dropout] != 0 ? 0.2 : 0;
  return m;
}
qwen3 model_of(const qwen3*, const row& r) {
  qwen3 m{.layers = 8,
          .hidden = 16,
          .heads = 4,
          .kv_heads = 2,
          .head_dim = 4,
          .ffn = 32,
          .vocabulary = 64,
          .positions = sequence};
  m.layers = layers_of(r), m.tied = r[by::tied] != 0;
  m.rope_scaling = {rope_type::yarn, 4, sequence / 4, 0.1, 2, 0, false};
  return m;
}
/// A Llama with biases in every linear layer.
llama model_of(const llama*, const row& r) {
  llama m;
  m.layers = layers_of(r), m.hidden = 16, m.heads = 4, m.kv_heads = 2, m.head_dim = 4, m.ffn = 32;
  m.vocabulary = 64, m.positions = sequence, m.attention_bias = m.mlp_bias = true;
  m.tied = r[by::tied] != 0, m.rope_scaling = {rope_type::llama3, 8, sequence / 4, 0.1, 1};
  return m;
}
qwen3_moe model_of(const qwen3_moe*, const row& r) {
  qwen3_moe m;
  m.layers = layers_of(r), m.hidden = 16, m.heads = 4, m.kv_heads = 2, m.head_dim = 4;
  m.ffn = 32, m.expert_ffn = 16, m.experts = 4, m.experts_per_token = 2, m.vocabulary = 64;
  m.positions = sequence, m.mlp_only = {1}, m.aux_loss = 0.1, m.router_z_loss = 0.01;
  m.bias_rate = 1e-3, m.tied = r[by::tied] != 0;
  if (r[by::capacity] != 0) m.capacity = 0.4;
  return m;
}

/// AdamW makes large steps from a gradient that is mostly rounding, so fp32 takes a small learning
/// rate.
constexpr double rate_of(dtype t) { return t == dtype::f64 ? 1e-2 : 3e-4; }

/// Returns the outcome of one rank, which many layouts are compared with.
template <class Model> const outcome& one_rank(const row& r, dtype type, int micros) {
  static std::map<std::array<int, 8>, outcome> all;
  const std::array key{layers_of(r),    r[by::packed],          r[by::tied], r[by::dropout],
                       r[by::capacity], static_cast<int>(type), micros,      0};
  const auto [at, is_new] = all.try_emplace(key);
  if (is_new) {
    const setup s{.batch = {.micro = 1, .sequence = sequence, .packed = r[by::packed] != 0},
                  .precision = type};
    at->second = outcome_of(model_of(static_cast<Model*>(nullptr), r), s, 1, micros,
                            {.steps = 10, .rate = rate_of(type)});
  }
  return at->second;
}

/// Requires weights of each tensor within 2e-5 of one rank's, relative to their length. A bias of
/// keys adds the same to every score of a query, so its gradient is rounding alone, from which
/// AdamW makes whole steps.
void close_in_fp32(const outcome& got, const outcome& want, const std::string& name) {
  for (const auto& [parameter, w] : want.weights) {
    const std::vector<double>& x = got.weights.at(parameter);
    double apart = 0, all = 0, most = 0;
    for (std::size_t i = 0; i < w.size(); ++i) {
      apart += (x[i] - w[i]) * (x[i] - w[i]), all += w[i] * w[i];
      most = std::max(most, std::abs(x[i] - w[i]));
    }
    if (parameter.ends_with("attn.k.bias"))
      BOOST_TEST(most <= 2 * 10 * 1.01 * rate_of(dtype::f32), name);
    else
      BOOST_TEST(std::sqrt(apart) <= 2e-5 * std::sqrt(all),
                 name << ": " << parameter << " differs by " << std::sqrt(apart / all));
  }
}

template <class Model> void equals_one_rank(const row& r) {
  laid_out x = lay_out(r);
  BOOST_TEST_REQUIRE(x.legal);
  const Model m = model_of(static_cast<Model*>(nullptr), r);
  if (r[by::rounds] != 0) x.s.batch.expert_rows = 2 * sequence / 3;
  const std::string name = std::string(Model::family.text) + ": " + text_of(r);
  const int micros = x.micros * x.dp;
  x.s.precision = dtype::f64;
  try {
    close_to(outcome_of(m, x.s, x.dp, micros, {.steps = 10, .rate = rate_of(dtype::f64)}),
             one_rank<Model>(r, dtype::f64, micros), 1e-10, name);
    x.s.precision = dtype::f32;
    close_in_fp32(outcome_of(m, x.s, x.dp, micros, {.steps = 10, .rate = rate_of(dtype::f32)}),
                  one_rank<Model>(r, dtype::f32, micros), name);
  } catch (const error& e) {
    BOOST_ERROR(name << ": " << e.what());
  }
}

/// Covers every choice, except those that a family does not have.
template <class Model> void covers(std::initializer_list<choice> without) {
  row levels{3, 2, 3, 3, 2, 2, 4, 3, 2, 2, 3, 2, 2, 2, 2, 2, 2};
  for (const choice c : without) levels[static_cast<unsigned>(c)] = 1;
  const std::vector<row> rows = covering(levels, 1);
  BOOST_TEST_MESSAGE(Model::family.text << ": " << rows.size() << " layouts");
  BOOST_TEST((rows.size() >= 12 && rows.size() <= 34), rows.size());
  for (const row& r : rows) equals_one_rank<Model>(r);
}
row with(std::initializer_list<std::pair<choice, int>> given) {
  row r{};
  for (const auto& [c, n] : given) r[static_cast<unsigned>(c)] = n;
  return r;
}

} // namespace

BOOST_AUTO_TEST_CASE(gpt_under_layouts_that_meet_every_pair) {
  covers<gpt>({by::ep, by::etp, by::capacity, by::rounds});
}
BOOST_AUTO_TEST_CASE(qwen3_under_layouts_that_meet_every_pair) {
  covers<qwen3>({by::ep, by::etp, by::capacity, by::rounds, by::dropout});
}
BOOST_AUTO_TEST_CASE(experts_under_layouts_that_meet_every_pair) {
  covers<qwen3_moe>({by::dropout});
}
BOOST_AUTO_TEST_CASE(every_axis_alone) {
  for (const choice axis : {by::tp, by::cp, by::pp, by::replicas})
    for (const int size : {1, 2}) {
      equals_one_rank<gpt>(with({{axis, size}}));
      equals_one_rank<qwen3>(with({{axis, size}}));
    }
  for (const int size : {1, 2}) equals_one_rank<qwen3_moe>(with({{by::ep, size}}));
  for (const int size : {1, 2}) equals_one_rank<qwen3_moe>(with({{by::tp, size}, {by::etp, size}}));
}
BOOST_AUTO_TEST_CASE(all_axes_at_once) {
  equals_one_rank<gpt>(
      with({{by::tp, 1}, {by::sequence_parallel, 1}, {by::pp, 1}, {by::cp, 1}, {by::replicas, 1}}));
  equals_one_rank<qwen3>(with({{by::tp, 1},
                               {by::sequence_parallel, 1},
                               {by::pp, 1},
                               {by::cp, 1},
                               {by::replicas, 1},
                               {by::zero, 1}}));
  equals_one_rank<llama>(with({{by::tp, 2}, {by::pp, 1}, {by::tied, 1}, {by::zero, 1}}));
  equals_one_rank<llama>(with({{by::tp, 1},
                               {by::sequence_parallel, 1},
                               {by::cp, 1},
                               {by::replicas, 1},
                               {by::recomputed, 2},
                               {by::packed, 1}}));
  equals_one_rank<qwen3_moe>(with({{by::ep, 2}, {by::etp, 1}, {by::rounds, 1}}));
}
