// The end of a step does what the registry says: ends broken on purpose are refused. A breakage
// leaves every node right by its own rule unless its name says otherwise.
#define BOOST_TEST_MODULE broken_ends
#include <boost/test/unit_test.hpp>

#include "graph_edits.hpp"

#include <megacpp/graph/letters.hpp>
#include <megacpp/model/qwen3_moe.hpp>
#include <megacpp/pass/pipeline.hpp>
#include <megacpp/plan/update.hpp>
#include <megacpp/plan/verify_registry.hpp>

#include "../laws/coded.hpp"

#include <memory>
#include <stdexcept>
#include <string>

using namespace mc_test;

namespace {

/// The node moves over other axes.
void moves_over(node& n, axis_set over) {
  n.attr = op::exchange_attributes{over, n.attr.as<op::exchange_attributes>().wire};
}

/// The end of a step, to be broken.
struct end_of_step {
  registry r;
  mesh ranks;

  /// What is said of it with a change; " " of a right one.
  template <class Change> std::string with(Change change) const {
    auto g = std::make_unique<graph>(update_graph(r, ranks, dtype::f32));
    change(*g);
    verify_update(*g, r, ranks, dtype::f32);
    return said(g->wrong);
  }
  template <class Change> void refused(const char* what, Change change) const {
    BOOST_TEST(with(change) != " ", what);
  }
};

/// That of the dense model, which is right as it is.
end_of_step end_of(const setup& s) {
  const auto trained = [&](part_kind part) {
    return std::make_unique<graph>(
        after_passes(forward_graph(dense(), s, part, 0), {.backward = true}));
  };
  const auto stem = trained(part_kind::stem), block = trained(part_kind::block),
             head = trained(part_kind::loss);
  end_of_step end{make_registry(std::array<const graph*, 3>{stem.get(), block.get(), head.get()},
                                std::array{1, 2, 1}, s.ranks.zero, mesh(s.ranks)),
                  mesh(s.ranks)};
  BOOST_TEST(end.with([](graph&) {}) == " ");
  return end;
}

} // namespace

