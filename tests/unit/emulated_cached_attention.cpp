// The bodies of attention to cached keys and values on emulated teams: against the definition in
// double, and what bits a query has.
#define BOOST_TEST_MODULE emulated_cached_attention
#include <boost/test/unit_test.hpp>

#include <megacpp/kernel/rows/cached_attention.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "emulated_rows.hpp"

namespace {

namespace rows = mc::rows;
using namespace test;

} // namespace

// Named outside, since lambdas capture them.

/// New tokens of sequences, and the caches that have them: C slots, of which a sequence's tokens have
/// the last ones up to `last`.
struct cache_problem {
  std::string name;
  int64_t tokens, room, heads, kv_heads, width, window;
  std::vector<int> last; ///< the slot of each sequence's last token; below 0: all are padding
};
const cache_problem problems[] = {
    {"one of each", 1, 1, 1, 1, 1, 0, {0}},
    {"a decoded token", 1, 150, 6, 2, 8, 0, {149}},
    {"sequences of several lengths", 1, 140, 2, 2, 16, 0, {0, 63, 64, 139, -1}},
    {"a width that is no group", 2, 70, 2, 1, 7, 0, {69, 5}},
    {"wider than a team holds", 1, 70, 2, 1, 300, 0, {66}},
    {"more queries than a team has", 9, 70, 4, 2, 4, 0, {69}},
    {"a prompt, padded in front", 12, 40, 3, 1, 8, 0, {11, 4, 7}},
    {"a group of heads that divides no team", 3, 70, 7, 1, 4, 0, {68, 2}},
    {"a slot behind the cache", 2, 70, 2, 1, 4, 0, {75}},
    {"a window", 1, 150, 2, 1, 8, 20, {149, 70, 3}},
    {"a window of which tokens see several tiles", 20, 200, 2, 1, 4, 64, {199}},
};

/// Tensors of a problem. A slot behind a sequence's tokens has a NaN.
template <class T> struct cached {
  cache_problem p;
  std::vector<T> q, k, v;
  std::vector<std::int32_t> slots;

  explicit cached(const cache_problem& of) : p(of) {
    numbers from;
    const int64_t batch = std::ssize(p.last), of_k = p.kv_heads * p.width;
    q = from.of<T>(batch * p.tokens * p.heads * p.width);
    k = from.of<T>(batch * p.room * of_k), v = from.of<T>(batch * p.room * of_k);
    for (int64_t b = 0; b < batch; ++b) {
      const int64_t last = p.last[static_cast<std::size_t>(b)];
      for (int64_t s = 0; s < p.tokens; ++s)
        slots.push_back(
            static_cast<std::int32_t>(std::max<int64_t>(last - (p.tokens - 1 - s), -1)));
      for (int64_t j = last + 1; j < p.room; ++j) forget(b, j);
    }
  }
  /// Makes what a slot holds no number.
  void forget(int64_t sequence, int64_t slot) {
    const int64_t of_k = p.kv_heads * p.width, at = (sequence * p.room + slot) * of_k;
    for (auto* x : {&k, &v}) std::fill_n(x->begin() + at, of_k, mc::convert<T>(std::nanf("")));
  }
  int64_t queries() const { return std::ssize(slots) * p.heads; }
  rows::attention_extents extents() const {
    return {p.tokens, p.room, p.heads, p.kv_heads, p.width};
  }
  rows::cached_sight see() const { return {0.8, p.window, slots.data()}; }

  /// o by the definition.
  reference defined() const {
    const auto size = [](int64_t n) { return static_cast<std::size_t>(n); };
    reference o(q.size());
    for (int64_t t = 0; t < std::ssize(slots); ++t)
      for (int64_t a = 0; a < p.heads; ++a) {
        const int64_t b = t / p.tokens, slot = slots[size(t)];
        const std::size_t at = size((t * p.heads + a) * p.width);
        const auto at_key = [&](int64_t j) {
          return size(((b * p.room + j) * p.kv_heads + a / (p.heads / p.kv_heads)) * p.width);
        };
        double sum = 0;
        for (int64_t j = 0; j <= std::min(slot, p.room - 1); ++j) {
          if (p.window > 0 && j <= slot - p.window) continue;
          double score = 0;
          for (std::size_t d = 0; d < size(p.width); ++d)
            score += wide(q[at + d]) * wide(k[at_key(j) + d]);
          const double e = std::exp(see().scale * score);
          sum += e;
          for (std::size_t d = 0; d < size(p.width); ++d) o[at + d] += e * wide(v[at_key(j) + d]);
        }
        for (std::size_t d = 0; d < size(p.width) && sum > 0; ++d) o[at + d] /= sum;
      }
    return o;
  }
};

