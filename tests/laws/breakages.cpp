// The converse of soundness: with one rule, adjoint or pass broken on purpose, random graphs show
// the fault, by a refusal of the builder or verifier or by a value that differs from one rank's. If
// a breakage survives, the law does not test what it claims.
#define BOOST_TEST_MODULE breakages
#include "breakages.hpp"

#include <boost/test/unit_test.hpp>

#include <iostream>
#include <memory>

namespace mc::laws {

template <const op_info& Op, fault F> substitution forgive() {
  return {{&Op, &broken::forgives<Op, F>}};
}
template <const op_info& Op, adjoint_function A> substitution transpose() {
  return {{&Op, &broken::transposes<Op, A>}};
}
template <state From, state To, state As, state Then> substitution mislead() {
  return {{&op::redistribute, &broken::misled<From, To, As, Then>}};
}

const std::vector<breakage>& breakages() {
  using namespace broken;
  using enum state;
  constexpr state I_ = invariant, R_ = replicate, P_ = partial, S_ = shard;
  static const std::vector<breakage> list{
      // rules that accept what they must refuse
      {"rms_norm accepts a sharded hidden dim", forgive<op::rms_norm, fault::P007>(), {}, {}},
      {"layer_norm accepts a sharded hidden dim", forgive<op::layer_norm, fault::P007>(), {}, {}},
      {"linear accepts an invariant weight beside a sharded operand",
       forgive<op::linear, fault::P004>(),
       {},
       {}},
      {"linear sums a dim that one operand shards and the other does not",
       forgive<op::linear, fault::P001>(),
       {},
       {}},
      {"linear adds a finished bias to a pending sum", forgive<op::linear, fault::P005>(), {}, {}},
      {"add_bias adds a finished bias to a pending sum",
       forgive<op::add_bias, fault::P005>(),
       {},
       {}},
      {"add_bias accepts an invariant bias beside a sharded operand",
       forgive<op::add_bias, fault::P004>(),
       {},
       {}},
      {"gelu accepts a pending sum", forgive<op::gelu, fault::P005>(), {}, {}},
      {"swiglu accepts a pending sum", forgive<op::swiglu, fault::P005>(), {}, {}},
      {"+ adds a finished value to a pending sum", forgive<op::add, fault::P005>(), {}, {}},
      {"+ mixes invariant and replicated operands", forgive<op::add, fault::P008>(), {}, {}},
      {"+ does not compare levels", {{&op::add, &blind<op::add>}}, {}, {}},
      {"to() gathers an outer axis of a dim", forgive<op::redistribute, fault::P009>(), {}, {}},
      {"attention accepts keys of a part of the sequence",
       forgive<op::attention, fault::P007>(),
       {},
       {}},
      {"attention accepts operands placed differently",
       forgive<op::attention, fault::P002>(),
       {},
       {}},
      {"attention accepts invariant keys beside sharded queries",
       forgive<op::attention, fault::P004>(),
       {},
       {}},
      {"attention accepts positions in another order",
       forgive<op::attention, fault::P012>(),
       {},
       {}},
      {"rope accepts positions in another order", forgive<op::rope, fault::P012>(), {}, {}},
      {"embedding of a sharded vocabulary gives a finished value",
       {{&op::embedding, &relabels<op::embedding, 0, P_, R_>}},
       {},
       {}},
      {"vocabulary_partial accepts an invariant x beside a sharded vocabulary",
       forgive<op::vocabulary_partial, fault::P004>(),
       {},
       {}},
      {"vocabulary_partial gives finished targets",
       {{&op::vocabulary_partial, &relabels<op::vocabulary_partial, 1, P_, R_>}},
       {},
       {}},
      {"cross_entropy accepts sharded parts of the vocabulary",
       forgive<op::cross_entropy, fault::P007>(),
       {},
       {}},
      {"cross_entropy of a sharded batch is a finished loss",
       {{&op::cross_entropy, &relabels<op::cross_entropy, 0, P_, R_>}},
       {},
       {}},
      {"select accepts a sharded sequence", forgive<op::select, fault::P007>(), {}, {}},
      // redistributions whose transpose has the right type and moves the wrong thing
      {"I -> R transposed to nothing",
       mislead<I_, R_, I_, I_>(),
       {{&relabel, &plain::accumulate}},
       {}},
      {"P -> I transposed to an all-reduce",
       mislead<P_, I_, P_, R_>(),
       {{&relabel, &plain::accumulate}},
       {}},
      {"P -> R transposed to nothing",
       mislead<P_, R_, R_, R_>(),
       {{&relabel, &plain::accumulate}},
       {}},
      {"S -> R transposed to a slice",
       mislead<S_, R_, R_, S_>(),
       {{&relabel, &plain::accumulate}},
       {}},
      {"S -> I transposed to a reduce-scatter",
       mislead<S_, I_, P_, S_>(),
       {{&relabel, &plain::accumulate}},
       {}},
      {"P -> S transposed to a zero-pad",
       mislead<P_, S_, S_, P_>(),
       {{&relabel, &plain::accumulate}},
       {}},
      {"I -> S transposed to a zero-pad",
       mislead<I_, S_, S_, P_>(),
       {{&relabel, &plain::accumulate}},
       {}},
      {"R -> S transposed to an all-gather",
       mislead<R_, S_, S_, R_>(),
       {{&relabel, &plain::accumulate}},
       {}},
      {"S(i) -> S(j) transposed within the rank",
       {{&op::redistribute, &transposes<op::redistribute, &wrong_all_to_all>}},
       {{&relabel, &plain::accumulate}},
       {}},
      // adjoints and their rules
      {"embedding's gradient is not summed over sharded ids",
       {{&op::embedding,
         &transposes<op::embedding, &embedding_by<relabels<op::embedding_grad, 0, P_, I_>>>}},
       {{&relabels<op::embedding_grad, 0, P_, I_>, &plain::embedding_grad}},
       {}},
      {"attention's key gradients are not summed over sharded queries",
       {{&op::attention,
         &transposes<op::attention, &attention_by<relabels<op::attention_grad, 1, P_, R_>>>}},
       {{&relabels<op::attention_grad, 1, P_, R_>, &plain::attention_grad}},
       {}},
      {"a norm's gain gradient is not summed over sharded rows",
       {{&op::rms_norm,
         &transposes<op::rms_norm, &rms_gain_by<relabels<op::rms_norm_gain_grad, 0, P_, I_>>>}},
       {{&relabels<op::rms_norm_gain_grad, 0, P_, I_>, &plain::rms_norm_gain_grad}},
       {}},
      {"the input gradient of a column-parallel product is not summed",
       {{&op::linear,
         &transposes<op::linear,
                     &linear_by<relabels<op::linear_input_grad, 0, P_, R_>, op::bias_grad>>}},
       {{&relabels<op::linear_input_grad, 0, P_, R_>, &plain::linear_input_grad}},
       {}},
      {"a bias gradient is not summed over sharded rows",
       {{&op::linear,
         &transposes<op::linear,
                     &linear_by<op::linear_input_grad, relabels<op::bias_grad, 0, P_, I_>>>}},
       {{&relabels<op::bias_grad, 0, P_, I_>, &plain::bias_grad}},
       {}},
      {"cross_entropy's gradient is divided by the rows of the rank",
       transpose<op::cross_entropy, &cross_entropy_by<mean_grad>>(),
       {{&mean_grad, &cross_entropy_mean_of_rank}},
       {}},
      {"+ gives its cotangent to one operand", transpose<op::add, &add_first_only>(), {}, {}},
      {"rope's adjoint turns the same way", transpose<op::rope, &rope_not_inverted>(), {}, {}},
      {"swiglu's adjoint exchanges its operands",
       transpose<op::swiglu, &swiglu_exchanged>(),
       {},
       {}},
      {"dropout's adjoint has another mask", transpose<op::dropout, &dropout_other_mask>(), {}, {}},
      {"repeat's adjoint takes the first copy",
       transpose<op::repeat, &repeat_by_first>(),
       {{&first_copy_grad, &repeat_grad_of_first}},
       {}},
      // what a rank knows of itself
      {"dropout counts columns from the rank's first",
       {{&op::dropout, &local_column}},
       {{&local_column, &dropout_local_column}},
       {}},
      {"dropout keys tokens by their row on the rank",
       {{&op::dropout, &local_key}},
       {{&local_key, &dropout_local_key}},
       {}},
      // passes
      {"a sum of two cotangents keeps one", {}, {}, &sum_dropped},
      {"a reduction of the epilogue is lost", {}, {}, &reduction_dropped},
      {"a derived reduction runs over another axis", {}, {}, &other_axis},
      {"a gradient keeps one micro-batch", {}, {}, &gradient_overwritten},
      {"a node that reads an input is hoisted", {}, {}, &hoisted_too_far},
      // the end of a step
      {"the sum of squares of a shard is taken as finished",
       {},
       {},
       {},
       &relabels<op::sum_of_squares, 0, P_, I_>},
      {"the sum of squares of a copied gradient is added up over its copies",
       {},
       {},
       {},
       &relabels<op::sum_of_squares, 0, I_, P_>},
  };
  return list;
}

template <const op_info&... Ops> substitution copies() { return {{&Ops, &broken::copy<Ops>}...}; }
breakage nothing_broken() {
  return {
      "nothing",
      copies<op::linear, op::add, op::add_bias, op::scale, op::gelu, op::swiglu, op::rms_norm,
             op::layer_norm, op::embedding, op::rope, op::dropout, op::attention,
             op::vocabulary_partial, op::cross_entropy, op::repeat, op::select, op::redistribute>(),
      {},
      {},
      &broken::copy<op::sum_of_squares>};
}

} // namespace mc::laws

