// Soundness of the rules: random graphs of the real ops with random legal placements are executed
// on simulated ranks in double over random small meshes. They give the forward values and gradients
// of one rank, also after every pass.
//   laws_soundness [boost options] -- [graphs [first seed]]
#define BOOST_TEST_MODULE soundness
#include "comparison.hpp"
#include "coverage.hpp"

#include <megacpp/graph/letters.hpp>
#include <megacpp/pass/pipeline.hpp>
#include <megacpp/pass/recompute.hpp>
#include <megacpp/pass/split.hpp>

#include <boost/test/unit_test.hpp>

#include <iostream>
#include <memory>

using namespace mc;
using namespace mc::laws;

namespace {

struct named_pass {
  const char* name;
  graph (*run)(const graph&);
};
/// The passes: each alone, and in the orders in which they follow each other.
const named_pass passes[] = {
    {"selective", [](const graph& g) { return recomputed(g, recompute::selective); }},
    {"full", [](const graph& g) { return recomputed(g, recompute::full); }},
    {"split", [](const graph& g) { return split_graph(g); }},
    {"fused", [](const graph& g) { return fused(g); }},
    {"pending", [](const graph& g) { return left_pending(g); }},
    {"pending, fused, selective, split",
     [](const graph& g) {
       return split_graph(recomputed(fused(left_pending(g)), recompute::selective));
     }},
    {"fused, full, split",
     [](const graph& g) { return split_graph(recomputed(fused(g), recompute::full)); }},
    {"split, full, fused",
     [](const graph& g) { return fused(recomputed(split_graph(g), recompute::full)); }}};

int argument(int k, int otherwise) {
  const auto& suite = boost::unit_test::framework::master_test_suite();
  return suite.argc > k ? std::atoi(suite.argv[k]) : otherwise;
}

/// Returns whether tokens choose experts: a step of a difference may change a choice then.
bool chooses(const graph& g) {
  return std::any_of(g.nodes, g.nodes + g.node_count,
                     [](const node& n) { return n.op == &op::route; });
}

/// Takes one graph through all checks, and returns the sentence of the first fault, or "". `drawn`
/// tells whether there was a graph at all.
std::string check(std::uint64_t seed, bool& drawn, coverage& covered, double& slope) {
  const auto s = std::make_unique<sample>();
  random_graph random(seed, {}, *s);
  if (!random.draw()) return "";
  if (!draw_single(*s)) return "one rank refuses what the mesh accepts: " + describe(s->single.b.g);
  const auto output = static_cast<std::size_t>(s->output);
  const graph& g = s->meshed.b.g;
  const auto forward = std::make_unique<graph>(g);
  forward->outputs[0] = s->meshed.values[output];
  const fault wrong = derive(s->meshed, s->meshed.values[output], s->of_meshed);
  if (wrong == fault::S004) return ""; // its backward pass has too many nodes
  if (wrong != fault::none) return "derived: " + describe(g);
  if (derive(s->single, s->single.values[output], s->of_single) != fault::none)
    return "one rank: " + describe(s->single.b.g);
  drawn = true;
  covered.count(*s, g);

  comparison against(*s, seed);
  if (const std::string d = against.difference(g); !d.empty()) return d;
  if (const std::string d = against.difference_in_memory(g); !d.empty()) return d;
  if (!chooses(g)) slope = std::max(slope, against.slope_error(seed));

  // An evaluation has fused forms of its own, which keep no values for a gradient.
  hoist(*forward);
  graph evaluation = verified(fused(*forward), meaning_of(*forward));
  if (evaluation.wrong.code != fault::none) return "evaluation: " + describe(evaluation);
  covered.count(*s, evaluation);
  if (const std::string d = against.forward_difference(evaluation); !d.empty())
    return "evaluation: " + d;

  const std::size_t count = std::size(passes);
  for (std::size_t k : {seed % count, (seed / count + 1 + seed) % count}) {
    graph after = passes[k].run(g);
    if (after.wrong.code == fault::S004) continue;
    after = verified(after, meaning_of(g));
    if (after.wrong.code != fault::none)
      return std::string(passes[k].name) + ": " + describe(after);
    if (const std::string d = against.difference_in_memory(after); !d.empty())
      return std::string(passes[k].name) + ": " + d;
    covered.count(*s, after);
  }

  const registry r = make_registry(std::array<const graph*, 1>{&g}, std::array{1});
  if (r.wrong.code == fault::S004) return ""; // more ways to place parameters than groups
  const graph update = update_graph(r, g.ranks, dtype::f64);
  if (update.wrong.code != fault::none) return "update: " + describe(update);
  covered.count(*s, update);
  return against.norm_difference(g, update, r);
}

} // namespace

