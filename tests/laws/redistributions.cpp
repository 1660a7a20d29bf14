// Every redistribution of the table by its kernel, on ranks that are threads: each rank gets the
// elements that the plain definition says (simulated_ranks.hpp), and the logical value is the same
// as before. The dims that are cut lie outermost, in the middle and innermost; a dim is cut by one
// axis or two, in its natural order or balanced.
#define BOOST_TEST_MODULE redistributions
#include <boost/test/unit_test.hpp>

#include <megacpp/graph/letters.hpp>

#include "node_kernel.hpp"

#include <set>

#include <simulated_communicator.hpp>

using namespace mc;
using namespace mc::laws;
using mc_test::simulated_ranks;

namespace {

/// A mesh of some ranks: the axes that are named, and one axis of the other mesh over the same
/// ranks.
struct some_ranks {
  world w;
  mesh m = mesh::one_rank(); ///< mesh of the communicator

  some_ranks(std::initializer_list<std::pair<axis, int>> sizes) {
    bool dense = true;
    for (const auto& [a, n] : sizes) {
      w.size[static_cast<unsigned>(a)] = m.size[static_cast<unsigned>(a)] = n;
      dense = dense && !expert_axes.has(a);
    }
    m.size[static_cast<unsigned>(dense ? axis::edp : axis::dp)] = w.ranks() / w.of(axis::pp);
  }
  /// Returns the rank of `w` at a communicator's coordinates.
  std::size_t at(const communicator& c) const {
    int r = 0;
    for (int a = 0; a < axes; ++a)
      if (w.size[static_cast<unsigned>(a)] > 1)
        r += c.coordinate()[static_cast<unsigned>(a)] * w.stride(axis(a));
    return static_cast<std::size_t>(r);
  }
};

/// Returns a graph with one redistribution as its only node, or none if the table has no such
/// entry.
graph graph_of(const mesh& m, dtype t, placement at, axis a, place to, order o, bool derived) {
  builder b{m};
  const extent B{dim::batch, 4}, Sq{dim::sequence, 16, o}, H{dim::hidden, 12};
  const var x = b.input(feed::stream, "x", t, {B, Sq, H}, at);
  if (b.g.wrong.code != fault::none) return b.g;
  b.derived = derived;
  op::emit_redistribution(b, op::redistribute, x.id, a, to, 0);
  return b.g;
}

/// Returns the elements of every rank after the kernel of g's node.
std::vector<array> by_kernel(const some_ranks& s, const graph& g, const std::vector<array>& held) {
  static std::vector<std::unique_ptr<node_kernel>> kernels;
  while (kernels.size() < held.size()) kernels.push_back(std::make_unique<node_kernel>());
  std::vector<array> out(held.size());
  simulated_ranks(s.m).run([&](communicator& c) {
    cpu device(product_type::widened, 1); // whose memory all kernels' is
    const auto others = c.make_ranks(device);
    const std::size_t r = s.at(c);
    node_kernel& k = *kernels[r];
    k.rank = c.coordinate(), k.ranks = others.get();
    const node& n = g.at_node(0);
    k.place(g, n);
    k.run(g, n, [&](unsigned) -> const array& { return held[r]; });
    out[r] = k.get(g, n.out[0]);
  });
  return out;
}

/// Returns a rank's own integers, whose sums are exact in every type.
array whole_numbers(std::size_t rank, std::int64_t n) {
  array x;
  for (std::int64_t i = 0; i < n; ++i)
    x.push_back(std::floor(9 * scrambled(rank, static_cast<std::uint64_t>(i))) - 4);
  return x;
}

/// The collectives, with and without scratch, and the states that were seen.
std::set<std::string> seen;

void try_one(const some_ranks& s, const graph& g) {
  const node& n = g.at_node(0);
  const value &x = g.at(n.in[0]), &y = g.at(n.out[0]);
  std::vector<array> held;
  for (int r = 0; r < s.w.ranks(); ++r)
    held.push_back(whole_numbers(static_cast<std::size_t>(r), block_of(s.w, g.ranks, x, r).size()));
  std::vector<array> got = by_kernel(s, g, held);
  for (int r = 0; r < s.w.ranks(); ++r) // a range has memory for its longest shard
    got[static_cast<std::size_t>(r)].resize(
        static_cast<std::size_t>(block_of(s.w, g.ranks, y, r).size()));
  for (int r = 0; r < s.w.ranks(); ++r)
    BOOST_TEST((got[static_cast<std::size_t>(r)] == redistributed(s.w, g.ranks, x, n, r, held)),
               "rank " << r << " holds something else");
  const auto t = n.attr.as<op::transition>();
  seen.insert(std::string(name_of(t.by())) + (n.out[1] >= 0 ? " packed" : "") +
              (t.from.is_pending_maximum() ? " of maxima" : ""));
  if (x.type != dtype::f64) return;
  // The logical value stays the same; a pending sum of it is split at random.
  array logical;
  for (std::int64_t i = 0; i < logical_size(s.w, g.ranks, x); ++i)
    logical.push_back(scrambled(7, static_cast<std::uint64_t>(i)));
  for (int r = 0; r < s.w.ranks(); ++r)
    held[static_cast<std::size_t>(r)] = scatter(s.w, g.ranks, x, r, logical);
  bool copies = true;
  const array after = assemble(s.w, g.ranks, y, by_kernel(s, g, held), copies);
  double worst = 0;
  for (std::size_t i = 0; i < logical.size(); ++i)
    worst = std::max(worst, std::abs(after[i] - logical[i]));
  BOOST_TEST(worst < 1e-13);
  BOOST_TEST(copies);
}

/// Tries every entry of the table along axis a, beside the placement on other axes.
void try_all(const some_ranks& s, const mesh& m, axis a, placement beside, order o) {
  const place places[] = {
      I, R, P, partial_maximum, S(dim::batch), S(dim::sequence), S(dim::hidden)};
  for (dtype t : {dtype::f64, dtype::f32, dtype::bf16, dtype::i32})
    for (place from : places)
      for (place to : places) {
        placement at = beside;
        at[a] = from;
        if (from.s == state::shard) at[a].level = static_cast<std::int8_t>(beside.levels(from.d));
        const bool derived = from.s == state::shard && to == P;
        if (from == to || !redistributes(from, to, derived)) continue;
        if (from == partial_maximum && t != dtype::f32) continue;
        const auto g = std::make_unique<graph>(graph_of(m, t, at, a, to, o, derived));
        if (g->wrong.code == fault::P011) continue; // over dp no dim is cut or gathered
        BOOST_TEST_REQUIRE((g->wrong.code == fault::none), code_of(g->wrong.code)
                                                               << " " << g->wrong.what.c_str());
        BOOST_TEST_CONTEXT(name_of(t) << " over " << name_of(a) << " from "
                                      << static_cast<int>(from.s) << " " << name_of(from.d)
                                      << " to " << static_cast<int>(to.s) << " " << name_of(to.d))
        try_one(s, *g);
      }
}

} // namespace

