// The law for the parts of a model: on simulated ranks, before and after the passes of a program,
// they compute the same as on one rank.
#pragma once

#include "comparison.hpp"

#include <megacpp/plan/parts.hpp>

#include <boost/test/unit_test.hpp>

#include <memory>

namespace mc::laws {

inline content content_of(const value& v) {
  if (v.is == role::parameter) return v.type == dtype::u8 ? content::codes : content::parameter;
  switch (v.from) {
  case feed::stream:
  case feed::key_cache:
  case feed::value_cache: return content::stream;
  case feed::labels: return content::labels;
  case feed::positions: return content::positions;
  case feed::order:
  case feed::all_order: return content::order;
  case feed::slots: return content::slots;
  case feed::documents:
  case feed::all_documents: return content::documents;
  case feed::token_keys: return content::token_keys;
  case feed::last: return content::row;
  default: return content::tokens;
  }
}

/// Returns a part drawn on a mesh and on one rank, which has all samples. `room`: tokens in the
/// caches of a generation graph; 0: a training graph.
template <class Model> std::unique_ptr<sample> drawn(const Model& m, const layout& l, int dp,
                                                     part_kind part, bool packed, int kind,
                                                     int room = 0, const lora& adapter = {}) {
  auto s = std::make_unique<sample>();
  s->ranks.size[static_cast<unsigned>(axis::dp)] = dp;
  s->ranks.size[static_cast<unsigned>(axis::cp)] = l.cp;
  s->ranks.size[static_cast<unsigned>(axis::tp)] = l.tp;
  const int of_experts = l.ep * l.expert_tp(), ranks = s->ranks.ranks();
  BOOST_TEST_REQUIRE(ranks % of_experts == 0);
  s->ranks.folded = true;
  s->ranks.size[static_cast<unsigned>(axis::edp)] = ranks / of_experts;
  s->ranks.size[static_cast<unsigned>(axis::ep)] = l.ep;
  s->ranks.size[static_cast<unsigned>(axis::etp)] = l.expert_tp();
  setup many, one;
  many.ranks = l;
  many.batch = {2, 24, packed, 1 << 20}; // one round, whatever experts the tokens choose
  one.batch = {2 * dp, 24, packed, 1 << 20};
  many.precision = one.precision = dtype::f64;
  many.adapter = one.adapter = adapter;
  if (room > 0)
    many = for_generation(many, 2, 12, room), one = for_generation(one, 2 * dp, 12, room);
  s->meshed.dp = dp;
  s->single.one_rank = true;
  graph& g = s->meshed.b.g = forward_graph(m, many, part, kind);
  graph& h = s->single.b.g = forward_graph(m, one, part, kind);
  BOOST_TEST_REQUIRE((g.wrong.code == fault::none), describe(g));
  BOOST_TEST_REQUIRE((h.wrong.code == fault::none), describe(h));
  for (int i = 0; i < g.value_count; ++i) {
    const auto v = static_cast<value_id>(i);
    const value& x = g.at(v);
    if (x.producer >= 0 || x.is == role::scratch || x.from == feed::total) continue;
    for (int j = 0; j < h.value_count; ++j) {
      const value& y = h.at(static_cast<value_id>(j));
      if (y.producer >= 0 || y.is != x.is || y.from != x.from || y.feed_index != x.feed_index ||
          std::string(y.scope) != x.scope || std::string(y.name) != x.name)
        continue;
      s->meshed.leaves.push_back(v);
      s->single.leaves.push_back(static_cast<value_id>(j));
    }
    leaf l_;
    l_.what = content_of(x);
    if (const parameter_info* p = g.parameter_of(v)) l_.frozen = p->frozen && adapter.rank > 0;
    else l_.frozen = x.is == role::parameter; // an array of an encoded one
    for (int d = 0; d < x.rank; ++d) {
      l_.dims.push_back(x.dims[static_cast<unsigned>(d)]);
      if (x.at[axis::dp].is_shard(l_.dims.back().d)) l_.dims.back().n *= dp;
    }
    l_.range = l_.what == content::row ? 24
               : x.from == feed::slots ? 5 // number of tokens before these
               : l_.what == content::positions || l_.what == content::order ? 0
                                                                            : m.vocabulary;
    s->leaves.push_back(l_);
  }
  BOOST_TEST_REQUIRE(s->meshed.leaves.size() == s->leaves.size());
  for (value_id v : g.outputs) s->meshed.values.push_back(v);
  for (value_id v : h.outputs) s->single.values.push_back(v);
  if (g.outputs[1] < 0) s->meshed.values.pop_back(), s->single.values.pop_back();
  if (g.side_loss >= 0) {
    s->meshed.values.push_back(g.side_loss);
    s->single.values.push_back(h.side_loss);
  }
  s->output = 0;
  return s;
}

struct tally {
  int graphs = 0, factors = 0; ///< factors: of an adapter, each tried by itself
  double slope = 0;
};

template <class Model> void check(const Model& m, const layout& l, int dp, part_kind part,
                                  bool packed, tally& t, int kind = 0, const lora& adapter = {}) {
  const char* names[] = {"stem", "block", "loss", "logits"};
  BOOST_TEST_CONTEXT(Model::family.text << " " << names[static_cast<int>(part)] << " dp " << dp
                                        << " cp " << l.cp << " tp " << l.tp << " sequence parallel "
                                        << l.sequence_parallel << " packed " << packed) {
    const auto s = drawn(m, l, dp, part, packed, kind, 0, adapter);
    const graph forward = s->meshed.b.g;
    if (part == part_kind::logits) { // generation has no backward pass
      s->of_meshed = s->of_single = gradients::none();
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
    for (std::size_t i = 0; l.tp * l.cp * l.ep * dp == 1 && i < s->leaves.size(); ++i) {
      const parameter_info* const p = forward.parameter_of(s->meshed.leaves[i]);
      if (p == nullptr || !p->added) continue;
      t.slope = std::max(t.slope, against.slope_error(3, i));
      ++t.factors;
    }
    for (recompute again : {recompute::none, recompute::selective, recompute::full}) {
      graph g = in_regions(split_graph(recomputed(fused(derived), again)));
      examine(g);
      BOOST_TEST((g.wrong.code == fault::none), describe(g));
      BOOST_TEST(against.difference(g) == "", name_of(again));
      ++t.graphs;
    }
    for (const parameter_info& p : derived.parameters)
      if (p.tied) return; // another part finishes the gradient
    const registry r = make_registry(std::array<const graph*, 1>{&derived}, std::array{1});
    const graph update = update_graph(r, derived.ranks, dtype::f64);
    BOOST_TEST_REQUIRE((update.wrong.code == fault::none), describe(update));
    BOOST_TEST(against.norm_difference(derived, update, r) == "");
  }
}

} // namespace mc::laws
