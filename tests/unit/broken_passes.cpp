// What a graph owes is what it owed before its passes: passes broken on purpose are refused, in
// constant evaluation and at run time alike, and the passes of the library are accepted. A breakage
// leaves every node right by its own rule unless its name says otherwise.
#define BOOST_TEST_MODULE broken_passes
#include <boost/test/unit_test.hpp>

#include "graph_edits.hpp"

#include <megacpp/graph/letters.hpp>
#include <megacpp/op/optimizer.hpp>
#include <megacpp/pass/verify_memory.hpp>
#include <megacpp/plan/parts.hpp>
#include <megacpp/preset/models.hpp>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

using namespace mc_test;

namespace {

/// The passes of a training part.
constexpr graph passed(const graph& derived, recompute again = recompute::none) {
  return in_regions(split_graph(recomputed(fused(derived), again)));
}

/// The all-reduce over dp that finishes a parameter's gradient.
constexpr node& reduction_of(graph& g, int parameter) {
  return g.at_node(g.at(g.parameters[static_cast<unsigned>(parameter)].gradient).producer);
}

/// Has a value computed in the backward pass, as recomputation has those that it reads there.
constexpr void put_off(graph& g, value_id& v) {
  node again = g.at_node(g.at(v).producer);
  again.when = phase::input_gradient;
  for (value_id& out : again.out) {
    if (out < 0) continue;
    value copy = g.at(out);
    copy.producer = static_cast<node_id>(g.node_count);
    const auto twin = static_cast<value_id>(g.value_count);
    if (out == v) v = twin;
    g.at(static_cast<value_id>(g.value_count++)) = copy;
    out = twin;
  }
  g.at_node(g.node_count++) = again;
}

/// Another op under the name of one of the library.
constexpr op_info other_norm{.name = "layer_norm",
                             .rule = &op::norm_rule<op::layer_norm_out>,
                             .attributes = attributes_of<op::norm_attributes>};

/// A node that adds one norm's gain to another's.
constexpr node writing(graph& g, phase when) {
  return make_node(op::add_gradient, when,
                   {parameter(g, "ln_1", "weight").v, parameter(g, "ln_2", "weight").v});
}

// Each takes the graph of a part of GPT after the library's passes, and breaks it.
using breakage = void (*)(graph&);
struct broken_pass {
  const char* name;
  part_kind part;
  breakage apply;
};
constexpr broken_pass broken[] = {
    {"two parameters' gradients are exchanged", part_kind::block,
     [](graph& g) {
       parameter_info &a = parameter(g, "ln_1", "weight"), &b = parameter(g, "ln_2", "weight");
       const value_id was = a.gradient;
       a.gradient = b.gradient, b.gradient = was;
     }},
    {"a gradient is forgotten", part_kind::block, [](graph& g) { g.parameters[0].gradient = -1; }},
    {"the cotangent of the stream is forgotten", part_kind::block,
     [](graph& g) { g.d_stream = -1; }},
    {"the cotangent of the stream is what came in", part_kind::block,
     [](graph& g) {
       for (int i = 0; i < g.value_count; ++i)
         if (g.at(static_cast<value_id>(i)).from == feed::d_output)
           g.d_stream = static_cast<value_id>(i);
     }},
    {"the stream goes out as it came in", part_kind::block,
     [](graph& g) {
       for (int i = 0; i < g.value_count; ++i)
         if (g.at(static_cast<value_id>(i)).from == feed::stream)
           g.outputs[0] = static_cast<value_id>(i);
     }},
    {"loss and count are exchanged", part_kind::loss,
     [](graph& g) {
       const value_id was = g.outputs[0];
       g.outputs[0] = g.outputs[1], g.outputs[1] = was;
     }},
    {"the count is the loss", part_kind::loss, [](graph& g) { g.outputs[1] = g.outputs[0]; }},
    {"the loss is forgotten", part_kind::loss, [](graph& g) { g.outputs[0] = -1; }},
    {"a sum of cotangents loses a part", part_kind::block,
     [](graph& g) {
       node* n = find_node(g, op::layer_norm_grad_add);
       n->in[5] = n->in[0];
     }},
    {"a sum of cotangents has an earlier one", part_kind::block,
     [](graph& g) {
       const node* first = find_node(g, op::layer_norm_grad_add);
       find_node(g, op::layer_norm_grad_add, 1)->in[5] = first->in[5];
     }},
    {"a fused sum takes one operand twice", part_kind::block,
     [](graph& g) {
       node* n = find_node(g, op::add_layer_norm);
       n->in[1] = n->in[0];
     }},
    {"the backward pass reads another norm's statistics", part_kind::block,
     [](graph& g) {
       node *a = find_node(g, op::layer_norm_grad_add),
            *b = find_node(g, op::layer_norm_grad_add, 1);
       a->in[3] = b->in[3];
     }},
    {"a weight's gradient is of another operand", part_kind::block,
     [](graph& g) {
       node *a = find_node(g, op::layer_norm_gain_grad),
            *b = find_node(g, op::layer_norm_gain_grad, 1);
       a->in[0] = b->in[0];
     }},
    {"a gradient is kept and not collected", part_kind::block,
     [](graph& g) { g.at(find_output(g, op::layer_norm_gain_grad)).is = role::intermediate; }},
    {"a gradient collects in another's place", part_kind::block,
     [](graph& g) {
       value &a = g.at(find_output(g, op::layer_norm_gain_grad)),
             &b = g.at(find_output(g, op::layer_norm_gain_grad, 1));
       a.grad_of = b.grad_of;
     }},
    {"a node that collects is dropped", part_kind::block,
     [](graph& g) { erase(g, find_node(g, op::layer_norm_gain_grad)); }},
    {"a node collects twice", part_kind::block,
     [](graph& g) {
       node n = *find_node(g, op::layer_norm_gain_grad, 1);
       n.out[0] = another(g, g.at(n.out[0]));
       insert(g, g.node_count, n);
     }},
    {"a reduction of the epilogue is dropped", part_kind::block,
     [](graph& g) {
       parameter_info& p = parameter(g, "ln_1", "weight");
       p.gradient = reduction_of(g, parameter_named(g, "ln_1", "weight")).in[0];
     }},
    {"a reduction of the epilogue is another's", part_kind::block,
     [](graph& g) {
       reduction_of(g, parameter_named(g, "ln_1", "weight")).in[0] =
           reduction_of(g, parameter_named(g, "ln_2", "weight")).in[0];
     }},
    {"a reduction of the epilogue is done twice (by rule)", part_kind::block,
     [](graph& g) {
       parameter_info& p = parameter(g, "ln_1", "weight");
       node n = reduction_of(g, parameter_named(g, "ln_1", "weight"));
       n.in[0] = p.gradient;
       value v = g.at(p.gradient);
       v.producer = static_cast<node_id>(g.node_count);
       n.out[0] = p.gradient = static_cast<value_id>(g.value_count);
       g.at(static_cast<value_id>(g.value_count++)) = v;
       g.at_node(g.node_count++) = n;
     }},
    {"a reduction runs over another axis (by rule)", part_kind::block,
     [](graph& g) {
       change<op::transition>(reduction_of(g, parameter_named(g, "ln_1", "weight")),
                              [](op::transition& t) { t.over = axis::tp; });
     }},
    {"a weight's gradient runs with the forward pass", part_kind::block,
     [](graph& g) { find_node(g, op::linear_weight_grad)->when = phase::forward; }},
    {"what the stream's cotangent needs is put off", part_kind::block,
     [](graph& g) { find_node(g, op::layer_norm_grad_add)->when = phase::weight_gradient; }},
    {"a node of the micro-batch is hoisted", part_kind::block,
     [](graph& g) { find_node(g, op::linear_gelu_kept)->when = phase::prologue; }},
    {"a norm of the stream is hoisted", part_kind::block,
     [](graph& g) { find_node(g, op::layer_norm)->when = phase::prologue; }},
    {"the end of a step reads what a micro-batch left", part_kind::block,
     [](graph& g) {
       const value_id x = find_output(g, op::linear_gelu_kept);
       node n = make_node(op::gelu, phase::epilogue, {x});
       n.attr = op::gelu_attributes{gelu_form::tanh};
       n.out[0] = another(g, g.at(x));
       insert(g, g.node_count, n);
     }},
    {"the stream goes out with the backward pass", part_kind::block,
     [](graph& g) { put_off(g, g.outputs[0]); }},
    {"the loss is computed with the backward pass", part_kind::loss,
     [](graph& g) { put_off(g, g.outputs[0]); }},
    {"the count is computed with the backward pass", part_kind::loss,
     [](graph& g) { put_off(g, g.outputs[1]); }},
    {"an attribute is changed", part_kind::block,
     [](graph& g) { find_node(g, op::attention)->attr = attention_options{.causal = false}; }},
    {"an op is another of its name", part_kind::block,
     [](graph& g) { find_node(g, op::layer_norm)->op = &other_norm; }},
    {"a parameter is frozen", part_kind::block, [](graph& g) { g.parameters[1].frozen = true; }},
    {"a parameter's decay is changed", part_kind::block,
     [](graph& g) { g.parameters[1].decay = !g.parameters[1].decay; }},
    {"a tied parameter is declared", part_kind::loss,
     [](graph& g) { parameter(g, "wte", "weight").tied = false; }},
    {"a parameter is tied", part_kind::block,
     [](graph& g) { parameter(g, "ln_1", "weight").tied = true; }},
    {"a parameter is dropped", part_kind::block, [](graph& g) { --g.parameter_count; }},
    {"a parameter is renamed", part_kind::block,
     [](graph& g) { g.at(parameter(g, "ln_1", "weight").v).name = "gain"; }},
    {"a parameter is an input", part_kind::block,
     [](graph& g) {
       value& v = g.at(parameter(g, "ln_1", "weight").v);
       v.is = role::input, v.from = feed::weight;
     }},
    {"two parameters exchange their names", part_kind::block,
     [](graph& g) {
       value &a = g.at(parameter(g, "ln_1", "weight").v),
             &b = g.at(parameter(g, "ln_2", "weight").v);
       const char* was = a.scope;
       a.scope = b.scope, b.scope = was;
     }},
    {"tokens are said to be below fewer", part_kind::stem,
     [](graph& g) { g.at(input_of(g, feed::tokens)).below = 1; }},
    {"tokens are said to be positions", part_kind::stem,
     [](graph& g) { g.at(input_of(g, feed::tokens)).holds = integer_kind::positions; }},
    {"a table's ids are taken from another input", part_kind::stem,
     [](graph& g) { g.at(input_of(g, feed::tokens)).feed_index = 1; }},
    {"tp has more ranks", part_kind::block,
     [](graph& g) { g.ranks.size[static_cast<unsigned>(axis::tp)] = 4; }},
    {"dp has a known size", part_kind::block,
     [](graph& g) { g.ranks.size[static_cast<unsigned>(axis::dp)] = 2; }},
    {"a parameter is written before it is read", part_kind::block,
     [](graph& g) { insert(g, 0, writing(g, phase::forward)); }},
    {"a parameter is written after it was read", part_kind::block,
     [](graph& g) { insert(g, g.node_count, writing(g, phase::weight_gradient)); }},
    {"a parameter is written once a step", part_kind::block,
     [](graph& g) { insert(g, g.node_count, writing(g, phase::epilogue)); }},
    {"an activation is a parameter (by rule)", part_kind::block,
     [](graph& g) { g.at(find_output(g, op::linear_gelu_kept)).is = role::parameter; }},
    {"two nodes have one output (by rule)", part_kind::block,
     [](graph& g) {
       node *a = find_node(g, op::layer_norm_grad_add),
            *b = find_node(g, op::layer_norm_grad_add, 1);
       rewire(g, b->out[0], a->out[0]);
       b->out[0] = a->out[0];
     }},
    {"a norm's epsilon is changed", part_kind::block,
     [](graph& g) { find_node(g, op::layer_norm)->attr = op::norm_attributes{0.1}; }},
    {"a gradient is read before it is complete", part_kind::block,
     [](graph& g) {
       const value_id part = find_output(g, op::layer_norm_gain_grad);
       node n = make_node(op::accumulate, phase::weight_gradient, {part});
       value copy = g.at(part);
       copy.is = role::intermediate;
       n.out[0] = another(g, copy);
       insert(g, g.node_count, n);
     }},
    {"a gradient is left out where nothing below is trained", part_kind::block,
     [](graph& g) {
       g.at_node(g.at(find_output(g, op::layer_norm_gain_grad)).producer).when =
           phase::stream_gradient;
     }},
    {"a gradient reads what is left out there", part_kind::block,
     [](graph& g) {
       const node& n = g.at_node(g.at(find_output(g, op::layer_norm_gain_grad)).producer);
       g.at_node(g.at(n.in[0]).producer).when = phase::stream_gradient;
     }},
    {"the stream's cotangent is read before it comes", part_kind::block,
     [](graph& g) {
       const value_id dy = input_of(g, feed::d_output);
       for (int i = 0; i < g.node_count; ++i) {
         node& n = g.at_node(i);
         bool reads = false, early = true;
         for (const value_id v : n.in) {
           reads = reads || v == dy;
           early = early && (v < 0 || v == dy || g.at(v).producer < 0 ||
                             g.at_node(g.at(v).producer).when <= phase::forward);
         }
         if (reads && early && n.op->accumulates) n.when = phase::forward;
       }
     }},
    {"a finished gradient is each rank's own", part_kind::block,
     [](graph& g) {
       node& n = reduction_of(g, parameter_named(g, "ln_1", "weight"));
       change<op::transition>(n, [&](op::transition& t) { t.to = g.at(n.out[0]).at[t.over] = R; });
     }},
};
constexpr int breakages = static_cast<int>(std::size(broken));

template <part_kind Part> struct at_compile_time {
  static constexpr graph derived = derived_graph(forward_graph(dense(), two_ranks(), Part, 0));
  static constexpr meaning owes = meaning_of(derived);
  static constexpr graph after = passed(derived);
  static_assert(verified(after, owes).wrong.code == fault::none);
};
constexpr fault fault_of(graph g, breakage apply, const meaning& owes) {
  apply(g);
  return verified(g, owes).wrong.code;
}
template <int K> constexpr bool refused() {
  using part = at_compile_time<broken[K].part>;
  return fault_of(part::after, broken[K].apply, part::owes) != fault::none;
}
template <int... K> constexpr bool all_refused(std::integer_sequence<int, K...>) {
  return (std::bool_constant<refused<K>()>::value && ...);
}
static_assert(all_refused(std::make_integer_sequence<int, breakages>{}));

/// All that the compiler would say of a training part after its passes.
std::string wrong_with(const graph& g, const meaning& owes) {
  const auto after = std::make_unique<graph>(verified(g, owes));
  if (after->wrong.code != fault::none) return said(after->wrong);
  const fault_record misplaced = verify_memory(*after, place_memory(*after));
  return misplaced.code == fault::none ? "" : said(misplaced);
}

} // namespace

