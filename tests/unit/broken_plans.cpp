// The verifier of memory plans trusts the pass that makes them in nothing: plans broken on purpose
// are refused, also where one layer on one rank would compute the same with them, and the plans of
// the library are accepted.
#define BOOST_TEST_MODULE broken_plans
#include <boost/test/unit_test.hpp>

#include <megacpp/model/gpt.hpp>
#include <megacpp/model/qwen3_moe.hpp>
#include <megacpp/nn/experts.hpp>
#include <megacpp/pass/verify_memory.hpp>
#include <megacpp/plan/parts.hpp>

#include <algorithm>
#include <memory>
#include <vector>

using namespace mc;

namespace {

constexpr gpt dense{.layers = 2,
                    .hidden = 16,
                    .heads = 4,
                    .ffn = 32,
                    .vocabulary = 64,
                    .positions = 32,
                    .dropout = 0.1};
/// Two key heads: more than two ranks of tp repeat them in the prologue.
constexpr qwen3_moe mixture{.layers = 2,
                            .hidden = 32,
                            .heads = 4,
                            .kv_heads = 2,
                            .head_dim = 16,
                            .ffn = 48,
                            .expert_ffn = 24,
                            .experts = 4,
                            .experts_per_token = 2,
                            .vocabulary = 64,
                            .positions = 64,
                            .mlp_only = {1}};

/// Values of the second mixture are saved behind the rounds of the first, and read before those of
/// its backward pass.
struct twice : qwen3_moe {
  constexpr var block(context& c, int /*kind*/, var x) const {
    const expert_sizes s{
        .experts = {dim::expert, experts}, .ffn = {dim::ffn, expert_ffn}, .per_token = 2};
    const var y = x + mixture_of_experts(c, {"a", "a.gate", "a.up", "a.down"}, x, s, std);
    return y + mixture_of_experts(c, {"b", "b.gate", "b.up", "b.down"}, gelu(y), s, std);
  }
};

struct planned {
  graph g;
  memory_plan plan;
  address& at(value_id v) { return plan.at[static_cast<unsigned>(v)]; }
  bool accepted() const { return verify_memory(g, plan).code == fault::none; }
};

template <class Model>
std::unique_ptr<planned> plan_of(const Model& m, const setup& s, part_kind part, int kind = 0) {
  const graph derived = derived_graph(forward_graph(m, s, part, kind));
  auto p = std::make_unique<planned>();
  const recompute again = part == part_kind::block ? s.recompute_policy : recompute::none;
  p->g = verified(in_regions(split_graph(recomputed(fused(derived), again))), meaning_of(derived));
  BOOST_TEST_REQUIRE((p->g.wrong.code == fault::none), p->g.wrong.what.c);
  p->plan = place_memory(p->g);
  return p;
}

/// f(plan) for the parts of both models under several layouts.
template <class F> void each_plan(F f) {
  for (const layout& l :
       {layout{}, layout{.tp = 2}, layout{.tp = 4, .sequence_parallel = true},
        layout{.tp = 2, .cp = 2, .sequence_parallel = true}, layout{.tp = 2, .cp = 2, .ep = 2}})
    for (const dtype t : {dtype::f32, dtype::bf16}) {
      layout without = l;
      without.ep = 1;
      const batching b{.micro = 2, .sequence = 16};
      for (const part_kind part : {part_kind::stem, part_kind::block, part_kind::loss})
        f(*plan_of(dense, {.ranks = without, .batch = b, .precision = t}, part));
      for (const recompute again : {recompute::none, recompute::selective, recompute::full})
        for (const int kind : {0, 1})
          f(*plan_of(mixture, {l, b, t, again}, part_kind::block, kind));
    }
}

/// Moves a value to bytes of the working arena that nothing else has.
void give_working(planned& p, value_id v) {
  p.at(v) = {space::working, aligned_bytes(p.plan.working)};
  p.plan.working = p.at(v).offset + aligned_bytes(local_bytes(p.g.ranks, p.g.at(v)));
}

bool aliased(const planned& p, value_id v) {
  const node& n = p.g.at_node(p.g.at(v).producer);
  return detail::may_alias(n);
}

/// Values with a producer that lie in this space.
std::vector<value_id> lying_in(const planned& p, space s) {
  std::vector<value_id> found;
  for (int i = 0; i < p.g.value_count; ++i)
    if (const auto v = static_cast<value_id>(i);
        p.g.at(v).producer >= 0 && p.plan.at[static_cast<unsigned>(i)].in == s)
      found.push_back(v);
  return found;
}

} // namespace

