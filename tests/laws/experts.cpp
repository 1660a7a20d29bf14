// Mixtures of experts: random models under random layouts compute the same as on one rank; with a
// rule, an adjoint or a number broken on purpose, they do not.
#define BOOST_TEST_MODULE experts
#include "model_law.hpp"

#include <megacpp/graph/letters.hpp>
#include <megacpp/model/qwen3_moe.hpp>

#include <functional>
#include <iostream>
#include <set>

using namespace mc;
using namespace mc::laws;

namespace {

struct drawn_model {
  qwen3_moe m;
  layout l;
  int dp = 1;
  bool packed = false;
};

/// Extents divide by the layout, and by no other number without need.
drawn_model draw(random_source& random) {
  drawn_model d;
  const auto one_of = [&](std::vector<int> x) { return random.pick(x); };
  do {
    d.dp = one_of({1, 1, 2, 3});
    d.l.tp = one_of({1, 1, 2, 3});
    d.l.cp = one_of({1, 1, 2});
    d.l.ep = one_of({1, 2, 3, 4, 6});
    d.l.etp = one_of({1, 1, 2, 3});
  } while (d.dp * d.l.tp * d.l.cp > 12 || d.dp * d.l.tp * d.l.cp % (d.l.ep * d.l.etp) != 0);
  d.l.sequence_parallel = d.l.tp > 1 && random.chance(0.5);
  d.packed = random.chance(0.3);
  qwen3_moe& m = d.m;
  m.layers = 2, m.positions = 24, m.vocabulary = 11, m.rope_theta = 100;
  m.heads = d.l.tp * one_of({1, 2}), m.kv_heads = random.chance(0.5) ? d.l.tp : 1;
  m.head_dim = 2, m.hidden = d.l.tp * one_of({2, 5}), m.ffn = d.l.tp * 3;
  m.expert_ffn = d.l.etp * one_of({1, 2, 3}), m.experts = d.l.ep * one_of({1, 2, 3});
  m.experts_per_token = static_cast<int>(1 + random.below(std::min(m.experts, 4)));
  m.norm_topk = random.chance(0.6);
  m.aux_loss = random.chance(0.7) ? 0.4 : 0, m.router_z_loss = random.chance(0.5) ? 0.03 : 0;
  // Each replica's micro-batch is a group of its own; one rank has a single group.
  m.aux_per_sequence = random.chance(0.5);
  m.aux_global = !m.aux_per_sequence && (d.dp > 1 || random.chance(0.5));
  if (d.dp == 1 && random.chance(0.3)) m.capacity = random.chance(0.5) ? 1 : 0.6;
  m.bias_rate = random.chance(0.3) ? 1e-3 : 0;
  m.shared_ffn = random.chance(0.3) ? d.l.tp * 2 : 0;
  return d;
}

} // namespace

BOOST_AUTO_TEST_CASE(random_mixtures_compute_what_they_compute_on_one_rank) {
  constexpr int models = 300;
  tally t;
  std::set<std::string> meshes;
  random_source random(17);
  for (int i = 0; i < models; ++i) {
    const drawn_model d = draw(random);
    BOOST_TEST_CONTEXT("model " << i << ", ep " << d.l.ep << ", etp " << d.l.etp)
    check(d.m, d.l, d.dp, part_kind::block, d.packed, t);
    meshes.insert(std::to_string(d.dp) + std::to_string(d.l.cp) + std::to_string(d.l.tp) + " " +
                  std::to_string(d.l.ep) + std::to_string(d.l.etp));
  }
  std::cout << t.graphs << " graphs with experts over " << meshes.size() << " pairs of meshes\n";
  // laws/models tests slopes: here a step of a difference may change a token's choice.
  BOOST_TEST(meshes.size() > 25);
}