BOOST_AUTO_TEST_CASE(broken_passes_are_refused) {
  for (const broken_pass& b : broken) {
    const graph derived = derived_graph(forward_graph(dense(), two_ranks(), b.part, 0));
    const meaning owes = meaning_of(derived);
    for (const recompute again : {recompute::none, recompute::selective, recompute::full}) {
      auto g = std::make_unique<graph>(passed(derived, again));
      BOOST_TEST(wrong_with(*g, owes) == "");
      b.apply(*g);
      const std::string wrong = wrong_with(*g, owes);
      BOOST_TEST(wrong != "", b.name << " with recompute " << name_of(again));
      if (again == recompute::none) BOOST_TEST_MESSAGE(b.name << ": " << wrong);
    }
  }
}

BOOST_AUTO_TEST_CASE(broken_rounds_of_experts_are_refused) {
  qwen3_moe m;
  m.layers = 1, m.hidden = 32, m.heads = 4, m.kv_heads = 2, m.head_dim = 16, m.ffn = 48,
  m.vocabulary = 64, m.expert_ffn = 24, m.experts = 4, m.experts_per_token = 2, m.positions = 64;
  setup s;
  s.batch = {2, 16};
  const graph derived = derived_graph(forward_graph(m, s, part_kind::block, 0));
  const meaning owes = meaning_of(derived);
  const auto with = [&](auto change) {
    auto g = std::make_unique<graph>(passed(derived));
    change(*g);
    return wrong_with(*g, owes);
  };
  BOOST_TEST(with([](graph&) {}) == "");
  const auto refused = [&](const char* what, auto change) { BOOST_TEST(with(change) != "", what); };
  refused("the side loss is forgotten", [](graph& g) { g.side_loss = -1; });
  refused("the side loss is another number",
          [](graph& g) { g.side_loss = find_output(g, op::router_statistics, 0, 2); });
  refused("rounds are not counted", [](graph& g) { g.regions[0].trips = -1; });
  refused("the side loss is computed with the backward pass",
          [](graph& g) { put_off(g, g.side_loss); });
  refused("rounds are another number",
          [](graph& g) { g.regions[0].trips = g.regions[0].trips - 1; });
  refused("rounds are forgotten", [](graph& g) { g.region_count = 0; });
  refused("rounds are counted with the backward pass",
          [](graph& g) { put_off(g, g.regions[0].trips); });
  refused("rounds are counted in a round",
          [](graph& g) { g.at_node(g.at(g.regions[0].trips).producer).region = 0; });
  for (const op_info* op : {&op::dispatch, &op::grouped_linear, &op::combine, &op::swiglu,
                            &op::grouped_weight_grad, &op::grouped_input_grad})
    refused(op->name, [&](graph& g) { find_node(g, *op)->region = -1; });
  // each round would add the whole of it again
  BOOST_TEST(with([](graph& g) {
               find_node(g, op::linear_weight_grad)->region = 0;
             }).find("MEGA-P016 linear_weight_grad(") == 0u);
  refused("the stream goes out of a round",
          [](graph& g) { g.at_node(g.at(g.outputs[0]).producer).region = 0; });
  refused("experts are said to be fewer", [](graph& g) {
    for (int i = 0; i < g.value_count; ++i)
      if (value& v = g.at(static_cast<value_id>(i)); v.holds == integer_kind::experts) v.below = 1;
  });
  refused("a node is of rounds that nobody counts",
          [](graph& g) { find_node(g, op::grouped_linear)->region = 1; });
  // where nodes stand is seen by who runs them alone: they read the same
  const auto misplaced = [&](auto change) {
    auto g = std::make_unique<graph>(passed(derived));
    change(*g);
    return said(verify_memory(*g, place_memory(*g)));
  };
  BOOST_TEST(misplaced([](graph&) {}) == " ");
  BOOST_TEST(misplaced([](graph& g) {
               node n = make_node(op::gelu, phase::forward, {input_of(g, feed::stream)});
               n.attr = op::gelu_attributes{gelu_form::tanh};
               n.out[0] = another(g, g.at(n.in[0]));
               g.at(n.out[0]).is = role::intermediate;
               insert(g, static_cast<int>(find_node(g, op::combine) - g.nodes), n);
             }) == "MEGA-P016 gelu(x)");
}