BOOST_AUTO_TEST_CASE(every_entry_of_the_table_on_every_dim) {
  using enum axis;
  const some_ranks s{{tp, 2}, {cp, 2}};
  const mesh m(layout{.tp = 2, .cp = 2});
  placement beside;
  try_all(s, m, tp, beside, order::contiguous);
  beside[cp] = S(dim::sequence); // one dim, cut by two axes
  try_all(s, m, tp, beside, order::contiguous);
  try_all(s, m, tp, beside, order::balanced);
  beside[cp] = P;
  try_all(s, m, tp, beside, order::contiguous);
  try_all(s, m, cp, placement{}, order::balanced);
  const std::set<std::string> all{"none",
                                  "slice",
                                  "zero-pad",
                                  "all-reduce",
                                  "all-gather",
                                  "all-gather packed",
                                  "all-reduce of maxima",
                                  "reduce-scatter",
                                  "reduce-scatter packed",
                                  "reduce-scatter of maxima",
                                  "reduce-scatter packed of maxima",
                                  "all-to-all packed"};
  for (const std::string& what : all) BOOST_TEST(seen.count(what) == 1u, what);
}

// There are four ranks of an axis, beside replicas whose number only the communicator knows, and
// experts.
BOOST_AUTO_TEST_CASE(over_four_ranks_replicas_and_experts) {
  using enum axis;
  placement beside;
  beside[dp] = S(dim::batch);
  try_all({{dp, 2}, {tp, 4}}, mesh(layout{.tp = 4}), tp, beside, order::contiguous);
  try_all({{dp, 3}, {tp, 2}}, mesh(layout{.tp = 2}), dp, placement{}, order::contiguous);
  placement rows;
  rows[edp] = S(dim::batch);
  try_all({{edp, 2}, {ep, 2}}, mesh(layout{.ep = 2}), ep, rows, order::contiguous);
}

// Ranges of the stores are cut over replicas, whose number the graph does not know.
BOOST_AUTO_TEST_CASE(ranges_over_replicas) {
  const some_ranks s{{axis::dp, 3}};
  const place cut = S(dim::elements);
  const auto graph_of_range = [&](dtype t, place from, place to, std::int64_t n) {
    builder b{mesh(layout{})};
    placement at;
    at[axis::dp] = from;
    const var x = b.input(feed::gradient, "x", t, {{dim::elements, n}}, at);
    op::emit_redistribution(b, op::redistribute, x.id, axis::dp, to, 0);
    return std::make_unique<graph>(b.g);
  };
  for (dtype t : {dtype::f32, dtype::bf16})
    for (const auto& [from, to] : {std::pair{P, cut}, std::pair{R, cut}, std::pair{I, cut},
                                   std::pair{cut, R}, std::pair{cut, I}}) {
      const auto g = graph_of_range(t, from, to, 3 * 5000);
      BOOST_TEST_REQUIRE((g->wrong.code == fault::none), g->wrong.what.c_str());
      try_one(s, *g);
    }
  const auto g = graph_of_range(dtype::f32, P, cut, 16);
  BOOST_CHECK_EXCEPTION(by_kernel(s, *g, std::vector<array>(3, array(16, 1.0))), error,
                        [](const error& e) {
                          return std::string(e.what()).find("16 elements does not divide over 3") !=
                                 std::string::npos;
                        });
}