using namespace mc;
using namespace mc::laws;

namespace {

/// The gradient norm of plan/update.hpp, with another op in place of sum_of_squares.
graph norm_graph(const registry& r, const mesh& ranks, const op_info& squares) {
  builder b{ranks};
  node clip;
  clip.op = &op::clip_factor;
  clip.in[0] = total_input(b, step_total::whole_tokens).id;
  clip.in[1] = total_input(b, step_total::whole_loss).id;
  for (int k = 0; k < r.bucket_count; ++k) {
    const var g = bucket_value(b, r.buckets[static_cast<unsigned>(k)], range::share, feed::gradient,
                               "gradient", dtype::f64, k);
    var s{&b, b.emit(squares, {g.id}, 0, op::share_attributes{})};
    for (int a = 0; a < axes; ++a)
      if (s.at(static_cast<axis>(a)).s == state::partial) s = to(s, static_cast<axis>(a), I, 0);
    value_id& sum = clip.in[static_cast<unsigned>(2 + k % (max_inputs - 2))];
    sum = sum < 0 ? s.id : b.emit(op::add, {sum, s.id}, 0);
  }
  b.emit(clip);
  b.g.outputs = {-1, b.g.at_node(b.g.node_count - 1).out[1]};
  return b.g;
}

/// Returns how one random graph shows a breakage; "" if it does not.
std::string shown(const breakage& what, std::uint64_t seed) {
  const auto s = std::make_unique<sample>();
  random_graph random(seed, what.swaps, *s);
  if (!random.draw()) return "";
  if (!draw_single(*s)) return "one rank: " + describe(s->single.b.g);
  const auto output = static_cast<std::size_t>(s->output);
  graph& g = s->meshed.b.g;
  fault wrong = derive(s->meshed, s->meshed.values[output], s->of_meshed);
  if (wrong == fault::S004) return "";
  if (wrong != fault::none) return describe(g);
  if (what.mutate) {
    if (!what.mutate(s->meshed, s->of_meshed)) return "";
    examine(g, &s->of_meshed);
    if (g.wrong.code != fault::none) return describe(g);
  }
  if (derive(s->single, s->single.values[output], s->of_single) != fault::none)
    return "one rank: " + describe(s->single.b.g);
  implementations ops = plain::all();
  for (const auto& [from, into] : what.swaps) ops[into] = plain::all().at(from);
  for (const auto& [op, run] : what.extra) ops[op] = run;
  if (what.squares != nullptr) ops[what.squares] = &plain::sum_of_squares;
  comparison against(*s, seed, ops);
  if (const std::string d = against.difference(g); !d.empty() || what.squares == nullptr) return d;
  const registry r = make_registry(std::array<const graph*, 1>{&g}, std::array{1});
  if (r.wrong.code != fault::none) return "";
  const graph norm = norm_graph(r, g.ranks, *what.squares);
  if (norm.wrong.code != fault::none) return describe(norm);
  return against.norm_difference(g, norm, r);
}

} // namespace

BOOST_AUTO_TEST_CASE(faithful_copies_of_all_ops_show_nothing) {
  const breakage none = nothing_broken();
  for (std::uint64_t seed = 0; seed < 150; ++seed)
    BOOST_TEST(shown(none, seed) == "", "seed " << seed << ": " << shown(none, seed));
}

BOOST_AUTO_TEST_CASE(every_breakage_is_found) {
  BOOST_TEST(breakages().size() >= 20u);
  for (const breakage& b : breakages()) {
    std::string how;
    std::uint64_t seed = 0;
    for (; seed < 3000 && how.empty(); ++seed) how = shown(b, seed);
    std::cout << b.name << ": " << (how.empty() ? "survives" : how) << " (" << seed << " graphs)\n";
    BOOST_TEST(!how.empty(), b.name << " survives " << seed << " random graphs");
  }
}