// Each token of x, one of 4 numbers, goes to one of two experts, five rows a trip.
routing routed(var x) {
  parameter_info still;
  still.frozen = true;
  const std::initializer_list<extent> dims{{dim::expert, 2}, {dim::hidden, 4}};
  return route(linear(x, x.b->parameter("", "r", dtype::f32, dims, {}, still)), {}, 1, true);
}
expert_assignment planned(const routing& r) { return expert_rows(r.experts, 5, 2, 0); }

// Trips of one region cannot stand among those of another, though no node reads too early.
BOOST_AUTO_TEST_CASE(regions_that_interleave_are_refused) {
  builder b{mesh::one_rank()};
  const extent B{dim::batch, 1}, Sq{dim::sequence, 8}, H{dim::hidden, 4};
  const var x = b.input(feed::stream, "x", dtype::f32, {B, Sq, H}, {});
  const routing r = routed(x);
  const expert_assignment p = planned(r), q = planned(r);
  const var of_p = dispatch(x, p), of_q = dispatch(x, q);
  b.g.outputs[0] = (combine(of_p, p) + combine(of_q, q)).id;
  BOOST_TEST(said(b.g.wrong) == " ");
  const std::string apart = said(verify_memory(b.g, place_memory(b.g)));
  BOOST_TEST(apart.find("MEGA-P016 dispatch(") == 0u, apart);
  const graph together = in_regions(b.g);
  BOOST_TEST(said(together.wrong) == " ");
  BOOST_TEST(said(verify_memory(together, place_memory(together))) == " ");
}