BOOST_AUTO_TEST_CASE(a_broken_end_of_a_step_is_refused) {
  setup s = two_ranks();
  s.sums = numerics::batch_invariant; // so that a tied use collects apart
  const end_of_step end = end_of(s);
  const registry& r = end.r;
  const mesh& ranks = end.ranks;
  const auto refused = [&](const char* what, auto change) { end.refused(what, change); };
  refused("a tied gradient is forgotten",
          [&](graph& g) { erase(g, find_node(g, op::add_gradient)); });
  refused("a tied gradient joins twice",
          [](graph& g) { g.at_node(g.node_count++) = *find_node(g, op::add_gradient); });
  refused("a tied gradient joins after the norm",
          [](graph& g) { find_node(g, op::add_gradient)->when = phase::epilogue; });
  refused("a group's gradients are not reduced",
          [](graph& g) { erase(g, find_node(g, op::reduce_gradient)); });
  refused("a group's gradients are reduced twice", [](graph& g) {
    const node* n = find_node(g, op::reduce_gradient);
    insert(g, static_cast<int>(n - g.nodes), node(*n));
  });
  refused("a group's gradients are reduced behind the norm",
          [](graph& g) { find_node(g, op::reduce_gradient)->when = phase::epilogue; });
  refused("a group's gradients are reduced before a tied one has joined", [](graph& g) {
    const node n = *find_node(g, op::reduce_gradient);
    erase(g, find_node(g, op::reduce_gradient));
    insert(g, 0, n);
  });
  refused("a group's gradients are summed over other ranks", [](graph& g) {
    node* n = find_node(g, op::reduce_gradient);
    const axis_set over = n->attr.as<op::exchange_attributes>().over;
    moves_over(*n, over.has(axis::dp) ? over.without(axis::dp) : over.with(axis::dp));
  });
  refused("a group's gradients go from rank to rank in another type", [](graph& g) {
    node* n = find_node(g, op::reduce_gradient);
    n->attr = op::exchange_attributes{n->attr.as<op::exchange_attributes>().over, dtype::bf16};
  });
  precision_policy narrow = dtype::f32;
  narrow.moment = dtype::bf16;
  const auto of_moments = [&](const char* what, auto change) {
    auto g = std::make_unique<graph>(update_graph(r, ranks, narrow));
    BOOST_TEST((g->wrong.code == fault::none), g->wrong.what.c_str());
    change(*g);
    verify_update(*g, r, ranks, narrow);
    BOOST_TEST((g->wrong.code != fault::none), what);
  };
  of_moments("moments are rounded by another group's places", [](graph& g) {
    std::swap(find_node(g, op::adamw)->in[9], find_node(g, op::adamw, 1)->in[9]);
  });
  of_moments("moments are rounded without noise", [](graph& g) {
    node* n = find_node(g, op::adamw);
    n->in[8] = n->in[9] = -1;
  });
  of_moments("noise is of the step alone",
             [](graph& g) { find_node(g, op::adamw)->in[8] = find_node(g, op::adamw)->in[7]; });
  refused("a norm counts shares that ranks do not have", [](graph& g) {
    find_node(g, op::sum_of_squares)->attr = op::share_attributes{axis::cp};
  });
  refused("an update is of shares that ranks do not have", [](graph& g) {
    node* n = find_node(g, op::adamw);
    auto a = n->attr.as<op::adamw_attributes>();
    a.over = axis::cp, n->attr = a;
  });
  refused("a group is not clipped",
          [](graph& g) { find_node(g, op::adamw)->in[5] = find_node(g, op::clip_factor)->out[1]; });
  refused("a group is not updated", [&](graph& g) { erase(g, find_node(g, op::adamw, 1)); });
  refused("a group is updated twice", [](graph& g) {
    node n = *find_node(g, op::adamw);
    n.out[0] = another(g, g.at(n.out[0]));
    insert(g, g.node_count, n);
  });
  refused("a group is updated by another's gradient",
          [](graph& g) { find_node(g, op::adamw)->in[0] = find_node(g, op::adamw, 1)->in[0]; });
  refused("moments are exchanged", [](graph& g) {
    std::swap(find_node(g, op::adamw)->in[2], find_node(g, op::adamw)->in[3]);
  });
  refused("decay is another", [](graph& g) { find_node(g, op::adamw)->attr.bits[0] ^= 1; });
  refused("a group is left out of the norm",
          [](graph& g) { find_node(g, op::clip_factor)->in[2] = -1; });
  refused("a group counts twice in the norm", [](graph& g) {
    node* n = find_node(g, op::clip_factor);
    n->in[2] = n->in[3];
  });
  refused("a sharded group's norm is not reduced", [](graph& g) {
    node* n = find_node(g, op::redistribute);
    rewire(g, n->out[0], n->in[0]);
  });
  refused("the norm is the factor",
          [](graph& g) { g.outputs[1] = find_node(g, op::clip_factor)->out[0]; });
  refused("one group's broken blocks are not told",
          [](graph& g) { g.outputs[0] = find_node(g, op::adamw)->out[0]; });
  refused("one group's broken blocks are told alone", [](graph& g) {
    g.outputs[0] = find_node(g, op::add)->in[0];
    for (int i = g.node_count - 1; i >= 0; --i)
      if (const node& n = g.at_node(i);
          n.when == phase::epilogue && n.op != &op::adamw && n.out[0] != g.outputs[0])
        erase(g, &n);
  });
  refused("a group counts in another's norm, too", [](graph& g) {
    node* n = find_node(g, op::clip_factor);
    node sum = make_node(op::add, phase::forward, {n->in[2], n->in[3]});
    sum.out[0] = another(g, g.at(n->in[2]));
    n->in[3] = sum.out[0];
    insert(g, static_cast<int>(n - g.nodes), sum);
  });
  refused("the token count is among the norms", [](graph& g) {
    node* n = find_node(g, op::clip_factor);
    unsigned k = 2;
    while (n->in[k] >= 0) ++k;
    n->in[k] = n->in[0];
  });
  refused("a group is updated by the norm as the learning rate",
          [](graph& g) { find_node(g, op::adamw)->in[6] = find_node(g, op::clip_factor)->out[1]; });
  refused("a group's steps are the seed",
          [](graph& g) { g.at(find_node(g, op::adamw)->in[7]).from = feed::seed; });
  refused("the token count stands for the loss", [](graph& g) {
    node* n = find_node(g, op::clip_factor);
    n->in[1] = n->in[0];
  });
  refused("the norm is not told", [](graph& g) { erase(g, find_node(g, op::add_total)); });
  refused("the norm is told twice",
          [](graph& g) { insert(g, g.node_count, node(*find_node(g, op::add_total))); });
  refused("broken blocks are not told", [](graph& g) { erase(g, find_node(g, op::add_total, 1)); });
  refused("broken blocks are told as the norm", [](graph& g) {
    find_node(g, op::add_total, 1)->in[0] = find_node(g, op::add_total)->in[0];
  });
  refused("the factor is told as the norm", [](graph& g) {
    find_node(g, op::add_total)->in[1] = find_node(g, op::clip_factor)->out[0];
  });
  refused("a gradient is written before the norm", [](graph& g) {
    const value_id of = find_node(g, op::sum_of_squares)->in[0];
    insert(g, 0, make_node(op::add_gradient, phase::prologue, {of, of}));
  });
  refused("a number is computed that nobody reads", [](graph& g) {
    const node* clip = find_node(g, op::clip_factor);
    node n = make_node(op::add, phase::forward, {clip->in[2], clip->in[2]});
    n.out[0] = another(g, g.at(clip->in[2]));
    insert(g, static_cast<int>(clip - g.nodes), n);
  });

  // What is updated is all of a group, as it lies on the ranks and in the types of its stores.
  const auto each = [](graph& g, feed first, feed last, auto change) {
    for (int i = 0; i < g.value_count; ++i)
      if (value& v = g.at(static_cast<value_id>(i));
          v.is == role::input && v.feed_index == 0 && v.from >= first && v.from <= last)
        change(v);
  };
  refused("half of a group is updated", [&](graph& g) {
    each(g, feed::gradient, feed::weight, [](value& v) { v.dims[0].n /= 2; });
  });
  refused("twice a group is updated", [&](graph& g) {
    each(g, feed::gradient, feed::weight, [](value& v) { v.dims[0].n *= 2; });
  });
  refused("half of a tied gradient joins", [&](graph& g) {
    each(g, feed::declared_gradient, feed::tied_gradient, [](value& v) { v.dims[0].n /= 2; });
  });
  refused("a tied gradient joins as if nothing cut it", [&](graph& g) {
    each(g, feed::declared_gradient, feed::tied_gradient, [](value& v) { v.at = {}; });
  });
  refused("ranges count something else", [&](graph& g) {
    each(g, feed::gradient, feed::weight, [](value& v) {
      v.dims[0].d = dim::rows;
      for (place& p : v.at.at)
        if (p.s == state::shard) p.d = dim::rows;
    });
  });
  refused("tp has more ranks", [](graph& g) { g.ranks.size[static_cast<unsigned>(axis::tp)] = 4; });
  refused("weights have another type", [&](graph& g) { g = update_graph(r, ranks, dtype::bf16); });
  refused("all stores have another type",
          [&](graph& g) { g = update_graph(r, ranks, dtype::f64); });
  refused("groups are updated as if nothing cut them", [&](graph& g) {
    registry whole = r;
    for (registry::bucket& group : whole.buckets) group.at = {};
    g = update_graph(whole, ranks, dtype::f32);
  });

  registry cut = r; // groups that tp cuts alone, so that a pending sum meets no whole one
  for (int k = 0; k < cut.bucket_count; ++k) {
    registry::bucket& group = cut.buckets[static_cast<unsigned>(k)];
    group.frozen = group.frozen || group.at[axis::tp].s != state::shard;
  }
  const auto pending = std::make_unique<graph>(update_graph(cut, ranks, dtype::f32));
  BOOST_TEST(said(pending->wrong) == " ");
  for (int i = 0; i < pending->node_count; ++i)
    if (const node n = pending->at_node(i);
        n.op == &op::redistribute && pending->at(n.in[0]).producer >= 0 &&
        pending->at_node(pending->at(n.in[0]).producer).op == &op::adamw)
      rewire(*pending, n.out[0], n.in[0]), erase(*pending, &pending->at_node(i--));
  for (int i = 0; i < pending->node_count; ++i)
    if (const node& n = pending->at_node(i); n.op == &op::add)
      pending->at(n.out[0]).at = pending->at(n.in[0]).at;
  verify_update(*pending, cut, ranks, dtype::f32);
  BOOST_TEST(said(pending->wrong) == "MEGA-P005 add_total(broken, +@0) over tp");
}

