// What a rank holds of a tensor: all ranks of a replica together hold every element once, initial
// weights do not depend on the layout, and numbers of one rank do not mix with those of all.
#define BOOST_TEST_MODULE boxes
#include <boost/test/unit_test.hpp>

#include <megacpp/graph/letters.hpp>
#include <megacpp/run/stores.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <kernels.hpp>
#include <unit/every_rank.hpp>

using namespace mc;
using laws::world;
using test::coverage;
using test::for_each_rank;
using test::plain_indices;
using test::tied;

namespace {

// A count divided by an extent, as an index of a row: of one rank by the whole tensor's.
template <class A, class B>
concept mixes = requires(A a, B b) {
  a / b;
}
|| requires(A a, B b) { a % b; }
|| requires(A a, B b) { a* b; }
|| requires(A a, B b) { a + b; }
|| requires(A a, B b) { a - b; }
|| requires(A a, B b) { a < b; }
|| requires(A a, B b) { a == b; }
|| requires(A a, B b) { a = b; }
|| requires(B b) { A{b}; }
|| std::is_convertible_v<A, B>;
static_assert(mixes<std::int64_t, std::int64_t>);
static_assert(!mixes<local_count, global_count> && !mixes<global_count, local_count>);
template <class A, class B>
concept computes = requires(A a, B b) {
  a / b;
}
|| requires(A a, B b) { a* b; }
|| requires(A a, B b) { a < b; }
|| requires(A a, B b) { a == b; }
|| std::is_convertible_v<A, B> || std::is_convertible_v<B, A>;
static_assert(computes<std::int64_t, std::int64_t>);
static_assert(!computes<local_count, std::int64_t> && !computes<std::int64_t, local_count>);
static_assert(!computes<global_count, std::int64_t> && !computes<std::int64_t, global_count>);

template <class R>
concept divides = requires(const R& r) {
  r.count / r.v->dims[0].n;
};
template <class R>
concept compares = requires(const R& r) {
  r.count == global_size(*r.v);
};
static_assert(!divides<parameter_ref> && !compares<parameter_ref>);

/// A value of these dims, placed; outer axes of one dim first.
constexpr value placed(const mesh& m, std::initializer_list<extent> dims, const placement& at) {
  builder b{m};
  return b.input(feed::stream, "x", dtype::f32, dims, at).type();
}
constexpr placement over(axis a, place p, axis b = axis::pp, place q = I) {
  placement at;
  at[a] = p, at[b] = q;
  return at;
}
constexpr coordinates rank_at(axis a, int i, axis b = axis::dp, int j = 0) {
  coordinates c{};
  c[static_cast<unsigned>(a)] = i, c[static_cast<unsigned>(b)] = j;
  return c;
}
/// The logical indices of what a rank holds.
template <std::size_t N>
constexpr std::array<std::int64_t, N> held(const mesh& m, const value& v, const coordinates& rank) {
  std::array<std::int64_t, N> list{};
  const boxes b(m, v, rank);
  for (std::size_t i = 0; i < N; ++i) list[i] = b[{static_cast<std::int64_t>(i)}].n;
  return list;
}
using indices4 = std::array<std::int64_t, 4>;

// Rows of four, columns over two ranks.
constexpr mesh two(layout{.tp = 2});
constexpr value columns =
    placed(two, {{dim::hidden, 2}, {dim::ffn, 4}}, over(axis::tp, S(dim::ffn)));
static_assert(held<4>(two, columns, rank_at(axis::tp, 0)) == indices4{0, 1, 4, 5});
static_assert(held<4>(two, columns, rank_at(axis::tp, 1)) == indices4{2, 3, 6, 7});
// Causal halves: the first and the last quarter cost what the two in the middle do.
constexpr mesh halves(layout{.cp = 2});
constexpr value causal =
    placed(halves, {{dim::sequence, 8, order::balanced}}, over(axis::cp, S(dim::sequence)));
static_assert(held<4>(halves, causal, rank_at(axis::cp, 0)) == indices4{0, 1, 6, 7});
static_assert(held<4>(halves, causal, rank_at(axis::cp, 1)) == indices4{2, 3, 4, 5});
// One dim over two axes, the first outermost.
constexpr mesh both(layout{.tp = 2, .cp = 2});
constexpr value twice =
    placed(both, {{dim::rows, 16}}, over(axis::cp, S(dim::rows), axis::tp, S(dim::rows)));
static_assert(held<4>(both, twice, rank_at(axis::cp, 1, axis::tp, 0)) == indices4{8, 9, 10, 11});

struct specimen {
  const char* what;
  layout ranks;
  std::vector<extent> dims;
  placement at;
  bool inside_out = false; ///< the innermost axis of a dim cuts first
};
value value_of(const specimen& s) {
  builder b{mesh(s.ranks)};
  value v;
  v.name = s.what, v.at = s.at;
  for (const extent& e : s.dims) v.dims[static_cast<unsigned>(v.rank++)] = e;
  b.normalise(v, 0, s.what);
  BOOST_TEST((b.g.wrong.code == fault::none), s.what);
  for (place& p : v.at.at)
    if (s.inside_out && p.s == state::shard)
      p.level = static_cast<std::int8_t>(v.at.levels(p.d) - 1 - p.level);
  return v;
}

const extent E{dim::expert, 4}, F{dim::ffn, 12}, H{dim::hidden, 6}, Q{dim::sequence, 16},
    B{dim::sequence, 16, order::balanced};
const specimen specimens[] = {
    {"invariant", {.tp = 2, .cp = 2}, {F, H}, {}},
    {"rows over tp", {.tp = 4}, {F, H}, over(axis::tp, S(dim::ffn))},
    {"columns over tp", {.tp = 3}, {F, H}, over(axis::tp, S(dim::hidden))},
    {"a dim in the middle", {.tp = 3}, {H, F, E}, over(axis::tp, S(dim::ffn))},
    {"one dim over two axes",
     {.tp = 3, .cp = 2},
     {F, H},
     over(axis::cp, S(dim::ffn), axis::tp, S(dim::ffn))},
    {"the same from the inside",
     {.tp = 3, .cp = 2},
     {F, H},
     over(axis::cp, S(dim::ffn), axis::tp, S(dim::ffn)),
     true},
    {"the last of two dims over two axes",
     {.tp = 3, .cp = 2},
     {H, F},
     over(axis::cp, S(dim::ffn), axis::tp, S(dim::ffn)),
     true},
    {"two dims", {.tp = 3, .cp = 2}, {F, H}, over(axis::cp, S(dim::ffn), axis::tp, S(dim::hidden))},
    {"experts",
     {.ep = 2, .etp = 3},
     {E, F, H},
     over(axis::ep, S(dim::expert), axis::etp, S(dim::ffn))},
    {"experts the other way",
     {.ep = 4, .etp = 2},
     {E, H, F},
     over(axis::ep, S(dim::expert), axis::etp, S(dim::ffn))},
    {"experts over both",
     {.ep = 2, .etp = 2},
     {E, H, F},
     over(axis::ep, S(dim::expert), axis::etp, S(dim::expert))},
    {"balanced", {.cp = 4}, {E, B, H}, over(axis::cp, S(dim::sequence))},
    {"balanced, and cut further",
     {.tp = 2, .cp = 2},
     {E, B, H},
     over(axis::cp, S(dim::sequence), axis::tp, S(dim::sequence))},
    {"balanced, and another dim",
     {.tp = 2, .cp = 2},
     {B, H},
     over(axis::cp, S(dim::sequence), axis::tp, S(dim::hidden))},
    {"balanced and not cut", {.tp = 2, .cp = 2}, {H, B}, over(axis::tp, S(dim::hidden))},
    {"balanced and held by all", {.cp = 2}, {B, H}, {}},
    {"a vector", {.tp = 4}, {Q}, over(axis::tp, S(dim::sequence))},
    {"a number", {.tp = 4}, {}, {}},
};

} // namespace

