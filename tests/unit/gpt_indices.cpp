// Which tokens are which sample: numpy's shuffle, Megatron's indices and blends against its own and
// against the laws that they keep, and the rows that samples of indexed datasets fill.
#define BOOST_TEST_MODULE gpt_indices
#include <boost/test/unit_test.hpp>

#include <megacpp/sets/gpt_dataset.hpp>
#include <megacpp/sets/indexed_writer.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>

#include <scratch.hpp>
#include <where.hpp>

namespace {

using mc::exit_code;
using mc::gpt_parameters;
using mc::token_range;
using test::scratch_folder;

using ids = std::vector<std::int32_t>;
using numbers = std::vector<std::int64_t>;

template <class Range> numbers listed(const Range& range) { return {range.begin(), range.end()}; }

/// Indices of sequences of these lengths, of which `part` is read.
mc::gpt_indices indices_of(const ids& lengths, token_range part, const gpt_parameters& request) {
  return {[&](std::int64_t i) { return lengths[static_cast<std::size_t>(i)]; }, part, request,
          "a part"};
}
numbers shuffle_of(const mc::gpt_indices& indices) {
  numbers all;
  for (std::int64_t i = 0; i < indices.samples(); ++i) all.push_back(indices.shuffled(i));
  return all;
}

/// The fixture; nothing, said, where it is missing.
std::optional<nlohmann::json> golden() {
  const std::string file = test::shared_dir + "/fixtures/megatron_golden.json";
  const auto text = test::read_text(file);
  if (!text.empty()) return nlohmann::json::parse(text);
  test::left_out("there is no " + file);
  return std::nullopt;
}

BOOST_AUTO_TEST_SUITE(numpy)

BOOST_AUTO_TEST_CASE(random_state_draws_as_numpys) {
  // RandomState(7).randint(0, 2**40 + 1, dtype=int64), four times, by numpy 2.4.6.
  mc::numpy_random wide(7);
  for (const std::uint64_t expected :
       {752595690692ull, 108744157686ull, 291964244179ull, 309610205529ull})
    BOOST_TEST(wide.interval(std::uint64_t{1} << 40) == expected);
  // x = arange(20000); RandomState(7).shuffle(x), and what is drawn next.
  mc::numpy_random random(7);
  numbers x(20'000);
  std::iota(x.begin(), x.end(), 0);
  random.shuffle(std::span(x));
  BOOST_TEST(numbers(x.begin(), x.begin() + 5) == (numbers{14356, 3439, 12153, 15029, 18549}),
             boost::test_tools::per_element());
  BOOST_TEST(numbers(x.end() - 3, x.end()) == (numbers{5699, 10742, 16921}),
             boost::test_tools::per_element());
  BOOST_TEST(random.interval(0xfffffffe) == 2365903349u);
}

BOOST_AUTO_TEST_CASE(a_shuffle_is_that_of_swaps_from_the_end) {
  for (const std::size_t n : {0u, 1u, 2u, 3u, 63u, 64u, 65u, 66u, 129u, 1000u}) {
    mc::numpy_random random(5), again(5);
    numbers x(n), expected(n);
    std::iota(x.begin(), x.end(), 0);
    std::iota(expected.begin(), expected.end(), 0);
    random.shuffle(std::span(x));
    for (std::size_t i = n; i-- > 1;) std::swap(expected[i], expected[again.interval(i)]);
    BOOST_TEST(x == expected, boost::test_tools::per_element());
    BOOST_TEST(random.interval(1000) == again.interval(1000)); // as many draws
  }
}

BOOST_AUTO_TEST_CASE(intervals_have_their_bounds_and_a_single_number_draws_nothing) {
  mc::numpy_random random(1), again(1);
  BOOST_TEST(random.interval(0) == 0u);
  for (const std::uint64_t max : std::vector<std::uint64_t>{
           1, 2, 3, 1000, 0xffffffff, 0x100000000, ~std::uint64_t{0} >> 1, ~std::uint64_t{0}})
    for (int i = 0; i < 100; ++i) {
      const std::uint64_t drawn = random.interval(max);
      BOOST_REQUIRE(drawn <= max);
      BOOST_REQUIRE(drawn == again.interval(max));
    }
}

BOOST_AUTO_TEST_CASE(sums_are_numpys) {
  // sum([1 / (i + 1.1) for i in range(n)]), by numpy 2.4.6; in turn 100 would end in 7.
  const std::map<std::size_t, double> expected{
      {7, 0x1.39ef87dd54f6ep+1},   {8, 0x1.49bcf67b5b492p+1},   {9, 0x1.57cdd7896c2a3p+1},
      {100, 0x1.423bfcab2c780p+2}, {130, 0x1.52eff84b1e0bap+2}, {1000, 0x1.d5414aa43aca8p+2}};
  for (const auto& [n, sum] : expected) {
    std::vector<double> x;
    for (std::size_t i = 0; i < n; ++i) x.push_back(1 / (static_cast<double>(i) + 1.1));
    BOOST_TEST(mc::detail::numpy_sum(x) == sum);
  }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(indices)

BOOST_AUTO_TEST_CASE(equal_to_megatron) {
  const auto all = golden();
  if (!all) return;
  int cases = 0;
  for (const auto& c : all->at("gpt_cases")) {
    const auto lengths = c.at("sequence_lengths").get<ids>();
    const auto documents = c.at("documents").get<numbers>();
    gpt_parameters request{.sequence = c.at("seq_length"),
                           .seed = c.at("seed"),
                           .drop_last = c.at("drop_last"),
                           .extra = c.at("extra")};
    if (!c.at("num_samples").is_null()) request.samples = c.at("num_samples").get<int>();
    const auto got = indices_of(lengths, {documents.front(), documents.back() + 1}, request);
    BOOST_TEST_CONTEXT("case " << cases) {
      const mc::gpt_epochs& e = got.epochs();
      BOOST_TEST(e.tokens == c.at("tokens_per_epoch").get<int>());
      BOOST_TEST(e.epochs == c.at("num_epochs").get<int>());
      BOOST_TEST(e.separate == c.at("separate_final_epoch").get<bool>());
      if (!c.at("num_samples_sans_final_epoch").is_null())
        BOOST_TEST(e.apart == c.at("num_samples_sans_final_epoch").get<int>());
      BOOST_TEST(listed(got.documents()) == c.at("document_index").get<numbers>(),
                 boost::test_tools::per_element());
      const auto places = c.at("sample_index").get<std::vector<numbers>>();
      BOOST_REQUIRE(got.samples() + 1 == std::ssize(places));
      for (std::int64_t s = 0; s <= got.samples(); ++s) {
        const mc::gpt_place p = got.place(s);
        BOOST_TEST((numbers{p.document, p.offset}) == places[static_cast<std::size_t>(s)],
                   boost::test_tools::per_element());
      }
      BOOST_TEST(shuffle_of(got) == c.at("shuffle_index").get<numbers>(),
                 boost::test_tools::per_element());
    }
    ++cases;
  }
  BOOST_TEST(cases >= 6);
}

/// Lengths of sequences, empty ones among them.
ids drawn_lengths(std::mt19937& random, std::size_t n, int most) {
  ids lengths;
  while (lengths.size() < n)
    lengths.push_back(static_cast<std::int32_t>(random() % static_cast<unsigned>(most + 1)));
  lengths[n / 2] = most;
  return lengths;
}

bool is_permutation_of(numbers x, std::int64_t first, std::int64_t last) {
  std::sort(x.begin(), x.end());
  numbers expected(static_cast<std::size_t>(last - first));
  std::iota(expected.begin(), expected.end(), first);
  return x == expected;
}

BOOST_AUTO_TEST_CASE(samples_cut_whole_epochs_every_tokens_worth) {
  std::mt19937 random(3);
  int separate = 0, together = 0, one_epoch = 0;
  for (int round = 0; round < 300; ++round) {
    const auto n = 1 + random() % 40;
    const ids lengths = drawn_lengths(random, n, 1 + static_cast<int>(random() % 20));
    token_range part{static_cast<std::int64_t>(random() % n), static_cast<std::int64_t>(n)};
    if (std::accumulate(lengths.begin() + part.begin, lengths.end(), 0) == 0) part.begin = 0;
    gpt_parameters request{.sequence = 1 + static_cast<std::int64_t>(random() % 30),
                           .seed = static_cast<std::uint32_t>(random()),
                           .extra = static_cast<int>(random() % 2)};
    if (random() % 4 != 0) request.samples = static_cast<std::int64_t>(random() % 200);
    const auto got = indices_of(lengths, part, request);
    const mc::gpt_epochs& e = got.epochs();
    // As many epochs as are needed, and no fewer.
    BOOST_REQUIRE(!request.samples || got.samples() >= *request.samples);
    BOOST_REQUIRE(e.epochs == 1 || ((e.epochs - 1) * e.tokens - request.extra) / request.sequence <
                                       request.samples.value_or(0));
    // Every epoch has every sequence once; one that is shuffled apart has them behind the others.
    numbers documents = listed(got.documents());
    BOOST_REQUIRE(std::ssize(documents) == e.epochs * part.size());
    for (std::int64_t i = part.begin; i < part.end; ++i)
      BOOST_REQUIRE(std::count(documents.begin(), documents.end(), i) == e.epochs);
    if (e.separate) {
      BOOST_REQUIRE(is_permutation_of({documents.end() - part.size(), documents.end()}, part.begin,
                                      part.end));
      const numbers shuffle = shuffle_of(got);
      BOOST_REQUIRE(is_permutation_of({shuffle.begin(), shuffle.begin() + e.apart}, 0, e.apart));
    }
    BOOST_REQUIRE(is_permutation_of(shuffle_of(got), 0, got.samples()));
    // Sample s begins with token s * L of them all.
    std::vector<std::int64_t> before{0};
    for (const std::int64_t d : documents)
      before.push_back(before.back() + lengths[static_cast<std::size_t>(d)]);
    for (std::int64_t s = 0; s <= got.samples(); ++s) {
      const mc::gpt_place p = got.place(s);
      BOOST_REQUIRE(p.document < std::ssize(documents));
      BOOST_REQUIRE(before[static_cast<std::size_t>(p.document)] + p.offset ==
                    s * request.sequence);
    }
    (e.separate ? separate : e.epochs > 1 ? together : one_epoch)++;
  }
  BOOST_TEST(std::min({separate, together, one_epoch}) > 20);
}

BOOST_AUTO_TEST_CASE(a_last_short_sample_is_kept_when_it_is_asked_for) {
  for (int tokens = 2; tokens < 40; ++tokens)
    for (int sequence = 1; sequence < 12; ++sequence) {
      const ids lengths{tokens - tokens / 3, tokens / 3};
      const auto all = indices_of(lengths, {0, 2}, {.sequence = sequence, .drop_last = false});
      const auto whole = indices_of(lengths, {0, 2}, {.sequence = sequence});
      const bool some_left = (tokens - 1) % sequence != 0;
      BOOST_REQUIRE(all.samples() == whole.samples() + (some_left ? 1 : 0));
      for (std::int64_t s = 0; s <= whole.samples(); ++s)
        BOOST_REQUIRE((all.place(s) == whole.place(s)));
    }
  // Megatron's quotient in binary32: 2^24 + 1 labels are 2^24 of them, and 2^24 + 3 are 2^24 + 4.
  const auto samples = [](std::int64_t tokens) {
    return mc::count_epochs(1, tokens, {.sequence = 1, .drop_last = false}, "a part").samples;
  };
  BOOST_TEST(samples((1 << 24) + 2) == 1 << 24);
  BOOST_TEST(samples((1 << 24) + 4) == (1 << 24) + 4);
}

BOOST_AUTO_TEST_CASE(types_widen_as_megatrons) {
  const auto plan = [](std::int64_t sequences, std::int64_t samples) {
    return mc::count_epochs(sequences, sequences, {.sequence = 1, .samples = samples}, "a part");
  };
  const std::int64_t i32 = std::numeric_limits<std::int32_t>::max();
  BOOST_TEST(!plan(i32, 5).wide_places());
  BOOST_TEST(!plan(3, 1000).wide_places());
  BOOST_TEST(plan((i32 + 1) / 2, i32).wide_places()); // 2^30 sequences, two epochs
  BOOST_TEST(!plan(i32, 2 * std::int64_t{i32} - 1).wide_samples());
  BOOST_TEST(plan(i32, 2 * std::int64_t{i32}).wide_samples());
}

BOOST_AUTO_TEST_CASE(what_cannot_be_met_is_refused) {
  const auto plan = [](std::int64_t sequences, std::int64_t tokens, std::int64_t samples) {
    return mc::count_epochs(sequences, tokens, {.sequence = 1024, .samples = samples}, "the part");
  };
  CHECK_REFUSED(plan(0, 0, 1), exit_code::data, "the part has no tokens");
  CHECK_REFUSED(plan(3, 0, 1), exit_code::data, "the part has no tokens");
  CHECK_REFUSED(plan(3, 9, std::int64_t{1} << 60), exit_code::data, "cannot give");
  CHECK_REFUSED(plan(3, 9, std::numeric_limits<std::int64_t>::max()), exit_code::data,
                "cannot give 9223372036854775807 samples");
  CHECK_REFUSED(plan(1 << 30, 9, std::int64_t{1} << 40), exit_code::data, "can be numbered");
  CHECK_REFUSED(plan(std::int64_t{1} << 31, std::int64_t{1} << 40, 1), exit_code::data,
                "can be numbered");
  CHECK_REFUSED(indices_of({1, 1}, {0, 2}, {.sequence = 1, .samples = std::int64_t{1} << 50}),
                exit_code::data, "a part");
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(blends)

BOOST_AUTO_TEST_CASE(equal_to_megatron) {
  const auto all = golden();
  if (!all) return;
  const auto check = [&](const char* name, const mc::blend_indices& got) {
    BOOST_TEST_CONTEXT(name) {
      const auto& c = all->at(name);
      BOOST_TEST(listed(got.sets()) == c.at("dataset_index").get<numbers>(),
                 boost::test_tools::per_element());
      BOOST_TEST(listed(got.samples()) == c.at("dataset_sample_index").get<numbers>(),
                 boost::test_tools::per_element());
    }
  };
  using shares = std::vector<double>;
  check("blend_0.3_0.7_20", mc::blend_indices::weighted(shares{.3, .7}, 20));
  check("blend_1_2_3_18", mc::blend_indices::weighted(shares{1, 2, 3}, 18));
  check("exhaustive_3_5_2", mc::blend_indices::exhaustive(numbers{3, 5, 2}));
}

BOOST_AUTO_TEST_CASE(no_dataset_is_far_from_its_share_at_any_time) {
  std::mt19937 random(2);
  for (int round = 0; round < 100; ++round) {
    const auto sets = 1 + random() % 9;
    std::vector<double> weights;
    while (weights.size() < sets) weights.push_back(1 + static_cast<double>(random() % 1000));
    const auto shares = mc::normalized(weights);
    const std::int64_t size = 1 + static_cast<std::int64_t>(random() % 3000);
    const auto got = mc::blend_indices::weighted(weights, size);
    numbers taken(sets);
    for (std::size_t s = 0; s < got.sets().size(); ++s) {
      const auto set = static_cast<std::size_t>(got.sets()[s]);
      BOOST_REQUIRE(got.samples()[s] == taken[set]++); // in their order, none twice
      // Who is taken from was not ahead; so nobody gets ahead by more than one sample.
      for (std::size_t i = 0; i < sets; ++i) {
        const double ahead = static_cast<double>(taken[i]) - shares[i] * static_cast<double>(s + 1);
        BOOST_REQUIRE(ahead <= 1 + 1e-9);
        BOOST_REQUIRE((sets != 2 || ahead >= -1 - 1e-9));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(an_exhaustive_blend_has_every_sample_once) {
  std::mt19937 random(4);
  for (int round = 0; round < 50; ++round) {
    numbers sizes;
    for (auto n = 1 + random() % 8; n > 0; --n)
      sizes.push_back(random() % 4 == 0 ? 1 : random() % 500);
    if (std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}) == 0) sizes[0] = 1;
    const auto got = mc::blend_indices::exhaustive(sizes);
    numbers taken(sizes.size());
    for (std::size_t s = 0; s < got.sets().size(); ++s)
      BOOST_REQUIRE(got.samples()[s] == taken[static_cast<std::size_t>(got.sets()[s])]++);
    BOOST_TEST(taken == sizes, boost::test_tools::per_element());
  }
}

BOOST_AUTO_TEST_CASE(words_are_prefixes_or_weights_and_prefixes) {
  const auto parse = [](const std::vector<std::string>& words) {
    return mc::parse_blend(words, "--data-path");
  };
  using words = std::vector<std::string>;
  using weights = std::vector<double>;
  const auto is = [&](const words& given, const words& prefixes, const weights& w) {
    const mc::blend b = parse(given);
    BOOST_TEST(b.prefixes == prefixes, boost::test_tools::per_element());
    BOOST_TEST(b.weights == w, boost::test_tools::per_element());
  };
  is({"a"}, {"a"}, {});
  is({"0.3", "a", "0.7", "b"}, {"a", "b"}, {.3, .7});
  is({" 1e2", "a ", "+.5 ", " b"}, {"a", "b"}, {100, .5});
  is({"30", "a"}, {"a"}, {30});
  is({"a", "b"}, {"a", "b"}, {});
  is({"a", "2", "b", "3"}, {"a", "2", "b", "3"}, {});
  is({"1", "2", "3"}, {"1", "2", "3"}, {});
  const auto refused = [&](const words& given, std::string_view says) {
    CHECK_REFUSED(parse(given), exit_code::usage, "--data-path: ");
    CHECK_REFUSED(parse(given), exit_code::usage, says);
  };
  refused({}, "no dataset is named");
  refused({"1", "a", "b", "c"}, "only 1 of 2 weights are numbers");
  refused({"0", "a"}, "the weight 0 of a is not a number above 0");
  refused({"1", "a", "-0.5", "b"}, "the weight -0.5 of b");
  for (const char* w : {"nan", "inf", "-inf", "1e999", "-1", "-0"})
    refused({w, "a"}, "of a is not");
  refused({"1e308", "a", "1e308", "b"}, "the sum of the weights");
  refused({"", "a", "b"}, "a prefix is empty");
  refused(words(32'767, "a"), "32767 datasets are more than the 32766");
  parse(words(32'765, "a"));
  CHECK_REFUSED(mc::check_blend({{"a", "b"}, {1}}, "--data-args-path"), exit_code::usage,
                "--data-args-path: 1 weights for 2 datasets");
}

BOOST_AUTO_TEST_CASE(sizes_are_rounded_up_and_built_with_a_surplus) {
  const std::vector<double> shares = mc::normalized(std::vector<double>{1, 2});
  const mc::blend_sizes s = mc::sizes_of_blend(shares, 1000);
  BOOST_TEST(s.targets == (numbers{334, 667}), boost::test_tools::per_element());
  BOOST_TEST(s.built == (numbers{336, 671}), boost::test_tools::per_element());
  BOOST_TEST(s.size() == 1001);
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(datasets)

constexpr std::int32_t eod = 5;

/// Sequences of tokens 0 ... 9, among them eod, in files.
struct written {
  scratch_folder dir;
  std::vector<ids> sequences;
  std::shared_ptr<const mc::indexed_dataset> data;

  explicit written(std::uint32_t seed, bool backwards = false) {
    std::mt19937 random(seed);
    for (std::size_t i = 0; i < 60; ++i) {
      ids tokens(random() % 12);
      for (std::int32_t& t : tokens) t = static_cast<std::int32_t>(random() % 10);
      sequences.push_back(tokens);
    }
    if (backwards) std::reverse(sequences.begin(), sequences.end());
    mc::indexed_writer w(dir / "p", mc::token_type::u16);
    for (const ids& tokens : sequences) {
      w.add(tokens);
      w.end_document();
    }
    w.commit();
    data = std::make_shared<const mc::indexed_dataset>(dir / "p", 10);
  }
};

struct row {
  ids tokens, labels, positions, documents;
  bool operator==(const row&) const = default;
};
row filled(const mc::sample_set& set, std::int64_t sample, std::int64_t sequence) {
  const auto s = static_cast<std::size_t>(sequence);
  row r{ids(s, -7), ids(s, -7), ids(s, -7), ids(s, -7)};
  set.fill(sample, {r.tokens, r.labels, r.positions, r.documents});
  return r;
}

/// The row of L + 1 tokens by Megatron's words, of which those at its end may be -1, not there.
row expected_row(const ids& text, const mc::document_ends& ends) {
  const std::size_t l = text.size() - 1;
  row r{{text.begin(), text.end() - 1}, {text.begin() + 1, text.end()}, ids(l), ids(l)};
  std::iota(r.positions.begin(), r.positions.end(), 0);
  for (std::size_t i = 0; i < l; ++i)
    if (text[i] == ends.eod)
      for (std::size_t j = i + 1; j < l; ++j) {
        if (ends.reset_position_ids) r.positions[j] = static_cast<std::int32_t>(j - i - 1);
        if (ends.reset_attention_mask) ++r.documents[j];
      }
  for (std::size_t i = 0; i < l; ++i) {
    if ((ends.eod_mask_loss && text[i] == ends.eod) || text[i + 1] == -1 || text[i + 1] == ends.pad)
      r.labels[i] = mc::ignored_label;
    if (text[i] == -1 || text[i] == ends.pad) r.tokens[i] = 0;
  }
  return r;
}

BOOST_AUTO_TEST_CASE(a_row_is_a_stretch_of_the_shuffled_documents) {
  const written w(1);
  const token_range part{5, 60};
  for (const bool drop_last : {true, false})
    for (const std::optional<std::int64_t> samples : {std::optional<std::int64_t>(), {90}, {301}})
      for (int flags = 0; flags < 16; ++flags) {
        const mc::document_ends ends{.eod = eod,
                                     .pad = flags & 8 ? std::optional(3) : std::nullopt,
                                     .reset_position_ids = (flags & 1) != 0,
                                     .reset_attention_mask = (flags & 2) != 0,
                                     .eod_mask_loss = (flags & 4) != 0};
        const gpt_parameters request{
            .sequence = 7, .samples = samples, .seed = 3, .drop_last = drop_last};
        const mc::gpt_dataset set(w.data, part, request, ends);
        BOOST_REQUIRE(set.size() > 30);
        ids stream;
        for (const std::int32_t d : set.indices().documents()) {
          const ids& s = w.sequences[static_cast<std::size_t>(d)];
          stream.insert(stream.end(), s.begin(), s.end());
        }
        stream.resize(stream.size() + 8, -1);
        for (std::int64_t i = 0; i < set.size(); ++i) {
          const auto at = stream.begin() + 7 * set.indices().shuffled(i);
          BOOST_REQUIRE((filled(set, i, 7) == expected_row({at, at + 8}, ends)));
        }
        CHECK_REFUSED(filled(set, -1, 7), exit_code::internal, "sample -1 of");
        CHECK_REFUSED(filled(set, set.size(), 7), exit_code::internal, "it has");
      }
}

BOOST_AUTO_TEST_CASE(without_an_end_of_documents_nothing_is_reset) {
  const written w(1);
  const mc::document_ends flags{.reset_position_ids = true, .eod_mask_loss = true};
  const mc::gpt_dataset some(w.data, {0, 60}, {.sequence = 16}, flags),
      none(w.data, {0, 60}, {.sequence = 16}, {});
  // A pad that is eod is none: Megatron would leave out the ends of all documents.
  const mc::gpt_dataset both(w.data, {0, 60}, {.sequence = 16}, {.eod = eod, .pad = eod});
  for (std::int64_t i = 0; i < none.size(); ++i) {
    BOOST_REQUIRE((filled(some, i, 16) == filled(none, i, 16)));
    BOOST_REQUIRE((filled(both, i, 16) == filled(none, i, 16)));
  }
}

BOOST_AUTO_TEST_CASE(an_empty_last_sequence_ends_a_short_sample) {
  const scratch_folder dir;
  mc::indexed_writer w(dir / "p", mc::token_type::u16);
  for (const std::size_t n : {3u, 0u, 0u, 0u}) {
    w.add(ids(n, 8));
    w.end_document();
  }
  w.commit();
  const auto data = std::make_shared<const mc::indexed_dataset>(dir / "p", 10);
  for (std::uint32_t seed = 0; seed < 20; ++seed)
    for (const std::int64_t sequence : {1, 2, 3, 5}) {
      const mc::gpt_dataset set(data, {0, 4},
                                {.sequence = sequence, .seed = seed, .drop_last = false}, {});
      std::int64_t counted = 0;
      for (std::int64_t i = 0; i < set.size(); ++i)
        for (const std::int32_t label : filled(set, i, sequence).labels) counted += label == 8;
      BOOST_TEST(counted == 2);
    }
}

BOOST_AUTO_TEST_CASE(indices_of_a_cache_are_those_in_memory_and_of_this_dataset) {
  const written w(1), other(2), backwards(1, true); // of as many tokens as the first
  const mc::index_cache cache(w.dir / "cache");
  const gpt_parameters request{.sequence = 9, .samples = 70};
  std::set<std::string> files;
  const auto count = [&] {
    return std::distance(std::filesystem::directory_iterator(w.dir / "cache"), {});
  };
  std::int64_t expected = 0;
  for (const auto* data : {&w, &other, &backwards})
    for (const token_range part : {token_range{0, 60}, {0, 50}})
      for (const std::int64_t sequence : {9, 10})
        for (const std::uint32_t seed : {1u, 2u}) {
          gpt_parameters r = request;
          r.sequence = sequence, r.seed = seed;
          const mc::gpt_dataset memory(data->data, part, r, {});
          ++expected;
          for (int again = 0; again < 2; ++again) {
            const mc::gpt_dataset cached(data->data, part, r, {}, cache);
            BOOST_TEST(count() == expected);
            for (std::int64_t i = 0; i < memory.size(); ++i)
              BOOST_REQUIRE((filled(cached, i, sequence) == filled(memory, i, sequence)));
          }
        }
}

BOOST_AUTO_TEST_CASE(a_cached_table_that_is_wrong_but_whole_reads_nothing_else) {
  const written w(1);
  const mc::index_cache cache(w.dir / "cache");
  const auto made = [&] {
    return mc::gpt_dataset(w.data, {0, 60}, {.sequence = 9, .drop_last = false}, {}, cache);
  };
  const std::int64_t size = made().size();
  const std::string path = std::filesystem::directory_iterator(w.dir / "cache")->path().string();
  const std::string whole = test::read_text(path);
  const auto begin = mc::detail::table_begin(
      mc::detail::load<std::uint64_t>(std::as_bytes(std::span(whole)).subspan(16).data()));
  int refused = 0;
  for (std::size_t at = begin; at + 4 <= whole.size(); at += 4)
    for (const std::int32_t number : {-1, 1000, std::numeric_limits<std::int32_t>::min(),
                                      std::numeric_limits<std::int32_t>::max()}) {
      std::string other = whole;
      std::memcpy(other.data() + at, &number, 4);
      const std::uint64_t sum = mc::xxh64::of(std::as_bytes(std::span(other)).subspan(begin));
      std::memcpy(other.data() + 32, &sum, 8);
      test::write_text(path, other);
      const auto set = made();
      for (std::int64_t i = 0; i < size; ++i)
        if (const auto e = test::refusal_of([&] { filled(set, i, 9); })) {
          BOOST_REQUIRE((e->code == exit_code::data));
          BOOST_REQUIRE(e->says("the cached indices of"));
          ++refused;
        }
    }
  BOOST_TEST(refused > 300);
}

BOOST_AUTO_TEST_CASE(a_blend_gives_the_samples_of_its_datasets_in_turn) {
  const written a(1), b(2), c(3);
  const std::vector<mc::dataset_range> parts{
      {a.data, {0, 60}}, {b.data, {10, 50}}, {c.data, {0, 30}}};
  const gpt_parameters request{.sequence = 8, .samples = 120, .seed = 9};
  const mc::document_ends ends{.eod = eod, .reset_position_ids = true};
  const auto check = [&](const mc::sample_set& set,
                         const std::vector<std::optional<std::int64_t>>& built,
                         const mc::blend_indices& order) {
    BOOST_REQUIRE(set.size() == order.size());
    std::vector<std::unique_ptr<mc::gpt_dataset>> sets;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      gpt_parameters r = request;
      r.samples = built[i];
      sets.push_back(std::make_unique<mc::gpt_dataset>(parts[i].data, parts[i].sequences, r, ends));
    }
    for (std::int64_t i = 0; i < set.size(); ++i) {
      const auto s = static_cast<std::size_t>(i);
      BOOST_REQUIRE((filled(set, i, 8) == filled(*sets[static_cast<std::size_t>(order.sets()[s])],
                                                 order.samples()[s], 8)));
    }
  };
  const std::vector<double> weights{1, 2, 5};
  const auto shares = mc::normalized(weights);
  const auto sizes = mc::sizes_of_blend(shares, 120);
  check(*mc::blended_samples(parts, weights, request, ends),
        {sizes.built[0], sizes.built[1], sizes.built[2]},
        mc::blend_indices::weighted(shares, sizes.size()));
  gpt_parameters epoch = request;
  epoch.samples.reset();
  numbers all;
  for (const auto& p : parts)
    all.push_back(mc::gpt_dataset(p.data, p.sequences, epoch, ends).size());
  const std::vector<double> lengths(all.begin(), all.end());
  const auto total = std::accumulate(all.begin(), all.end(), std::int64_t{0});
  BOOST_REQUIRE(total > 40);
  check(*mc::blended_samples(parts, {}, epoch, ends), {{}, {}, {}},
        mc::blend_indices::exhaustive(all));
  for (const std::int64_t n : {std::int64_t{25}, total + 1000}) {
    gpt_parameters some = request;
    some.samples = n;
    check(*mc::blended_samples(parts, {}, some, ends), {{}, {}, {}},
          mc::blend_indices::weighted(lengths, std::min(n, total)));
  }
  // One dataset alone is itself; with a weight it is a blend.
  const auto alone = mc::blended_samples({parts[0]}, {}, request, ends);
  const mc::gpt_dataset itself(a.data, {0, 60}, request, ends);
  BOOST_TEST(alone->size() == itself.size());
  BOOST_TEST(mc::blended_samples({parts[0]}, std::vector<double>{3}, request, ends)->size() == 120);
  CHECK_REFUSED(mc::blended_samples(parts, weights, epoch, ends), exit_code::usage,
                "have no number");
}

BOOST_AUTO_TEST_CASE(what_a_blend_cannot_take_is_refused) {
  const written a(1), b(2);
  const auto one = std::make_shared<const mc::gpt_dataset>(
      a.data, token_range{0, 60}, gpt_parameters{.sequence = 8}, mc::document_ends{});
  CHECK_REFUSED(mc::blended_dataset({one}, mc::blend_indices::exhaustive(numbers{one->size() + 1})),
                exit_code::data, "samples of " + (a.dir / "p") + " are blended, but it has");
  CHECK_REFUSED(mc::blended_dataset({one}, mc::blend_indices::exhaustive(numbers{1, 1})),
                exit_code::data, "are none of its own");
  CHECK_REFUSED(mc::gpt_dataset(a.data, {7, 7}, {.sequence = 8}, {}, {}, "validation"),
                exit_code::data, "the validation part of " + (a.dir / "p") + " has no tokens");
  const std::vector<mc::dataset_range> parts{{a.data, {0, 60}}, {b.data, {10, 20}}};
  CHECK_REFUSED(mc::blended_samples(parts, {}, {.sequence = 100}, {}), exit_code::data,
                (b.dir / "p") + " holds no sample of 100 tokens");
}

BOOST_AUTO_TEST_CASE(threads_fill_the_same_rows) {
  const written w(1);
  const mc::gpt_dataset set(w.data, {0, 60}, {.sequence = 8, .samples = 400}, {});
  std::vector<row> expected;
  for (std::int64_t i = 0; i < 400; ++i) expected.push_back(filled(set, i, 8));
  std::vector<std::thread> threads;
  std::vector<int> wrong(4);
  for (std::size_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (std::int64_t i = 0; i < 400; ++i)
        wrong[t] += filled(set, i, 8) != expected[static_cast<std::size_t>(i)];
    });
  for (std::thread& t : threads) t.join();
  BOOST_TEST(wrong == std::vector<int>(4), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_SUITE_END()

} // namespace