// What the trips of a region add up to is whole behind the last of them.
BOOST_AUTO_TEST_CASE(a_sum_of_trips_that_one_of_them_reads_is_refused) {
  builder b{mesh::one_rank()};
  const extent B{dim::batch, 1}, Sq{dim::sequence, 8}, H{dim::hidden, 4};
  const var x = b.input(feed::stream, "x", dtype::f32, {B, Sq, H}, {});
  const expert_assignment p = planned(routed(x));
  b.g.outputs[0] = combine(dispatch(combine(dispatch(x, p), p), p), p).id;
  BOOST_TEST(said(b.g.wrong) == " ");
  const std::string read = said(in_regions(b.g).wrong);
  BOOST_TEST(read.find("MEGA-P016 dispatch(") == 0u, read);
}

// Where a region makes several trips, a backward trip runs again what it reads of the forward pass,
// and what that reads: here also products of which the backward pass reads only the sum.
BOOST_AUTO_TEST_CASE(what_a_trip_runs_again_has_its_operands) {
  builder b{mesh::one_rank()};
  const extent B{dim::batch, 1}, Sq{dim::sequence, 8}, H{dim::hidden, 4}, E{dim::expert, 2},
      F{dim::ffn, 6};
  const var x = b.input(feed::stream, "x", dtype::f32, {B, Sq, H}, {});
  const expert_assignment p = planned(routed(x));
  const var rows = dispatch(x, p);
  const auto up = [&](const char* name) {
    return grouped_linear(rows, b.parameter("", name, dtype::f32, {E, F, H}, {}, {}), p);
  };
  const var h = gelu(up("one") + up("other"));
  const var down = b.parameter("", "down", dtype::f32, {E, H, F}, {}, {});
  b.g.outputs[0] = combine(grouped_linear(h, down, p), p).id;
  const auto g = std::make_unique<graph>(in_regions(derived_graph(b.g)));
  BOOST_TEST_REQUIRE(said(g->wrong) == " ");
  const running_order order(*g);
  int for_another = 0; // run again though no backward node reads it
  for (int i = 0; i < g->node_count; ++i) {
    if (!order.rerun.has(i)) continue;
    const node& n = g->at_node(i);
    for (value_id v : n.in)
      if (const node_id made = forward_in_trips(*g, v); made >= 0)
        BOOST_TEST(order.rerun.has(made));
    bool read = false;
    for (int k = 0; k < g->node_count; ++k)
      for (value_id v : g->at_node(k).in)
        read = read || (v >= 0 && in_backward(g->at_node(k).when) && g->at(v).producer == i);
    for_another += !read;
  }
  BOOST_TEST(for_another == 2);
}

