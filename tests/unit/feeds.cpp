// What a micro-batch feeds the ranks of a layout: of every logical token one replica's ranks hold
// the id, label, position, document and key of dropout once, and those of one token together; and
// each rank has the positions and documents of all of them.
#define BOOST_TEST_MODULE feeds
#include <boost/test/unit_test.hpp>

#include <megacpp/model/gpt.hpp>
#include <megacpp/run/feeds.hpp>
#include <megacpp/run/interpreter.hpp>

#include <cstdint>
#include <map>
#include <numeric>
#include <span>
#include <vector>

#include <kernels.hpp>
#include <unit/every_rank.hpp>

using namespace mc;

namespace {

constexpr int micro = 2, sequence = 16;
constexpr gpt small{
    .layers = 1, .hidden = 16, .heads = 4, .ffn = 32, .vocabulary = 64, .positions = 64};

/// What a program's block is fed.
const value& input_of(const program_view& p, feed f) {
  const graph& g = *p.block(0).g;
  for (int i = 0; i < g.value_count; ++i)
    if (g.values[i].is == role::input && g.values[i].from == f) return g.values[i];
  throw error(exit_code::internal, "no such input");
}

void feeds_every_token_once(const layout& l, bool own_positions) {
  const interpreted_program<gpt> program(
      small, {.ranks = l, .batch = {.micro = micro, .sequence = sequence, .packed = true}}, "fed");
  std::map<feed, std::vector<std::int32_t>> logical;
  for (const feed f : {feed::tokens, feed::labels, feed::positions, feed::documents})
    for (int i = 0; i < micro * sequence; ++i)
      logical[f].push_back((i * 7 + static_cast<int>(f)) % sequence);
  batch_view batch{logical[feed::tokens].data(), logical[feed::labels].data(), 5,
                   own_positions ? logical[feed::positions].data() : nullptr,
                   logical[feed::documents].data()};
  for (int i = 0; i < micro * sequence; ++i) {
    if (!own_positions) logical[feed::positions][static_cast<std::size_t>(i)] = i % sequence;
    logical[feed::token_keys].push_back(5 * sequence + i);
  }
  for (int i = 0; i < micro * sequence; ++i) logical[feed::order].push_back(i % sequence);
  logical[feed::all_order] = logical[feed::order];
  logical[feed::all_documents] = logical[feed::documents];
  const value &v = input_of(program.view(), feed::positions),
              &all = input_of(program.view(), feed::all_order);
  test::coverage seen;
  test::for_each_rank(mesh(l), [&](const coordinates& rank, const laws::world& w, int number) {
    if (rank[static_cast<unsigned>(axis::dp)] > 0) return; // another replica has a batch of its own
    const auto own = test::plain_indices(w, mesh(l), v, number),
               of_all = test::plain_indices(w, mesh(l), all, number);
    BOOST_TEST(of_all.size() == static_cast<std::size_t>(micro * sequence));
    rank_feeds feeds(program.view(), rank);
    std::map<feed, int> times;
    feeds.give(batch, [&](feed f, std::span<const std::int32_t> ids) {
      ++times[f];
      const auto& held = is_of_all(f) ? of_all : own;
      BOOST_REQUIRE_EQUAL(ids.size(), held.size());
      for (std::size_t i = 0; i < ids.size(); ++i)
        BOOST_TEST(ids[i] == logical.at(f)[static_cast<std::size_t>(held[i])]);
    });
    BOOST_TEST(times.size() == 8u);
    for (const auto& [f, n] : times) BOOST_TEST(n == 1);
    for (const std::int64_t at : own) seen.add(v, rank, at);
  });
  BOOST_TEST(seen.once());
}

} // namespace

BOOST_AUTO_TEST_CASE(ranks_are_fed_every_token_once) {
  for (const bool own_positions : {false, true})
    for (const layout& l : {layout{}, layout{.tp = 2}, layout{.cp = 2}, layout{.cp = 4},
                            layout{.tp = 2, .cp = 2, .sequence_parallel = true}})
      feeds_every_token_once(l, own_positions);
}