// Over pipeline stages every group's norm is summed over pp, but for what stages share: its gradient
// is, and it counts once.
BOOST_AUTO_TEST_CASE(a_broken_end_of_a_step_over_stages_is_refused) {
  setup s = two_ranks();
  s.ranks.pp = 2;
  const end_of_step end = end_of(s);
  const registry& r = end.r;
  const mesh& ranks = end.ranks;
  const auto refused = [&](const char* what, auto change) { end.refused(what, change); };
  const auto over_pp = [](graph& g) {
    for (int i = 0; i < g.node_count; ++i)
      if (node& n = g.at_node(i);
          n.op == &op::redistribute && n.attr.as<op::transition>().over == axis::pp)
        return &n;
    throw std::logic_error("nothing is reduced over pp");
  };
  refused("a norm is not summed over stages", [&](graph& g) {
    node* n = over_pp(g);
    rewire(g, n->out[0], n->in[0]);
    erase(g, n);
  });
  refused("a norm counts as if every stage had the same", [&](graph& g) {
    node* n = over_pp(g);
    g.at(n->in[0]).at[axis::pp] = I;
    rewire(g, n->out[0], n->in[0]);
    erase(g, n);
  });
  const auto shared = [](graph& g) {
    for (int i = 0; i < g.node_count; ++i)
      if (node& n = g.at_node(i);
          n.op == &op::reduce_gradient && n.attr.as<op::exchange_attributes>().over.has(axis::pp))
        return &n;
    throw std::logic_error("no gradient is reduced over pp");
  };
  refused("gradients that stages share are not added up", [&](graph& g) { erase(g, shared(g)); });
  refused("one stage's use of a tied table is taken for all", [&](graph& g) {
    node* n = shared(g);
    g.at(n->in[0]).at[axis::pp] = I;
    moves_over(*n, n->attr.as<op::exchange_attributes>().over.without(axis::pp));
  });
  refused("a table that stages share counts on each", [&](graph& g) {
    registry apart = r;
    for (registry::bucket& group : apart.buckets)
      if (group.shared) group.shared = false, group.at[axis::pp] = S(dim::elements);
    g = update_graph(apart, ranks, dtype::f32);
  });
  refused("stages are taken for copies of one another", [&](graph& g) {
    registry alike = r;
    for (registry::bucket& group : alike.buckets) group.at[axis::pp] = I;
    g = update_graph(alike, ranks, dtype::f32);
  });
}