BOOST_AUTO_TEST_CASE(plans_of_the_library_are_accepted) {
  each_plan([](const planned& p) { BOOST_TEST(p.accepted()); });
  const setup s{.ranks = {.tp = 2}, .batch = {2, 16}};
  for (const setup& generation : {for_generation(s, 3, 2, 16), for_generation(s, 3, 16, 0)})
    for (const part_kind part : {part_kind::stem, part_kind::block, part_kind::logits}) {
      const graph g = in_regions(fused(forward_graph(mixture, generation, part, 0)));
      BOOST_TEST((verify_memory(g, place_memory(g)).code == fault::none));
    }
  const graph evaluation = fused(forward_graph(dense, s, part_kind::loss, 0));
  BOOST_TEST((verify_memory(evaluation, place_memory(evaluation)).code == fault::none));
}

// All other layers run between the forward and the backward pass of one, and between the step's
// beginning and either: they write over the working arena.
BOOST_AUTO_TEST_CASE(what_outlives_other_layers_does_not_lie_in_working_memory) {
  int moved = 0, shared = 0;
  each_plan([&](const planned& right) {
    for (const space s : {space::saved, space::derived})
      for (const value_id v : lying_in(right, s)) {
        const auto read_later = [&](value_id x) {
          const phase made = right.g.at_node(right.g.at(x).producer).when;
          return std::any_of(right.g.nodes, right.g.nodes + right.g.node_count, [&](const node& n) {
            const bool apart = made == phase::prologue
                                   ? n.when != phase::prologue
                                   : made == phase::forward && in_backward(n.when);
            return apart && std::ranges::count(n.in, x) > 0;
          });
        };
        auto p = std::make_unique<planned>(right);
        give_working(*p, v); // with all its names
        bool later = read_later(v);
        for (const value_id other : lying_in(right, s))
          if (other != v && aliased(right, other) &&
              right.plan.at[static_cast<unsigned>(other)].offset ==
                  right.plan.at[static_cast<unsigned>(v)].offset) {
            p->at(other) = p->at(v), ++shared;
            later = later || read_later(other);
          }
        if (!later) continue;
        BOOST_TEST(!p->accepted(),
                   "value " << v << " of " << right.g.at_node(right.g.at(v).producer).op->name);
        ++moved;
      }
  });
  BOOST_TEST(moved > 500);
  BOOST_TEST(shared > 20); // over several ranks: I to R is another name
}

BOOST_AUTO_TEST_CASE(what_others_read_of_a_part_is_there_at_its_end) {
  int moved = 0;
  each_plan([&](const planned& right) {
    for (const value_id v : {right.g.outputs[0], right.g.outputs[1], right.g.side_loss}) {
      if (v < 0 || right.plan.at[static_cast<unsigned>(v)].in != space::working) continue;
      for (const value_id later : lying_in(right, space::working)) {
        if (right.g.at(later).producer <= right.g.at(v).producer) continue;
        auto p = std::make_unique<planned>(right);
        p->at(v) = p->at(later);
        BOOST_TEST(!p->accepted(), "output " << v << " in the place of " << later);
        ++moved;
      }
    }
  });
  BOOST_TEST(moved > 100);
}