// Generation has no backward pass; what it owes is its output and what it keeps.
BOOST_AUTO_TEST_CASE(a_broken_pass_of_generation_is_refused) {
  setup s;
  s.batch = {2, 16};
  const graph forward = forward_graph(dense(), for_generation(s, 2, 4, 16), part_kind::block, 0);
  const meaning owes = meaning_of(forward);
  const auto with = [&](auto change) {
    auto g = std::make_unique<graph>(in_regions(fused(forward)));
    change(*g);
    return wrong_with(*g, owes);
  };
  BOOST_TEST(with([](graph&) {}) == "");
  const auto refused = [&](const char* what, auto change) { BOOST_TEST(with(change) != "", what); };
  refused("keys are kept as values", [](graph& g) {
    node* n = find_node(g, op::cached_attention);
    std::swap(n->in[3], n->in[4]);
  });
  refused("keys are kept twice", [](graph& g) {
    node n = *find_node(g, op::cached_attention);
    n.out[0] = another(g, g.at(n.out[0]));
    insert(g, g.node_count, n);
  });
  refused("values are kept of the keys", [](graph& g) {
    node* n = find_node(g, op::cached_attention);
    n->in[2] = n->in[1];
  });
}

// A token's sum over its experts has one order, whoever shares the batch.
BOOST_AUTO_TEST_CASE(generation_takes_all_rows_of_experts_in_one_round) {
  qwen3_moe m;
  m.layers = 1, m.hidden = 32, m.heads = 4, m.kv_heads = 2, m.head_dim = 16, m.ffn = 48,
  m.vocabulary = 64, m.expert_ffn = 24, m.experts = 4, m.experts_per_token = 2, m.positions = 64;
  setup s;
  s.ranks.tp = 2, s.ranks.ep = 2, s.ranks.etp = 1;
  s.batch = {2, 16, false, 1};
  const graph g = forward_graph(m, for_generation(s, 2, 4, 16), part_kind::block, 0);
  BOOST_TEST(said(g.wrong) == " ");
  const value& rows = g.at(find_output(g, op::dispatch));
  BOOST_TEST(local_extent(g.ranks, rows, 0) == 16); // of all 8 tokens, by both experts of a rank
}