// Where replicas share the optimizer's state each has the sum of its share, updates that, and all
// have the weights again.
BOOST_AUTO_TEST_CASE(a_broken_end_of_a_step_of_shares_is_refused) {
  setup s = two_ranks();
  s.ranks.zero = 1, s.ranks.cp = 2;
  const end_of_step end = end_of(s);
  const registry& r = end.r;
  const mesh& ranks = end.ranks;
  const auto refused = [&](const char* what, auto change) { end.refused(what, change); };
  for (const op_info* op : {&op::scatter_gradient, &op::gather_weight}) {
    refused("a share is not exchanged", [&](graph& g) { erase(g, find_node(g, *op)); });
    refused("a share is exchanged twice", [&](graph& g) {
      const node* n = find_node(g, *op);
      insert(g, static_cast<int>(n - g.nodes), node(*n));
    });
    refused("a share is exchanged over other ranks",
            [&](graph& g) { moves_over(*find_node(g, *op), axis::cp); });
    refused("a share is exchanged when the norm is taken",
            [&](graph& g) { find_node(g, *op)->when = phase::forward; });
    refused("the share of another group is exchanged", [&](graph& g) {
      const unsigned share = op == &op::scatter_gradient;
      find_node(g, *op)->in[share] = find_node(g, *op, 1)->in[share];
    });
    refused("another group is exchanged", [&](graph& g) {
      const unsigned whole = op == &op::gather_weight;
      find_node(g, *op)->in[whole] = find_node(g, *op, 1)->in[whole];
    });
  }
  refused("weights come together before they are updated", [](graph& g) {
    const node n = *find_node(g, op::gather_weight);
    erase(g, find_node(g, op::gather_weight));
    insert(g, static_cast<int>(find_node(g, op::adamw) - g.nodes), n);
  });
  refused("all sums are everywhere, and the shares of all are updated", [&](graph& g) {
    registry alone = r;
    for (registry::bucket& group : alone.buckets) group.scattered = {};
    g = update_graph(alone, ranks, dtype::f32);
  });
  refused("a rank counts its share as the whole", [&](graph& g) {
    registry larger = r;
    for (registry::bucket& group : larger.buckets) group.share *= 2;
    g = update_graph(larger, ranks, dtype::f32);
  });
}

