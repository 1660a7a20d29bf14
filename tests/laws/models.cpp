// The parts of the real models (plan/parts.hpp) on simulated ranks: under every layout they compute
// what they compute on one rank, before and after the passes of a program.
#define BOOST_TEST_MODULE models
#include "comparison.hpp"

#include <megacpp/model/gpt.hpp>
#include <megacpp/model/qwen3.hpp>
#include <megacpp/plan/parts.hpp>

#include <boost/test/unit_test.hpp>

#include <iostream>
#include <memory>

using namespace mc;
using namespace mc::laws;

namespace {

/// Heads, hidden and ffn divide by 2, 3 and 4; the vocabulary of 11 is padded.
gpt tiny_gpt() {
  gpt m;
  m.layers = 2, m.hidden = 24, m.heads = 12, m.ffn = 24, m.vocabulary = 11, m.positions = 30;
  m.dropout = 0.2, m.z_loss = 1e-2;
  return m;
}
qwen3 tiny_qwen3(int kv_heads) {
  qwen3 m;
  m.layers = 2, m.hidden = 18, m.heads = 12, m.kv_heads = kv_heads, m.head_dim = 2, m.ffn = 12;
  m.vocabulary = 11, m.positions = 24, m.rope_theta = 100, m.window = 7, m.z_loss = 1e-2;
  return m;
}

struct layout_case {
  layout ranks;
  int kv_heads; ///< of qwen3; below tp: repeated
};
layout_case with(int tp, int cp, bool sequence_parallel, int kv_heads) {
  layout l;
  l.tp = tp, l.cp = cp, l.sequence_parallel = sequence_parallel;
  return {l, kv_heads};
}
const layout_case layouts[] = {with(1, 1, false, 2), with(2, 1, false, 2), with(2, 1, true, 1),
                               with(3, 1, false, 3), with(3, 1, true, 6),  with(4, 1, false, 2),
                               with(4, 1, true, 1),  with(4, 1, true, 4),  with(1, 2, false, 2),
                               with(1, 3, false, 3), with(1, 4, false, 1), with(2, 2, false, 4),
                               with(2, 2, true, 2),  with(4, 2, true, 2),  with(2, 4, true, 1),
                               with(3, 2, true, 3),  with(4, 3, false, 1)};

content content_of(const value& v) {
  if (v.is == role::parameter) return content::parameter;
  switch (v.from) {
  case feed::stream: return content::stream;
  case feed::labels: return content::labels;
  case feed::positions: return content::positions;
  case feed::documents: return content::documents;
  case feed::token_keys: return content::token_keys;
  case feed::last: return content::row;
  default: return content::tokens;
  }
}

/// The same part on a mesh and on one rank, with all samples there.
template <class Model> std::unique_ptr<sample> drawn(const Model& m, const layout& l, int dp,
                                                     part_kind part, bool packed) {
  auto s = std::make_unique<sample>();
  s->ranks.size[static_cast<unsigned>(axis::dp)] = dp;
  s->ranks.size[static_cast<unsigned>(axis::cp)] = l.cp;
  s->ranks.size[static_cast<unsigned>(axis::tp)] = l.tp;
  setup many, one;
  many.ranks = l;
  many.batch = {2, 24, packed};
  one.batch = {2 * dp, 24, packed};
  many.type = one.type = dtype::f64;
  s->meshed.dp = dp;
  s->single.one_rank = true;
  graph& g = s->meshed.b.g = forward_graph(m, many, part, 0);
  graph& h = s->single.b.g = forward_graph(m, one, part, 0);
  BOOST_TEST_REQUIRE((g.wrong.code == fault::none), describe(g));
  BOOST_TEST_REQUIRE((h.wrong.code == fault::none), describe(h));
  for (int i = 0; i < g.value_count; ++i) {
    const auto v = static_cast<value_id>(i);
    const value& x = g.at(v);
    if (x.producer >= 0 || x.is == role::scratch) continue;
    for (int j = 0; j < h.value_count; ++j) {
      const value& y = h.at(static_cast<value_id>(j));
      if (y.producer >= 0 || y.is != x.is || y.from != x.from || std::string(y.scope) != x.scope ||
          std::string(y.name) != x.name)
        continue;
      s->meshed.leaves.push_back(v);
      s->single.leaves.push_back(static_cast<value_id>(j));
    }
    leaf l_;
    l_.what = content_of(x);
    for (int d = 0; d < x.rank; ++d) {
      l_.dims.push_back(x.dims[static_cast<unsigned>(d)]);
      if (x.at[axis::dp].is_shard(l_.dims.back().d)) l_.dims.back().n *= dp;
    }
    l_.range = l_.what == content::row ? 24 : m.vocabulary;
    s->leaves.push_back(l_);
  }
  BOOST_TEST_REQUIRE(s->meshed.leaves.size() == s->leaves.size());
  for (value_id v : g.outputs) s->meshed.values.push_back(v);
  for (value_id v : h.outputs) s->single.values.push_back(v);
  if (g.outputs[1] < 0) s->meshed.values.pop_back(), s->single.values.pop_back();
  s->output = 0;
  return s;
}

struct tally {
  int graphs = 0;
  double slope = 0;
};

template <class Model>
void check(const Model& m, const layout& l, int dp, part_kind part, bool packed, tally& t) {
  const char* names[] = {"stem", "block", "loss", "logits"};
  BOOST_TEST_CONTEXT(Model::family << " " << names[static_cast<int>(part)] << " dp " << dp << " cp "
                                   << l.cp << " tp " << l.tp << " sequence parallel "
                                   << l.sequence_parallel << " packed " << packed) {
    const auto s = drawn(m, l, dp, part, packed);
    const graph forward = s->meshed.b.g;
    if (part == part_kind::logits) { // generation: no backward pass
      s->of_meshed.of.fill(-1), s->of_single.of.fill(-1);
      comparison against(*s, 1);
      BOOST_TEST(against.difference(forward) == "");
      BOOST_TEST(against.difference(fused(forward)) == "");
      ++t.graphs;
      return;
    }
    BOOST_TEST_REQUIRE((derive(s->meshed, forward.outputs[0], s->of_meshed) == fault::none),
                       describe(s->meshed.b.g));
    BOOST_TEST_REQUIRE((derive(s->single, s->single.b.g.outputs[0], s->of_single) == fault::none),
                       describe(s->single.b.g));
    const graph derived = derived_graph(forward);
    BOOST_TEST(
        (derived.wrong.code == fault::none && derived.node_count == s->meshed.b.g.node_count));
    comparison against(*s, 1);
    BOOST_TEST(against.difference(derived) == "");
    if (l.tp == 1 && l.cp == 1) t.slope = std::max(t.slope, against.slope_error(2));
    for (recompute again : {recompute::none, recompute::selective, recompute::full}) {
      graph g = halved(recomputed(fused(derived), again));
      verify_nodes(g);
      BOOST_TEST((g.wrong.code == fault::none), describe(g));
      BOOST_TEST(against.difference(g) == "", name_of(again));
      ++t.graphs;
    }
    for (const parameter_info& p : derived.parameters)
      if (p.tied) return; // its gradient is finished by the part that declares it
    const registry r = make_registry(std::array<const graph*, 1>{&derived}, std::array{1});
    const graph update = update_graph(r, derived.ranks, dtype::f64);
    BOOST_TEST_REQUIRE((update.wrong.code == fault::none), describe(update));
    BOOST_TEST(against.norm_difference(derived, update, r) == "");
  }
}

template <class Model> void check_all(const Model& m, const layout& l, tally& t) {
  for (int dp : {1, 2})
    for (part_kind part : {part_kind::stem, part_kind::block, part_kind::loss, part_kind::logits}) {
      if (part == part_kind::logits && l.cp > 1)
        continue; // one token's logits need the whole sequence
      Model n = m;
      if (part == part_kind::logits) n.vocabulary = 12; // padding would be further columns
      check(n, l, dp, part, part == part_kind::block && dp == 2, t);
    }
}

} // namespace

BOOST_AUTO_TEST_CASE(gpt_computes_under_any_layout_what_it_computes_on_one_rank) {
  tally t;
  for (const layout_case& l : layouts) check_all(tiny_gpt(), l.ranks, t);
  gpt plain = tiny_gpt();
  plain.bias = plain.tied = false, plain.dropout = 0;
  check_all(plain, with(4, 2, true, 1).ranks, t);
  std::cout << t.graphs << " graphs of gpt, largest error of a directional derivative " << t.slope
            << "\n";
  BOOST_TEST(t.slope < 1e-6);
}

BOOST_AUTO_TEST_CASE(qwen3_computes_under_any_layout_what_it_computes_on_one_rank) {
  tally t;
  for (const layout_case& l : layouts) check_all(tiny_qwen3(l.kv_heads), l.ranks, t);
  std::cout << t.graphs << " graphs of qwen3, largest error of a directional derivative " << t.slope
            << "\n";
  BOOST_TEST(t.slope < 1e-6);
}