namespace {

/// The ranks of a replica hold every element of a value once, where plain loops find it; in runs of
/// their own order, and between any two elements of the logical one.
void holds_every_element_once(const std::string& what, const mesh& m, const value& v) {
  coverage seen;
  bool as_by_hand = true, in_runs = true, within = true;
  for_each_rank(m, [&](const coordinates& rank, const world& w, int number) {
    const boxes b(m, v, rank);
    const auto expected = plain_indices(w, m, v, number);
    BOOST_TEST((b.count() == local_size(m, v)), what);
    BOOST_REQUIRE_EQUAL(b.count().n, static_cast<std::int64_t>(expected.size()));
    for (std::int64_t i = 0; i < b.count().n; ++i) {
      as_by_hand = as_by_hand && b[{i}].n == expected[static_cast<std::size_t>(i)];
      seen.add(v, rank, b[{i}].n);
    }
    for (const std::int64_t step : {std::int64_t{1}, std::int64_t{5}, b.count().n})
      for (std::int64_t from = 0; from < b.count().n; from += step) {
        const std::int64_t to = std::min(b.count().n, from + step);
        std::int64_t next = from;
        b.each_contiguous({from}, {to}, [&](local_count first, global_count at, std::int64_t n) {
          in_runs = in_runs && first.n == next && n > 0 && first.n + n <= to;
          for (std::int64_t i = 0; in_runs && i < n; ++i)
            in_runs = expected[static_cast<std::size_t>(first.n + i)] == at.n + i;
          next = first.n + n;
        });
        in_runs = in_runs && next == to;
      }
    // By the logical order: what is held between two elements of it, and nothing twice.
    std::vector<std::int64_t> place(static_cast<std::size_t>(global_size(v).n), -1);
    for (std::size_t i = 0; i < expected.size(); ++i)
      place[static_cast<std::size_t>(expected[i])] = static_cast<std::int64_t>(i);
    for (const std::int64_t step : {std::int64_t{1}, std::int64_t{5}, global_size(v).n})
      for (std::int64_t from = 0; from < global_size(v).n; from += step) {
        const std::int64_t to = std::min(global_size(v).n, from + step);
        std::vector<std::int64_t> found(static_cast<std::size_t>(to - from), -1);
        std::int64_t next = from;
        b.each_contiguous_within({from}, {to}, [&](local_count i, global_count at, std::int64_t n) {
          within = within && n > 0 && at.n >= next && at.n + n <= to;
          for (next = at.n + n; within && n > 0; --n)
            found[static_cast<std::size_t>(at.n + n - 1 - from)] = i.n + n - 1;
        });
        within = within && std::equal(found.begin(), found.end(), place.begin() + from);
      }
  });
  BOOST_TEST(seen.once(), what);
  BOOST_TEST(as_by_hand, what);
  BOOST_TEST(in_runs, what);
  BOOST_TEST(within, what);
}

/// A value over a random mesh: up to four dims, any axis cuts any of them at any level, and the
/// sequence lies in balanced order at times.
std::pair<mesh, value> drawn(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  mesh m;
  for (const axis a : {axis::cp, axis::tp, axis::pp, axis::ep, axis::etp})
    m.size[static_cast<int>(a)] = 1 + below(3);
  constexpr dim names[] = {dim::sequence, dim::heads, dim::ffn, dim::expert};
  value v;
  v.rank = static_cast<std::int8_t>(1 + below(4));
  std::vector<axis> over{axis::cp, axis::tp, axis::pp, axis::ep, axis::etp};
  std::shuffle(over.begin(), over.end(), random);
  for (const axis a : over) // the first of a dim is its outermost
    if (const int k = below(v.rank + 1); k < v.rank && m.of(a) > 1) {
      const dim d = names[k];
      v.at[a] = {state::shard, d, static_cast<std::int8_t>(v.at.levels(d))};
    }
  for (int k = 0; k < v.rank; ++k) {
    extent& e = v.dims[k];
    e = {names[k], 1 + below(3), k == 0 && below(2) == 0 ? order::balanced : order::contiguous};
    for (int a = 0; a < axes; ++a)
      if (v.at.at[a].is_shard(e.d)) e.n *= m.of(axis(a));
    if (e.o == order::balanced) e.n = std::lcm(e.n, std::int64_t{2} * m.of(axis::cp));
  }
  return {m, v};
}

} // namespace

