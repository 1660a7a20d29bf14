// Data: refusals of files, the meaning of --split, and the laws of training and evaluation windows.
#define BOOST_TEST_MODULE data
#include <boost/test/unit_test.hpp>

#include <megacpp/data/byte_tokens.hpp>
#include <megacpp/data/id_tokens.hpp>
#include <megacpp/data/micro_batches.hpp>
#include <megacpp/data/windows.hpp>
#include <megacpp/threads/in_order.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <new>
#include <numeric>
#include <set>
#include <thread>
#include <vector>

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include <scratch.hpp>
#include <where.hpp>

#include "child.hpp"

namespace {
long allocations = 0;
}
// Not inlined: g++ would pair the library's own new with the free seen here, and warn.
[[gnu::noinline]] void* operator new(std::size_t n) {
  ++allocations;
  if (void* p = std::malloc(n ? n : 1)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { std::free(p); }

namespace {

using mc::exit_code;
using test::scratch_folder;
using test::write_text;

/// Token i is i, so that a window shows where it came from.
class counting_tokens final : public mc::token_source {
public:
  explicit counting_tokens(std::int64_t n) : n_(n) {}
  std::int64_t size() const override { return n_; }
  std::int32_t token(std::int64_t i) const override { return static_cast<std::int32_t>(i); }
  void copy(std::int64_t first, std::span<std::int32_t> out) const override {
    BOOST_REQUIRE(first >= 0);
    BOOST_REQUIRE(first + static_cast<std::int64_t>(out.size()) <= n_);
    std::iota(out.begin(), out.end(), static_cast<std::int32_t>(first));
  }
  const std::string& name() const override { return name_; }

private:
  std::int64_t n_;
  std::string name_ = "counting";
};

BOOST_AUTO_TEST_SUITE(files)

BOOST_AUTO_TEST_CASE(what_cannot_be_mapped_is_refused_with_a_sentence) {
  const scratch_folder dir;
  CHECK_REFUSED(mc::mapped_file(dir / "none"), exit_code::data, "none does not exist");
  CHECK_REFUSED(mc::mapped_file(dir / "none", exit_code::model), exit_code::model,
                "does not exist");
  CHECK_REFUSED(mc::mapped_file(""), exit_code::data, "empty; give its name");
  CHECK_REFUSED(mc::mapped_file(dir.path().string()), exit_code::data, "is a directory");
  write_text(dir / "empty", "");
  CHECK_REFUSED(mc::mapped_file(dir / "empty"), exit_code::data, "is empty");
  BOOST_REQUIRE(::mkfifo((dir / "pipe").c_str(), 0600) == 0);
  CHECK_REFUSED(mc::mapped_file(dir / "pipe"), exit_code::data, "not a regular file");
  write_text(dir / "secret", "x");
  BOOST_REQUIRE(::chmod((dir / "secret").c_str(), 0) == 0);
  BOOST_REQUIRE(::chmod(dir.path().c_str(), 0755) == 0);
  const test::unprivileged nobody;
  CHECK_REFUSED(mc::mapped_file(dir / "secret"), exit_code::data, "check its permissions");
}

BOOST_AUTO_TEST_CASE(a_file_that_changes_is_noticed_before_it_is_read) {
  const scratch_folder dir;
  write_text(dir / "text", std::string(100'000, 'a'));
  const mc::byte_tokens tokens(dir / "text", 256);
  BOOST_TEST(tokens.token(99'999) == 'a');
  BOOST_REQUIRE(::truncate((dir / "text").c_str(), 10) == 0);
  CHECK_REFUSED(tokens.token(99'999), exit_code::data, "had 100000 bytes and now has 10");
  BOOST_REQUIRE(::truncate((dir / "text").c_str(), 100'001) == 0);
  CHECK_REFUSED(tokens.token(0), exit_code::data, "had 100000 bytes and now has 100001");
}

BOOST_AUTO_TEST_CASE(tokens_are_bytes_below_the_vocabulary) {
  const scratch_folder dir;
  write_text(dir / "text", std::string_view("ab\0\xff", 4));
  const mc::byte_tokens all(dir / "text", 256);
  BOOST_TEST(all.size() == 4);
  std::vector<std::int32_t> ids(4);
  all.copy(0, ids);
  BOOST_TEST(ids == (std::vector<std::int32_t>{97, 98, 0, 255}), boost::test_tools::per_element());
  const mc::byte_tokens few(dir / "text", 128);
  BOOST_TEST(few.token(1) == 98);
  CHECK_REFUSED(few.copy(1, std::span(ids).first(3)), exit_code::data, "offset 3 is token 255");
  CHECK_REFUSED(few.token(3), exit_code::data, "(0 to 127)");
  BOOST_TEST(mc::byte_tokens(dir / "text", 99).token(1) == 98);
  CHECK_REFUSED(mc::byte_tokens(dir / "text", 98).token(1), exit_code::data, "is token 98");
  CHECK_REFUSED(all.token(4), exit_code::internal, "it has 4");
  CHECK_REFUSED(all.token(-1), exit_code::internal, "it has 4");
}

template <class Id>
void ids_are_little_endian(std::string_view bytes, const std::vector<std::int32_t>& expected) {
  const scratch_folder dir;
  write_text(dir / "ids", bytes);
  const mc::id_tokens<Id> tokens(mc::mapped_file(dir / "ids"), 1 << 20);
  BOOST_REQUIRE(tokens.size() == std::ssize(expected));
  std::vector<std::int32_t> ids(expected.size());
  tokens.copy(0, ids);
  BOOST_TEST(ids == expected, boost::test_tools::per_element());
  for (std::int64_t i = 0; i < tokens.size(); ++i)
    BOOST_TEST(tokens.token(i) == expected[static_cast<std::size_t>(i)]);
  CHECK_REFUSED(tokens.token(tokens.size()), exit_code::internal, "it has");
  CHECK_REFUSED(tokens.token(-1), exit_code::internal, "it has");
  write_text(dir / "cut", bytes.substr(0, bytes.size() - 1));
  CHECK_REFUSED(mc::id_tokens<Id>(mc::mapped_file(dir / "cut"), 10), exit_code::data,
                "no whole number");
}

BOOST_AUTO_TEST_CASE(token_ids_are_little_endian_numbers) {
  using namespace std::string_view_literals;
  ids_are_little_endian<std::uint16_t>("\x01\x00\x00\x01\xff\xff\x00\x80"sv,
                                       {1, 256, 65535, 32768});
  ids_are_little_endian<std::int32_t>("\x02\x01\x00\x00\xff\xff\x0f\x00"sv, {258, 0xfffff});
}

BOOST_AUTO_TEST_CASE(token_ids_beyond_the_vocabulary_are_refused_with_their_offset) {
  using namespace std::string_view_literals;
  const scratch_folder dir;
  write_text(dir / "u16", "\x05\x00\x0a\x00\xff\xff"sv);
  const mc::id_tokens<std::uint16_t> narrow(mc::mapped_file(dir / "u16"), 10);
  BOOST_TEST(narrow.token(0) == 5);
  CHECK_REFUSED(narrow.token(1), exit_code::data, "offset 2 is 10, but the model's vocabulary");
  CHECK_REFUSED(narrow.token(2), exit_code::data, "offset 4 is 65535");
  std::vector<std::int32_t> ids(3);
  CHECK_REFUSED(narrow.copy(0, ids), exit_code::data, (dir / "u16") + ": the token id at offset 2");
  write_text(dir / "i32", "\x09\x00\x00\x00\xff\xff\xff\xff\x00\x00\x00\x80"sv);
  const mc::id_tokens<std::int32_t> wide(mc::mapped_file(dir / "i32"), 10);
  BOOST_TEST(wide.token(0) == 9);
  CHECK_REFUSED(wide.token(1), exit_code::data, "offset 4 is -1, but");
  CHECK_REFUSED(wide.token(2), exit_code::data, "offset 8 is -2147483648");
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(splits)

using range = mc::token_range;

BOOST_AUTO_TEST_CASE(equal_to_megatron) {
  const std::string file = test::shared_dir + "/fixtures/megatron_golden.json";
  const auto text = test::read_text(file);
  if (text.empty()) {
    test::left_out("there is no " + file);
    return;
  }
  std::size_t cases = 0;
  const auto golden = nlohmann::json::parse(text);
  for (const auto& [key, expected] : golden.at("split").items()) {
    const auto bar = key.find('|');
    const mc::split_ranges got = mc::split(key.substr(0, bar), std::stoll(key.substr(bar + 1)));
    const range parts[] = {got.train, got.valid, got.test};
    for (std::size_t i = 0; i < 3; ++i) {
      const range wanted = expected[i].is_null()
                               ? range{}
                               : range{expected[i][0].get<int>(), expected[i][1].get<int>()};
      BOOST_CHECK_MESSAGE(parts[i] == wanted, key << " part " << i);
    }
    ++cases;
  }
  BOOST_TEST(cases >= 5u);
}

BOOST_AUTO_TEST_CASE(bounds_round_half_to_even_and_parts_are_contiguous) {
  // 0.5 * 5 = 2.5 -> 2 and 0.5 * 7 = 3.5 -> 4, as Python's round.
  BOOST_TEST((mc::split("1,1", 5).train == range{0, 2}));
  BOOST_TEST((mc::split("1,1", 7).train == range{0, 4}));
  BOOST_TEST((mc::split("90,10,0", 1115394).valid == range{1003855, 1115394}));
  for (const char* text : {"90,10,0", "1,1,1", "0.3 .3,.4", "969, 30, 1", "0,0,1", "5"})
    for (std::int64_t n = 0; n < 300; ++n) {
      const mc::split_ranges s = mc::split(text, n);
      std::int64_t at = 0;
      for (const range& r : {s.train, s.valid, s.test}) {
        if (r.empty()) continue;
        BOOST_REQUIRE(r.begin == at);
        at = r.end;
      }
      BOOST_REQUIRE(at == n);
    }
}

BOOST_AUTO_TEST_CASE(other_texts_are_refused) {
  for (const char* text : {"", ",", "a", "1,b", "1;1", "-1,2", "-0,1", "0,0,0", "1,1,1,1", "nan",
                           "inf,1", "1e400", "1e3", "1.2.3", ".", "0x10"})
    CHECK_REFUSED(mc::split(text, 10), exit_code::usage, "data_request::split");
}

BOOST_AUTO_TEST_CASE(a_part_too_short_for_its_use_is_refused) {
  const counting_tokens source(100);
  CHECK_REFUSED(mc::training_windows(source, {0, 64}, 64, 1), exit_code::data, "needs 65");
  CHECK_REFUSED(mc::training_windows(source, {}, 1, 1), exit_code::data, "has 0 of its 100 tokens");
  mc::training_windows(source, {0, 65}, 64, 1);
  CHECK_REFUSED(mc::evaluation_windows(source, {0, 1}, 64), exit_code::data,
                "one prediction needs 2");
  mc::evaluation_windows(source, {0, 2}, 64);
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(shuffling)

BOOST_AUTO_TEST_CASE(a_permutation_is_a_bijection) {
  for (std::int64_t n = 1; n <= 300; ++n)
    for (std::uint64_t key : {0ull, 1ull, ~0ull}) {
      const mc::permutation p(n, key);
      std::vector<bool> seen(static_cast<std::size_t>(n));
      for (std::int64_t i = 0; i < n; ++i) {
        BOOST_REQUIRE(p(i) >= 0);
        BOOST_REQUIRE(p(i) < n);
        BOOST_REQUIRE(!seen[static_cast<std::size_t>(p(i))]);
        seen[static_cast<std::size_t>(p(i))] = true;
      }
    }
  const std::int64_t large = 1'000'003;
  const mc::permutation p(large, 42);
  std::vector<bool> seen(large);
  for (std::int64_t i = 0; i < large; ++i) seen[static_cast<std::size_t>(p(i))] = true;
  BOOST_TEST(std::count(seen.begin(), seen.end(), true) == large);
}

BOOST_AUTO_TEST_CASE(every_value_is_about_as_likely_at_every_place) {
  // Chi-squared of n x n counts over many keys: (n-1)^2 degrees of freedom.
  for (const std::int64_t n : {3, 10, 37}) {
    constexpr int keys = 4000;
    const auto cells = static_cast<std::size_t>(n * n);
    std::vector<int> count(cells);
    for (int k = 0; k < keys; ++k) {
      const mc::permutation p(n, mc::random_key(7, static_cast<std::uint64_t>(k)));
      for (std::int64_t i = 0; i < n; ++i) ++count[static_cast<std::size_t>(i * n + p(i))];
    }
    const double expected = static_cast<double>(keys) / static_cast<double>(n);
    double chi2 = 0;
    for (const int c : count) chi2 += (c - expected) * (c - expected) / expected;
    const double freedom = static_cast<double>((n - 1) * (n - 1));
    BOOST_TEST(chi2 < freedom + 5 * std::sqrt(2 * freedom));
  }
}

BOOST_AUTO_TEST_CASE(an_epoch_shows_disjoint_windows_within_the_range) {
  for (const std::int64_t sequence : {1, 2, 5, 8, 64})
    for (std::int64_t n = sequence + 1; n < 6 * sequence + 10; ++n) {
      const mc::token_range range{7, 7 + n};
      const counting_tokens source(7 + n);
      const mc::training_windows windows(source, range, sequence, 3);
      BOOST_REQUIRE(windows.per_epoch() >= 1);
      for (std::int64_t epoch = 0; epoch < 4; ++epoch) {
        std::set<std::int64_t> starts;
        for (std::int64_t i = 0; i < windows.per_epoch(); ++i)
          starts.insert(windows.start(epoch * windows.per_epoch() + i));
        BOOST_REQUIRE(static_cast<std::int64_t>(starts.size()) == windows.per_epoch());
        BOOST_REQUIRE(*starts.begin() >= range.begin);
        BOOST_REQUIRE(*starts.rbegin() + sequence + 1 <= range.end);
        for (const std::int64_t s : starts) BOOST_REQUIRE((s - *starts.begin()) % sequence == 0);
        const std::int64_t left_out = n - windows.per_epoch() * sequence;
        BOOST_REQUIRE(left_out < 2 * sequence + (sequence == 1));
      }
    }
}

BOOST_AUTO_TEST_CASE(phases_and_orders_differ_between_epochs_and_seeds) {
  const counting_tokens source(10'000);
  const mc::training_windows a(source, {0, 10'000}, 16, 1), b(source, {0, 10'000}, 16, 2);
  std::set<std::int64_t> phases;
  std::set<std::vector<std::int64_t>> orders;
  for (std::int64_t epoch = 0; epoch < 200; ++epoch) {
    std::vector<std::int64_t> order;
    for (std::int64_t i = 0; i < 20; ++i) order.push_back(a.start(epoch * a.per_epoch() + i));
    phases.insert(order[0] % 16);
    orders.insert(order);
  }
  BOOST_TEST(phases.size() == 16u);
  BOOST_TEST(orders.size() == 200u);
  int equal = 0;
  for (std::int64_t i = 0; i < a.per_epoch(); ++i) equal += a.start(i) == b.start(i);
  BOOST_TEST(equal < 10);
  // Neighbouring samples are unrelated: the correlation of successive starts is that of chance.
  double sum = 0, squares = 0, products = 0;
  const auto n = static_cast<double>(a.per_epoch());
  for (std::int64_t i = 0; i < a.per_epoch(); ++i) {
    const auto x = static_cast<double>(a.start(i) - 5000);
    sum += x;
    squares += x * x;
    products += x * static_cast<double>(a.start((i + 1) % a.per_epoch()) - 5000);
  }
  const double r = (products / n - sum / n * sum / n) / (squares / n - sum / n * sum / n);
  BOOST_TEST(std::fabs(r) < 4 / std::sqrt(n));
}

BOOST_AUTO_TEST_CASE(batches_do_not_depend_on_how_samples_are_divided) {
  const counting_tokens source(2'000);
  const mc::training_windows windows(source, {100, 1'900}, 10, 9);
  mc::micro_batch whole(64, 10), part(1, 10);
  whole.fill(windows, 1000);
  const auto tokens = whole.tokens(), labels = whole.labels();
  for (std::size_t b = 0; b < 64; ++b) {
    const auto sample = 1000 + static_cast<std::int64_t>(b);
    part.fill(windows, sample);
    for (std::size_t s = 0; s < 10; ++s) {
      BOOST_REQUIRE(part.tokens()[s] == tokens[b * 10 + s]);
      BOOST_REQUIRE(tokens[b * 10 + s] == windows.start(sample) + static_cast<std::int64_t>(s));
      BOOST_REQUIRE(labels[b * 10 + s] == tokens[b * 10 + s] + 1);
      BOOST_REQUIRE(part.labels()[s] == part.tokens()[s] + 1);
      BOOST_REQUIRE(whole.positions()[b * 10 + s] == static_cast<std::int32_t>(s));
      BOOST_REQUIRE(whole.documents()[b * 10 + s] == 0);
    }
  }
  const std::int64_t far = std::int64_t{1} << 61; // any sample index, at once
  BOOST_TEST(windows.start(far) >= 100);
}

BOOST_AUTO_TEST_CASE(filling_allocates_nothing) {
  const scratch_folder dir;
  write_text(dir / "text", std::string(5'000, 'a'));
  const mc::byte_tokens source(dir / "text", 256);
  const mc::training_windows train(source, {0, 4'000}, 32, 1);
  const mc::evaluation_windows valid(source, {4'000, 5'000}, 32);
  mc::micro_batch batch(8, 32);
  std::int64_t first = 0;
  mc::read_ahead reader(train, 8, 32, [&first] { return 8 * first++; });
  reader.next();
  const long before = allocations;
  for (std::int64_t i = 0; i < 100; ++i) {
    batch.fill(train, 8 * i);
    batch.fill(valid, 8 * (i % 5));
    reader.next();
  }
  BOOST_TEST(allocations == before);
}

// Micro-batches come in their order, however slow the reader or whoever takes them is; what goes wrong
// in reading one comes in its place.
BOOST_AUTO_TEST_CASE(what_is_read_ahead_comes_in_order) {
  class slow_set final : public mc::sample_set {
  public:
    std::int64_t size() const override { return 50; }
    void fill(std::int64_t sample, const mc::sample_row& row) const override {
      if (sample % 7 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      if (sample == 40) throw mc::error(exit_code::data, "sample 40 is damaged");
      std::ranges::fill(row.tokens, static_cast<std::int32_t>(sample));
    }
    const std::string& name() const override { return name_; }

  private:
    std::string name_ = "slow";
  } set;
  for (const bool slow_use : {false, true}) {
    std::int64_t first = 0;
    mc::read_ahead reader(set, 2, 3, [&first] { return 2 * first++; });
    for (std::int32_t i = 0; i < 20; ++i) {
      mc::micro_batch& batch = reader.next();
      BOOST_TEST(batch.tokens()[0] == 2 * i);
      BOOST_TEST(batch.tokens()[5] == 2 * i + 1);
      if (slow_use && i % 5 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(3));
    }
    CHECK_REFUSED(reader.next(), exit_code::data, "sample 40 is damaged");
    BOOST_TEST(first <= 21);
  }
  mc::read_ahead unused(set, 1, 1, [] { return 0; }); // ends while it waits
}

// Where memory has room for some threads and not for all, those that run do not read on.
BOOST_AUTO_TEST_CASE(a_thread_that_cannot_be_started_ends_the_work) {
  if (MEGACPP_CHECKS_MEMORY) return; // which needs all addresses
  const int status = test::in_child([] {
    rlim_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const rlim_t room = pages * static_cast<rlim_t>(::getpagesize()) + (rlim_t{100} << 20);
    const rlimit limit{room, room};
    if (::setrlimit(RLIMIT_AS, &limit) != 0) return 1;
    constexpr int all = 100'000;
    std::atomic<int> taken = 0;
    const auto a_moment = [](int, int) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    };
    try {
      mc::in_order<int>(
          1000, [&](int&) { return ++taken < all; }, a_moment, [](int) {});
    } catch (const mc::error& e) {
      return e.code() == exit_code::memory && taken < all ? 0 : 2;
    }
    return 3;
  });
  BOOST_TEST(status == 0);
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(evaluation)

BOOST_AUTO_TEST_CASE(every_token_after_the_first_is_predicted_once_from_the_one_before) {
  for (const std::int64_t sequence : {1, 3, 8, 64})
    for (const std::size_t rows : {1u, 3u})
      for (std::int64_t n = 2; n < 3 * sequence + 5; ++n) {
        const counting_tokens source(5 + n);
        const mc::evaluation_windows windows(source, {5, 5 + n}, sequence);
        mc::micro_batch batch(static_cast<std::int64_t>(rows), sequence);
        std::vector<int> predicted(static_cast<std::size_t>(5 + n));
        std::int64_t counted = 0;
        // One batch too many: windows past the end are all padding.
        for (std::int64_t w = 0; w <= windows.count(); w += static_cast<std::int64_t>(rows)) {
          batch.fill(windows, w);
          const auto tokens = batch.tokens(), labels = batch.labels();
          for (std::size_t i = 0; i < tokens.size(); ++i) {
            if (labels[i] == mc::ignored_label) {
              BOOST_REQUIRE(tokens[i] == 0);
              continue;
            }
            ++counted;
            BOOST_REQUIRE(labels[i] == tokens[i] + 1);
            ++predicted[static_cast<std::size_t>(labels[i])];
          }
        }
        BOOST_REQUIRE(counted == n - 1);
        BOOST_REQUIRE(windows.predictions() == n - 1);
        for (std::size_t i = 0; i < predicted.size(); ++i) BOOST_REQUIRE(predicted[i] == (i >= 6));
      }
}

BOOST_AUTO_TEST_SUITE_END()

} // namespace
