// Sampling from logits against computed probabilities; characters as tokens; random tokens.
#define BOOST_TEST_MODULE sampling
#include <megacpp/data/character_tokens.hpp>
#include <megacpp/data/random_tokens.hpp>
#include <megacpp/generate/sampler.hpp>

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <set>
#include <vector>

#include "scratch.hpp"

namespace {

std::vector<double> shares(const mc::sampling& s, std::span<const double> logits,
                           int draws = 20000) {
  mc::sampler draw(s);
  std::vector<double> n(logits.size());
  for (int i = 0; i < draws; ++i) n[static_cast<std::size_t>(draw.draw(logits))] += 1;
  for (double& x : n) x /= draws;
  return n;
}
void check_shares(const mc::sampling& s, std::span<const double> logits,
                  std::initializer_list<double> expected) {
  const std::vector<double> found = shares(s, logits);
  std::size_t i = 0;
  for (const double p : expected) { // four standard deviations of a share
    BOOST_TEST(std::abs(found[i] - p) <= 4 * std::sqrt(p * (1 - p) / 20000), i << ": " << found[i]);
    ++i;
  }
}

const std::array<double, 4> logits{std::log(0.1), std::log(0.4), std::log(0.2), std::log(0.3)};

} // namespace

BOOST_AUTO_TEST_CASE(shares_are_the_softmax) {
  check_shares({1, 0, 1, 7}, logits, {0.1, 0.4, 0.2, 0.3});
  std::array<double, 4> shifted = logits;
  for (double& x : shifted) x += 700; // no overflow
  check_shares({1, 0, 1, 7}, shifted, {0.1, 0.4, 0.2, 0.3});
}

BOOST_AUTO_TEST_CASE(log_probabilities_are_those_of_the_softmax) {
  std::array<double, 4> shifted = logits;
  for (double& x : shifted) x += 700; // no overflow
  for (std::int32_t t = 0; t < 4; ++t)
    for (const auto& some : {logits, shifted})
      BOOST_TEST(std::abs(mc::log_probability(some, t) - logits[static_cast<std::size_t>(t)]) <
                 1e-12);
  const std::array<double, 2> far{0, -2000}; // whose probability is 0 in double
  BOOST_TEST(mc::log_probability(far, 1) == -2000);
}

BOOST_AUTO_TEST_CASE(temperature_is_an_exponent) {
  const double sum = 0.01 + 0.16 + 0.04 + 0.09;
  check_shares({0.5, 0, 1, 3}, logits, {0.01 / sum, 0.16 / sum, 0.04 / sum, 0.09 / sum});
}

BOOST_AUTO_TEST_CASE(zero_temperature_takes_the_likeliest_and_the_first_of_equals) {
  mc::sampler draw({0, 0, 1, 3});
  BOOST_TEST(draw.draw(logits) == 1);
  const std::array<double, 3> equal{2, 5, 5};
  BOOST_TEST(draw.draw(equal) == 1);
}

BOOST_AUTO_TEST_CASE(top_k_and_top_p_cut_and_renormalise) {
  check_shares({1, 2, 1, 5}, logits, {0, 4 / 7.0, 0, 3 / 7.0});
  check_shares({1, 1, 1, 5}, logits, {0, 1, 0, 0});
  check_shares({1, 100, 1, 5}, logits, {0.1, 0.4, 0.2, 0.3});
  check_shares({1, 0, 0.5, 5}, logits, {0, 4 / 7.0, 0, 3 / 7.0}); // 0.4 is not enough, 0.7 is
  check_shares({1, 0, 0.39, 5}, logits, {0, 1, 0, 0});
  check_shares({1, 0, 1e-9, 5}, logits, {0, 1, 0, 0});
}

BOOST_AUTO_TEST_CASE(large_vocabularies_are_cut_where_they_should) {
  std::vector<double> equal(1000); // equal logits: the lower tokens are kept
  const auto drawn = [&](const mc::sampling& s) {
    std::vector<double> n = shares(s, equal, 8000);
    while (!n.empty() && n.back() == 0) n.pop_back();
    const double expected = 1.0 / static_cast<double>(n.size());
    for (const double x : n) // six standard deviations: there are a thousand of them
      BOOST_TEST(std::abs(x - expected) <= 6 * std::sqrt(expected / 8000));
    return n.size();
  };
  BOOST_TEST(drawn({1, 0, 1, 3}) == 1000u);
  BOOST_TEST(drawn({1, 300, 1, 3}) == 300u);
  BOOST_TEST(drawn({1, 0, 0.2995, 3}) == 300u);
  BOOST_TEST(drawn({1, 0, 0.5995, 3}) == 600u);
  BOOST_TEST(drawn({1, 500, 0.5, 3}) == 250u);
  // Of unequal ones, in no order, the fewest likeliest that reach p.
  std::vector<double> unequal(200);
  for (std::size_t i = 0; i < unequal.size(); ++i)
    unequal[i] = static_cast<double>(i * 117 % 200) / 100;
  std::vector<double> falling = unequal;
  std::sort(falling.begin(), falling.end(), std::greater());
  double whole = 0, kept = 0, least = 0;
  for (const double x : falling) whole += std::exp(x);
  for (std::size_t i = 0; kept < 0.8 * whole; ++i) kept += std::exp(least = falling[i]);
  const std::vector<double> cut = shares({1, 0, 0.8, 9}, unequal, 8000);
  for (std::size_t i = 0; i < cut.size(); ++i)
    BOOST_TEST((cut[i] == 0) == (unequal[i] < least), i << ": " << cut[i]);
  // The likeliest are last.
  for (std::size_t i = 0; i < equal.size(); ++i) equal[i] = i < 900 ? -50 : 0;
  for (const mc::sampling& s : {mc::sampling{1, 100, 1, 3}, mc::sampling{1, 0, 0.99, 3}}) {
    mc::sampler draw(s);
    for (int i = 0; i < 1000; ++i) BOOST_TEST(draw.draw(equal) >= 900);
  }
}