BOOST_AUTO_TEST_CASE(ranks_of_a_replica_hold_every_element_once) {
  for (const specimen& s : specimens) holds_every_element_once(s.what, mesh(s.ranks), value_of(s));
  int by_several = 0, balanced = 0;
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    const auto [m, v] = drawn(seed);
    holds_every_element_once("random " + std::to_string(seed), m, v);
    balanced += v.dims[0].o == order::balanced && v.at[axis::cp].s == state::shard;
    for (int k = 0; k < v.rank; ++k) by_several += v.at.levels(v.dims[k].d) > 1;
  }
  BOOST_TEST(by_several > 20);
  BOOST_TEST(balanced > 20);
}

// Files are written by a rank that has all of a tensor, in the order in which files have it.
BOOST_AUTO_TEST_CASE(whole_is_what_every_rank_has_in_its_natural_order) {
  const std::set<std::string> whole{"invariant", "a number"};
  for (const specimen& s : specimens)
    BOOST_TEST(boxes(mesh(s.ranks), value_of(s), {}).whole() == whole.contains(s.what), s.what);
}

namespace {

/// What every rank of a layout begins with is what one rank does.
template <class Model> void begins_alike(const Model& m, const layout& l, dtype type) {
  const setup alone{.batch = {1, 16}, .precision = type};
  setup laid_out = alone;
  laid_out.ranks = l;
  const interpreted_program<Model> one(m, alone, "one"), many(m, laid_out, "many");
  stores whole(one.view(), false);
  whole.initialise(7);
  test::hold_what_one_does(
      one.view(), many.view(), l,
      [&](const coordinates& rank) {
        stores mine(many.view(), false, rank);
        mine.initialise(7);
        return mine;
      },
      [&](const stores& mine, std::int64_t here, std::int64_t there, bool pads) {
        return mine.weight(here) == (pads ? 0.0 : whole.weight(there));
      });
}

} // namespace

