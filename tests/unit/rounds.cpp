// Rounds of experts: collectives stand in them only over axes whose ranks have as many.
#define BOOST_TEST_MODULE rounds
#include <boost/test/unit_test.hpp>

#include "graph_edits.hpp"

#include <megacpp/graph/letters.hpp>
#include <megacpp/nn/experts.hpp>
#include <megacpp/op/optimizer.hpp>

#include <memory>

using namespace mc_test;

namespace {

/// Something of the rows of a round, summed over ep, and, if `of_replicas`, over edp.
std::unique_ptr<graph> rows_summed(bool of_replicas) {
  builder b{mesh(layout{.tp = 2, .ep = 2, .etp = 1})};
  const extent B{dim::batch, 2}, Sq{dim::sequence, 8}, H{dim::hidden, 16}, E{dim::expert, 8};
  const placement tokens = stream_placement(S(dim::sequence));
  const var x = b.input(feed::stream, "x", dtype::f32, {B, Sq, H}, tokens);
  const var experts = b.integers(feed::tokens, integer_kind::experts, "experts",
                                 {B, Sq, {dim::choices, 2}}, tokens, E.n);
  const expert_assignment p = expert_rows(experts, 64, E.n, 0);
  const var rows = dispatch(x, p);
  b.g.outputs[0] = combine(rows, p).id;
  const var sum =
      to({&b, b.emit(op::sum_of_squares, {rows.id}, 0, op::share_attributes{})}, axis::ep, I);
  if (of_replicas) to(sum, axis::edp, I);
  auto g = std::make_unique<graph>(b.g);
  if (g->wrong.code == fault::none) g->wrong = verify_nodes(*g);
  return g;
}
std::string verified_again(graph& g) { return said(verify_nodes(g)); }

} // namespace

BOOST_AUTO_TEST_CASE(a_collective_in_a_round_is_over_ranks_that_agree_on_it) {
  BOOST_TEST(said(rows_summed(false)->wrong) == " ");
  BOOST_TEST(said(rows_summed(true)->wrong).find("MEGA-P021 to(sum_of_squares") == 0u);
  const auto dense = rows_summed(false); // ranks of tp lie on several replicas
  for (int i = 0; i < dense->node_count; ++i)
    if (node& n = dense->at_node(i); n.op == &op::redistribute && n.region >= 0)
      change<op::transition>(n, [](op::transition& t) { t.over = axis::tp; });
  BOOST_TEST(verified_again(*dense).find("MEGA-P021 to(") == 0u, verified_again(*dense));
  const auto apart = rows_summed(false); // as if ranks of ep had numbers of their own
  value& rounds = apart->at(apart->regions[0].trips);
  rounds.dims[0].n = 2, rounds.at[axis::ep] = S(dim::replicas);
  for (value_id v : find_node(*apart, op::expert_rows)->out)
    if (v >= 0) apart->at(v).is = role::input, apart->at(v).producer = -1;
  erase(*apart, find_node(*apart, op::expert_rows));
  BOOST_TEST(verified_again(*apart).find("MEGA-P021 dispatch(") == 0u, verified_again(*apart));
}
