// Ranges of the stores that are cut over dp, whose size is known only at start. Scattered
// gradients, the norm of shards, AdamW on them and gathered weights are together the update of the
// whole range, whether it divides by the number of replicas or not.
#define BOOST_TEST_MODULE ranges
#include <boost/test/unit_test.hpp>

#include <megacpp/graph/letters.hpp>
#include <megacpp/pass/verify.hpp>
#include <megacpp/plan/update.hpp>

#include <cmath>
#include <cstdint>
#include <vector>

#include <laws/plain_ops.hpp>
#include <laws/simulated_ranks.hpp>

using namespace mc;
using namespace mc::laws;

namespace {

constexpr double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, decay = 0.1;

/// Runs AdamW on the elements that a rank holds.
void adamw(node_task& t) {
  const auto operand = [&](int k) -> array& { return const_cast<array&>(t.in(k)); };
  array &master = operand(1), &first = operand(2), &second = operand(3), &weight = operand(4);
  const double factor = t.in(5)[0], rate = t.in(6)[0], step = t.in(7)[0] + 1;
  for (std::size_t i = 0; i < master.size(); ++i) {
    const double g = factor * t.in(0).at(i);
    first[i] = beta1 * first[i] + (1 - beta1) * g;
    second[i] = beta2 * second[i] + (1 - beta2) * g * g;
    const double m = first[i] / (1 - std::pow(beta1, step)),
                 v = second[i] / (1 - std::pow(beta2, step));
    master[i] -= rate * (decay * master[i] + m / (std::sqrt(v) + epsilon));
    weight.at(i) = master[i];
  }
  t.out(0)[0] = 0;
}
const implementations& ops() {
  static const implementations table = [] {
    implementations all = plain::all();
    all[&op::adamw] = &adamw;
    return all;
  }();
  return table;
}

/// The end of a step over one range of n elements, which tp cuts; `sharded`: dp cuts it, too.
struct end_of_step {
  graph g;
  value_id gradient, master, first, second, weight, updated, norm;

  end_of_step(std::int64_t n, int tp, bool sharded)
      : end_of_step(builder{mesh(layout{.tp = tp})}, n, sharded) {}

private:
  end_of_step(builder b, std::int64_t n, bool sharded) {
    placement pending, stored;
    pending[axis::tp] = stored[axis::tp] = S(dim::elements);
    pending[axis::dp] = P;
    if (sharded) stored[axis::dp] = S(dim::elements);
    const auto range = [&](feed f, const char* name, const placement& at) {
      return b.input(f, name, dtype::f64, {{dim::elements, n}}, at).id;
    };
    gradient = range(feed::gradient, "gradient", pending);
    master = range(feed::master, "master", stored);
    first = range(feed::first_moment, "first_moment", stored);
    second = range(feed::second_moment, "second_moment", stored);
    weight = range(feed::weight, "weight", stored);
    const var mine = to({&b, gradient}, axis::dp, sharded ? S(dim::elements) : I);
    const var squares =
        over_all_ranks({&b, b.emit(op::sum_of_squares, {mine.id}, 0, op::share_attributes{})});
    const value_id tokens = total_input(b, step_total::whole_tokens).id,
                   loss = total_input(b, step_total::whole_loss).id,
                   factor = b.emit(op::clip_factor, {tokens, loss, squares.id}, 0);
    norm = b.g.at_node(b.g.node_count - 1).out[1];
    b.when = phase::epilogue;
    b.emit(op::adamw,
           {mine.id, master, first, second, weight, factor, number_input(b, feed::learning_rate).id,
            number_input(b, feed::step).id},
           0, op::adamw_attributes{true, n, {}});
    updated = to({&b, weight}, axis::dp, I).id;
    if (b.g.wrong.code == fault::none) b.g.wrong = verify_nodes(b.g);
    g = b.g;
  }
};

/// Returns numbers that depend on the store of a range that they are in.
array numbers(std::int64_t n, std::uint64_t store) {
  array x;
  for (std::int64_t i = 0; i < n; ++i) x.push_back(scrambled(static_cast<std::uint64_t>(i), store));
  return x;
}

struct result {
  array weights;
  double norm = 0;
  bool copies = true; ///< ranks that hold the same value agree
};
result run(const end_of_step& e, std::int64_t n, const world& w) {
  BOOST_REQUIRE((e.g.wrong.code == fault::none));
  array second = numbers(n, 4);
  for (double& x : second) x = std::abs(x);
  laws::feeds f;
  f.logical[e.gradient] = {numbers(n, 1)}, f.logical[e.master] = {numbers(n, 2)};
  f.logical[e.weight] = {numbers(n, 2)}, f.logical[e.first] = {numbers(n, 3)};
  f.logical[e.second] = {second};
  for (int i = 0; i < e.g.value_count; ++i)
    if (const value& v = e.g.values[i]; v.is == role::input && v.from == feed::total)
      f.logical[static_cast<value_id>(i)] = {{7}};
  machine m(w, e.g, ops());
  m.run_forward(f);
  m.phase_of(phase::epilogue);
  result r;
  r.weights = m.logical(e.updated, r.copies);
  r.norm = m.logical(e.norm, r.copies)[0];
  return r;
}

} // namespace