BOOST_AUTO_TEST_CASE(initial_weights_are_those_of_one_rank) {
  for (const dtype t : {dtype::f32, dtype::bf16})
    for (const layout& l : {layout{}, layout{.tp = 2}, layout{.tp = 4, .sequence_parallel = true},
                            layout{.tp = 2, .cp = 2}})
      begins_alike(tied, l, t);
  for (const layout& l : {layout{.tp = 2}, layout{.tp = 4, .cp = 2}})
    begins_alike(test::grouped, l, dtype::f32);
  for (const layout& l :
       {layout{.tp = 2}, layout{.ep = 4}, layout{.tp = 2, .cp = 2, .ep = 2, .etp = 2},
        layout{.tp = 4, .ep = 2, .etp = 2}})
    begins_alike(test::biased, l, dtype::f32);
}

// Every element of every layer is drawn for itself, from a normal distribution.
BOOST_AUTO_TEST_CASE(no_two_initial_weights_are_alike) {
  const interpreted_program<gpt> program(tied, {.batch = {1, 16}, .precision = dtype::f64},
                                         "drawn");
  stores s(program.view(), false);
  s.initialise(7);
  std::set<double> values;
  for_each_parameter(program.view(), [&](const parameter_ref& r) {
    if (r.info->how != init::normal) return;
    double squares = 0, products = 0;
    const auto x = [&](std::int64_t i) { return s.weight(r.offset + i) / r.info->std; };
    const auto n = static_cast<double>(r.count.n);
    for (std::int64_t i = 0; i < r.count.n; ++i) {
      BOOST_TEST(values.insert(x(i)).second, r.name << "[" << i << "] is drawn twice");
      squares += x(i) * x(i), products += i > 0 ? x(i) * x(i - 1) : 0;
    }
    BOOST_TEST(std::abs(squares / n - 1) < 5 * std::sqrt(2 / n), r.name);
    BOOST_TEST(std::abs(products / n) < 5 / std::sqrt(n), r.name);
  });
  BOOST_TEST(values.size() > 4000u);
}

// Training in bf16 keeps masters of what weights round.
BOOST_AUTO_TEST_CASE(masters_are_not_rounded) {
  const setup single{.batch = {1, 16}, .precision = dtype::f32};
  setup half = single;
  half.precision = dtype::bf16;
  const interpreted_program<gpt> a(tied, single, "single"), b(tied, half, "half");
  stores exact(a.view(), true), kept(b.view(), true);
  exact.initialise(7), kept.initialise(7);
  BOOST_REQUIRE(exact.total() == kept.total());
  std::int64_t masters = 0, weights = 0, rounded = 0;
  for (std::int64_t i = 0; i < kept.total(); ++i) {
    const double x = exact.weight(i), w = stores::get(kept.weights(), dtype::bf16, i);
    masters += kept.weight(i) != x;
    weights += w != static_cast<double>(static_cast<float>(bf16(static_cast<float>(x))));
    rounded += w != x;
  }
  BOOST_TEST(masters == 0);
  BOOST_TEST(weights == 0);
  BOOST_TEST(rounded > kept.total() / 2);
}

BOOST_AUTO_TEST_CASE(a_rank_speaks_of_logical_elements) {
  const interpreted_program<gpt> program(tied, {.ranks = {.tp = 2}, .batch = {1, 16}},
                                         "two"); // 37 words in 38 rows
  parameter_ref table;
  for_each_parameter(program.view(), [&](const parameter_ref& r) {
    if (r.name == "wte.weight") table = r;
  });
  for (int rank = 0; rank < 2; ++rank) {
    stores s(program.view(), false, rank_at(axis::tp, rank));
    for (std::int64_t i = 0; i < s.total(); ++i) s.set_weight(i, 1);
    s.clear_padding();
    std::vector<std::int64_t> cleared;
    for (std::int64_t i = 0; i < s.total(); ++i)
      if (s.weight(i) == 0) cleared.push_back(i - table.offset);
    std::vector<std::int64_t> padding;
    for (std::int64_t i = 18 * 16; rank == 1 && i < 19 * 16; ++i) padding.push_back(i);
    BOOST_TEST(cleared == padding, boost::test_tools::per_element());
    s.set_weight(table.offset + 5, std::numeric_limits<double>::infinity());
    BOOST_TEST(s.nonfinite() == (rank == 0 ? "wte.weight[5] is inf" : "wte.weight[309] is inf"));
  }
}