// An adjoint that does not ask what is wanted is told so.
constexpr void hasty_adjoint(backward& d, const node& n) {
  const value_id dy = d.of(n.out[0]);
  for (const value_id v : {n.in[0], n.in[1]})
    d.give(v, d.b.emit(op::gelu_grad, {dy, v}, n.line, op::gelu_attributes{gelu_form::tanh}),
           n.line);
}
constexpr op_info hasty{.name = "hasty", .rule = &op::add_rule, .adjoint = &hasty_adjoint};

BOOST_AUTO_TEST_CASE(a_cotangent_that_nobody_wants_is_named) {
  for (const bool frozen : {false, true}) {
    builder b{mesh{}};
    const auto operand = [&](const char* name, bool still) {
      parameter_info info;
      info.frozen = still;
      return b.parameter("", name, dtype::f32, {{dim::sequence, 3}, {dim::hidden, 4}}, {}, info).id;
    };
    const value_id x = operand("x", false), w = operand("w", frozen);
    b.g.outputs[0] = b.emit(hasty, {x, w}, 0);
    const auto g = std::make_unique<graph>(derived_graph(b.g));
    BOOST_TEST(code_of(g->wrong.code) == (frozen ? "MEGA-P010" : code_of(fault::none)));
    if (frozen)
      BOOST_TEST(std::string(sentence_of(g->wrong.code)).find("what nobody wants") !=
                 std::string::npos);
  }
}

// One operand's gradient would end where the other's goes on.
constexpr void one_sided_adjoint(backward& d, const node& n) {
  if (const value_id dy = d.of(n.out[0]); dy >= 0) d.give(n.in[0], dy, n.line);
}
constexpr op_info one_sided{.name = "own", .rule = &op::add_rule, .adjoint = &one_sided_adjoint};

BOOST_AUTO_TEST_CASE(an_operand_that_gets_no_gradient_is_named) {
  builder b{mesh{}};
  const auto operand = [&](const char* name) {
    return b.parameter("", name, dtype::f32, {{dim::sequence, 3}, {dim::hidden, 4}}, {}, {}).id;
  };
  const value_id x = operand("x"), w = operand("w");
  b.g.outputs[0] = b.emit(op::add, {b.emit(one_sided, {x, w}, 0), w}, 0); // w has one from here
  BOOST_TEST(said(derived_graph(b.g).wrong) == "MEGA-P017 own(w)");
}

// An adjoint has the builder, and may not change what the forward pass says.
constexpr void writing_adjoint(backward& d, const node& n) {
  const value_id dy = d.of(n.out[0]);
  if (dy < 0) return;
  for (const value_id v : {n.in[0], n.in[1]}) d.give(v, dy, n.line);
  d.b.emit(op::add_gradient, {n.in[0], n.in[1]}, n.line);
}
constexpr op_info writes{.name = "own", .rule = &op::add_rule, .adjoint = &writing_adjoint};

BOOST_AUTO_TEST_CASE(an_adjoint_that_writes_what_the_model_reads_is_refused) {
  builder b{mesh{}};
  const auto operand = [&](const char* name) {
    return b.parameter("", name, dtype::f32, {{dim::sequence, 3}, {dim::hidden, 4}}, {}, {}).id;
  };
  b.g.outputs[0] = b.emit(writes, {operand("x"), operand("w")}, 0);
  BOOST_TEST(said(derived_graph(b.g).wrong) == "MEGA-P019 operands that are written()");
}

// What every round adds to the cotangent of a value from before them is no sum over the rounds.
BOOST_AUTO_TEST_CASE(a_cotangent_of_one_round_does_not_leave_it) {
  const auto built = [](bool within) {
    builder b{mesh::one_rank()};
    const extent B{dim::batch, 1}, Sq{dim::sequence, 8}, H{dim::hidden, 4}, E{dim::expert, 2};
    const auto operand = [&](const char* name, std::initializer_list<extent> dims) {
      return b.parameter("", name, dtype::f32, dims, {}, {});
    };
    parameter_info still;
    still.frozen = true;
    const var x = operand("x", {B, Sq, H}),
              router = b.parameter("", "router", dtype::f32, {E, H}, {}, still);
    const routing r = route(linear(x, router), {}, 1, true);
    const expert_assignment p = expert_rows(r.experts, 5, E.n, 0);
    const var rows = dispatch(x, p);
    const extent R = rows.type().dims[0];
    const var w = gelu(operand("w", {R, H})), other = operand("other", {H, R});
    b.g.outputs[0] = (combine(within ? rows + w : rows, p) + linear(linear(x, w), other)).id;
    return derived_graph(b.g).wrong;
  };
  BOOST_TEST(said(built(false)) == " ");
  BOOST_TEST(said(built(true)).find("MEGA-P016 sum(") == 0u, said(built(true)));
}