// Each total of a step is made whole, once, and as its own.
BOOST_AUTO_TEST_CASE(broken_totals_are_refused) {
  const auto with = [](auto change) {
    auto g = std::make_unique<graph>(totals_graph(mesh(layout{.tp = 2, .pp = 2, .cp = 2})));
    change(*g);
    verify_totals(*g);
    return said(g->wrong);
  };
  BOOST_TEST(with([](graph&) {}) == " ");
  const char* const lost = "MEGA-P019 totals()";
  BOOST_TEST(with([](graph& g) { erase(g, find_node(g, op::add_total, 2)); }) == lost);
  BOOST_TEST(with([](graph& g) {
               insert(g, g.node_count, node(*find_node(g, op::add_total, 1)));
             }) == lost);
  BOOST_TEST(with([](graph& g) {
               std::swap(find_node(g, op::add_total)->in[1], find_node(g, op::add_total, 1)->in[1]);
             }) != " ");
  BOOST_TEST(with([](graph& g) { // over pp alone
               node* n = find_node(g, op::redistribute);
               rewire(g, n->out[0], n->in[0]);
             }) != " ");
}

// Biases that balance experts step by a rate of their own, whatever the norm of the gradients.
BOOST_AUTO_TEST_CASE(a_broken_balance_of_experts_is_refused) {
  qwen3_moe m;
  m.layers = 1, m.hidden = 32, m.heads = 4, m.kv_heads = 2, m.head_dim = 16, m.ffn = 48;
  m.vocabulary = 64, m.expert_ffn = 24, m.experts = 4, m.experts_per_token = 2, m.positions = 64;
  m.bias_rate = 1e-3;
  const setup s = two_ranks();
  const graph block = forward_graph(m, s, part_kind::block, 0);
  const end_of_step end{make_registry(std::array<const graph*, 1>{&block}, std::array{1}),
                        mesh(s.ranks)};
  const auto with = [&](auto change) { return end.with(change); };
  BOOST_TEST(with([](graph&) {}) == " ");
  BOOST_TEST(with([](graph& g) {
               find_node(g, op::balance_step)->attr = op::balance_attributes{1};
             }) == "MEGA-P019 update()");
  BOOST_TEST(with([](graph& g) {
               find_node(g, op::balance_step)->in[3] = find_node(g, op::clip_factor)->out[1];
             }) == "MEGA-P019 update()");
  BOOST_TEST(with([](graph& g) { erase(g, find_node(g, op::balance_step)); }) ==
             "MEGA-P019 update()");
}

namespace {

/// A GPT with a tied head whose blocks use a gain of the stem as well.
struct lending : gpt {
  constexpr var lent(context& c, bool here) const {
    parameter_info info = ones();
    info.tied = !here;
    return weight(c, "lent", "weight", {hidden_extent()}, {}, info);
  }
  constexpr var stem(context& c, var words) const {
    return rms_norm(gpt::stem(c, words), lent(c, true), eps);
  }
  constexpr var block(context& c, int kind, var x) const {
    if (!replicated) return gpt::block(c, kind, rms_norm(x, lent(c, false), eps));
    const auto whole = [](var v) { return to(v, axis::tp, R); };
    const var n = rms_norm(whole(x), whole(lent(c, false)), eps);
    const var u = gelu(column_parallel(c, "more", n, {{dim::ffn, ffn}}, false, std));
    return gpt::block(c, kind, x + row_parallel(c, "less", u, 1, hidden_extent(), false, std));
  }
  bool replicated = false; ///< by blocks alone, whose gradients are sums over tp then
};

/// The registry of a stage among two replicas of a setup, to be broken.
struct broken_registry {
  std::array<std::unique_ptr<graph>, 3> graphs;
  std::array<const graph*, 3> parts{};
  std::array<int, 3> layers{1, 2, 1}, before{};
  mesh ranks;
  int zero;
  registry r;
  int refused = 0;

  broken_registry(const setup& s, int stage, bool replicated = false) : zero(s.ranks.zero) {
    lending m;
    m.replicated = replicated;
    static_cast<gpt&>(m) = dense();
    m.tied = true;
    constexpr part_kind kinds[] = {part_kind::stem, part_kind::block, part_kind::loss};
    for (std::size_t i = 0; i < 3; ++i) {
      graphs[i] = std::make_unique<graph>(
          after_passes(forward_graph(m, s, kinds[i], 0), {.backward = true}));
      BOOST_TEST_REQUIRE((graphs[i]->wrong.code == fault::none), graphs[i]->wrong.what.c_str());
      parts[i] = graphs[i].get();
    }
    if (s.ranks.pp > 1) layers = {stage == 0, 1, stage == 1}, before = {stage > 0, stage, 0};
    ranks = mesh_of(s.ranks, 2);
    r = make_registry(parts, layers, zero, ranks, before);
    BOOST_TEST(with([](registry&) {}) == " ");
  }
  template <class Change> std::string with(Change change) const {
    auto x = std::make_unique<registry>(r);
    change(*x);
    return said(verify_registry(*x, parts, layers, zero, ranks, before));
  }
  template <class Change> void refuses(const char* what, Change change) {
    const std::string found = with(change);
    BOOST_TEST(found.starts_with("MEGA-P019 registry"), what << ": " << found);
    ++refused;
  }
  /// The number of the entry of a part with this scope.
  int entry(int part, const std::string& scope) const {
    for (int i = r.first[part]; i < r.first[part + 1]; ++i) {
      const graph& g = *parts[static_cast<std::size_t>(part)];
      if (g.at(g.parameters[r.entries[i].parameter].v).scope == scope) return i;
    }
    BOOST_FAIL("no parameter " << scope);
    return 0;
  }
};

} // namespace