BOOST_AUTO_TEST_CASE(random_graphs_on_any_mesh_compute_what_one_rank_computes) {
  const int graphs = argument(1, 2000);
  coverage covered;
  double slope = 0;
  int drawn = 0, failed = 0;
  auto seed = static_cast<std::uint64_t>(argument(2, 0));
  for (const std::uint64_t last = seed + 2 * static_cast<std::uint64_t>(graphs);
       drawn < graphs && seed < last && failed < 10; ++seed) {
    bool one = false;
    const std::string wrong = check(seed, one, covered, slope);
    drawn += one;
    if (wrong.empty()) continue;
    ++failed;
    BOOST_TEST(false, "seed " << seed << ": " << wrong);
  }
  std::cout << drawn << " random graphs, largest error of a directional derivative " << slope
            << "\n";
  BOOST_TEST(failed == 0);
  BOOST_TEST(drawn >= graphs);
  BOOST_TEST(slope < 1e-6);
  const auto print = [](const char* what, const std::map<std::string, int>& counts) {
    std::cout << what << ":";
    for (const auto& [name, n] : counts) std::cout << "  " << name << " " << n;
    std::cout << "\n";
  };
  print("redistributions", covered.forward);
  print("derived", covered.derived);
  print("ops with sharded values", covered.sharded);
  std::cout << "graphs over";
  for (int a = 0; a < axes; ++a)
    std::cout << " " << name_of(static_cast<axis>(a)) << " " << covered.over[a];
  std::cout << "; rules covered: " << covered.rules.size() << "\n";
  std::cout << "two axes on one dim, in axis order " << covered.outer_first << ", in the other "
            << covered.inner_first << "; sharded dims in balanced order " << covered.balanced
            << ", over dp of unknown size " << covered.over_unsized_dp << "; tied parameters "
            << covered.tied << ", frozen " << covered.frozen << "; nodes of prologues "
            << covered.prologue << ", of epilogues " << covered.epilogue << "\n";
  for (const std::string& m : covered.missing(graphs / 400))
    BOOST_TEST(false, "too few cases of: " << m);
}

BOOST_AUTO_TEST_CASE(a_redistribution_moves_what_its_name_says) {
  // Of 2 x 3 ranks, x (4, 6) is cut along dim 1 by tp inside cp: rank (c, t) holds columns 3c + t.
  world w;
  w.size[1] = 2, w.size[2] = 3;
  const mesh m({1, 2, 3, 1, 1, 1, 1});
  builder b(m);
  placement at;
  at[axis::cp] = at[axis::tp] = S(dim::hidden);
  const var x = b.input(feed::stream, "x", dtype::f64, {{dim::batch, 6}, {dim::hidden, 6}}, at);
  const var gathered = to(x, axis::tp, I), moved = to(x, axis::tp, S(dim::batch));
  BOOST_TEST_REQUIRE((b.g.wrong.code == fault::none));
  machine run(w, b.g, plain::all());
  laws::feeds f;
  for (int i = 0; i < 36; ++i) f.logical[x.id].resize(1), f.logical[x.id][0].push_back(i);
  run.run_forward(f);
  BOOST_TEST((run.of(x.id)[4] == array{4, 10, 16, 22, 28, 34})); // cp 1, tp 1: column 4
  BOOST_TEST(
      (run.of(gathered.id)[4][4] == 10 && run.of(gathered.id)[4].size() == 18)); // columns 3 .. 5
  BOOST_TEST((run.of(moved.id)[4] == array{15, 16, 17, 21, 22, 23})); // rows 2, 3 of columns 3 .. 5
  // Exchanging the outer and the inner axis is refused, since the axis is not the innermost.
  to(x, axis::cp, I);
  BOOST_TEST((b.g.wrong.code == fault::P009));
}

BOOST_AUTO_TEST_CASE(balanced_order_gives_every_rank_an_early_and_a_late_chunk) {
  world w;
  w.size[1] = 2;
  const mesh m({1, 2, 1, 1, 1, 1, 1});
  builder b(m);
  placement at;
  at[axis::cp] = S(dim::sequence);
  const var x = b.input(feed::stream, "x", dtype::f64, {{dim::sequence, 8, order::balanced}}, at);
  const array logical{0, 1, 2, 3, 4, 5, 6, 7};
  const std::vector<array> held{scatter(w, m, x.type(), 0, logical),
                                scatter(w, m, x.type(), 1, logical)};
  BOOST_TEST((held[0] == array{0, 1, 6, 7}));
  BOOST_TEST((held[1] == array{2, 3, 4, 5}));
  bool copies = true;
  BOOST_TEST((assemble(w, m, x.type(), held, copies) == logical));
}