BOOST_AUTO_TEST_CASE(a_shard_of_a_range_is_updated_as_the_whole) {
  for (const std::int64_t per_tp : {1, 2, 7, 12, 64})
    for (const int tp : {1, 2}) {
      const std::int64_t n = per_tp * tp;
      const result whole = run(end_of_step(n, 1, false), n, {});
      BOOST_TEST(whole.norm > 0);
      for (const int dp : {1, 2, 3, 4}) {
        world w;
        w.size[static_cast<unsigned>(axis::dp)] = dp, w.size[static_cast<unsigned>(axis::tp)] = tp;
        for (const bool sharded : {false, true}) {
          const result r = run(end_of_step(n, tp, sharded), n, w);
          BOOST_TEST_CONTEXT(n << " elements, dp " << dp << ", tp " << tp << ", sharded "
                               << sharded) {
            BOOST_TEST(r.copies);
            BOOST_TEST(std::abs(r.norm - whole.norm) <= 1e-12 * whole.norm);
            BOOST_REQUIRE_EQUAL(r.weights.size(), whole.weights.size());
            for (std::size_t i = 0; i < r.weights.size(); ++i)
              BOOST_TEST(std::abs(r.weights[i] - whole.weights[i]) <= 1e-12);
          }
        }
      }
    }
}

// The memory that the compiler reserves for a shard is enough for any number of replicas, and all
// ranks have as much. The last ranks of a range that does not divide hold fewer elements, or none.
BOOST_AUTO_TEST_CASE(parts_of_a_range_have_a_bound) {
  const mesh m(layout{.tp = 2});
  builder b{m};
  placement at;
  at[axis::tp] = at[axis::dp] = S(dim::elements);
  const value v = b.input(feed::gradient, "range", dtype::f32, {{dim::elements, 20}}, at).type();
  BOOST_TEST(local_size(m, v).n == 10);
  for (const int dp : {1, 2, 3, 4, 7, 16}) {
    world w;
    w.size[static_cast<unsigned>(axis::dp)] = dp, w.size[static_cast<unsigned>(axis::tp)] = 2;
    std::vector<int> times(20);
    for (int rank = 0; rank < w.ranks(); ++rank) {
      const boxes held = laws::boxes_of(w, m, v, rank);
      BOOST_TEST(held.count().n <= local_size(mesh_of(w), v).n);
      BOOST_TEST(local_size(mesh_of(w), v).n == (10 + dp - 1) / dp);
      for (std::int64_t i = 0; i < held.count().n; ++i)
        ++times.at(static_cast<std::size_t>(held[{i}].n));
    }
    for (const int n : times) BOOST_TEST(n == 1);
  }
}

// A range that is cut over dp has shards whose beginnings are known only at start.
BOOST_AUTO_TEST_CASE(parts_of_a_range_are_not_cut_again) {
  builder b{mesh(layout{.tp = 2})};
  placement at;
  at[axis::dp] = S(dim::elements);
  const var v = b.input(feed::gradient, "range", dtype::f32, {{dim::elements, 20}}, at);
  to(v, axis::tp, S(dim::elements));
  BOOST_TEST((b.g.wrong.code == fault::P011));
}

// Ops that work element by element take shards of any length.
BOOST_AUTO_TEST_CASE(parts_of_a_range_are_cast) {
  builder b{mesh(layout{.tp = 2})};
  placement at;
  at[axis::dp] = S(dim::elements);
  const var v = b.input(feed::gradient, "range", dtype::f32, {{dim::elements, 20}}, at);
  b.emit(op::cast, {v.id}, 0, op::cast_attributes{dtype::bf16});
  BOOST_TEST((b.g.wrong.code == fault::none));
}