// The next micro-batch adds to them.
BOOST_AUTO_TEST_CASE(gradients_of_derived_values_have_a_place_each) {
  int found = 0;
  each_plan([&](const planned& right) {
    const std::vector<value_id> all = lying_in(right, space::derived_gradients);
    if (all.empty()) return;
    ++found;
    const auto refused = [&](const char* what, auto change) {
      auto p = std::make_unique<planned>(right);
      change(*p);
      BOOST_TEST(!p->accepted(), what);
    };
    refused("one place for all", [&](planned& p) {
      for (const value_id v : all) p.at(v).offset = 0;
    });
    refused("an arena too small",
            [&](planned& p) { p.plan.derived_gradients -= memory_alignment; });
    refused("no arena", [&](planned& p) { p.plan.derived_gradients = 0; });
    refused("before the arena", [&](planned& p) { p.at(all[0]).offset = -memory_alignment; });
    refused("the place of half of the bytes", [&](planned& p) {
      for (const value_id v : all) p.at(v).offset /= 2;
      p.plan.derived_gradients /= 2;
    });
    refused("working memory", [&](planned& p) { give_working(p, all[0]); });
    refused("a parameter's gradient", [&](planned& p) { p.at(all[0]) = {space::gradients, 0}; });
  });
  BOOST_TEST(found > 0);
}

namespace {

/// One gain for the whole stream, which every rank of tp has, and for its copies beside shards: as
/// it is and replicated, and replicated once more at a second place.
struct shared_gain : gpt {
  constexpr var block(context& c, int /*kind*/, var x) const {
    const var g = weight(c, "n", "weight", {hidden_extent()}, {}, ones());
    const var y = rms_norm(x, g, eps);
    const auto again = [&](var v) {
      return rms_norm(to(v, axis::tp, replicate), to(g, axis::tp, replicate), eps);
    };
    const var u = column_parallel(c, "u", again(y), {{dim::ffn, ffn}}, false, std),
              w = column_parallel(c, "w", again(x), {{dim::ffn, ffn}}, false, std);
    return y + row_parallel(c, "d", swiglu(u, w), 1, hidden_extent(), false, std);
  }
};
/// A weight that is the sum of two, each with reductions of its own.
struct summed_weights : gpt {
  constexpr var block(context& c, int /*kind*/, var x) const {
    const auto gain = [&](const char* name) {
      return to(weight(c, name, "weight", {hidden_extent()}, {}, ones()), axis::tp, replicate);
    };
    const var y = rms_norm(to(x, axis::tp, replicate), gain("a") + gain("b"), eps);
    return x + row_parallel(c, "d", gelu(column_parallel(c, "u", y, {{dim::ffn, ffn}}, false, std)),
                            1, hidden_extent(), false, std);
  }
};
template <class Model> Model of_dense() {
  Model m;
  static_cast<gpt&>(m) = dense;
  return m;
}
const setup over_tp_and_cp{.ranks = {.tp = 2, .cp = 2}, .batch = {2, 16}};

} // namespace

// Each is reduced where it lies, so that what collects in another state, or is read once more, must
// lie elsewhere.
BOOST_AUTO_TEST_CASE(every_state_of_a_parameter_collects_in_a_place_of_its_own) {
  const auto right = plan_of(of_dense<shared_gain>(), over_tp_and_cp, part_kind::block);
  BOOST_TEST(right->accepted());
  value_id leaves[2]{-1, -1}; // of the gain: as it is and replicated, however often that is
  int count = 0;
  for (int i = 0; i < right->g.value_count; ++i) {
    const value& v = right->g.at(static_cast<value_id>(i));
    if (v.is != role::gradient || v.dims[0] != extent(dim::hidden, dense.hidden) || v.rank != 1)
      continue;
    const bool known = v.grad_of == leaves[0] || v.grad_of == leaves[1];
    BOOST_TEST_REQUIRE(count < 2 + known);
    if (!known) leaves[count++] = v.grad_of;
  }
  BOOST_TEST_REQUIRE(count == 2);
  const auto move = [&](planned& p, value_id leaf, const address& to) {
    for (int i = 0; i < p.g.value_count; ++i)
      if (const auto v = static_cast<value_id>(i);
          p.g.at(v).is == role::gradient && p.g.at(v).grad_of == leaf)
        p.at(v) = to;
  };
  const auto place = [&](value_id leaf) {
    for (int i = 0;; ++i)
      if (const value& v = right->g.at(static_cast<value_id>(i));
          v.is == role::gradient && v.grad_of == leaf)
        return right->plan.at[static_cast<unsigned>(i)];
  };
  for (const int k : {0, 1}) {
    auto p = std::make_unique<planned>(*right);
    move(*p, leaves[k], place(leaves[1 - k]));
    BOOST_TEST(!p->accepted(), "one place for two leaves");
  }
  auto p = std::make_unique<planned>(*right); // both in the parameter's own
  for (const value_id leaf : leaves) move(*p, leaf, {space::gradients, 0});
  BOOST_TEST(!p->accepted(), "the parameter's place for two leaves");
}