// A gradient is all that was added to it: two that have a part in common are not the same.
BOOST_AUTO_TEST_CASE(gradients_with_a_common_part_are_told_apart) {
  builder b{mesh{}};
  const auto operand = [&](const char* name) {
    return b.parameter("", name, dtype::f32, {{dim::sequence, 3}, {dim::hidden, 4}}, {}, {}).id;
  };
  const value_id twice = operand("twice"), once = operand("once");
  const value_id x = b.emit(op::gelu, {b.emit(op::add, {twice, once}, 0)}, 0,
                            op::gelu_attributes{gelu_form::tanh});
  b.g.outputs[0] = b.emit(op::add, {x, twice}, 0);
  const graph derived = derived_graph(b.g);
  const meaning owes = meaning_of(derived);
  auto g = std::make_unique<graph>(derived);
  BOOST_TEST(said(verified(*g, owes).wrong) == " ");
  std::swap(g->parameters[0].gradient, g->parameters[1].gradient);
  BOOST_TEST(said(verified(*g, owes).wrong) == "MEGA-P019 gradient(twice)");
}

// Files know a parameter by its name and its shape, also one that the model does not use.
BOOST_AUTO_TEST_CASE(a_parameter_that_nobody_reads_stays_as_it_is) {
  builder b{mesh{}};
  parameter_info still;
  still.frozen = true;
  const auto operand = [&](const char* name, const parameter_info& info) {
    return b.parameter("", name, dtype::f32, {{dim::sequence, 3}, {dim::hidden, 4}}, {}, info).id;
  };
  b.g.outputs[0] = b.emit(op::gelu, {operand("used", {})}, 0, op::gelu_attributes{gelu_form::tanh});
  const value_id idle = operand("idle", still);
  const graph derived = derived_graph(b.g);
  const meaning owes = meaning_of(derived);
  const auto with = [&](auto change) {
    auto g = std::make_unique<graph>(derived);
    change(*g);
    return said(verified(*g, owes).wrong);
  };
  BOOST_TEST(with([](graph&) {}) == " ");
  BOOST_TEST(with([&](graph& g) { g.at(idle).name = "other"; }) == "MEGA-P019 parameter(other)");
  const std::string changed = "MEGA-P019 parameter(idle)";
  BOOST_TEST(with([&](graph& g) { g.at(idle).dims[1].n = 8; }) == changed);
  BOOST_TEST(with([&](graph& g) { g.at(idle).type = dtype::bf16; }) == changed);
  BOOST_TEST(with([&](graph& g) { g.at(idle).at[axis::dp] = S(dim::hidden); }) == changed);
  BOOST_TEST(with([](graph& g) { --g.parameter_count; }) == "MEGA-P019 parameters()");
  // nor has it a gradient, for which the store would have no room
  BOOST_TEST(with([&](graph& g) {
               const value_id of = g.parameters[0].gradient;
               node n = *std::ranges::find_if(
                   g.nodes, [](const node& m) { return m.op != nullptr && m.op->accumulates; });
               n.out[0] = another(g, g.at(of));
               g.at(n.out[0]).grad_of = idle;
               insert(g, g.node_count, n);
             }) == "MEGA-P019 gradients()");
}

// Operands of a sum have no order: the bits are the same.
BOOST_AUTO_TEST_CASE(sums_in_another_order_are_accepted) {
  const graph derived = derived_graph(forward_graph(dense(), two_ranks(), part_kind::block, 0));
  for (const op_info* op : {&op::add, &op::add_layer_norm}) {
    auto g = std::make_unique<graph>(passed(derived));
    node* n = find_node(*g, *op);
    BOOST_REQUIRE(n != nullptr);
    std::swap(n->in[0], n->in[1]);
    BOOST_TEST(wrong_with(*g, meaning_of(derived)) == "", op->name);
  }
}

namespace {

/// Weights computed of parameters once a step, by ops that are not linear.
struct computed : gpt {
  static constexpr int kinds = 1;
  constexpr var block(context& c, int /*kind*/, var x) const {
    const extent F{dim::ffn, ffn};
    const placement cut = on(axis::tp, S(dim::ffn));
    const var up = weight(c, "up", "weight", {F, hidden_extent()}, cut, normal_weights(0.3)),
              down = weight(c, "down", "weight", {hidden_extent(), F}, cut, normal_weights(0.3));
    const var h = gelu(linear(to(x, axis::tp, R), gelu(up)));
    return x + to(linear(h, gelu(down)), axis::tp, c.stream);
  }
};

} // namespace