namespace {

/// o, by teams that have all keys of their queries, or a tile of them each.
template <class Team, class T>
std::vector<T> attended(const cached<T>& x, bool apart, int threads) {
  using tile = rows::cached_attention_tile<T>;
  using G = mc::accumulator_t<T>;
  const cache_problem& p = x.p;
  const int64_t of_q = p.heads * p.width, of_k = p.kv_heads * p.width, tiles = tile::tiles(p.room),
                teams =
                    std::ssize(p.last) * p.kv_heads * tile::teams(p.tokens, p.heads / p.kv_heads);
  auto o = unset<T>(std::ssize(x.q));
  auto sums =
      unset<G>(rows::cached_sums<G>::bytes(x.queries(), tiles, p.width) / int64_t{sizeof(G)});
  rows::cached_sums<G> to{};
  if (apart)
    to = rows::cached_sums<G>::at(reinterpret_cast<std::byte*>(sums.data()), x.queries(), tiles,
                                  p.width);
  const tile body{x.extents(),
                  x.see(),
                  tile::is_whole(p.width, x.q.data(), x.k.data(), x.v.data()),
                  {x.q.data(), of_q},
                  {x.k.data(), of_k},
                  {x.v.data(), of_k},
                  {o.data(), of_q},
                  to};
  on_team<Team>("cached_attention_tile",
                team_shape{{teams * (apart ? tiles : 1), p.width}, threads}, body, o, sums);
  if (apart)
    on_team<emulated_team>("cached_attention_total", team_shape{{x.queries(), p.width}, threads},
                           rows::cached_attention_total<T>{
                               x.extents(), x.see(), {to.o, to.top, to.sum}, {o.data(), of_q}},
                           o);
  return o;
}
template <class T> bool same_bits(const std::vector<T>& a, const T* b) {
  return std::memcmp(a.data(), b, a.size() * sizeof(T)) == 0;
}

template <class Team, class T> void as_defined(const cached<T>& x, int threads) {
  const std::vector<T> o = attended<Team>(x, false, threads);
  const reference right = x.defined();
  // A score is a sum of `width` products, each rounded.
  const double of_sum = x.p.width > 64 ? 32e-6 : 16e-6,
               most = sizeof(T) == 8 ? 1e-13 : (sizeof(T) == 2 ? 0x1p-7 : 0) + of_sum;
  for (std::size_t i = 0; i < o.size(); ++i)
    if (!(std::abs(wide(o[i]) - right[i]) <= most)) {
      BOOST_ERROR("o " << i << " is " << wide(o[i]) << ", not " << right[i]);
      break;
    }
  BOOST_TEST(same_bits(o, attended<Team>(x, true, threads).data()), "tiles of keys apart");
}

} // namespace

BOOST_AUTO_TEST_CASE_TEMPLATE(cached_attention, T, types) {
  for (const cache_problem& p : problems) {
    const cached<T> x(p);
    for (const int threads : {16, 32, 128}) {
      if (p.room > 100 && threads == 16) continue;
      BOOST_TEST_CONTEXT(p.name << ", " << threads << " threads")
      as_defined<emulated_team>(x, threads);
    }
    if constexpr (std::is_same_v<T, mc::bf16>) {
      BOOST_TEST_CONTEXT(p.name << ", tensor cores") as_defined<emulated_tensor_team>(x, 128);
    }
  }
}