// The same of what is frozen, and of what is stored in several arrays.
BOOST_AUTO_TEST_CASE(broken_registries_of_frozen_parts_are_refused) {
  coded_gpt m;
  m.layers = 2, m.hidden = 64, m.heads = 4, m.ffn = 128, m.vocabulary = 64, m.positions = 32;
  const setup s{.ranks = {.tp = 2, .zero = 1}, .batch = {2, 16}, .frozen = {"attn", "mlp.fc"}};
  const auto g = std::make_unique<graph>(
      after_passes(forward_graph(m, s, part_kind::block, 0), {.backward = true}));
  BOOST_TEST_REQUIRE((g->wrong.code == fault::none), g->wrong.what.c_str());
  const std::array<const graph*, 3> parts{g.get(), g.get(), g.get()};
  const std::array<int, 3> layers{0, 2, 0};
  const mesh ranks = mesh_of(s.ranks, 2);
  const auto right = std::make_unique<registry>(make_registry(parts, layers, 1, ranks));
  const auto with = [&](auto change) {
    auto x = std::make_unique<registry>(*right);
    change(*x);
    return said(verify_registry(*x, parts, layers, 1, ranks));
  };
  BOOST_TEST(with([](registry&) {}) == " ");
  int coded = -1, kept = -1, trained = -1;
  for (int i = right->first[1]; i < right->first[2]; ++i) {
    const registry::entry& e = right->entries[i];
    (e.encoding != nullptr ? coded : right->buckets[e.bucket].frozen ? kept : trained) = i;
  }
  BOOST_TEST_REQUIRE((coded >= 0 && kept >= 0 && trained >= 0));
  const auto refused = [&](const char* what, auto change) {
    const std::string found = with(change);
    BOOST_TEST(found.starts_with("MEGA-P019 registry"), what << ": " << found);
  };
  const auto entry = [&](const char* what, int i, auto change) {
    refused(what, [&](registry& x) { change(x.entries[i]); });
  };
  const auto group = [&](const char* what, int i, auto change) {
    refused(what, [&](registry& x) { change(x.buckets[x.entries[i].bucket]); });
  };
  entry("codes begin later", coded, [](auto& e) { e.arrays[0] += entry_alignment; });
  entry("scales lie among codes", coded, [](auto& e) { e.arrays[1] -= entry_alignment; });
  entry("scales have no room", coded, [](auto& e) { e.arrays[2] = e.arrays[1]; });
  entry("a form is forgotten", coded, [](auto& e) { e.encoding = nullptr; });
  entry("a plain weight has a form", kept,
        [&](auto& e) { e.encoding = right->entries[coded].encoding; });
  entry("a coded weight lies where another does", coded,
        [&](auto& e) { e.offset = e.offset == 0 ? entry_alignment : 0; });
  group("bytes are elements", coded, [](auto& k) { k.of_bytes = false; });
  group("elements are bytes", kept, [](auto& k) { k.of_bytes = true; });
  group("what is coded is trained", coded, [](auto& k) { k.frozen = false; });
  group("what is frozen is trained", kept, [](auto& k) { k.frozen = false; });
  group("what is trained is frozen", trained, [](auto& k) { k.frozen = true; });
  group("what is frozen has states", kept, [](auto& k) { k.share = k.count; });
  group("replicas share what is frozen", kept, [](auto& k) { k.scattered = axis::dp; });
  group("what is frozen has a gradient", kept, [](auto& k) { k.pending = axis::dp; });
  refused("forms are longer", [](registry& x) { x.encoded += entry_alignment; });
  refused("frozen weights have main grads", [](registry& x) { x.trained = x.gradients = x.total; });
  refused("frozen weights have moments", [](registry& x) { x.states = x.total; });
}