namespace {

/// A breakage of the model's graph: ops in the place of others, and numbers of nodes changed.
struct wrong {
  const char* name;
  std::map<const op_info*, const op_info*> swaps;
  implementations extra = {};
  std::function<void(node&, const mesh&)> change = {};
};

/// Builds the graph again with other ops and numbers: every rule is asked anew.
void rebuild(sample& s, const wrong& w) {
  const graph g = s.meshed.b.g;
  builder b{g.ranks};
  std::map<value_id, value_id> now;
  for (int i = 0; i < g.value_count; ++i)
    if (const value& v = g.at(static_cast<value_id>(i)); v.producer < 0)
      now[static_cast<value_id>(i)] = b.add(v, 0);
  std::ranges::copy(g.parameters, b.g.parameters), b.g.parameter_count = g.parameter_count;
  for (parameter_info& p : b.g.parameters)
    if (p.v >= 0) p.v = now.at(p.v);
  for (int i = 0; i < g.node_count; ++i) {
    node n = g.at_node(i);
    for (value_id& v : n.in)
      if (v >= 0) v = now.at(v);
    if (const auto to = w.swaps.find(n.op); to != w.swaps.end()) n.op = to->second;
    if (w.change) w.change(n, g.ranks);
    b.when = n.when, b.region = n.region;
    const value_id first = b.emit(n);
    const node& made = b.g.at_node(b.g.at(first).producer);
    for (unsigned k = 0; k < max_outputs; ++k)
      if (g.at_node(i).out[k] >= 0) now[g.at_node(i).out[k]] = made.out[k];
  }
  b.when = phase::forward, b.region = -1;
  const auto renamed = [&](value_id& v) {
    if (v >= 0) v = now.at(v);
  };
  b.g.outputs = g.outputs, b.g.side_loss = g.side_loss;
  std::ranges::copy(g.regions, b.g.regions), b.g.region_count = g.region_count;
  for (value_id* v : {&b.g.outputs[0], &b.g.outputs[1], &b.g.side_loss}) renamed(*v);
  for (region& r : b.g.regions) renamed(r.trips);
  for (value_id& v : s.meshed.leaves) renamed(v);
  for (value_id& v : s.meshed.values) renamed(v);
  s.meshed.b.g = b.g;
}

qwen3_moe balanced() {
  qwen3_moe m;
  m.layers = 2, m.hidden = 12, m.heads = 4, m.kv_heads = 4, m.head_dim = 2, m.ffn = 12;
  m.expert_ffn = 4, m.experts = 8, m.experts_per_token = 3, m.vocabulary = 11, m.positions = 24;
  m.rope_theta = 100, m.aux_loss = 0.4, m.router_z_loss = 0.03, m.bias_rate = 1e-3;
  m.aux_per_sequence = true;
  return m;
}

/// Returns the first sign, under some layout, that a model is broken; "" if there is none.
std::string found(const wrong& w) {
  layout ep2, etp2, all;
  ep2.tp = 2, ep2.ep = 2, ep2.etp = 1;
  etp2.tp = 2, etp2.ep = 1, etp2.etp = 2, etp2.sequence_parallel = true;
  all.tp = 2, all.cp = 2, all.ep = 2, all.etp = 2, all.sequence_parallel = true;
  for (const layout& l : {ep2, etp2, all}) {
    const auto s = drawn(balanced(), l, 2, part_kind::block, false, 0);
    rebuild(*s, w);
    if (derive(s->meshed, s->meshed.b.g.outputs[0], s->of_meshed) != fault::none)
      return describe(s->meshed.b.g);
    BOOST_TEST_REQUIRE((derive(s->single, s->single.b.g.outputs[0], s->of_single) == fault::none));
    implementations ops = plain::all();
    for (const auto& [real, substitute] : w.swaps) {
      const auto known = ops.find(real);
      ops.emplace(substitute, known == ops.end() ? nullptr : known->second);
    }
    for (const auto& [op, run] : w.extra) ops[op] = run;
    comparison against(*s, 1, ops);
    const graph derived = s->meshed.b.g;
    if (const std::string d = against.difference(derived); !d.empty()) return d;
    const registry r = make_registry(std::array<const graph*, 1>{&derived}, std::array{1});
    const graph update = update_graph(r, derived.ranks, dtype::f64);
    if (update.wrong.code != fault::none) return describe(update);
    if (const std::string d = against.norm_difference(derived, update, r); !d.empty()) return d;
  }
  return "";
}

// --- rules ---------------------------------------------------------------------------------------

/// The rule with one state of output K replaced by another on some axes.
template <const op_info& Op, int K, state From, state To, axis... Axes>
void relabelling(inference& c) {
  Op.rule(c);
  for (axis a : {Axes...})
    if (place& p = c.out[static_cast<unsigned>(K)].at[a]; p.s == From) p = {To};
}
constexpr op_info with(op_info o, rule_function rule) {
  o.rule = rule;
  return o;
}
constexpr op_info with(op_info o, adjoint_function adjoint) {
  o.adjoint = adjoint;
  return o;
}
template <const op_info& Op, int K, state From, state To, axis... Axes>
inline constexpr op_info relabels = with(Op, &relabelling<Op, K, From, To, Axes...>);

// --- adjoints ------------------------------------------------------------------------------------

inline constexpr op_info weight_grad_unreduced =
    relabels<op::grouped_weight_grad, 0, state::partial, state::replicate, axis::edp>;
// The adjoint lacks the sum over replicas of the experts.
void grouped_adjoint_unreduced(backward& d, const node& n) {
  const value_id dy = d.of(n.out[0]), x = n.in[0], w = n.in[1];
  if (dy < 0) return;
  if (d.wants(x)) d.give(x, d.b.emit(op::grouped_input_grad, {dy, w, n.in[2]}, n.line), n.line);
  if (d.wants(w)) d.give(w, d.b.emit(weight_grad_unreduced, {dy, x, n.in[2]}, n.line), n.line);
}
void route_adjoint_unnormalised(backward& d, const node& n) {
  node m = n;
  m.attr = op::route_attributes{n.attr.as<op::route_attributes>().choices};
  op::route_adjoint(d, m);
}
void route_adjoint_without_load(backward& d, const node& n) {
  const value_id dw = d.of(n.out[0]), l = n.in[0];
  if (dw >= 0 && d.wants(l))
    d.give(l, d.b.emit(op::route_grad, {dw, l, n.out[1]}, n.line, n.attr), n.line);
}
void nothing(backward&, const node&) {}
void scale_adjoint_of_rows_alone(backward& d, const node& n) {
  const value_id dy = d.of(n.out[0]);
  if (dy >= 0 && d.wants(n.in[0]))
    d.give(n.in[0], d.b.emit(op::scale_rows, {dy, n.in[1]}, n.line), n.line);
}
void scale_adjoint_unscaled(backward& d, const node& n) {
  const value_id dy = d.of(n.out[0]), x = n.in[0], w = n.in[1];
  if (dy < 0) return;
  if (d.wants(w)) d.give(w, d.b.emit(op::scale_rows_weight_grad, {dy, x, w}, n.line), n.line);
  d.give(x, dy, n.line);
}

// --- what runs -----------------------------------------------------------------------------------

void statistics_grad_without_softmax(node_task& t) {
  const std::int64_t experts = t.in_block(2).last(), rows = t.in_block(2).rows();
  const std::int64_t group = rows / (static_cast<std::int64_t>(t.in(0).size()) / experts);
  for (std::int64_t i = 0; i < rows * experts; ++i)
    t.out(0)[static_cast<std::size_t>(i)] =
        t.in(0)[static_cast<std::size_t>(i / experts / group * experts + i % experts)];
}
void loss_grad_halved(node_task& t) {
  plain::router_loss_grad(t);
  t.out(1)[0] /= 2;
}
/// The breakage of ranks that share experts, as if they had copies whose gradients are averaged
/// (NVIDIA/Megatron-LM#5956, deepspeedai/DeepSpeed#6546, databricks/megablocks#20: a sum over one
/// set of ranks, divided by the size of another).
void weight_grad_of_ep_averaged(node_task& t) {
  plain::grouped_weight_grad(t);
  for (double& x : t.out(0)) x /= t.w.of(axis::ep);
}
void load_of_choices_alone(node_task& t) {
  for (double e : t.in(0)) t.out(0)[plain::at(plain::whole_number(e))] += 1;
}

const std::vector<wrong>& breakages() {
  static const std::vector<wrong> all{
      {"expert gradients are not summed over replicas",
       {{&op::grouped_linear,
         [] {
           static constexpr op_info o = with(op::grouped_linear, &grouped_adjoint_unreduced);
           return &o;
         }()}},
       {{&weight_grad_unreduced, &plain::grouped_weight_grad}}},
      {"expert gradients are divided by the ranks that share experts",
       {},
       {{&op::grouped_weight_grad, &weight_grad_of_ep_averaged}}},
      {"experts of a tensor group are one rank's",
       {{&op::dispatch,
         &relabels<op::dispatch, 0, state::replicate, state::invariant, axis::etp>}}},
      {"combine takes unfinished sums for finished ones",
       {{&op::grouped_linear,
         &relabels<op::grouped_linear, 0, state::partial, state::replicate, axis::etp>}}},
      {"the normalisation of weights has no gradient",
       {{&op::route,
         [] {
           static constexpr op_info o = with(op::route, &route_adjoint_unnormalised);
           return &o;
         }()}}},
      {"the router gets no gradient from its weights",
       {{&op::route,
         [] {
           static constexpr op_info o = with(op::route, &nothing);
           return &o;
         }()}}},
      {"the load does not reach the bias",
       {{&op::route,
         [] {
           static constexpr op_info o = with(op::route, &route_adjoint_without_load);
           return &o;
         }()}}},
      {"weights of rows get no gradient",
       {{&op::scale_rows,
         [] {
           static constexpr op_info o = with(op::scale_rows, &scale_adjoint_of_rows_alone);
           return &o;
         }()}}},
      {"gradients of rows are not scaled",
       {{&op::scale_rows,
         [] {
           static constexpr op_info o = with(op::scale_rows, &scale_adjoint_unscaled);
           return &o;
         }()}}},
      {"statistics of shards are taken for those of a sequence",
       {{&op::router_statistics, &relabels<op::router_statistics, 0, state::partial,
                                           state::replicate, axis::cp, axis::tp>}}},
      {"counts of shards meet probabilities of shards",
       {{&op::router_statistics, &relabels<op::router_statistics, 1, state::partial,
                                           state::replicate, axis::cp, axis::tp>}}},
      {"the z-loss of shards is taken for the whole",
       {{&op::router_statistics, &relabels<op::router_statistics, 2, state::partial,
                                           state::replicate, axis::cp, axis::tp>}}},
      {"balancing forgets the softmax",
       {},
       {{&op::router_statistics_grad, &statistics_grad_without_softmax}}},
      {"half of the z-loss's gradient", {}, {{&op::router_loss_grad, &loss_grad_halved}}},
      {"the load has no mean", {}, {{&op::expert_load, &load_of_choices_alone}}},
      {"the balance counts the tokens of a rank",
       {},
       {},
       [](node& n, const mesh& m) {
         if (n.op != &op::router_loss) return;
         auto a = n.attr.as<op::router_loss_attributes>();
         a.balance *= m.of(axis::cp) * m.of(axis::tp);
         n.attr = a;
       }},
      {"weights are not normalised", {}, {}, [](node& n, const mesh&) {
         if (n.op == &op::route)
           n.attr = op::route_attributes{n.attr.as<op::route_attributes>().choices};
       }}};
  return all;
}

} // namespace