// Salmon, Moraes, Dror, Shaw, SC11: the test vectors of their Random123 for philox4x32-10.
BOOST_AUTO_TEST_CASE(random_words_are_the_published_ones_and_streams_differ) {
  using words = mc::philox_numbers;
  constexpr std::uint64_t ones = ~std::uint64_t{0};
  BOOST_TEST((mc::philox(0, 0, 0) == words{{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}}));
  BOOST_TEST(
      (mc::philox(ones, ones, ones) == words{{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}}));
  BOOST_TEST((mc::philox(0x299f31d0a4093822, 0x85a308d3243f6a88, 0x0370734413198a2e) ==
              words{{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}));
  std::set<std::uint64_t> keys;
  for (int seed = 0; seed < 64; ++seed)
    for (int bit = 0; bit < 64; ++bit) {
      keys.insert(mc::random_key(std::uint64_t{1} << seed, 0));
      keys.insert(mc::random_key(std::uint64_t{1} << seed, std::uint64_t{1} << bit));
    }
  BOOST_TEST(keys.size() == 64u * 65u);
}

BOOST_AUTO_TEST_CASE(without_a_cut_tokens_lie_on_the_line_in_their_own_order) {
  // One seed draws the same number each time: moving weight between tokens moves the draw with it.
  mc::sampler a({1, 0, 1, 11}), b({1, 0, 1, 11}), c({1, 100, 1, 11});
  const std::array<double, 3> apart{std::log(0.2), std::log(0.3), std::log(0.5)};
  const std::array<double, 2> joined{std::log(0.5), std::log(0.5)};
  for (int i = 0; i < 1000; ++i) {
    const auto x = a.draw(apart);
    BOOST_TEST((x < 2) == (b.draw(joined) == 0));
    BOOST_TEST(x == c.draw(apart)); // no more tokens than k: nothing is cut
  }
}

BOOST_AUTO_TEST_CASE(what_has_no_probability_is_not_drawn) {
  std::vector<double> one(5000, -1e4);
  one[17] = 3;
  mc::sampler draw({1, 0, 1, 5});
  for (int i = 0; i < 200; ++i) BOOST_TEST(draw.draw(one) == 17);
}

BOOST_AUTO_TEST_CASE(the_same_seed_draws_the_same) {
  mc::sampler a({1, 0, 1, 11}), b({1, 0, 1, 11}), c({1, 0, 1, 12});
  int differ = 0;
  for (int i = 0; i < 200; ++i) {
    const auto x = a.draw(logits);
    BOOST_TEST(x == b.draw(logits));
    differ += x != c.draw(logits);
  }
  BOOST_TEST(differ > 50);
}

BOOST_AUTO_TEST_CASE(characters_are_ranks_of_the_distinct_bytes) {
  const test::scratch_folder folder;
  const std::string path = folder / "text";
  test::write_text(path, "banana\xff");
  mc::mapped_file file(path);
  const auto set = mc::character_set::of(file.bytes());
  BOOST_TEST(set.size() == 4);
  const mc::character_tokens tokens(std::move(file), set, set.size());
  std::array<std::int32_t, 7> ids{};
  tokens.copy(0, ids);
  BOOST_TEST(ids == (std::array<std::int32_t, 7>{1, 0, 2, 0, 2, 0, 3}),
             boost::test_tools::per_element());
  BOOST_TEST(set.bytes()[2] == 'n');
  CHECK_REFUSED(tokens.copy(5, std::span(ids).first(3)), mc::exit_code::internal, "it has 7");

  const mc::character_tokens few(mc::mapped_file(path), mc::character_set({'a', 'b'}), 2);
  BOOST_TEST(few.token(1) == 0);
  CHECK_REFUSED(few.copy(0, ids), mc::exit_code::data, "offset 2 is 110");
  CHECK_REFUSED(mc::character_tokens(mc::mapped_file(path), set, set.size() - 1),
                mc::exit_code::data, "has 4 distinct bytes");
}

BOOST_AUTO_TEST_CASE(random_tokens_cover_the_vocabulary_and_repeat) {
  const mc::random_tokens a(1000, 5, 1), b(1000, 5, 1), c(1000, 5, 2);
  std::vector<std::int32_t> x(1000), y(1000), z(1000);
  a.copy(0, x);
  b.copy(0, y);
  c.copy(0, z);
  BOOST_TEST(x == y);
  BOOST_TEST(x != z);
  BOOST_TEST(a.token(17) == x[17]);
  std::array<int, 5> n{};
  for (const std::int32_t t : x) ++n.at(static_cast<std::size_t>(t));
  for (const int count : n) BOOST_TEST(count > 140);
}