// What makes registries is not asked when one is read again, from the graphs.
BOOST_AUTO_TEST_CASE(broken_registries_are_refused) {
  setup s{.ranks = {.tp = 2, .pp = 2, .zero = 1}, .batch = {2, 16}};
  for (const int stage : {0, 1}) {
    broken_registry b(s, stage);
    const int lent = b.entry(1, "lent"), up = b.entry(1, "mlp.fc"), gain = b.entry(0, "lent");
    const int table = b.entry(0, "wte"), head = b.entry(2, "wte");
    const int shared = b.r.entries[lent].bucket, own = b.r.entries[up].bucket;
    const auto entry = [&](const char* what, int i, auto change) {
      b.refuses(what, [&](registry& x) { change(x.entries[i]); });
    };
    const auto group = [&](const char* what, int k, auto change) {
      b.refuses(what, [&](registry& x) { change(x.buckets[k]); });
    };
    entry("a tied use lies elsewhere", lent, [](auto& e) { e.offset += entry_alignment; });
    entry("a tied use has a place a layer", lent, [](auto& e) { e.stride = entry_alignment; });
    entry("a tied use is none", lent, [](auto& e) { e.tied = false; });
    entry("a declaration is a tied use", gain, [](auto& e) { e.tied = true; });
    entry("the head's table lies elsewhere", head,
          [](auto& e) { e.offset += 2 * entry_alignment; });
    entry("a declaration lies elsewhere than its uses", table,
          [](auto& e) { e.offset += entry_alignment; });
    entry("a weight lies where another does", up, [&](auto& e) {
      const auto& other = b.r.entries[b.entry(1, "mlp.proj")];
      e.offset = other.offset;
    });
    entry("a weight reaches out of its group", up,
          [&](auto& e) { e.offset += b.r.buckets[own].count; });
    entry("a weight is before its group", up, [](auto& e) { e.offset -= entry_alignment; });
    entry("a weight has fewer elements", up, [](auto& e) { e.count.n /= 2; });
    entry("a weight is not aligned", up, [](auto& e) { ++e.offset; });
    entry("a weight is another's", up, [](auto& e) { ++e.parameter; });
    entry("a weight is another part's", up, [](auto& e) { --e.part; });
    entry("a weight is in another group", up, [&](auto& e) { e.bucket = shared; });
    entry("a weight is in no group", up, [](auto& e) { e.bucket = max_buckets; });
    entry("a gradient is said to be another sum", lent, [](auto& e) { e.apart = axis::tp; });
    entry("a gradient collects elsewhere", lent, [](auto& e) { e.gradient += entry_alignment; });
    // With its gradient, so that no other reading tells of it.
    const auto moved = [&](const char* what, int i, std::int64_t by) {
      entry(what, i, [&](auto& e) { e.offset += by, e.gradient += by; });
    };
    moved("a tied use and its gradient lie elsewhere", lent, entry_alignment);
    moved("a weight and its gradient lie where another's do", up,
          b.r.entries[b.entry(1, "mlp.proj")].offset - b.r.entries[up].offset);
    moved("a weight and its gradient reach out of their group", up, b.r.buckets[own].count);
    b.refuses("a gain lies elsewhere than on other stages", [&](registry& x) {
      for (const int i : {gain, lent})
        x.entries[i].offset += entry_alignment, x.entries[i].gradient += entry_alignment;
    });
    b.refuses("a gradient has a place apart, which nothing adds to its own", [&](registry& x) {
      x.entries[lent].gradient = x.gradients;
      x.gradients += aligned_elements(x.entries[lent].count.n);
    });
    b.refuses("a group is longer than its parameters", [](registry& x) {
      int k = x.bucket_count - 1;
      while (x.buckets[k].share == 0) --k; // a stage has nothing of the others
      registry::bucket& last = x.buckets[k];
      const std::int64_t more = entry_alignment * (last.count / last.share);
      last.count += more, last.share += entry_alignment, x.states += entry_alignment;
      x.total += more, x.gradients += more;
    });
    b.refuses("replicas share no states, and each has room for all",
              [&](registry& x) { x = make_registry(b.parts, b.layers, 0, b.ranks, b.before); });
    group("a group counts another parameter", own, [](auto& g) { ++g.origins; });
    group("a group has layers of any part", own, [](auto& g) { g.part = -1; });
    group("a group has layers of another part", own, [](auto& g) { ++g.part; });
    group("a group has more layers", own, [](auto& g) { ++g.layers; });
    entry("layers are further apart", up, [](auto& e) { e.stride += entry_alignment; });
    group("weights decay otherwise", own, [](auto& g) { g.decay = !g.decay; });
    group("weights are frozen", own, [](auto& g) { g.frozen = true; });
    group("weights are balanced", own, [](auto& g) { g.update = update_rule::balance; });
    group("what stages share is each one's own", shared, [](auto& g) { g.shared = false; });
    group("a stage's own is shared", own, [](auto& g) { g.shared = true; });
    group("what stages share is cut over them", shared,
          [](auto& g) { g.at[axis::pp] = shard(dim::elements); });
    group("a shared gradient is not summed over stages", shared,
          [](auto& g) { g.pending = g.pending.without(axis::pp); });
    group("a gradient is not summed over replicas", own,
          [](auto& g) { g.pending = g.pending.without(axis::dp); });
    group("a gradient is summed over shards", own,
          [](auto& g) { g.pending = g.pending.with(axis::tp); });
    group("replicas share no states", own, [](auto& g) { g.scattered = {}; });
    group("what stages share counts on another one", shared,
          [](auto& g) { g.counted = !g.counted; });
    group("a stage's own counts nowhere", own, [](auto& g) { g.counted = false; });
    group("a group lacks elements", own, [](auto& g) { g.count -= 2 * entry_alignment; });
    group("a stage lacks what it shares", shared, [](auto& g) { g.count = g.share = 0; });
    group("a share is too small", own, [](auto& g) { g.share -= entry_alignment; });
    group("states lie in each other", 1, [](auto& g) { g.states = 0; });
    group("groups lie in each other", 1, [](auto& g) { g.offset = 0; });
    b.refuses("the stores are too small", [](registry& x) { --x.total; });
    b.refuses("there is no room for states", [](registry& x) { x.states /= 2; });
    b.refuses("gradients have other sizes", [](registry& x) { x.gradients += entry_alignment; });
    b.refuses("a part lacks its last parameter", [](registry& x) { --x.entry_count; });
    b.refuses("two groups are exchanged",
              [&](registry& x) { std::swap(x.buckets[own], x.buckets[shared]); });
    BOOST_TEST(b.refused >= 42);
  }
  s.ranks.pp = 1, s.sums = numerics::batch_invariant;
  broken_registry b(s, 0);
  const int head = b.entry(2, "wte");
  b.refuses("a tied use has no gradient of its own",
            [&](registry& x) { x.entries[head].gradient = x.entries[head].offset; });
  b.refuses("its gradient lies among the others'",
            [&](registry& x) { x.entries[head].gradient = 0; });
  b.refuses("its gradient is not there", [&](registry& x) { x.gradients = x.total; });
  b.refuses("two uses collect in one place", [&](registry& x) {
    x.entries[b.entry(2, "wte")].gradient = x.entries[b.entry(1, "lent")].gradient;
  });
  b.refuses("layers lie in each other",
            [&](registry& x) { x.entries[b.entry(1, "mlp.fc")].stride = entry_alignment; });
}