BOOST_AUTO_TEST_CASE(nothing_broken_is_found_nowhere) { BOOST_TEST(found({"nothing", {}}) == ""); }

BOOST_AUTO_TEST_CASE(every_breakage_is_found) {
  for (const wrong& w : breakages()) {
    const std::string what = found(w);
    std::cout << w.name << ": " << what << "\n";
    BOOST_TEST(what != "", w.name);
  }
  BOOST_TEST(breakages().size() >= 10);
}

// An expert would count a token twice that lies on two ranks.
BOOST_AUTO_TEST_CASE(tokens_must_lie_on_one_rank_each) {
  builder b{mesh(layout{.tp = 2, .ep = 2})};
  const extent B{dim::batch, 2}, Sq{dim::sequence, 8}, E{dim::expert, 4}, H{dim::hidden, 6};
  const var x = b.input(feed::stream, "x", dtype::f64, {B, Sq, H}, stream_placement(I));
  const var w = b.parameter("router", "weight", dtype::f64, {E, H}, {}, normal_weights(1));
  const routing r = route(linear(x, to(w, axis::dp, R)), {}, 2, true);
  (void)dispatch(x, expert_rows(r.experts, 64, 4, 0));
  BOOST_TEST((b.g.wrong.code == fault::P015), describe(b.g));
}
