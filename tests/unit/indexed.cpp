// Indexed datasets: the bytes that are written, what is read of them, and every way in which two
// files can be wrong; tables that are kept in a folder.
#define BOOST_TEST_MODULE indexed
#include <boost/test/unit_test.hpp>

#include <megacpp/sets/index_cache.hpp>
#include <megacpp/sets/indexed_dataset.hpp>
#include <megacpp/sets/indexed_writer.hpp>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <limits>
#include <numeric>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include <scratch.hpp>
#include <where.hpp>

namespace {

using mc::exit_code;
using mc::indexed_dataset;
using mc::indexed_writer;
using mc::token_type;
using test::read_text;
using test::scratch_folder;
using test::write_text;

using ids = std::vector<std::int32_t>;
/// Sequences of a document.
using document = std::vector<ids>;

constexpr std::int64_t any_id = std::int64_t{1} << 31;
constexpr token_type all_types[] = {token_type::u8,  token_type::i8,  token_type::i16,
                                    token_type::i32, token_type::i64, token_type::u16};

void add(indexed_writer& w, const document& d) {
  for (const ids& sequence : d) w.add(sequence);
  w.end_document();
}
void write(const std::string& prefix, token_type type, const std::vector<document>& documents) {
  indexed_writer w(prefix, type);
  for (const document& d : documents) add(w, d);
  w.commit();
}
ids read(const indexed_dataset& data, std::int64_t sequence) {
  ids out(static_cast<std::size_t>(data.length(sequence)));
  data.read(sequence, 0, out);
  return out;
}
std::vector<document> read_all(const indexed_dataset& data) {
  std::vector<document> all(static_cast<std::size_t>(data.documents()));
  for (std::int64_t d = 0; d < data.documents(); ++d)
    for (std::int64_t s = data.first_of(d); s < data.first_of(d + 1); ++s)
      all[static_cast<std::size_t>(d)].push_back(read(data, s));
  return all;
}

/// Three documents of the fixture.
const std::vector<document> tiny{{{1, 2, 3}}, {{4, 5}}, {{6, 7, 8, 9}}};
/// Documents of no sequence, of several, of an empty one, and two empty ones at the end.
const std::vector<document> ragged{{}, {{1, 2, 3}, {}, {4}}, {}, {{5, 6}}, {{}}, {}, {}};

template <class T> void put(std::string& bytes, std::size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
}
std::set<std::string> names_in(const scratch_folder& dir) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(dir.path()))
    names.insert(entry.path().filename().string());
  return names;
}

BOOST_AUTO_TEST_SUITE(bytes)

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2)
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return bytes;
}

BOOST_AUTO_TEST_CASE(equal_to_megatron) {
  const std::string file = test::shared_dir + "/fixtures/megatron_golden.json";
  const auto text = read_text(file);
  if (text.empty()) {
    test::left_out("there is no " + file);
    return;
  }
  const auto golden = nlohmann::json::parse(text);
  const scratch_folder dir;
  write(dir / "ours", token_type::u16, tiny);
  BOOST_TEST(read_text(dir / "ours.idx") == from_hex(golden.at("tiny_idx_hex_uint16")));
  BOOST_TEST(read_text(dir / "ours.bin") == from_hex(golden.at("tiny_bin_hex_uint16")));
}

BOOST_AUTO_TEST_CASE(what_is_written_is_read_in_every_type) {
  for (const token_type type : all_types)
    for (const auto& documents : {tiny, ragged, std::vector<document>{}}) {
      const scratch_folder dir;
      write(dir / "p", type, documents);
      const indexed_dataset data(dir / "p", 10);
      BOOST_TEST((data.type() == type));
      BOOST_TEST((read_all(data) == documents));
      std::int64_t tokens = 0;
      for (const document& d : documents)
        for (const ids& s : d) tokens += std::ssize(s);
      BOOST_TEST(data.tokens() == tokens);
      BOOST_TEST(std::filesystem::file_size(dir / "p.bin") ==
                 static_cast<std::uint64_t>(tokens * mc::size_of(type)));
      for (std::int64_t d = 0; d < data.documents(); ++d)
        for (std::int64_t s = data.first_of(d); s < data.first_of(d + 1); ++s)
          BOOST_TEST(data.document_of(s) == d);
      BOOST_TEST((names_in(dir) == std::set<std::string>{"p.bin", "p.idx"}));
    }
}

