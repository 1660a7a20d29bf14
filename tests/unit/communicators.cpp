// Every communicator keeps the same promises (tests/communicators.hpp): the one of one rank, and
// simulated ones of several, on meshes whose dense and expert axes fold differently.
#define BOOST_TEST_MODULE communicators
#include <boost/test/unit_test.hpp>

#include <megacpp/comm/self.hpp>

#include <memory>

#include <communicators.hpp>
#include <simulated_communicator.hpp>

using namespace mc;
using namespace mc_test;

namespace {

// Sizes in the order of enum axis: dp, cp, tp, pp, edp, ep, etp.
const mesh meshes[] = {mesh({1, 1, 2, 1, 2, 1, 1}), mesh({2, 1, 2, 2, 1, 2, 2}),
                       mesh({3, 1, 2, 1, 1, 3, 2}), mesh({2, 2, 2, 1, 2, 4, 1})};

/// f on every rank of every backend: what is wrong, by rank.
template <class F> void on_all(F f) {
  std::vector<std::atomic<int>> alone(1);
  BOOST_TEST(f(static_cast<communicator&>(self::of_process()), alone.data()) == "", "one rank");
  for (const mesh& m : meshes) {
    simulated_ranks ranks(m);
    std::vector<std::atomic<int>> came(static_cast<std::size_t>(ranks_of(m)));
    std::vector<std::string> wrong(came.size());
    ranks.run(
        [&](communicator& c) { wrong[static_cast<std::size_t>(c.rank())] = f(c, came.data()); });
    for (std::size_t r = 0; r < wrong.size(); ++r)
      BOOST_TEST(wrong[r].substr(0, 300) == "", "rank " << r << " of " << wrong.size());
  }
}

} // namespace

BOOST_AUTO_TEST_CASE(every_type_group_and_size) {
  on_all([](communicator& c, std::atomic<int>*) { return every_exchange(c); });
}
BOOST_AUTO_TEST_CASE(several_are_in_flight) {
  on_all([](communicator& c, std::atomic<int>*) { return exchanges_in_flight(c); });
}
BOOST_AUTO_TEST_CASE(a_barrier_waits_for_all) {
  on_all([](communicator& c, std::atomic<int>* came) { return barriers(c, came); });
}
BOOST_AUTO_TEST_CASE(what_no_group_can_do_is_refused) {
  on_all([](communicator& c, std::atomic<int>*) { return refusals(c); });
}

// Megatron-LM's order of ranks: of 2 x 2 x 2 x 2 ranks with the experts of a layer over 4 of them
// (its RankGenerator, order tp-cp-ep-dp-pp, for the dense mesh and for that of experts).
BOOST_AUTO_TEST_CASE(ranks_are_numbered_as_in_megatron) {
  const mesh m({2, 2, 2, 2, 2, 4, 1});
  const auto members = [&](axis_set over, int rank) {
    const group g(m, over, rank);
    std::vector<int> all;
    for (int i = 0; i < g.size(); ++i) all.push_back(g[i]);
    return all;
  };
  using enum axis;
  using list = std::vector<int>;
  BOOST_TEST((members(tp, 0) == list{0, 1}));
  BOOST_TEST((members(cp, 0) == list{0, 2}));
  BOOST_TEST((members(dp, 1) == list{1, 5}));
  BOOST_TEST((members(pp, 3) == list{3, 11}));
  BOOST_TEST((members({dp, cp}, 1) == list{1, 3, 5, 7}));
  BOOST_TEST((members(ep, 5) == list{4, 5, 6, 7}));
  BOOST_TEST((members(edp, 6) == list{2, 6}));
  BOOST_TEST((members({ep, etp}, 12) == list{12, 13, 14, 15}));
  BOOST_CHECK_EXCEPTION(simulated_ranks(mesh({2, 1, 1, 1, 1, 1, 1})).run([](communicator&) {}),
                        error, [](const error& e) {
                          return std::string(e.what()).find("does not count the ranks") !=
                                 std::string::npos;
                        });
}