// Gradients of blocks are sums over tp, that of the stem is none: each collects apart, and becomes
// what the other is before they are added up.
BOOST_AUTO_TEST_CASE(tied_gradients_that_are_other_sums_are_brought_together) {
  for (const int pp : {1, 2}) {
    setup s{.ranks = {.tp = 2, .pp = pp}, .batch = {2, 16}};
    broken_registry b(s, pp - 1, true);
    const int lent = b.entry(1, "lent");
    BOOST_TEST((b.r.entries[lent].apart == axis_set(axis::tp)));
    BOOST_TEST(b.r.entries[lent].gradient >= b.r.total);
    b.refuses("all is one sum", [&](registry& x) { x.entries[lent].apart = {}; });
    b.refuses("both collect in one place",
              [&](registry& x) { x.entries[lent].gradient = x.entries[lent].offset; });
    const end_of_step end{b.r, mesh(s.ranks)};
    BOOST_TEST(end.with([](graph&) {}) == " ");
    const auto brings = [](graph& g) {
      for (int i = 0;; ++i)
        if (node* n = find_node(g, op::reduce_gradient, i);
            n == nullptr || g.at(n->in[0]).from == feed::tied_gradient)
          return n;
    };
    BOOST_TEST_REQUIRE(end.with([&](graph& g) { erase(g, brings(g)); }) ==
                       "MEGA-P019 tied gradient()");
    end.refused("it is reduced over others", [&](graph& g) { moves_over(*brings(g), axis::dp); });
    end.refused("it is reduced when it has joined", [&](graph& g) {
      const node n = *brings(g);
      erase(g, brings(g));
      const node* joins = find_node(g, op::add_gradient);
      insert(g, static_cast<int>(joins - g.nodes) + 1, n);
    });
  }
}
