// The end of a step over pipeline stages, each of which has its own layers: the norm is that of the
// whole model on every stage, and a parameter that several stages hold, such as a tied table,
// counts once, with the gradients of all its uses.
#define BOOST_TEST_MODULE stages
#include <boost/test/unit_test.hpp>

#include <megacpp/model/gpt.hpp>
#include <megacpp/plan/memory.hpp>
#include <megacpp/plan/parts.hpp>
#include <megacpp/plan/update.hpp>
#include <megacpp/plan/verify_registry.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include <laws/plain_ops.hpp>
#include <laws/simulated_ranks.hpp>

using namespace mc;
using namespace mc::laws;

namespace {

constexpr int model_layers = 4;
constexpr double tokens = 7;

constexpr gpt model_of(bool tied) {
  gpt m;
  m.layers = model_layers, m.hidden = 8, m.heads = 2, m.ffn = 12, m.vocabulary = 18;
  m.positions = 16, m.tied = tied;
  return m;
}

/// Returns element i of the gradient of a parameter's use, in the numbers of the whole model.
double slope(const registry::entry& e, int layer, std::int64_t i) {
  const int use = (e.part * 64 + e.parameter) * model_layers + layer;
  return scrambled(static_cast<std::uint64_t>(use), static_cast<std::uint64_t>(i));
}

/// A GPT whose blocks use a gain of the stem, or of the head, beside their own.
template <part_kind From> struct lending : gpt {
  constexpr var lent(context& c, bool here) const {
    parameter_info info = ones();
    info.tied = !here;
    return weight(c, "lent", "weight", {hidden_extent()}, {}, info);
  }
  constexpr var stem(context& c, var words) const {
    const var x = gpt::stem(c, words);
    return From == part_kind::stem ? rms_norm(x, lent(c, true), eps) : x;
  }
  constexpr var block(context& c, int kind, var x) const {
    return gpt::block(c, kind, rms_norm(x, lent(c, false), eps));
  }
  constexpr var final_norm(context& c, var x) const {
    const var y = gpt::final_norm(c, x);
    return From == part_kind::loss ? rms_norm(y, lent(c, true), eps) : y;
  }
};
template <part_kind From> lending<From> lending_of(bool tied) {
  lending<From> m;
  static_cast<gpt&>(m) = model_of(tied);
  return m;
}

struct model_on_stages {
  std::array<std::unique_ptr<graph>, 3> forward; ///< stem, block, head
  std::array<const graph*, 3> parts{};
  int pp, tp;

