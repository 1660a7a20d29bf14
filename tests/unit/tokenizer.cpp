// Tokenizers: ids of published libraries, laws of merging and cutting, and what is refused.
#define BOOST_TEST_MODULE tokenizer
#include <boost/test/unit_test.hpp>

#include <megacpp/data/text_lines.hpp>
#include <megacpp/tokenizer/tokenizer_file.hpp>

#include <map>
#include <random>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <scratch.hpp>
#include <where.hpp>

namespace {

using mc::exit_code;
using test::refusal_of;
using test::scratch_folder;
using test::write_text;
using ids = std::vector<std::int32_t>;
using nlohmann::json;

const std::string& shared = test::shared_dir;

std::string utf8(unsigned c) {
  std::string s(4, '\0');
  s.resize(static_cast<std::size_t>(utf8proc_encode_char(
      static_cast<utf8proc_int32_t>(c), reinterpret_cast<utf8proc_uint8_t*>(s.data()))));
  return s;
}

/// The character that stands for a byte, by its definition.
std::string character_of(unsigned byte) {
  unsigned next = 0x100;
  for (unsigned b = 0; b < 256; ++b) {
    const bool prints = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
    if (b == byte) return utf8(prints ? b : next);
    if (!prints) ++next;
  }
  return "";
}

/// A byte in Base64.
std::string base64_of(unsigned byte) {
  constexpr std::string_view letters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  return {letters[byte >> 2], letters[(byte & 3) << 4], '=', '='};
}

/// A tokenizer.json with a token for each byte, id = byte, and these merges, ids from 256 on.
json small(const std::vector<std::pair<std::string, std::string>>& merges = {}) {
  json vocab = json::object(), list = json::array();
  for (unsigned b = 0; b < 256; ++b) vocab[character_of(b)] = b;
  for (const auto& [left, right] : merges) {
    if (!vocab.contains(left + right)) vocab[left + right] = vocab.size();
    list.push_back(left + " " + right);
  }
  return {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", json::array()},
      {"normalizer", nullptr},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
      {"post_processor", nullptr},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", list}}}};
}
json added(const char* content, int id) {
  return {{"id", id}, {"content", content}, {"special", true}, {"normalized", false}};
}
std::unique_ptr<const mc::tokenizer> made_of(const json& file) {
  const scratch_folder folder;
  write_text(folder / "tokenizer.json", file.dump());
  return mc::open_tokenizer(folder / "tokenizer.json");
}
/// Its words: what each id of a tokenizer without merges but for whole words would be.
std::vector<std::string> words(const json& pre_tokenizer, const std::string& text) {
  json file = small();
  file["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {pre_tokenizer,
        {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
  // Every substring of the text is a token, and words that are one are not merged.
  file["model"]["ignore_merges"] = true;
  json& vocab = file["model"]["vocab"];
  for (std::size_t i = 0; i < text.size(); ++i)
    for (std::size_t n = 2; n <= text.size() - i; ++n) {
      std::string spelled;
      for (const char c : text.substr(i, n)) spelled += character_of(static_cast<unsigned char>(c));
      if (!vocab.contains(spelled)) vocab[spelled] = vocab.size();
    }
  const auto t = made_of(file);
  std::vector<std::string> list;
  for (const std::int32_t id : t->encode(text)) list.emplace_back(t->bytes_of(id));
  return list;
}

BOOST_AUTO_TEST_SUITE(published)

json cases_of(const std::string& fixture) {
  return json::parse(test::read_text(shared + "/fixtures/" + fixture))["cases"];
}

BOOST_AUTO_TEST_CASE(ids_are_those_of_the_libraries) {
  if (shared.empty()) return test::left_out("there are no fixtures");
  for (const char* model : {"gpt2", "qwen3"}) {
    const auto t =
        mc::open_tokenizer(fmt::format("{}/data/tokenizers/{}-tokenizer.json", shared, model));
    mc::token_encoder one(*t);
    int cases = 0;
    for (const char* file : {"tokenizer_golden.json", "tokenizer_public.json"})
      for (const json& c : cases_of(file)) {
        const auto text = c["text"].get<std::string>();
        ids mine;
        one.encode(text, mine);
        BOOST_TEST(mine == c[model].get<ids>(), model << ": " << text);
        BOOST_TEST(t->encode(text) == mine);
        // Normal form C is all that Qwen3's changes of a text.
        BOOST_TEST(t->decode(mine) == (model[0] == 'g' ? text : mc::nfc(text)));
        ++cases;
      }
    BOOST_TEST(cases == 220);
  }
}

// A vocabulary in tiktoken's form: the merges follow from the ranks, which here are the ids.
BOOST_AUTO_TEST_CASE(tiktoken_files_of_the_same_vocabulary_give_the_same_ids) {
  if (shared.empty()) return test::left_out("there are no fixtures");
  const scratch_folder folder;
  for (const auto& [model, rules] : {std::pair{"gpt2", "gpt2"}, std::pair{"qwen3", "qwen2"}}) {
    const auto whole =
        mc::open_tokenizer(fmt::format("{}/data/tokenizers/{}-tokenizer.json", shared, model));
    constexpr std::string_view letters =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string file;
    const int own = *whole->id_of("<|endoftext|>");
    for (int id = 0; id < own; ++id) {
      std::string_view b = whole->bytes_of(id);
      for (; !b.empty(); b.remove_prefix(std::min<std::size_t>(3, b.size()))) {
        const auto at = [&](std::size_t i) {
          return i < b.size() ? unsigned{static_cast<unsigned char>(b[i])} : 0u;
        };
        const unsigned bits = at(0) << 16 | at(1) << 8 | at(2);
        for (int i = 0; i < 4; ++i)
          file +=
              static_cast<std::size_t>(i) <= b.size() ? letters[bits >> (18 - 6 * i) & 63] : '=';
      }
      file += fmt::format(" {}\n", id);
    }
    const std::string path = folder / fmt::format("{}.tiktoken", rules);
    write_text(path, file);
    std::vector<std::string> special;
    for (int id = own; id < whole->vocabulary(); ++id) special.emplace_back(whole->bytes_of(id));
    const mc::tokenizer with_all(
        mc::read_tiktoken(path, *mc::tiktoken_rules_of(rules), std::move(special)));
    for (const json& c : cases_of("tokenizer_public.json")) {
      auto text = c["text"].get<std::string>();
      if (model[0] == 'q') text = mc::nfc(text); // a .tiktoken has no normal form
      BOOST_TEST(with_all.encode(text) == c[model].get<ids>(), model << ": " << text);
    }
    BOOST_TEST(mc::open_tokenizer(path)->encode("a<|endoftext|>") ==
               (ids{whole->encode("a")[0], own}));
  }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(laws)

/// Of all adjacent pairs the one of lowest rank, leftmost, again and again: by plain loops.
ids merged_plainly(const mc::merge_table& table, ids word) {
  while (true) {
    std::size_t best = word.size();
    std::uint32_t number = 0;
    for (std::size_t i = 0; i + 1 < word.size(); ++i)
      if (const auto* m = table.find(word[i], word[i + 1]);
          m != nullptr && (best == word.size() || m->number < number))
        best = i, number = m->number;
    if (best == word.size()) return word;
    word[best] = table.find(word[best], word[best + 1])->into;
    word.erase(word.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

BOOST_AUTO_TEST_CASE(merges_are_those_of_plain_loops) {
  std::mt19937 random(7);
  mc::word_merger merger;
  for (int trial = 0; trial < 300; ++trial) {
    const int letters = 2 + static_cast<int>(random() % 3),
              merges = static_cast<int>(random() % 40);
    std::vector<int> lengths(static_cast<std::size_t>(letters), 1);
    mc::merge_table table;
    for (int rank = 0; rank < merges; ++rank) { // pairs of what there is, in any order of ranks
      const auto left = random() % lengths.size(), right = random() % lengths.size();
      const auto into = static_cast<std::int32_t>(lengths.size());
      if (!table.insert(static_cast<std::int32_t>(left), static_cast<std::int32_t>(right),
                        {static_cast<std::uint32_t>(random() % 1000), into}))
        continue;
      lengths.push_back(lengths[left] + lengths[right]);
    }
    // Lengths about those of one leaf, and of several.
    for (const std::size_t n : {std::size_t{2}, 3 + random() % 60, std::size_t{64}, std::size_t{65},
                                66 + random() % 600}) {
      ids word(n);
      for (auto& symbol : word)
        symbol = static_cast<std::int32_t>(random() % static_cast<unsigned>(letters));
      ids mine = word;
      merger.merge(
          table, [&](std::int32_t id) { return lengths[static_cast<std::size_t>(id)]; }, mine);
      BOOST_TEST((mine == merged_plainly(table, word)),
                 "trial " << trial << ", " << n << " symbols");
    }
  }
}

BOOST_AUTO_TEST_CASE(a_word_of_a_million_letters_is_merged) {
  const auto t = made_of(small({{"a", "a"}, {"aa", "aa"}, {"aaaa", "aaaa"}}));
  const std::size_t n = (std::size_t{1} << (MEGACPP_CHECKS_MEMORY ? 15 : 20)) + 5;
  const ids mine = t->encode(std::string(n, 'a'));
  BOOST_TEST(mine.size() == n / 8 + 2); // eights, a four and one
  BOOST_TEST(mine.front() == 258);
  BOOST_TEST(mine[n / 8] == 257);
  BOOST_TEST(mine.back() == 'a');
}

// Any text comes back, whatever its words are.
BOOST_AUTO_TEST_CASE(decoding_undoes_encoding) {
  const auto t = made_of(small({{"a", "b"}, {"Ã", "©"}, {"Ġ", "a"}}));
  std::mt19937 random(3);
  const auto below = [&random](unsigned n) { return static_cast<unsigned>(random() % n); };
  mc::token_encoder one(*t);
  for (int trial = 0; trial < 2000; ++trial) {
    std::string text;
    for (unsigned n = below(30); n > 0; --n) switch (below(6)) {
      case 0: text += utf8(below(0x80)); break;
      case 1: text += utf8(0x80 + below(0x700)); break;
      case 2: text += utf8(0x3000 + below(0x2000)); break;
      case 3: text += utf8(0x1f300 + below(0x300)); break;
      case 4: text += below(2) != 0 ? ' ' : '\n'; break;
      default: text += std::vector<const char*>{"a", "b", "'s", "é", "\r"}[below(5)];
      }
    ids mine;
    one.encode(text, mine);
    BOOST_TEST(t->decode(mine) == text);
  }
}

// What comes out of a stream of tokens is whole code points, and at the end all bytes.
BOOST_AUTO_TEST_CASE(partial_code_points_are_held_back) {
  const auto t = made_of(small());
  const std::string text = "aé€😀b";
  mc::token_decoder d(*t);
  std::string out;
  for (const char c : text) {
    const std::size_t before = out.size();
    d.add(static_cast<unsigned char>(c), out);
    BOOST_TEST(mc::first_not_utf8(out) == out.size());
    BOOST_TEST(text.starts_with(out));
    BOOST_TEST((out.size() == before || mc::code_point_at(out, before) == out.size() - before));
  }
  BOOST_TEST(out == text);
  d.add(0xf0, out), d.add(0x9f, out);
  BOOST_TEST(out == text);
  d.add('x', out); // they never become one
  BOOST_TEST(out == text + "\xf0\x9fx");
  d.add(0xe2, out), d.finish(out);
  BOOST_TEST(out == text + "\xf0\x9fx\xe2");
}

BOOST_AUTO_TEST_CASE(splits_are_those_of_their_names) {
  const auto split = [](const char* behavior, bool invert = false) {
    return json{{"type", "Split"},
                {"pattern", {{"Regex", "-"}}},
                {"behavior", behavior},
                {"invert", invert}};
  };
  using list = std::vector<std::string>;
  const std::string text = "-a--b-";
  BOOST_TEST(words(split("Isolated"), text) == (list{"-", "a", "-", "-", "b", "-"}));
  BOOST_TEST(words(split("Removed"), text) == (list{"a", "b"}));
  BOOST_TEST(words(split("Contiguous"), text) == (list{"-", "a", "--", "b", "-"}));
  BOOST_TEST(words(split("MergedWithPrevious"), text) == (list{"-", "a-", "-", "b-"}));
  BOOST_TEST(words(split("MergedWithNext"), text) == (list{"-a", "-", "-b", "-"}));
  BOOST_TEST(words(split("Removed", true), text) == (list{"-", "-", "-", "-"}));
  BOOST_TEST(words(split("Contiguous", true), text) == (list{"-", "a", "--", "b", "-"}));
  BOOST_TEST(words({{"type", "Digits"}, {"individual_digits", true}}, "a12b") ==
             (list{"a", "1", "2", "b"}));
  BOOST_TEST(words({{"type", "Digits"}}, "a12b") == (list{"a", "12", "b"}));
  // A text is no expression.
  BOOST_TEST(words({{"type", "Split"}, {"pattern", {{"String", "a.c"}}}, {"behavior", "Isolated"}},
                   "abca.cd") == (list{"abc", "a.c", "d"}));
  // A script is a character's own: U+3002 extends Han's, as it does others'. Words have letters within
  // signs, and alone, not in a class, the raised digits of Latin 1. Groups of (?i end.
  for (const auto& [expression, found] :
       {std::pair{R"(\p{Han}+)", list{"\u65e5"}},
        std::pair{R"([\p{^Han}a]+)", list{"a\u3002", "\u24b6\u00b2"}},
        std::pair{R"(\w+)", list{"a", "\u65e5\u24b6\u00b2"}},
        std::pair{R"([\w-]+)", list{"a", "\u65e5\u24b6"}}, std::pair{R"((?i:A|b)|ss)", list{"a"}}})
    BOOST_TEST(words({{"type", "Split"},
                      {"pattern", {{"Regex", expression}}},
                      {"behavior", "Removed"},
                      {"invert", true}},
                     "a\u3002\u65e5\u24b6\u00b2") == found,
               expression);
  // An empty match cuts, too.
  BOOST_TEST(words({{"type", "Split"}, {"pattern", {{"Regex", "x*"}}}, {"behavior", "Isolated"}},
                   "axxbc") == (list{"a", "xx", "b", "c"}));
  BOOST_TEST(words({{"type", "Split"}, {"pattern", {{"Regex", "(?=b)"}}}, {"behavior", "Removed"}},
                   "aabab") == (list{"aa", "ba", "b"}));
}

/// The code points that White_Space has (PropList.txt of Unicode 4.1 and later; U+180E left it in 6.3).
const std::vector<unsigned> white_space{9,      10,     11,     12,     13,     0x20,   0x85,
                                        0xa0,   0x1680, 0x2000, 0x2001, 0x2002, 0x2003, 0x2004,
                                        0x2005, 0x2006, 0x2007, 0x2008, 0x2009, 0x200a, 0x2028,
                                        0x2029, 0x202f, 0x205f, 0x3000};

/// The next code point to look at: where memory is checked, few of those without white space.
unsigned behind(unsigned c) { return MEGACPP_CHECKS_MEMORY && c > 0x3000 ? c + 97 : c + 1; }

BOOST_AUTO_TEST_CASE(white_space_is_unicodes) {
  for (const auto& [expression, in] :
       {std::pair{R"(\s)", true}, std::pair{R"([\s])", true}, std::pair{R"([^\s])", false},
        std::pair{R"(\S)", false}, std::pair{R"([\S])", false}, std::pair{R"([^\S])", true}}) {
    const mc::split_expression e(expression, "test");
    mc::split_search search(e);
    int wrong = 0;
    for (unsigned c = 0; c < 0x110000; c = behind(c)) {
      if (c >= 0xd800 && c < 0xe000) continue;
      const bool is = std::ranges::find(white_space, c) != white_space.end();
      wrong += search.next(utf8(c), 0).has_value() != (is == in);
    }
    BOOST_TEST(wrong == 0, expression);
  }
}

// Letters, marks and numbers are the same to both libraries, but for code points that only the newer
// of the two knows: those that docs/tokenizers.md speaks of.
BOOST_AUTO_TEST_CASE(both_libraries_know_the_same_categories) {
  const mc::split_expression letters(R"(\p{L})", "test"), numbers(R"(\p{N})", "test"),
      none(R"(\p{Cn})", "test");
  mc::split_search letter(letters), number(numbers), unassigned(none);
  int differ = 0, newer = 0;
  for (unsigned c = 0; c < 0x110000; c = behind(c)) {
    if (c >= 0xd800 && c < 0xe000) continue;
    const std::string text = utf8(c);
    const utf8proc_category_t is = utf8proc_category(static_cast<utf8proc_int32_t>(c));
    const bool l = is >= UTF8PROC_CATEGORY_LU && is <= UTF8PROC_CATEGORY_LO;
    const bool n = is >= UTF8PROC_CATEGORY_ND && is <= UTF8PROC_CATEGORY_NO;
    if (unassigned.next(text, 0).has_value() || is == UTF8PROC_CATEGORY_CN) {
      newer += unassigned.next(text, 0).has_value() != (is == UTF8PROC_CATEGORY_CN);
      continue;
    }
    differ += letter.next(text, 0).has_value() != l || number.next(text, 0).has_value() != n;
  }
  BOOST_TEST(differ == 0);
  char pcre2[64] = {};
  pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, pcre2);
  BOOST_TEST_MESSAGE("PCRE2 knows Unicode " << pcre2 << ", utf8proc " << utf8proc_unicode_version()
                                            << "; only one of them knows " << newer
                                            << " code points");
  if (!MEGACPP_CHECKS_MEMORY && std::string(pcre2) == "14.0.0" &&
      std::string(utf8proc_unicode_version()) == "15.0.0")
    BOOST_TEST(newer == 4489); // the characters that Unicode 15.0 added, by its announcement
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(files)

BOOST_AUTO_TEST_CASE(added_tokens_come_first) {
  json file = small({{"a", "b"}});
  file["added_tokens"] = json::array({added("<x>", 300), added("<x><y>", 301)});
  const auto t = made_of(file);
  BOOST_TEST(t->encode("ab<x>ab") == (ids{256, 300, 256}));
  BOOST_TEST(t->encode("<x><y><x>") == (ids{301, 300})); // the longest
  BOOST_TEST(t->encode("a<x>b") == (ids{'a', 300, 'b'}));
  BOOST_TEST(t->encode("<x") == (ids{'<', 'x'}));
  BOOST_TEST(t->vocabulary() == 302);
  BOOST_TEST(t->is_special(300));
  BOOST_TEST(!t->is_special(256));
  BOOST_TEST((t->id_of("<x>") == 300 && t->id_of("ab") == 256 && !t->id_of("abc")));
  BOOST_TEST(t->decode(ids{256, 300, 'a'}) == "ab<x>a");
  BOOST_TEST(t->decode(ids{256, 300, 'a'}, true) == "aba");
}

BOOST_AUTO_TEST_CASE(added_tokens_take_white_space_along) {
  json file = small();
  json left = added("<l>", 300), right = added("<r>", 301);
  left["lstrip"] = true, right["rstrip"] = true;
  file["added_tokens"] = json::array({left, right});
  const auto t = made_of(file);
  BOOST_TEST(t->encode("a \u00a0\u3000<l> b") == (ids{'a', 300, ' ', 'b'}));
  BOOST_TEST(t->encode("a <r> \t\u2003b") == (ids{'a', ' ', 301, 'b'}));
  BOOST_TEST(t->encode("<r>  <l>") == (ids{301, 300})); // what the first took is taken
}

// One that is normalized is looked for in the composed text, behind those that are not.
BOOST_AUTO_TEST_CASE(added_tokens_may_be_normalized) {
  json file = small();
  file["normalizer"] = {{"type", "NFC"}};
  json composed = added("e\u0301!", 300);
  composed["normalized"] = true;
  file["added_tokens"] = json::array({composed, added("e\u0301?", 301)});
  const auto t = made_of(file);
  BOOST_TEST(t->encode("\u00e9!") == (ids{300}));
  BOOST_TEST(t->encode("e\u0301!") == (ids{300}));
  BOOST_TEST(t->encode("e\u0301?") == (ids{301}));
  BOOST_TEST(t->encode("\u00e9?") == (ids{0xc3, 0xa9, '?'}));
  BOOST_TEST(t->encode("e\u0301") == (ids{0xc3, 0xa9}));
}

BOOST_AUTO_TEST_CASE(merges_are_texts_or_pairs) {
  json pairs = small({{"a", "b"}, {"ab", "c"}});
  json& list = pairs["model"]["merges"];
  list = json::array({json::array({"a", "b"}), json::array({"ab", "c"})});
  for (const json& file : {small({{"a", "b"}, {"ab", "c"}}), pairs})
    BOOST_TEST(made_of(file)->encode("abcab") == (ids{257, 256}));
}

BOOST_AUTO_TEST_CASE(words_that_are_tokens_may_pass_their_merges) {
  json file = small({{"b", "c"}, {"a", "b"}});
  file["model"]["vocab"]["abc"] = 258; // no merge makes it
  BOOST_TEST(made_of(file)->encode("abc abc") == (ids{'a', 256, ' ', 'a', 256}));
  file["model"]["ignore_merges"] = true;
  BOOST_TEST(made_of(file)->encode("abc abc") == (ids{258, ' ', 'a', 256}));
}

// A token with a character that stands for no byte is none of any text, though it has the bytes of one;
// it decodes to what it spells.
// SmolLM2's vocabulary lacks 21 bytes, of which texts may have eight. The library drops them.
BOOST_AUTO_TEST_CASE(a_text_with_a_byte_that_has_no_token_is_refused) {
  json file = small({{"a", "b"}});
  file["model"]["vocab"].erase(character_of(4));
  file["model"]["vocab"].erase(character_of(0xf1));
  const auto t = made_of(file);
  BOOST_TEST(t->encode("ab \u00f1") == (ids{256, ' ', 0xc3, 0xb1}));
  for (const char* text : {"ab\x04", "\U00040000"})
    CHECK_REFUSED(t->encode(text), exit_code::data,
                  text[0] == 'a' ? "no token for the byte 0x04" : "no token for the byte 0xf1");
}

BOOST_AUTO_TEST_CASE(tokens_of_other_characters_are_only_decoded) {
  for (const bool ignore_merges : {false, true}) {
    json file = small({{"Ġ", "a"}});
    file["model"]["ignore_merges"] = ignore_merges;
    json& vocab = file["model"]["vocab"];
    // Where both are, ids are those of the spelled, also where the others come first.
    vocab["Ġ"] = 300, vocab[" "] = 32, vocab[" a"] = 301, vocab[" b"] = 302, vocab["日"] = 303;
    const auto t = made_of(file);
    BOOST_TEST(t->encode(" ") == (ids{300}));
    BOOST_TEST(t->encode(" a b") == (ids{256, 300, 'b'}));
    BOOST_TEST(t->encode("日") == (ids{0xe6, 0x97, 0xa5}));
    BOOST_TEST(t->decode(ids{32, 301, 302, 303}) == "  a b日");
  }
}

BOOST_AUTO_TEST_CASE(a_template_stands_around_every_text) {
  json file = small();
  file["added_tokens"] = json::array({added("<s>", 256), added("</s>", 257)});
  file["post_processor"] = {
      {"type", "Sequence"},
      {"processors",
       {{{"type", "ByteLevel"}},
        {{"type", "TemplateProcessing"},
         {"single",
          {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}},
           {{"Sequence", {{"id", "A"}, {"type_id", 0}}}},
           {{"SpecialToken", {{"id", "</s>"}, {"type_id", 0}}}}}},
         {"pair", json::array()},
         {"special_tokens",
          {{"<s>", {{"id", "<s>"}, {"ids", {256}}, {"tokens", {"<s>"}}}},
           {"</s>", {{"id", "</s>"}, {"ids", {257}}, {"tokens", {"</s>"}}}}}}}}}};
  const auto t = made_of(file);
  BOOST_TEST(t->encode("a") == (ids{256, 'a', 257}));
  BOOST_TEST(t->encode("") == (ids{256, 257}));
  BOOST_TEST(t->encode("a", false) == (ids{'a'}));
  for (const int id : {-5, 258, 99999}) {
    file["post_processor"]["processors"][1]["special_tokens"]["</s>"]["ids"] = json::array({id});
    CHECK_REFUSED(made_of(file), exit_code::data,
                  fmt::format("puts the id {} around texts, which is no token", id));
  }
}

BOOST_AUTO_TEST_CASE(a_space_may_stand_before_every_text) {
  json file = small({{"Ġ", "a"}});
  file["pre_tokenizer"]["add_prefix_space"] = true;
  file["added_tokens"] = json::array({added("<x>", 300)});
  const auto t = made_of(file);
  BOOST_TEST(t->encode("a<x>a") == (ids{256, 300, 256}));
  BOOST_TEST(t->encode(" a") == (ids{256}));
}

BOOST_AUTO_TEST_CASE(gpt2_files_are_a_tokenizer) {
  const scratch_folder folder;
  json vocab = small({{"a", "b"}})["model"]["vocab"];
  vocab["<|endoftext|>"] = 257;
  write_text(folder / "vocab.json", vocab.dump());
  write_text(folder / "merges.txt", "#version: 0.2\na b\n");
  const auto t = mc::open_tokenizer(folder.path().string());
  BOOST_TEST(t->encode("ab<|endoftext|>") == (ids{256, 257}));
  write_text(folder / "merges.txt", "\ufeff#version: 0.2\na b\n"); // an editor's byte-order mark
  BOOST_TEST(mc::open_tokenizer(folder.path().string())->encode("ab") == (ids{256}));
  write_text(folder / "merges.txt", "\xff\xfe#\1");
  CHECK_REFUSED(mc::open_tokenizer(folder.path().string()), exit_code::data, "is in UTF-16; save");
  write_text(folder / "merges.txt", "#version: 0.2\na b\nab\n");
  BOOST_TEST(
      refusal_of([&] { mc::open_tokenizer(folder.path().string()); })->says("line 3 is \"ab\""));
}

BOOST_AUTO_TEST_SUITE_END()

// What a folder says beside tokenizer.json, or beside vocab.json and merges.txt. The ids are those of
// AutoTokenizer (transformers 5.23 and 4.51.3).
BOOST_AUTO_TEST_SUITE(folders)

struct named_file {
  const char* name;
  json content;
};
/// A tokenizer of small() with "hi" = 256, " hi" = 257 and "<|endoftext|>" = 258.
json with_end() {
  json file = small({{"h", "i"}, {"Ġ", "hi"}});
  file["added_tokens"] = json::array({added("<|endoftext|>", 258)});
  return file;
}
std::unique_ptr<const mc::tokenizer> folder_of(const std::vector<named_file>& files) {
  const scratch_folder folder;
  for (const auto& [name, content] : files)
    write_text(folder / name, content.is_string() ? content.get<std::string>() : content.dump());
  return mc::open_tokenizer(folder.path().string());
}
std::unique_ptr<const mc::tokenizer> whole(const std::vector<named_file>& others,
                                           const json& file = with_end()) {
  std::vector<named_file> all = others;
  all.push_back({"tokenizer.json", file});
  return folder_of(all);
}
/// Without a tokenizer.json.
std::unique_ptr<const mc::tokenizer> slow(const std::vector<named_file>& others) {
  std::vector<named_file> all = others;
  all.push_back({"vocab.json", with_end()["model"]["vocab"]});
  all.push_back({"merges.txt", "#version: 0.2\nh i\nĠ hi\n"});
  return folder_of(all);
}
json token(const char* content, const json& how = json::object()) {
  json t{{"content", content}, {"lstrip", false},     {"rstrip", false},
         {"special", true},    {"normalized", false}, {"single_word", false}};
  t.update(how);
  return t;
}
named_file config(json fields, const char* type = "PreTrainedTokenizerFast") {
  fields["tokenizer_class"] = type;
  return {"tokenizer_config.json", std::move(fields)};
}

BOOST_AUTO_TEST_CASE(tokens_may_be_named_beside_a_tokenizer_json) {
  const json end = token("<|endoftext|>"), tool = token("<tool>");
  const json both{{"258", end}, {"259", tool}};
  BOOST_TEST(whole({config({{"added_tokens_decoder", both}})})->encode("hi<tool>") ==
             (ids{256, 259}));
  BOOST_TEST(whole({config({{"pad_token", "<pad>"}, {"eos_token", "<|endoftext|>"}})})
                 ->encode("hi<pad><|endoftext|>") == (ids{256, 259, 258}));
  // One that the vocabulary has keeps its id, and is found before words are cut.
  BOOST_TEST(whole({config({{"pad_token", "hi"}})})->encode("hi ahi hi") ==
             (ids{256, ' ', 'a', 256, ' ', 256}));
  // How it is looked for follows the list.
  const json left{{"258", token("<|endoftext|>", {{"lstrip", true}})}};
  BOOST_TEST(whole({config({{"added_tokens_decoder", left}})})->encode("hi <|endoftext|> hi") ==
             (ids{256, 258, 257}));
  const named_file map{"special_tokens_map.json",
                       {{"pad_token", token("<pad>")},
                        {"additional_special_tokens", {"<a>", token("<b>", {{"rstrip", true}})}}}};
  BOOST_TEST(whole({config({}), map})->encode("hi<pad><a><b> hi") ==
             (ids{256, 259, 260, 261, 256}));
  // Beside added_tokens_decoder neither of the other two files is looked at.
  const named_file more{"added_tokens.json", {{"<x>", 259}, {"<y>", 260}}};
  BOOST_TEST(whole({config({}), more})->encode("<x><y>") == (ids{259, 260}));
  BOOST_TEST(
      whole({config({{"added_tokens_decoder", {{"258", end}}}}), more, map})->encode("<x>") ==
      (ids{'<', 'x', '>'}));
  BOOST_TEST(
      whole({config({{"extra_special_tokens", {{"image_token", "<img>"}}}})})->encode("hi<img>") ==
      (ids{256, 259}));
}

BOOST_AUTO_TEST_CASE(truncation_and_padding_of_one_call_are_passed_over) {
  json file = with_end();
  file["truncation"] = {{"max_length", 2}, {"stride", 0}};
  file["padding"] = {{"strategy", "BatchLongest"}, {"pad_id", 0}, {"pad_token", "hi"}};
  BOOST_TEST(whole({config(json::object())}, file)->encode("hi ahi hi") ==
             (ids{256, ' ', 'a', 256, ' ', 256}));
  BOOST_TEST(whole({config({{"pad_token", nullptr}})}, file)->encode("hi ahi hi") ==
             (ids{256, ' ', 'a', 256, 257}));
}

BOOST_AUTO_TEST_CASE(vocabularies_are_cut_by_the_rules_of_their_class) {
  const std::string text = "hi 12e\u0301hi<|endoftext|>";
  const ids gpt2{256, ' ', '1', '2', 'e', 0xcc, 0x81, 256, 258},
      qwen{256, ' ', '1', '2', 0xc3, 0xa9, 256, 258};
  for (const char* type : {"GPT2Tokenizer", "GPT2TokenizerFast"})
    BOOST_TEST(slow({config({}, type)})->encode(text) == gpt2, type);
  for (const char* type : {"Qwen2Tokenizer", "Qwen2TokenizerFast"})
    BOOST_TEST(slow({config({}, type)})->encode(text) == qwen, type);
  // Without tokenizer_config.json the model says the class.
  for (const auto& [model, right] :
       {std::pair{"gpt2", gpt2}, std::pair{"qwen2", qwen}, std::pair{"qwen3_moe", qwen}})
    BOOST_TEST(slow({{"config.json", {{"model_type", model}}}})->encode(text) == right, model);
  // " 1" is one word of GPT-2, and two of Qwen2.
  for (const auto& [type, right] : {std::pair{"GPT2Tokenizer", ids{257, 256}},
                                    std::pair{"Qwen2Tokenizer", ids{' ', '1', '1', '2'}}}) {
    json vocab = small()["model"]["vocab"];
    vocab["12"] = 256, vocab["Ġ1"] = 257;
    const auto t =
        folder_of({config({}, type), {"vocab.json", vocab}, {"merges.txt", "Ġ 1\n1 2\n"}});
    BOOST_TEST(t->encode(" 112") == right, type);
  }
  const named_file more{"added_tokens.json", {{"<y>", 259}, {"<x>", 258}}};
  BOOST_TEST(slow({config({{"pad_token", "<pad>"}}, "GPT2Tokenizer"), more})
                 ->encode("hi<x><y><pad><|endoftext|>") == (ids{256, 258, 259, 261, 260}));
  BOOST_TEST(slow({config({{"add_prefix_space", true}}, "GPT2Tokenizer")})->encode("hi hi") ==
             (ids{257, 257}));
  BOOST_TEST(slow({config({{"add_bos_token", true}}, "GPT2Tokenizer")})->encode("hi hi") ==
             (ids{258, 256, 257}));
  const json none{{"unk_token", nullptr}, {"bos_token", nullptr}, {"eos_token", nullptr}};
  BOOST_TEST(slow({config(none, "GPT2Tokenizer")})->encode("<|endoftext|>").size() == 13u);
  BOOST_TEST(slow({config(none, "Qwen2Tokenizer")})->encode("<|endoftext|>") == (ids{258}));
}

BOOST_AUTO_TEST_CASE(what_a_folder_contradicts_is_named) {
  const auto says = [](auto make, const char* words) {
    CHECK_REFUSED(make(), exit_code::data, words);
  };
  says(
      [] {
        return whole({config({{"added_tokens_decoder", {{"300", token("<tool>")}}}})});
      },
      "\"added_tokens_decoder.300\" is the token \"<tool>\" with the id 300, but with");
  says(
      [] {
        return whole({config({{"added_tokens_decoder", {{"3x", token("<tool>")}}}})});
      },
      "has \"3x\" in the place of an id");
  says(
      [] {
        return whole({config({}), {"added_tokens.json", {{"<|endoftext|>", 0}}}});
      },
      "token \"<|endoftext|>\" is the token \"<|endoftext|>\" with the id 0");
  says([] { return whole({config({{"add_prefix_space", true}})}); }, "add_prefix_space");
  says(
      [] {
        return whole({config({{"add_bos_token", true}}, "LlamaTokenizerFast")});
      },
      "add_bos_token");
  // Versions of transformers begin texts otherwise, by this file or by the class: 4.51 lets a missing
  // add_bos_token be true.
  const json ends{{"bos_token", "<|endoftext|>"}, {"eos_token", nullptr}, {"unk_token", nullptr}};
  says([&] { return whole({config(ends, "LlamaTokenizerFast")}); }, "\"add_bos_token\"");
  json file = with_end();
  const json text{{"Sequence", {{"id", "A"}}}}, end{{"SpecialToken", {{"id", "e"}}}};
  file["post_processor"] = {{"type", "TemplateProcessing"},
                            {"single", {end, text}},
                            {"special_tokens", {{"e", {{"ids", {258}}}}}}};
  BOOST_TEST(whole({config(ends, "LlamaTokenizerFast")}, file)->encode("hi") == (ids{258, 256}));
  json others = file;
  others["post_processor"]["special_tokens"]["e"]["ids"] = {7};
  says([&] { return whole({config(ends, "LlamaTokenizer")}, others); }, "\"add_bos_token\"");
  others["post_processor"] = {{"type", "TemplateProcessing"},
                              {"single", {end, text, end}},
                              {"special_tokens", {{"e", {{"ids", {258}}}}}}};
  says([&] { return whole({config(ends, "LlamaTokenizer")}, others); }, "\"add_eos_token\"");
  says(
      [&] {
        return whole({config({{"bos_token", "<|endoftext|>"}}, "LlamaTokenizer")}, file);
      },
      "no field \"unk_token\" is, names the token \"<unk>\", which is no added token");
  // 4.51 takes a missing add_prefix_space for false.
  json spaced = with_end();
  spaced["pre_tokenizer"]["add_prefix_space"] = true;
  says([&] { return whole({config(json::object())}, spaced); }, "add_prefix_space");
  for (const char* type : {"RobertaTokenizerFast", "GPTNeoXTokenizer", "CodeGenTokenizer", "Mine"})
    says([&] { return whole({config({}, type)}); }, "\"tokenizer_class\" is");
  says([] { return whole({config({{"split_special_tokens", true}})}); }, "split_special_tokens");
  says(
      [] {
        return whole({config({{"image_token", "<img>"}})});
      },
      "\"image_token\" names the token \"<img>\", which is no added token");
  says(
      [] {
        return whole({config({{"model_specific_special_tokens", {{"image_token", "<img>"}}}})});
      },
      "\"model_specific_special_tokens.image_token\" names the token \"<img>\", which is no");
  says(
      [] {
        return whole({config({{"pad_token", token("<p>", {{"single_word", true}})}})});
      },
      "\"single_word\" is not supported");
  says(
      [] {
        const json way = token("<p>", {{"rstrip", true}});
        return whole({config({{"pad_token", way}, {"additional_special_tokens", {"<p>"}}})});
      },
      "name the token \"<p>\" with another \"lstrip\" or \"rstrip\"");
  says([] { return slow({config({}, "RobertaTokenizer")}); }, "names the class Roberta");
  says([] { return slow({config({{"add_eos_token", true}}, "GPT2Tokenizer")}); }, "add_eos_token");
  says([] { return slow({config({{"add_bos_token", true}}, "Qwen2Tokenizer")}); }, "add_bos_token");
  says(
      [] {
        const json strips{{"258", token("<|endoftext|>", {{"rstrip", true}})}};
        return slow({config({{"added_tokens_decoder", strips}}, "Qwen2Tokenizer")});
      },
      "true \"lstrip\", \"rstrip\" or");
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(refusals)

void refused(const json& file, const char* says) {
  const auto r = refusal_of([&] { made_of(file); });
  BOOST_REQUIRE_MESSAGE(r, says);
  BOOST_TEST((r->code == exit_code::data), r->text);
  BOOST_TEST(r->says(says), says << " is not in: " << r->text);
  BOOST_TEST(r->says("tokenizer.json"), r->text);
}
/// small() with the value at a place of it.
json with(const char* place, const json& value) {
  json file = small({{"a", "b"}});
  file[json::json_pointer(place)] = value;
  return file;
}

BOOST_AUTO_TEST_CASE(what_would_change_ids_is_named) {
  refused(with("/normalizer", {{"type", "NFKC"}}), "\"normalizer\" of type NFKC is not supported");
  refused(with("/normalizer", {{"type", "Sequence"},
                               {"normalizers", {{{"type", "NFC"}}, {{"type", "Lowercase"}}}}}),
          "\"normalizer.normalizers[1]\" of type Lowercase");
  refused(with("/pre_tokenizer", {{"type", "Metaspace"}}), "of type Metaspace");
  refused(with("/pre_tokenizer", nullptr), "without a ByteLevel step");
  refused(with("/pre_tokenizer", {{"type", "Digits"}}), "without a ByteLevel step");
  refused(
      with("/pre_tokenizer", {{"type", "Sequence"},
                              {"pretokenizers", {{{"type", "ByteLevel"}}, {{"type", "Digits"}}}}}),
      "behind ByteLevel");
  refused(
      with("/pre_tokenizer", {{"type", "Sequence"},
                              {"pretokenizers", {{{"type", "Digits"}}, {{"type", "ByteLevel"}}}}}),
      "add_prefix_space");
  refused(with("/post_processor", {{"type", "RobertaProcessing"}}), "of type RobertaProcessing");
  const json once{{"type", "TemplateProcessing"},
                  {"single", {{{"Sequence", {{"id", "A"}}}}}},
                  {"special_tokens", json::object()}};
  refused(with("/post_processor", {{"type", "Sequence"}, {"processors", {once, once}}}),
          "a second template is not supported");
  json second = once;
  second["single"][0]["Sequence"]["id"] = "B";
  refused(with("/post_processor", second), "a template of a second text is not supported");
  refused(with("/decoder", {{"type", "WordPiece"}}), "of type WordPiece");
  refused(with("/model/type", "Unigram"), "of type Unigram");
  refused(with("/model/dropout", 0.1), "field \"model.dropout\"");
  refused(with("/model/continuing_subword_prefix", "##"), "continuing_subword_prefix");
  refused(with("/model/end_of_word_suffix", "</w>"), "end_of_word_suffix");
  refused(with("/model/oov", 1), "field \"model.oov\"");
  refused(with("/more", 1), "field \"more\"");
  json word = added("<x>", 300);
  word["single_word"] = true;
  refused(with("/added_tokens", json::array({word})), "single_word of the added token \"<x>\"");
}

BOOST_AUTO_TEST_CASE(damaged_vocabularies_are_named) {
  refused(with("/model/vocab/q2", 5), "the id 5 has two tokens");
  refused(with("/model/vocab/q2", -1), "the id of the token \"q2\" is -1");
  refused(with("/model/vocab/q2", 1 << 24), "must be from 0 to 16777215");
  refused(with("/model/vocab/q2", "1"), "the id of the token \"q2\"");
  refused(with("/model/vocab", json::array()), "not an object");
  refused(with("/model/vocab/", 300),
          "the token of id 300 is empty, so merges with it would never end");
  refused(with("/model/merges", json::array({"a "})),
          "merge 0 has an empty part, so it would never end");
  refused(with("/model/merges", json::array({"a b", "a b"})),
          "merge 1, of \"a\" and \"b\", is there twice");
  refused(with("/model/merges", json::array({"a c"})), "needs \"ac\", which is no token");
  refused(with("/model/merges", json::array({"a b c"})), "merge 0 is \"a b c\"");
  refused(with("/model/merges", json::array({json::array({"a", "b", "c"})})),
          "but must be two tokens");
  refused(with("/model/merges", json::array({5})), "but must be two tokens");
  refused(with("/model/merges", "a b"), "is not a list");
  refused(with("/added_tokens", json::array({added("<x>", 5)})),
          "the id 5 is that of another token");
  refused(with("/added_tokens", json::array({added("ab", 300)})),
          "two ids are given to the added token \"ab\"");
  refused(with("/added_tokens", json::array({added("<x>", 300), added("<x>", 301)})),
          "two ids are given");
  refused(with("/added_tokens", json::array({added("<x>", 300), added("<y>", 300)})),
          "the id 300 is that of another");
  refused(with("/added_tokens", json::array({added("", 300)})), "is empty");
  refused(with("/added_tokens/0", json{{"content", "<x>"}}), "has no field \"added_tokens[0].id\"");
}

BOOST_AUTO_TEST_CASE(expressions_that_mean_something_else_are_named) {
  const auto by = [](const char* expression) {
    return with(
        "/pre_tokenizer",
        {{"type", "Sequence"},
         {"pretokenizers",
          {{{"type", "Split"}, {"pattern", {{"Regex", expression}}}, {"behavior", "Isolated"}},
           {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}});
  };
  for (const auto& [expression, says] :
       {std::pair{R"(a\b)", "has \\b"}, std::pair{"[a[b]]", "a class within a class"},
        std::pair{"[a&&b]", "&&"}, std::pair{"^a", "has ^"}, std::pair{"a$", "has $"},
        std::pair{"(?m:a)", "has (?m"}, std::pair{"a{,3}", "has {,"},
        std::pair{"a{1,3}+", "a + behind {...}"}, std::pair{"a{3}?", "a ? behind {...}"},
        std::pair{"a(?i)b|c", "(?i) behind its begin"},
        std::pair{"(?i:as(b|sS))", "letters in (?i"}, std::pair{"(?i:\u00e9)", "letters in (?i"},
        std::pair{R"(\pL)", "\\p without braces"}, std::pair{R"(\p{L)", "\\p{ without its end"},
        std::pair{R"([\W])", "\\W within a class"}, std::pair{"(*UCP)a", "has (*"},
        std::pair{"(a", "is no expression"}, std::pair{"a**b", "is no expression"}})
    refused(by(expression), says);
  // One that backtracks without end is given up.
  const auto t = made_of(by("(?:a|aa)+b"));
  const auto r = refusal_of([&] { t->encode(std::string(100, 'a') + "cb"); });
  BOOST_REQUIRE(r);
  BOOST_TEST((r->code == exit_code::data));
  BOOST_TEST(r->says("limit"), r->text);
}

BOOST_AUTO_TEST_CASE(cut_files_are_refused) {
  const scratch_folder folder;
  const std::string whole = small({{"a", "b"}}).dump(), path = folder / "tokenizer.json";
  for (std::size_t n = 0; n < whole.size(); n += 1 + whole.size() / 97) {
    write_text(path, whole.substr(0, n));
    const auto r = refusal_of([&] { mc::open_tokenizer(path); });
    BOOST_REQUIRE(r);
    BOOST_TEST((r->code == exit_code::data));
  }
  BOOST_TEST(refusal_of([&] { mc::open_tokenizer(folder / "none"); })->says("does not exist"));
  const scratch_folder empty;
  BOOST_TEST(refusal_of([&] {
               mc::open_tokenizer(empty.path().string());
             })->says("has no tokenizer.json"));
}

// "1234" is one word of GPT-2, "123" and "4" of what cuts digits in threes (tiktoken's cl100k_base
// and o200k_base, Llama 3), and four of Qwen2. Ids of special tokens are those of published files.
BOOST_AUTO_TEST_CASE(rules_of_a_tiktoken_file_have_names) {
  const scratch_folder folder;
  std::string file;
  for (unsigned b = 0; b < 256; ++b) file += fmt::format("{} {}\n", base64_of(b), b);
  file += "MTI= 256\nMzQ= 257\nMTIzNA== 258\nMTIz 259\n";
  write_text(folder / "mine.tiktoken", file);
  const auto by = [&](const char* name) {
    return std::make_unique<mc::tokenizer>(
        mc::read_tiktoken(folder / "mine.tiktoken", mc::tiktoken_rules_by("--flag", name)));
  };
  const ids one{258}, threes{259, '4'}, digits{'1', '2', '3', '4'};
  for (const char* name : {"gpt2", "r50k", "r50k_base", "p50k", "p50k_base", "p50k_edit"})
    BOOST_TEST(by(name)->encode("1234") == one, name);
  for (const char* name :
       {"cl100k", "cl100k_base", "o200k", "o200k_base", "llama3", "llama3_1", "regex:.{3}|."})
    BOOST_TEST(by(name)->encode("1234") == threes, name);
  for (const char* name : {"qwen", "qwen2"}) BOOST_TEST(by(name)->encode("1234") == digits, name);
  for (const auto& [name, token, id] : {std::tuple{"llama3", "<|begin_of_text|>", 128000},
                                        {"llama3", "<|eot_id|>", 128009},
                                        {"llama3", "<|reserved_special_token_4|>", 128008},
                                        {"llama3", "<|reserved_special_token_250|>", 128255},
                                        {"llama3_1", "<|finetune_right_pad_id|>", 128004},
                                        {"llama3_1", "<|eom_id|>", 128008},
                                        {"llama3_1", "<|reserved_special_token_2|>", 128005},
                                        {"llama3_1", "<|python_tag|>", 128010},
                                        {"llama3_1", "<|reserved_special_token_247|>", 128255},
                                        {"p50k_edit", "<|fim_suffix|>", 50283},
                                        {"cl100k", "<|endofprompt|>", 100276}})
    BOOST_TEST(*by(name)->id_of(token) == id, name << ' ' << token);
  for (const char* name : {"gpt4", "llama", "cl100k-base", "gpt2_base", "_base", "", R"(\p{L}+)"})
    CHECK_REFUSED(by(name), exit_code::usage,
                  fmt::format("--flag \"{}\" is none of gpt2, r50k_base, p50k_base, p50k_edit, "
                              "cl100k_base, o200k_base, llama3, llama3_1, qwen, qwen2; give",
                              name));
}

BOOST_AUTO_TEST_CASE(damaged_tiktoken_files_are_refused) {
  const scratch_folder folder;
  const auto says = [&](const char* text, const char* name = "gpt2.tiktoken") {
    write_text(folder / name, text);
    const auto r = refusal_of([&] { mc::open_tokenizer(folder / name); });
    return r ? r->text : "";
  };
  BOOST_TEST(says("YQ== 0\nYQ= 1\n").find("line 2 is \"YQ= 1\", but must be Base64") !=
             std::string::npos);
  BOOST_TEST(says("YQ== x\n").find("must be Base64 and a rank") != std::string::npos);
  BOOST_TEST(says("YQ== 0\nYg== 0\n").find("line 2") != std::string::npos);
  BOOST_TEST(says("YQ== 0\nYQ== 1\n").find("its token is that of another line") !=
             std::string::npos);
  BOOST_TEST(says("YQ== 0\n", "own.tiktoken").find("tiktoken_rules::expression") !=
             std::string::npos);
}

BOOST_AUTO_TEST_CASE(ids_that_are_none_are_refused) {
  const auto t = made_of(small());
  for (const std::int32_t id : {-1, 256, 1 << 30})
    BOOST_TEST(refusal_of([&] { t->decode(ids{id}); })->says(fmt::format("{} is no token", id)));
  BOOST_TEST(refusal_of([&] { t->encode("a\xff"); })->says("0xff at offset 1"));
}

BOOST_AUTO_TEST_CASE(lines_without_a_text_are_refused) {
  const std::vector<std::string> text{"text"}, both{"title", "text"};
  std::int64_t replaced = 0;
  const auto read = [&](const char* line, const std::vector<std::string>& names,
                        mc::invalid_utf8 policy = mc::invalid_utf8::refuse) {
    return mc::texts_of_line(line, {names, policy}, "f: line 3", replaced);
  };
  BOOST_TEST(read(R"("a\u00e9")", text) == (std::vector<std::string>{"a\u00e9"}));
  BOOST_TEST(read(R"({"a": {"text": 1}, "text": "x", "b": ["text"]})", text)[0] == "x");
  BOOST_TEST(read(R"({"text": "x", "title": "y"})", both) == (std::vector<std::string>{"y", "x"}));
  for (const auto& [line, says] :
       {std::pair{"5", "is no text"},
        std::pair{"[\"a\"]", "is no text"},
        std::pair{"null", "is no text"},
        std::pair{"{\"a\": \"b\"}", "has no text \"text\""},
        std::pair{"{\"text\": 5}", "not a text"},
        std::pair{"{\"text\": [\"b\"]}", "not a text"},
        std::pair{"{\"text\": {}}", "not a text"},
        std::pair{"{\"text\": \"a\", \"text\": \"b\"}", "twice"},
        std::pair{"{\"text\": \"a\"", "not valid JSON"},
        std::pair{"\"a\" \"b\"", "not valid JSON"},
        std::pair{"{\"text\": NaN}", "not a text"},
        std::pair{"NaN", "is no text"},
        std::pair{"{\"text\": \"a\", \"n\": nan}", "not valid JSON at byte 21"},
        std::pair{"{\"text\": \"a\", \"n\": NaN,}", "not valid JSON at byte 24"},
        std::pair{R"({"text": "a", "n": -NaN})", "not valid JSON"},
        std::pair{R"({"text": "a", "n": 1NaN})", "not valid JSON"},
        std::pair{R"({"text": "a", "n": 01e999})", "not valid JSON"},
        std::pair{R"({"text": "a", "n": .5e999})", "not valid JSON"},
        std::pair{R"({"text": "a", "n": 1.e999})", "not valid JSON"},
        std::pair{R"({"text": "a", "n": 1e999.5})", "not valid JSON"},
        std::pair{R"({"text": "a", "n": 1e})", "not valid JSON"},
        std::pair{R"("\ud800")", "half a surrogate pair at byte 2 (\\ud800)"},
        std::pair{R"("\\\udc00\ud800\udc00")", "half a surrogate pair at byte 4 (\\udc00)"},
        std::pair{R"("\ud800\ud8")", "not valid JSON"}}) {
    const auto r = refusal_of([&read, &text, bad = line] { read(bad, text); });
    BOOST_REQUIRE_MESSAGE(r, line);
    BOOST_TEST(r->says("f: line 3"), r->text);
    BOOST_TEST(r->says(says), r->text);
  }
  BOOST_TEST(refusal_of([&] { read("\"a\"", both); })->says("is no object"));
  // As Python's json module writes them.
  for (const char* number :
       {"NaN", "Infinity", "-Infinity", "1e400", "-1.5E+999", "[1, {\"a\": NaN}]"})
    BOOST_TEST(read(fmt::format(R"({{"n": {}, "text": "NaN"}})", number).c_str(), text)[0] ==
               "NaN");
  BOOST_TEST(replaced == 0);
  BOOST_TEST(read(R"("\ud83d\ude00\\ud800\udc00\ud800\ud800\udc00")", text,
                  mc::invalid_utf8::replace)[0] == "\U0001f600\\ud800\ufffd\ufffd\U00010000");
  BOOST_TEST(replaced == 2);
}

BOOST_AUTO_TEST_SUITE_END()

} // namespace