namespace {

/// The last tokens of a sequence are a prompt together, and decoded one by one, beside another
/// sequence: each has the same bits, and none looks at a slot behind it.
template <class Team, class T> void alone_as_in_a_prompt(int threads) {
  const cache_problem prompt{"a prompt", 75, 150, 4, 2, 8, 100, {140}};
  const cached<T> all(prompt);
  const std::vector<T> o = attended<Team>(all, false, threads);
  const int64_t of_q = prompt.heads * prompt.width, of_k = prompt.kv_heads * prompt.width;
  for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, 1}, {62, 2}, {74, 1}}) {
    cache_problem p = prompt;
    const auto slot = static_cast<int>(66 + first + count - 1);
    p.tokens = count, p.last = {3, slot};
    cached<T> some(p);
    for (int64_t j = 0; j <= slot; ++j) // the prompt's own cache
      for (auto [to, from] : {std::pair{&some.k, &all.k}, {&some.v, &all.v}})
        std::copy_n(from->begin() + j * of_k, of_k, to->begin() + (p.room + j) * of_k);
    std::copy_n(all.q.begin() + first * of_q, count * of_q, some.q.begin() + count * of_q);
    for (const bool apart : {false, true}) {
      const std::vector<T> both = attended<Team>(some, apart, threads);
      const std::vector<T> own(both.begin() + count * of_q, both.end());
      BOOST_TEST(same_bits(own, o.data() + first * of_q),
                 count << " tokens from " << first << (apart ? ", tiles apart" : ""));
    }
  }
}

} // namespace

BOOST_AUTO_TEST_CASE_TEMPLATE(a_token_has_the_same_bits_alone, T, types) {
  alone_as_in_a_prompt<emulated_team, T>(32);
  if constexpr (std::is_same_v<T, mc::bf16>) alone_as_in_a_prompt<emulated_tensor_team, T>(128);
}

BOOST_AUTO_TEST_CASE(each_barrier_of_cached_attention) {
  const cached<float> all[] = {cached<float>({"wide", 1, 70, 1, 1, 300, 0, {66}}),
                               cached<float>({"padding", 1, 40, 1, 1, 4, 0, {-1}})};
  every_barrier_is_needed([&] {
    for (const cached<float>& x : all) attended<emulated_team>(x, false, 32);
  });
}

// A sum of fp32 is one chain of fma, or one of eight, on every team.
BOOST_AUTO_TEST_CASE(teams_have_the_same_bits) {
  const cached<float> x(problems[1]);
  const auto o = attended<emulated_team>(x, false, 32);
  for (const int threads : {16, 128})
    BOOST_TEST(same_bits(o, attended<emulated_team>(x, false, threads).data()));
}

// A NaN of a key that is seen is a NaN of those queries that see it.
BOOST_AUTO_TEST_CASE(what_is_no_number_stays) {
  cached<float> x(problems[2]);
  x.forget(1, 7); // sequence 1 sees it
  for (const bool apart : {false, true}) {
    const auto o = attended<emulated_team>(x, apart, 32);
    const auto of_q = static_cast<std::size_t>(x.p.heads * x.p.width);
    for (std::size_t i = 0; i < o.size(); ++i) BOOST_TEST(std::isnan(o[i]) == (i / of_q == 1));
  }
}

// Where scores of tiles lie hundreds apart, too, the greatest one decides. Such a score is rounded by
// up to 2^-15.
BOOST_AUTO_TEST_CASE(scores_far_apart) {
  cached<float> x(problems[1]);
  for (float& q : x.q) q *= 40;
  const reference right = x.defined();
  for (const bool apart : {false, true}) {
    const auto o = attended<emulated_team>(x, apart, 32);
    for (std::size_t i = 0; i < o.size(); ++i) BOOST_TEST(std::abs(o[i] - right[i]) <= 0x1p-10);
  }
}

// Also where the query sees no other key of its tile.
BOOST_AUTO_TEST_CASE(one_key_that_is_no_number) {
  cached<float> x(cache_problem{"one key", 1, 40, 1, 1, 4, 1, {5}});
  x.forget(0, 5);
  for (const bool apart : {false, true})
    for (const float o : attended<emulated_team>(x, apart, 32)) BOOST_TEST(std::isnan(o));
}

// Nor is what another query of the team sees a number of one that does not see it.
BOOST_AUTO_TEST_CASE_TEMPLATE(what_another_query_sees, T, types) {
  const int tile = rows::cached_keys<T>; // the second token sees the first key of the second tile
  cached<T> x(cache_problem{"two tokens", 2, 2 * tile, 2, 1, 4, 0, {tile}});
  x.forget(0, tile);
  for (const bool apart : {false, true}) {
    const auto o = attended<emulated_team>(x, apart, 32);
    for (std::size_t i = 0; i < o.size(); ++i)
      BOOST_TEST(std::isnan(wide(o[i])) == (i >= o.size() / 2));
  }
}