  template <class Model> model_on_stages(const Model& m, int stages, int shards)
      : pp(stages), tp(shards) {
    const setup s{.ranks = {.tp = tp, .pp = pp}, .batch = {1, 16}, .precision = dtype::f64};
    constexpr part_kind kinds[] = {part_kind::stem, part_kind::block, part_kind::loss};
    for (std::size_t i = 0; i < 3; ++i) {
      forward[i] = std::make_unique<graph>(forward_graph(m, s, kinds[i], 0));
      BOOST_REQUIRE((forward[i]->wrong.code == fault::none));
      parts[i] = forward[i].get();
    }
  }
  const value& value_of(const registry::entry& e) const {
    const graph& g = *parts[static_cast<std::size_t>(e.part)];
    return g.at(g.parameters[e.parameter].v);
  }
  std::array<int, 3> layers_of(int stage) const {
    return {stage == 0, model_layers / pp, stage + 1 == pp};
  }
  registry stores_of(int stage) const {
    const std::array before{stage > 0 ? 1 : 0, stage * model_layers / pp, 0};
    const registry r = verified_registry(parts, layers_of(stage), 0, {}, before);
    BOOST_TEST((r.wrong.code == fault::none), r.wrong.what.c_str());
    return r;
  }
  registry stores() const { return verified_registry(parts, std::array{1, model_layers, 1}); }
  /// Returns the registry of all stages: every bucket is as long as on the largest stage.
  registry longest() const {
    registry r = stores();
    for (int k = 0; k < r.bucket_count; ++k) {
      r.buckets[k].count = 0;
      for (int stage = 0; stage < pp; ++stage)
        r.buckets[k].count = std::max(r.buckets[k].count, stores_of(stage).buckets[k].count);
      r.buckets[k].share = r.buckets[k].count;
    }
    return r;
  }
  /// Returns the norm that a rank of a stage must get, from the model's gradients.
  double norm() const {
    const registry r = stores();
    double squares = 0;
    for (int i = 0; i < r.entry_count; ++i) {
      const registry::entry& e = r.entries[i];
      if (e.tied) continue;
      for (int layer = 0; layer < (e.part == 1 ? model_layers : 1); ++layer)
        for (std::int64_t at = 0; at < global_size(value_of(e)).n; ++at) {
          double g = slope(e, layer, at);
          for (int j = 0; j < r.entry_count; ++j)
            if (const registry::entry& o = r.entries[j];
                o.tied && same_name(value_of(e), value_of(o)))
              for (int use = 0; use < (o.part == 1 ? model_layers : 1); ++use)
                g += slope(o, use, at);
          squares += g * g;
        }
    }
    return std::sqrt(squares) / tokens;
  }
  /// Returns the gradients that a stage has collected in a bucket.
  array collected(int stage, int group, const world& w, int rank, std::int64_t length) const {
    const registry r = stores_of(stage);
    BOOST_TEST(r.buckets[group].count == stored_elements(stores(), layers_of(stage), group));
    array out(static_cast<std::size_t>(length));
    for (int i = 0; i < r.entry_count; ++i) {
      const registry::entry& e = r.entries[i];
      if (e.bucket != group) continue;
      const value& v = value_of(e);
      const auto held = logical_indices(w, parts[0]->ranks, v, rank);
      for (int n = 0; n < layers_of(stage)[static_cast<std::size_t>(e.part)]; ++n) {
        const int layer = e.part == 1 ? stage * layers_of(stage)[1] + n : 0;
        const std::int64_t begin = e.offset + n * e.stride - r.buckets[group].offset;
        for (std::size_t j = 0; j < held.size(); ++j)
          out.at(static_cast<std::size_t>(begin) + j) += slope(e, layer, held[j]);
      }
    }
    return out;
  }
  /// Returns the gradients in a bucket after the stages have added up what they share.
  array range(int group, const world& w, int rank) const {
    const std::int64_t length = longest().buckets[group].count;
    array sum = collected(w.coordinate(rank, axis::pp), group, w, rank, length);
    if (!stores().buckets[group].shared) return sum;
    for (int stage = 0; stage < pp; ++stage) {
      if (stage == w.coordinate(rank, axis::pp)) continue;
      const array other = collected(stage, group, w, rank, length);
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += other[i];
    }
    return sum;
  }
};

/// These ops join and reduce gradients in memory, which the ranges fed here have done.
void joined(node_task& t) { need(t.in(0).size() == t.in(1).size(), "add_gradient"); }
void reduced(node_task& t) { need(!t.in(0).empty(), "reduce_gradient"); }

/// Returns the norm of an update's graph, which every rank must have.
double norm_on_ranks(const model_on_stages& m, const graph& update) {
  const registry r = m.longest();
  world w;
  w.size[static_cast<unsigned>(axis::pp)] = m.pp, w.size[static_cast<unsigned>(axis::tp)] = m.tp;
  laws::feeds f;
  for (int i = 0; i < update.value_count; ++i) {
    const auto v = static_cast<value_id>(i);
    const value& x = update.at(v);
    if (x.is != role::input) continue;
    if (x.from == feed::total && x.feed_index == static_cast<int>(step_total::whole_tokens))
      f.logical[v] = {{tokens}};
    if (!is_store(x.from)) continue;
    auto& local = f.local[v];
    for (int rank = 0; rank < w.ranks(); ++rank) {
      array held(held_size(w, update.ranks, x));
      const int stage = w.coordinate(rank, axis::pp);
      if (x.from == feed::gradient && x.at[axis::pp].s == state::shard) {
        if (!r.buckets[x.feed_index].shared || stage == 0) held = m.range(x.feed_index, w, rank);
      } else if (x.from == feed::gradient) {
        held = m.range(x.feed_index, w, rank);
      }
      local.push_back(held);
    }
  }
  implementations ops = plain::all();
  ops[&op::add_gradient] = &joined, ops[&op::reduce_gradient] = &reduced;
  machine end(w, update, ops);
  end.run_forward(f);
  bool copies = true;
  const double norm = end.logical(update.outputs[1], copies)[0];
  BOOST_TEST(copies, "ranks have different norms");
  return norm;
}

} // namespace