// They are of the dataset that was there, and would call the new one damaged.
BOOST_AUTO_TEST_CASE(checksums_go_with_what_they_are_of) {
  const scratch_folder dir;
  for (const auto& documents : {tiny, ragged}) {
    write_text(dir / "p.xxh64", "of something else");
    write(dir / "p", token_type::u16, documents);
    BOOST_TEST((names_in(dir) == std::set<std::string>{"p.bin", "p.idx"}));
  }
}

BOOST_AUTO_TEST_CASE(any_stretch_of_a_sequence_is_read) {
  const scratch_folder dir;
  ids sequence(1000);
  std::iota(sequence.begin(), sequence.end(), 60'000);
  write(dir / "p", token_type::i32, {{{1}, sequence}});
  const indexed_dataset data(dir / "p", 61'000);
  for (const std::int64_t from : {0, 1, 500, 999, 1000})
    for (const std::int64_t n : {0, 1, 400, 1000}) {
      ids out(static_cast<std::size_t>(n), -1);
      if (from + n > 1000) {
        CHECK_REFUSED(data.read(1, from, out), exit_code::internal, "of sequence 1");
        continue;
      }
      data.read(1, from, out);
      for (std::size_t i = 0; i < out.size(); ++i)
        BOOST_REQUIRE(out[i] == 60'000 + from + static_cast<std::int64_t>(i));
    }
  ids one(1);
  CHECK_REFUSED(data.read(-1, 0, one), exit_code::internal, "it has 2 sequences");
  CHECK_REFUSED(data.read(2, 0, one), exit_code::internal, "it has 2 sequences");
  CHECK_REFUSED(data.read(0, -1, one), exit_code::internal, "tokens -1 to 0");
}

BOOST_AUTO_TEST_CASE(the_type_is_megatrons_for_the_vocabulary) {
  BOOST_TEST((mc::token_type_of(65'499) == token_type::u16));
  BOOST_TEST((mc::token_type_of(65'500) == token_type::i32));
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(bad_files)

/// The tiny dataset, its index changed.
struct changed {
  scratch_folder dir;
  std::string idx, bin;
  explicit changed(token_type type = token_type::u16) {
    write(dir / "p", type, tiny);
    idx = read_text(dir / "p.idx"), bin = read_text(dir / "p.bin");
  }
  void refused(const std::string& changed_idx, std::string_view says) const {
    write_text(dir / "p.idx", changed_idx);
    CHECK_REFUSED(indexed_dataset(dir / "p", any_id), exit_code::data, says);
  }
  template <class T> void refused(std::size_t at, T value, std::string_view says) const {
    std::string other = idx;
    put(other, at, value);
    refused(other, says);
  }
};

BOOST_AUTO_TEST_CASE(every_field_that_is_wrong_is_named) {
  const changed t;
  const std::string path = t.dir / "p.idx";
  t.refused(0, 'X', "does not begin with MMIDIDX");
  t.refused(8, '\1', "does not begin with MMIDIDX");
  t.refused(9, std::uint64_t{2}, "is of version 2");
  t.refused(9, std::uint64_t{1} << 32 | 1, "is of version");
  for (const auto& [code, says] : {std::pair(0, "type 0, which the format does not know"),
                                   std::pair(6, "type f64, which is floating point"),
                                   std::pair(7, "type f32, which is floating point"),
                                   std::pair(9, "does not know"), std::pair(255, "does not know")})
    t.refused(17, static_cast<std::uint8_t>(code), says);
  // Another size of a token moves every sequence.
  t.refused(17, std::uint8_t{1}, "sequence 1 begins at byte 6");
  t.refused(17, std::uint8_t{5}, "sequence 1 begins at byte 6");
  // Counts: off by one, and such that their bytes overflow in every way.
  for (const std::uint64_t s :
       {0ull, 2ull, 4ull, 1ull << 31, 1ull << 62, 1ull << 63, ~0ull, ~0ull / 12, ~0ull / 12 + 1,
        ~0ull / 4 + 1, (1ull << 63) / 12, (~0ull - 33) / 12 + 1, 3ull + (1ull << 62)})
    t.refused(18, s, path + " says that it has " + std::to_string(s) + " sequences");
  for (const std::uint64_t d :
       {0ull, 3ull, 5ull, 1ull << 61, 4ull + (1ull << 61), 1ull << 63, ~0ull})
    t.refused(26, d, "and " + std::to_string(d) + " ends of documents");
  t.refused(34, std::int32_t{-1}, "sequence 0 has -1 tokens");
  t.refused(38, std::numeric_limits<std::int32_t>::min(), "sequence 1 has -2147483648 tokens");
  t.refused(34, std::int32_t{4}, "sequence 1 begins at byte 6 of " + (t.dir / "p.bin"));
  t.refused(42, std::int32_t{5}, "10 tokens of type u16 take 20 bytes, but the latter has 18");
  t.refused(42, std::numeric_limits<std::int32_t>::max(), "but the latter has 18");
  for (const std::int64_t at : {-1ll, 1ll, 1ll << 40, -(1ll << 62)})
    t.refused(46, at, "sequence 0 begins at byte " + std::to_string(at));
  t.refused(54, std::int64_t{7}, "sequence 1 begins at byte 7 of");
  t.refused(62, std::int64_t{1} << 62, "but the sequences before it end at byte 10");
  t.refused(70, std::int64_t{1}, "document 0 begins with sequence 1");
  t.refused(78, std::int64_t{-1}, "document 0 ends before it begins");
  t.refused(78, std::int64_t{3}, "document 1 ends before it begins: at sequence 2 after 3");
  t.refused(94, std::int64_t{2}, "end at sequence 2, but it has 3");
  t.refused(94, std::int64_t{4}, "end at sequence 4, but it has 3");
  t.refused(t.idx + std::string(3, '\0'), "it is of multimodal data");
  t.refused(t.idx + '\0', "says that it has 3 sequences and 4 ends");
  std::string none = t.idx.substr(0, 34);
  put(none, 18, std::uint64_t{0}), put(none, 26, std::uint64_t{0});
  t.refused(none, "has no ends of documents");
}

BOOST_AUTO_TEST_CASE(an_index_cut_at_any_byte_is_refused) {
  const changed t;
  for (std::size_t n = 1; n < t.idx.size(); ++n) t.refused(t.idx.substr(0, n), t.dir / "p.idx");
  t.refused("", "is empty");
}

BOOST_AUTO_TEST_CASE(no_changed_byte_of_an_index_changes_a_token) {
  const changed t;
  const std::vector<ids> expected{{1, 2, 3}, {4, 5}, {6, 7, 8, 9}};
  int accepted = 0;
  for (std::size_t at = 0; at < t.idx.size(); ++at)
    for (int bit = 0; bit < 8; ++bit) {
      std::string other = t.idx;
      other[at] = static_cast<char>(other[at] ^ (1 << bit));
      write_text(t.dir / "p.idx", other);
      const auto refused = test::refusal_of([&] {
        const indexed_dataset data(t.dir / "p", any_id);
        for (std::int64_t s = 0; s < 3; ++s)
          BOOST_TEST((read(data, s) == expected[static_cast<std::size_t>(s)]));
      });
      if (refused) BOOST_TEST((refused->code == exit_code::data));
      else ++accepted;
    }
  // Where the first document ends, 0 for 1, and where the second does, 3 for 2.
  BOOST_TEST(accepted == 2);
}

BOOST_AUTO_TEST_CASE(tokens_that_disagree_with_the_index_are_refused) {
  const changed t;
  write_text(t.dir / "p.bin", t.bin.substr(0, 17));
  CHECK_REFUSED(indexed_dataset(t.dir / "p", 10), exit_code::data,
                (t.dir / "p.idx") + " and " + (t.dir / "p.bin") + " disagree");
  write_text(t.dir / "p.bin", t.bin + '\0');
  CHECK_REFUSED(indexed_dataset(t.dir / "p", 10), exit_code::data, "the latter has 19");
  write_text(t.dir / "p.bin", "");
  CHECK_REFUSED(indexed_dataset(t.dir / "p", 10), exit_code::data, "the latter has 0");
  std::filesystem::remove(t.dir / "p.bin");
  CHECK_REFUSED(indexed_dataset(t.dir / "p", 10), exit_code::data, "p.bin does not exist");
  std::filesystem::remove(t.dir / "p.idx");
  CHECK_REFUSED(indexed_dataset(t.dir / "p", 10), exit_code::data, "p.idx does not exist");
}

BOOST_AUTO_TEST_CASE(ids_outside_the_vocabulary_are_refused_with_their_place) {
  const scratch_folder dir;
  write(dir / "p", token_type::u16, ragged);
  const indexed_dataset few(dir / "p", 6);
  BOOST_TEST((read(few, 0) == ids{1, 2, 3}));
  CHECK_REFUSED(read(few, 3), exit_code::data,
                (dir / "p.bin") +
                    ": the token id at byte 10, of document 3, sequence 3, is 6, but "
                    "the vocabulary has the ids 0 to 5");
  // Of wide types also what would become an id if it were cut to fewer bits.
  const changed t(token_type::i64);
  for (const std::int64_t id : {-1ll, 10ll, 1ll << 32, (1ll << 40) + 3, -(1ll << 62)}) {
    std::string bin = t.bin;
    put(bin, 32, id);
    write_text(t.dir / "p.bin", bin);
    const indexed_dataset data(t.dir / "p", 10);
    BOOST_TEST((read(data, 0) == ids{1, 2, 3}));
    CHECK_REFUSED(read(data, 1), exit_code::data,
                  "byte 32, of document 1, sequence 1, is " + std::to_string(id) + ",");
  }
  for (const token_type type : {token_type::i8, token_type::i16, token_type::i32}) {
    const changed s(type);
    std::string bin = s.bin;
    std::fill_n(bin.begin(), mc::size_of(type), '\xff');
    write_text(s.dir / "p.bin", bin);
    CHECK_REFUSED(read(indexed_dataset(s.dir / "p", 10), 0), exit_code::data, "at byte 0, of");
    CHECK_REFUSED(read(indexed_dataset(s.dir / "p", 10), 0), exit_code::data, "is -1,");
  }
}

BOOST_AUTO_TEST_CASE(files_that_change_are_noticed_before_they_are_read) {
  const changed t;
  const indexed_dataset data(t.dir / "p", 10);
  BOOST_REQUIRE(::truncate((t.dir / "p.bin").c_str(), 4) == 0);
  CHECK_REFUSED(read(data, 0), exit_code::data, "p.bin changed while it was being read");
  write_text(t.dir / "p.bin", t.bin);
  BOOST_TEST((read(data, 0) == ids{1, 2, 3}));
  BOOST_REQUIRE(::truncate((t.dir / "p.idx").c_str(), 101) == 0);
  CHECK_REFUSED(read(data, 0), exit_code::data, "p.idx changed while it was being read");
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(writing)

BOOST_AUTO_TEST_CASE(appended_datasets_are_as_if_written_at_once) {
  for (const token_type type : all_types) {
    const scratch_folder dir;
    write(dir / "a", type, tiny);
    write(dir / "b", type, ragged);
    write(dir / "none", type, {});
    std::vector<document> all = tiny;
    all.insert(all.end(), ragged.begin(), ragged.end());
    all.push_back({{7}});
    all.insert(all.end(), tiny.begin(), tiny.end());
    write(dir / "once", type, all);
    indexed_writer w(dir / "merged", type);
    w.append({dir / "a", any_id});
    w.append({dir / "none", any_id});
    w.append({dir / "b", any_id});
    add(w, {{7}});
    w.append({dir / "a", any_id});
    BOOST_TEST(w.progress().documents == std::ssize(all));
    w.commit();
    BOOST_TEST(read_text(dir / "merged.idx") == read_text(dir / "once.idx"));
    BOOST_TEST(read_text(dir / "merged.bin") == read_text(dir / "once.bin"));
  }
  const scratch_folder dir;
  write(dir / "a", token_type::u16, tiny);
  indexed_writer w(dir / "merged", token_type::i32);
  CHECK_REFUSED(w.append({dir / "a", any_id}), exit_code::data,
                "are of type u16, but those of what is to hold them are i32");
}

BOOST_AUTO_TEST_CASE(writing_goes_on_from_any_progress_that_was_kept) {
  const scratch_folder dir;
  std::vector<document> all = ragged;
  for (std::int32_t i = 0; i < 50; ++i) all.push_back({ids(static_cast<std::size_t>(i * 1000), i)});
  write(dir / "once", token_type::i32, all);
  for (const std::size_t stop : {0u, 1u, 3u, 7u, 20u, 57u}) {
    const auto middle = all.begin() + static_cast<std::ptrdiff_t>(stop);
    mc::indexed_progress reached;
    {
      indexed_writer first(dir / "p", token_type::i32);
      for (auto d = all.begin(); d != middle; ++d) add(first, *d);
      first.sync();
      reached = first.progress();
      for (int i = 0; i < 30; ++i) add(first, {ids(20'000, 9)}); // what is lost
      first.keep();
    }
    BOOST_TEST(!std::filesystem::exists(dir / "p.bin"));
    indexed_writer second(dir / "p", token_type::i32, reached);
    BOOST_TEST((second.progress() == reached));
    for (auto d = middle; d != all.end(); ++d) add(second, *d);
    second.commit();
    BOOST_TEST(read_text(dir / "p.idx") == read_text(dir / "once.idx"));
    BOOST_TEST(read_text(dir / "p.bin") == read_text(dir / "once.bin"));
    std::filesystem::remove(dir / "p.bin"), std::filesystem::remove(dir / "p.idx");
  }
  { indexed_writer(dir / "p", token_type::u8).keep(); }
  CHECK_REFUSED(indexed_writer(dir / "p", token_type::u8, {.tokens = 5}), exit_code::output,
                "p.bin.partial has 0 bytes, but 5 had been written");
  BOOST_TEST(!std::filesystem::exists(dir / "p.bin.partial"));
}

BOOST_AUTO_TEST_CASE(what_is_not_committed_leaves_nothing_and_changes_nothing) {
  const scratch_folder dir;
  write(dir / "p", token_type::u16, tiny);
  const std::string idx = read_text(dir / "p.idx");
  {
    indexed_writer w(dir / "p", token_type::u16);
    add(w, {ids(3'000'000, 1)});
    CHECK_REFUSED(indexed_writer(dir / "p", token_type::u16), exit_code::output,
                  "another process is writing");
  }
  BOOST_TEST((names_in(dir) == std::set<std::string>{"p.bin", "p.idx"}));
  BOOST_TEST(read_text(dir / "p.idx") == idx);
  { indexed_writer w(dir / "new/folder/p", token_type::u16); }
  BOOST_TEST(!std::filesystem::exists(dir / "new"));
  write(dir / "new/folder/p", token_type::u16, tiny);
  BOOST_TEST(read_text(dir / "new/folder/p.idx") == idx);
  write(dir / "p", token_type::i32, ragged); // another one in its place
  BOOST_TEST((read_all({dir / "p", 10}) == ragged));
  indexed_writer open(dir / "q", token_type::u16);
  open.add(ids{1});
  CHECK_REFUSED(open.commit(), exit_code::internal, "1 sequences of");
}

BOOST_AUTO_TEST_CASE(a_disk_without_room_is_named_and_keeps_what_was_there) {
  const scratch_folder dir;
  write(dir / "p", token_type::u16, tiny);
  const std::string idx = read_text(dir / "p.idx");
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  // Tokens, then lengths, then the index alone do not fit.
  const std::vector<std::vector<document>> large{
      {{ids(100'000, 1)}}, {document(30'000, ids())}, {document(10'000, ids())}};
  for (const auto& documents : large) {
    const rlimit small{100'000, before.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &small);
    const auto refused = test::refusal_of([&] { write(dir / "p", token_type::u16, documents); });
    ::setrlimit(RLIMIT_FSIZE, &before);
    BOOST_REQUIRE(refused);
    BOOST_TEST((refused->code == exit_code::output));
    BOOST_TEST(refused->says("cannot write " + (dir / "p.")));
    BOOST_TEST(refused->says("ulimit -f raises the limit"));
    BOOST_TEST((names_in(dir) == std::set<std::string>{"p.bin", "p.idx"}));
    BOOST_TEST(read_text(dir / "p.idx") == idx);
  }
  std::signal(SIGXFSZ, SIG_DFL);
  CHECK_REFUSED(indexed_writer("", token_type::u16), exit_code::output, "is no prefix of files");
  CHECK_REFUSED(indexed_writer(dir / "a/", token_type::u16), exit_code::output, "is no prefix");
  CHECK_REFUSED(indexed_writer(dir / "p.bin/q", token_type::u16), exit_code::output,
                "cannot open the folder");
}

BOOST_AUTO_TEST_CASE(ids_that_the_type_cannot_hold_are_refused) {
  const scratch_folder dir;
  for (const auto& [type, low, high] :
       {std::tuple(token_type::u8, 0, 255), std::tuple(token_type::i8, -128, 127),
        std::tuple(token_type::i16, -32768, 32767), std::tuple(token_type::u16, 0, 65535)}) {
    const std::int32_t least = low, most = high;
    indexed_writer w(dir / "p", type);
    w.add(ids{least, most});
    CHECK_REFUSED(w.add(ids{0, most + 1}), exit_code::data,
                  "the token id " + std::to_string(most + 1) + " of document 0");
    CHECK_REFUSED(w.add(ids{least - 1}), exit_code::data,
                  "is none that type " + mc::name_of(type) + " can hold");
  }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(cached_tables)

/// A table of a thousand numbers, and how often it was built.
struct numbers {
  int built = 0;
  mc::index_table get(const mc::index_cache& cache, const std::string& key) {
    return cache.get("test", key, 8000, "a test", [this](mc::index_table& t) {
      ++built;
      const auto out = t.values<std::int64_t>(0, 1000);
      std::iota(out.begin(), out.end(), std::int64_t{7});
    });
  }
  void check(const mc::index_cache& cache, const std::string& key, int expected) {
    const mc::index_table t = get(cache, key);
    const auto got = t.values<std::int64_t>(0, 1000);
    for (std::size_t i = 0; i < 1000; ++i) BOOST_REQUIRE(got[i] == 7 + static_cast<int>(i));
    BOOST_TEST(built == expected);
  }
};

BOOST_AUTO_TEST_CASE(a_table_is_built_once_and_again_only_when_it_is_another) {
  const scratch_folder dir;
  const mc::index_cache cache(dir / "new/cache"), none;
  numbers n;
  n.check(cache, "a", 1);
  n.check(cache, "a", 1);
  n.check(mc::index_cache(dir / "new/cache"), "a", 1);
  n.check(cache, "b", 2);
  n.check(none, "a", 3);
  n.check(none, "a", 4);
}

BOOST_AUTO_TEST_CASE(a_damaged_file_is_built_again) {
  const scratch_folder dir;
  const mc::index_cache cache(dir.path().string());
  numbers n;
  n.check(cache, "key", 1);
  const std::string path = dir / *names_in(dir).begin(), whole = read_text(path);
  int built = 1;
  const auto damaged = [&](const std::string& bytes) {
    write_text(path, bytes);
    n.check(cache, "key", ++built);
    BOOST_TEST((read_text(path) == whole));
  };
  for (std::size_t at = 0; at < whole.size(); at += at < 80 ? 1 : 997) {
    std::string other = whole;
    other[at] = static_cast<char>(other[at] ^ 4);
    damaged(other);
  }
  for (const std::size_t size : {0u, 1u, 39u, 64u, 1000u}) damaged(whole.substr(0, size));
  damaged(whole + '\0');
  std::filesystem::remove(path);
  std::filesystem::create_symlink("/dev/null", path);
  n.check(cache, "key", ++built);
  BOOST_TEST((read_text(path) == whole));
}

BOOST_AUTO_TEST_CASE(many_build_at_once_and_killed_ones_leave_nothing) {
  const scratch_folder dir;
  for (int round = 0; round < 5; ++round) {
    const std::string key = "key " + std::to_string(round);
    std::vector<std::thread> threads;
    for (int i = 0; i < 8; ++i)
      threads.emplace_back([&] {
        numbers n;
        const mc::index_table t = n.get(mc::index_cache(dir.path().string()), key);
        if (t.values<std::int64_t>(0, 1000)[999] != 1006) std::abort();
      });
    for (std::thread& t : threads) t.join();
  }
  BOOST_TEST(names_in(dir).size() == 5u);
  const std::string name = *names_in(dir).begin();
  write_text(dir / (name + ".megacpp-tmp-1-0"), "half of a file");
  write_text(dir / name, "damaged");
  numbers n;
  for (int round = 0; round < 5; ++round)
    n.get(mc::index_cache(dir.path().string()), "key " + std::to_string(round));
  BOOST_TEST(n.built == 1);
  BOOST_TEST(names_in(dir).size() == 5u);
}

BOOST_AUTO_TEST_CASE(a_folder_that_cannot_be_written_is_named) {
  const scratch_folder dir;
  write_text(dir / "file", "x");
  CHECK_REFUSED(mc::index_cache(dir / "file"), exit_code::output, "cannot");
  BOOST_REQUIRE(::mkdir((dir / "closed").c_str(), 0555) == 0);
  BOOST_REQUIRE(::chmod(dir.path().c_str(), 0755) == 0);
  const mc::index_cache cache(dir / "closed");
  numbers n;
  const test::unprivileged nobody;
  CHECK_REFUSED(n.get(cache, "a"), exit_code::output, "check its permissions");
}

BOOST_AUTO_TEST_SUITE_END()

} // namespace