BOOST_AUTO_TEST_CASE(a_gradient_of_two_parameters_is_not_reduced_where_it_lies) {
  const auto right = plan_of(of_dense<summed_weights>(), over_tp_and_cp, part_kind::block);
  BOOST_TEST(right->accepted());
  int found = 0;
  for (int i = 0; i < right->g.node_count; ++i) {
    const node& n = right->g.at_node(i);
    if (!detail::may_alias(n) || n.when != phase::epilogue || right->plan.renames(n)) continue;
    const bool again = std::any_of(right->g.nodes + i + 1, right->g.nodes + right->g.node_count,
                                   [&](const node& o) { return o.in[0] == n.in[0]; });
    if (!again) continue;
    auto p = std::make_unique<planned>(*right);
    p->at(n.out[0]) = p->at(n.in[0]);
    BOOST_TEST(!p->accepted(), "the first of two reductions of one value");
    ++found;
  }
  BOOST_TEST(found > 0);
}

BOOST_AUTO_TEST_CASE(an_input_lies_by_its_number) {
  int found = 0;
  each_plan([&](const planned& right) {
    for (int i = 0; i < right.g.value_count; ++i) {
      const auto v = static_cast<value_id>(i);
      if (right.g.at(v).is != role::input) continue;
      auto p = std::make_unique<planned>(right);
      ++p->at(v).offset;
      BOOST_TEST(!p->accepted(), "input " << v);
      ++found;
    }
  });
  BOOST_TEST(found > 50);
}

BOOST_AUTO_TEST_CASE(nothing_is_written_where_others_keep_theirs) {
  int moved = 0;
  each_plan([&](const planned& right) {
    for (const value_id v : lying_in(right, space::working))
      for (const space s : {space::weights, space::gradients, space::input, space::stream_out,
                            space::d_stream_in, space::derived_gradients}) {
        if (aliased(right, v)) continue;
        auto p = std::make_unique<planned>(right);
        p->at(v) = {s, 0};
        BOOST_TEST(!p->accepted(), "value " << v << " in space " << static_cast<int>(s));
        ++moved;
      }
    for (int i = 0; i < right.g.value_count;
         ++i) // a gradient collects in its own parameter's place
      if (right.g.at(static_cast<value_id>(i)).is == role::gradient &&
          right.plan.at[static_cast<unsigned>(i)].in == space::gradients) {
        auto p = std::make_unique<planned>(right);
        ++p->plan.at[static_cast<unsigned>(i)].offset;
        BOOST_TEST(!p->accepted());
      }
  });
  BOOST_TEST(moved > 500);
}

BOOST_AUTO_TEST_CASE(what_lies_in_an_arena_is_aligned) {
  each_plan([](const planned& right) {
    for (const space s : {space::saved, space::working, space::derived, space::derived_gradients})
      for (const value_id v : lying_in(right, s)) {
        auto p = std::make_unique<planned>(right);
        p->at(v).offset += 4;
        p->plan.saved += 64, p->plan.working += 64, p->plan.derived += 64;
        p->plan.derived_gradients += 64;
        BOOST_TEST(!p->accepted());
      }
  });
}

BOOST_AUTO_TEST_CASE(the_number_of_rounds_is_there_for_the_backward_pass) {
  int found = 0;
  each_plan([&](const planned& right) {
    if (right.g.region_count == 0) return;
    ++found;
    auto p = std::make_unique<planned>(right);
    give_working(*p, p->g.regions[0].trips);
    BOOST_TEST(!p->accepted());
    p = std::make_unique<planned>(right); // written over by the first value of a round
    for (int i = 0; i < right.g.node_count; ++i)
      if (const node& n = right.g.at_node(i); n.region >= 0) {
        p->at(n.out[0]) = p->at(p->g.regions[0].trips);
        break;
      }
    BOOST_TEST(!p->accepted());
  });
  BOOST_TEST(found > 0);
}