// The passes of the library owe what they owed, for every kind of model, layout and policy.
namespace {

/// What a model may compute of its parameters: sums of two, one in two forms, one that is converted
/// by two ways, and a stream that reads some of it.
constexpr graph of_parameters() {
  builder b{mesh(layout{.tp = 2, .cp = 2})};
  const extent H{dim::hidden, 8};
  const auto parameter = [&](const char* name) {
    return b.parameter("p", name, dtype::f32, {H}, {}, {}, 1);
  };
  const var one = parameter("one"), two = parameter("two"), three = parameter("three");
  const var x = b.input(feed::stream, "x", dtype::f32, {H}, {}, 1);
  const var y = x + (one + two), z = y + (one + three);
  const var other = gelu(one) + gelu(one, gelu_form::exact);
  const auto by = [&](axis first, axis second) { return to(to(two, first, R), second, R); };
  b.g.outputs[0] = (z + other + (one + two)).id;
  b.g.outputs[1] = (by(axis::cp, axis::tp) + by(axis::tp, axis::cp)).id;
  return b.g;
}
constexpr broken_pass broken_hoisting[] = {
    {"a sum reads another parameter", part_kind::block,
     [](graph& g) { find_node(g, op::add)->in[1] = g.parameters[2].v; }},
    {"two sums of one parameter are taken for one", part_kind::block,
     [](graph& g) {
       node *first = find_node(g, op::add), *other = find_node(g, op::add, 2);
       rewire(g, other->out[0], first->out[0]);
       erase(g, other);
     }},
    {"two forms are taken for one", part_kind::block,
     [](graph& g) {
       node *first = find_node(g, op::gelu), *other = find_node(g, op::gelu, 1);
       rewire(g, other->out[0], first->out[0]);
       erase(g, other);
     }},
    {"one form is another", part_kind::block,
     [](graph& g) { find_node(g, op::gelu)->attr = find_node(g, op::gelu, 1)->attr; }},
    {"a conversion is left out", part_kind::block,
     [](graph& g) {
       node* n = find_node(g, op::redistribute, 1);
       rewire(g, n->out[0], n->in[0]);
       erase(g, n);
     }},
    {"the stream lacks a sum", part_kind::block,
     [](graph& g) {
       node* n = find_node(g, op::add, 1);
       rewire(g, n->out[0], n->in[0]);
       erase(g, n);
     }},
    {"a node stands twice", part_kind::block,
     [](graph& g) { insert(g, g.node_count, node(g.at_node(g.node_count - 1))); }},
    {"the outputs are exchanged", part_kind::block, [](graph& g) {
       const value_id was = g.outputs[0];
       g.outputs[0] = g.outputs[1], g.outputs[1] = was;
     }}};

constexpr fault refused_hoisting(int k) {
  const graph written = of_parameters();
  graph g = hoisted_graph(written);
  if (k >= 0) broken_hoisting[k].apply(g);
  return verify_hoist(g, written).code;
}
static_assert(refused_hoisting(-1) == fault::none);
static_assert(refused_hoisting(1) == fault::P019 && refused_hoisting(2) == fault::P019);

} // namespace

// What depends on parameters alone is computed once, and is what the model says.
BOOST_AUTO_TEST_CASE(a_broken_hoisting_is_refused) {
  const graph written = of_parameters(), g = hoisted_graph(written);
  BOOST_TEST(said(g.wrong) == " ");
  BOOST_TEST(written.node_count - g.node_count == 2); // one sum and one conversion
  for (int k = 0; k < static_cast<int>(std::size(broken_hoisting)); ++k)
    BOOST_TEST((refused_hoisting(k) == fault::P019), broken_hoisting[k].name);
}

BOOST_AUTO_TEST_CASE(the_passes_of_the_library_are_accepted) {
  const auto accepted = [](const auto& m, const setup& s) {
    for (int kind = -1; kind <= used_kinds(m).count; ++kind) {
      const part_kind what = kind < 0                      ? part_kind::stem
                             : kind == used_kinds(m).count ? part_kind::loss
                                                           : part_kind::block;
      const graph forward = forward_graph(m, s, what, used_kinds(m).kind(kind));
      BOOST_TEST(said(forward.wrong) == " ");
      const graph derived = derived_graph(forward);
      BOOST_TEST(said(derived.wrong) == " ");
      for (const recompute again : {recompute::none, recompute::selective, recompute::full})
        BOOST_TEST(wrong_with(passed(derived, what == part_kind::block ? again : recompute::none),
                              meaning_of(derived)) == "");
      BOOST_TEST(wrong_with(fused(forward), meaning_of(forward)) == "");
    }
  };
  for (const layout& l :
       {layout{}, layout{.tp = 4}, layout{.tp = 4, .cp = 2, .sequence_parallel = true}}) {
    setup s;
    s.ranks = l, s.batch = {2, 64, true};
    for (const dtype t : {dtype::f32, dtype::bf16}) {
      s.precision = t;
      accepted(preset::gpt2_124m, s);
      accepted(preset::qwen3_0_6b, s);
      accepted(preset::qwen3_moe_165m, s);
      accepted(computed{}, s);
    }
  }
}