BOOST_AUTO_TEST_CASE(the_norm_is_that_of_all_stages) {
  const auto holds = [](const model_on_stages& m) {
    const registry r = m.longest();
    const mesh ranks(layout{.tp = m.tp, .pp = m.pp});
    const auto update = std::make_unique<graph>(update_graph(r, ranks, dtype::f64));
    BOOST_REQUIRE((update->wrong.code == fault::none));
    const double want = m.norm();
    BOOST_TEST(std::abs(norm_on_ranks(m, *update) - want) <= 1e-12 * want);
  };
  for (const bool tied : {false, true})
    for (const int tp : {1, 2})
      for (const int pp : {1, 2, 4})
        BOOST_TEST_CONTEXT("pp " << pp << ", tp " << tp << (tied ? ", tied" : "")) {
          holds({model_of(tied), pp, tp});
          holds({lending_of<part_kind::stem>(tied), pp, tp});
          holds({lending_of<part_kind::loss>(tied), pp, tp});
        }
}

// The buckets of one stage are those of every other, in the same order, so that ranks reduce the
// same.
BOOST_AUTO_TEST_CASE(a_table_that_stages_share_is_a_group_of_its_own) {
  for (const bool tied : {false, true}) {
    const model_on_stages m(model_of(tied), 4, 1);
    int shared = 0;
    for (int stage = 0; stage < 4; ++stage) {
      const registry r = m.stores_of(stage);
      BOOST_TEST(r.bucket_count == m.stores().bucket_count);
      for (int k = 0; k < r.bucket_count; ++k) {
        BOOST_TEST((r.buckets[k].at[axis::pp].s == state::shard) == !r.buckets[k].shared);
        if (!r.buckets[k].shared) continue;
        ++shared;
        BOOST_TEST(r.buckets[k].count == (stage == 0 || stage == 3 ? 18 * 8 + 48 : 0));
      }
    }
    BOOST_TEST(shared == (tied ? 4 : 0));
  }
}

// A parameter of the stem or the head that blocks use is on every stage that has such a block.
// Middle stages lack the parameters that only stem and head share.
BOOST_AUTO_TEST_CASE(what_blocks_are_lent_is_on_every_stage) {
  const auto holds = [](const model_on_stages& m) {
    for (int stage = 0; stage < 4; ++stage) {
      const registry r = m.stores_of(stage);
      BOOST_TEST(r.bucket_count == m.stores().bucket_count);
      int lent = 0, table = 0;
      for (int k = 0; k < r.bucket_count; ++k) {
        if (!r.buckets[k].shared) continue;
        const bool everywhere = r.buckets[k].count == 64;
        (everywhere ? lent : table) += 1;
        if (!everywhere)
          BOOST_TEST(r.buckets[k].count == (stage == 0 || stage == 3 ? 18 * 8 + 48 : 0));
        BOOST_TEST(r.buckets[k].counted == (stage == 0));
      }
      BOOST_TEST(lent == 1);
      BOOST_TEST(table == 1);
      for (int i = 0; i < r.entry_count; ++i)
        if (const registry::entry& e = r.entries[i]; r.buckets[e.bucket].shared && e.part == 1)
          BOOST_TEST(e.offset == r.buckets[e.bucket].offset);
    }
  };
  holds({lending_of<part_kind::stem>(true), 4, 1});
  holds({lending_of<part_kind::loss>(true), 4, 1});
}