// What the host reads, counts of experts and the number of rounds, has a mirror of its own, with the
// room that its readers need.
BOOST_AUTO_TEST_CASE(what_the_host_reads_has_a_mirror) {
  int found = 0;
  each_plan([&](const planned& right) {
    if (right.plan.mirror_count == 0) return;
    ++found;
    BOOST_TEST(right.plan.mirror_count == 2);
    const auto refused = [&](auto change) {
      auto p = std::make_unique<planned>(right);
      change(p->plan);
      return !p->accepted();
    };
    BOOST_TEST(!refused([](memory_plan&) {}));
    BOOST_TEST(refused([](memory_plan& p) { p.mirror_count = 0; }));
    BOOST_TEST(refused([](memory_plan& p) { p.mirror_count = 1; }));
    BOOST_TEST(refused([](memory_plan& p) { p.mirrors[1].offset = p.mirrors[0].offset; }));
    BOOST_TEST(refused([](memory_plan& p) { p.mirrors[1].offset += 4; }));
    BOOST_TEST(refused([](memory_plan& p) { p.mirrored = p.mirrors[1].offset; }));
    bool with_room = false;
    for (int k = 0; k < 2; ++k) {
      if (right.plan.mirrors[k].bytes == 0) continue;
      with_room = true;
      BOOST_TEST(refused([k](memory_plan& p) { p.mirrors[k].bytes = 0; }));
      BOOST_TEST(refused([k](memory_plan& p) { p.mirrors[k].room = p.mirrors[1 - k].offset; }));
      BOOST_TEST(refused([k](memory_plan& p) { p.mirrors[k].room = p.mirrored; }));
    }
    BOOST_TEST(with_room);
  });
  BOOST_TEST(found > 0);
}

// Several backward trips compute the values of a round again, and have them wherever they lie; a
// single one reads what the forward pass left.
BOOST_AUTO_TEST_CASE(a_single_round_keeps_what_it_saved) {
  int with_one_trip_alone = 0;
  twice m;
  static_cast<qwen3_moe&>(m) = mixture;
  const auto right = plan_of(m, {.batch = {2, 16}}, part_kind::block);
  const running_order order(right->g);
  for (const value_id v : lying_in(*right, space::saved))
    for (const value_id later : lying_in(*right, space::saved)) {
      const value &of = right->g.at(v), &over = right->g.at(later);
      if (region_of(right->g, of) != 0 || over.producer <= of.producer) continue;
      auto p = std::make_unique<planned>(*right);
      p->at(later).offset = p->at(v).offset;
      BOOST_TEST(!p->accepted(), "value " << later << " in the place of " << v);
      const auto refused = [&](int trips) {
        return verify_memory(p->g, p->plan, order, trips).code != fault::none;
      };
      with_one_trip_alone += refused(1) && !refused(2);
    }
  BOOST_TEST(with_one_trip_alone > 0);
}

// What a kernel may overwrite as one operand it still reads as another.
BOOST_AUTO_TEST_CASE(an_operand_that_stands_twice_keeps_its_memory) {
  const auto last_of = [](bool twice) {
    builder b{mesh(layout{})};
    const var x = b.input(feed::stream, "x", dtype::f32,
                          {{dim::batch, 2}, {dim::sequence, 8}, {dim::hidden, 16}}, {});
    const var u = gelu(x), w = twice ? u : gelu(x);
    const value_id y = b.emit(op::sum, {u.id, w.id}, 0);
    b.g.outputs[0] = b.emit(op::gelu, {y}, 0, op::gelu_attributes{gelu_form::tanh});
    const memory_plan plan = place_memory(b.g);
    BOOST_TEST((verify_memory(b.g, plan).code == fault::none));
    memory_plan over = plan;
    const auto at = [](memory_plan& p, value_id v) -> address& {
      return p.at[static_cast<unsigned>(v)];
    };
    at(over, y).offset = at(over, u.id).offset;
    BOOST_TEST((verify_memory(b.g, over).code == (twice ? fault::M002 : fault::none)));
    return at(over, y).offset == plan.at[static_cast<unsigned>(y)].offset;
  };
  BOOST_TEST(last_of(false)); // one operand alone: taken over
  BOOST_TEST(!last_of(true));
}
