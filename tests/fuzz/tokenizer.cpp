// libFuzzer: any file is either refused with mc::error or a tokenizer by which every text is either
// refused or comes back from its ids, in normal form C where the tokenizer has one; its ids are below
// the vocabulary, and those of added tokens that take no white space along are where they are spelled.
// Some inputs are a file as it stands: a tokenizer.json, a .tiktoken, a vocab.json with merges.txt.
// The others draw a tokenizer.json that is valid and replace some of its parts, so that what lies
// behind the first check is reached.
//
// clang++ -std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -Iinclude
//   tests/fuzz/tokenizer.cpp -lfmt -lpcre2-8 -lutf8proc -lxxhash
#include <megacpp/tokenizer/tokenizer_file.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <sys/mman.h>

namespace {

using nlohmann::json;

void require(bool law) {
  if (!law) std::abort();
}

template <class F> void value_or_sentence(F&& f) {
  try {
    f();
  } catch (const mc::error& e) {
    require(e.code() == mc::exit_code::data && std::string_view(e.what()).size() > 10);
  }
}

/// A file in memory, by a path.
class file {
public:
  explicit file(std::string_view bytes) : memory_(::memfd_create("fuzz", MFD_CLOEXEC)) {
    require(memory_ && ::write(memory_.get(), bytes.data(), bytes.size()) == std::ssize(bytes));
  }
  std::string path() const { return fmt::format("/proc/self/fd/{}", memory_.get()); }

private:
  mc::descriptor memory_;
};

/// Bytes that choose; zeros behind their end.
struct choices {
  std::string_view rest;
  unsigned next(unsigned below) {
    if (rest.empty()) return 0;
    const auto value = static_cast<unsigned char>(rest[0]);
    rest.remove_prefix(1);
    return value % below;
  }
  std::string text(std::size_t most) {
    const std::string_view taken = rest.substr(0, std::min<std::size_t>(most, rest.size()));
    rest.remove_prefix(taken.size());
    return std::string(taken);
  }
};

/// The texts that a tokenizer is tried on: those bytes, and what the rules below look for.
std::vector<std::string> texts_of(std::string_view bytes) {
  const std::string text = mc::as_utf8(bytes.substr(0, 400));
  return {text, "", "ab abab  <x>\n<y> 'S12 \u00e9e\u0301\u3000\u0663 <x" + text + "<x>\u2028ab"};
}

bool takes_white_space(const mc::tokenizer_data& p) {
  return std::ranges::any_of(p.added, [](const auto& a) { return a.lstrip || a.rstrip; });
}
bool leaves_out(const mc::tokenizer_data& p) {
  return std::ranges::any_of(
      p.splits, [](const auto& s) { return s.as == mc::split_rule::behavior::removed; });
}

void check(mc::tokenizer_data parts, std::string_view bytes) {
  const bool returns = !takes_white_space(parts) && !leaves_out(parts) && !parts.prefix_space,
             composes = parts.composes;
  const std::vector<mc::added_token> added = parts.added;
  const mc::tokenizer t(std::move(parts));
  mc::token_encoder encoder(t);
  for (const std::string& text : texts_of(bytes))
    value_or_sentence([&] {
      std::vector<std::int32_t> ids;
      encoder.encode(text, ids, false);
      std::vector<std::int32_t> again;
      encoder.encode(text, again, false); // what it remembers of words changes nothing
      require(again == ids);
      for (const std::int32_t id : ids) require(id >= 0 && !t.bytes_of(id).empty());
      const std::string back = t.decode(ids);
      if (returns) require((composes ? mc::nfc(back) == mc::nfc(text) : back == text));
      require(t.decode(ids, true).size() <= back.size());
      encoder.encode(text, again, true);
    });
  for (const mc::added_token& a : added) {
    std::vector<std::int32_t> ids;
    value_or_sentence([&] {
      encoder.encode(a.content, ids, false);
      require(!ids.empty());
    });
  }
  value_or_sentence([&] { (void)t.decode({{0, 255, static_cast<std::int32_t>(bytes.size())}}); });
}

std::string character(unsigned byte) {
  const auto& table = mc::detail::bytes_of_characters();
  const auto c = static_cast<unsigned>(std::ranges::find(table, byte) - table.begin());
  if (c < 0x80) return std::string(1, static_cast<char>(c));
  return {static_cast<char>(0xc0 | c >> 6), static_cast<char>(0x80 | (c & 0x3f))};
}

constexpr std::string_view expressions[] = {mc::detail::gpt2_expression,
                                            mc::detail::cl100k_expression,
                                            mc::detail::o200k_expression,
                                            "a*",
                                            "(?=b)",
                                            R"(\s+|[^\s]+)",
                                            R"(\p{L}+|\p{N}{1,3})",
                                            "(?i:a|B)",
                                            "x?",
                                            ""};

json split(choices& c) {
  static constexpr const char* behaviors[] = {
      "Removed", "Isolated", "Contiguous", "MergedWithPrevious", "MergedWithNext", "Other"};
  const unsigned which = c.next(std::size(expressions) + 2);
  const std::string expression =
      which < std::size(expressions) ? std::string(expressions[which]) : mc::as_utf8(c.text(12));
  return {{"type", "Split"},
          {"pattern", {{c.next(4) == 0 ? "String" : "Regex", expression}}},
          {"behavior", behaviors[c.next(std::size(behaviors))]},
          {"invert", c.next(2) == 1}};
}

/// A tokenizer.json of tokens for all bytes, with merges, added tokens and steps as they are drawn.
json drawn(choices& c) {
  static const std::vector<std::string> bytes = [] {
    std::vector<std::string> list;
    for (unsigned b = 0; b < 256; ++b) list.push_back(character(b));
    return list;
  }();
  static const json ids_of_bytes = [] {
    json ids = json::object();
    for (std::size_t id = 0; id < bytes.size(); ++id) ids[bytes[id]] = id;
    return ids;
  }();
  json vocab = ids_of_bytes, merges = json::array(), added = json::array(), steps = json::array();
  std::vector<std::string> tokens = bytes;
  for (unsigned n = c.next(12); n > 0; --n) {
    const auto any = [&] {
      return tokens[c.next(2) == 0 ? 'a' + c.next(4) : c.next(255) + tokens.size() - 255];
    };
    const std::string left = any(), right = any();
    if (std::ranges::find(tokens, left + right) == tokens.end()) tokens.push_back(left + right);
    merges.push_back(c.next(2) == 0 ? json(left + " " + right) : json({left, right}));
  }
  for (std::size_t id = bytes.size(); id < tokens.size(); ++id) vocab[tokens[id]] = id;
  static constexpr const char* contents[] = {"<x>", "<y>", " <x>", "ab", "e\u0301", "<", "\n"};
  for (unsigned n = c.next(4), i = 0; i < n; ++i)
    added.push_back({{"id", tokens.size() + i + c.next(2)},
                     {"content", contents[c.next(std::size(contents))]},
                     {"special", c.next(2) == 1},
                     {"normalized", c.next(2) == 1},
                     {"lstrip", c.next(8) == 1},
                     {"rstrip", c.next(8) == 1}});
  for (unsigned n = c.next(3); n > 0; --n)
    steps.push_back(c.next(4) == 0 ? json{{"type", "Digits"}, {"individual_digits", c.next(2) == 1}}
                                   : split(c));
  steps.push_back(
      {{"type", "ByteLevel"}, {"add_prefix_space", c.next(8) == 1}, {"use_regex", c.next(2) == 1}});
  return {
      {"added_tokens", added},
      {"normalizer", c.next(2) == 0 ? json() : json{{"type", "NFC"}}},
      {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", std::move(steps)}}},
      {"post_processor",
       c.next(2) == 0
           ? json()
           : json{{"type", "TemplateProcessing"},
                  {"single", {{{"SpecialToken", {{"id", "b"}}}}, {{"Sequence", {{"id", "A"}}}}}},
                  {"special_tokens", {{"b", {{"ids", {c.next(255)}}}}}}}},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model",
       {{"type", "BPE"},
        {"ignore_merges", c.next(2) == 1},
        {"vocab", std::move(vocab)},
        {"merges", std::move(merges)}}}};
}

/// Replaces one value of the file, found by steps down, with one that is drawn.
void replace(json& file, choices& c) {
  json* at = &file;
  while (!at->empty() && at->is_structured() && c.next(6) != 0) {
    auto child = at->begin();
    std::advance(child, c.next(255) % at->size());
    at = &*child;
  }
  switch (c.next(8)) {
  case 0: *at = nullptr; break;
  case 1: *at = c.next(255); break;
  case 2: *at = -1; break;
  case 3: *at = mc::as_utf8(c.text(8)); break;
  case 4: *at = json::array({*at, *at}); break;
  case 5: *at = json::object({{mc::as_utf8(c.text(4)), *at}}); break;
  case 6: *at = 16777215; break;
  default: *at = c.next(2) == 1;
  }
}

/// The bytes as two texts.
std::pair<std::string_view, std::string_view> in_two(std::string_view bytes) {
  const std::size_t cut = std::min(bytes.find('\0'), bytes.size());
  return {bytes.substr(0, cut), bytes.substr(std::min(cut + 1, bytes.size()))};
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data + 1), size - 1);
  choices c{bytes};
  value_or_sentence([&] {
    switch (data[0] % 8) {
    case 0: return check(mc::read_tokenizer_json(file(bytes).path()), bytes);
    case 1: { // lines behind those of all bytes, whose ranks go on
      std::string lines;
      if (c.next(4) != 0)
        for (unsigned b = 0; b < 256; ++b) {
          constexpr std::string_view letters =
              "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
          lines += fmt::format("{}{}== {}\n", letters[b >> 2], letters[(b & 3) << 4], b);
        }
      for (unsigned n = c.next(20), rank = 256; n > 0; --n, rank += c.next(4) == 0 ? 0 : 1)
        lines += fmt::format("YW{}{} {}\n", "FGJZ"[c.next(4)], c.next(2) == 0 ? '=' : 'i', rank);
      const auto rules = mc::tiktoken_rules_of(c.next(2) == 0 ? "cl100k_base" : "gpt2");
      return check(mc::read_tiktoken(file(lines + std::string(c.rest)).path(), *rules), bytes);
    }
    case 2: {
      const auto [vocabulary, merges] = in_two(bytes);
      return check(mc::read_vocabulary_and_merges(file(vocabulary).path(), file(merges).path()),
                   bytes);
    }
    case 3: {
      const json whole = drawn(c);
      return check(mc::read_vocabulary_and_merges(file(whole["model"]["vocab"].dump()).path(),
                                                  file(c.rest).path()),
                   bytes);
    }
    default: {
      json whole = drawn(c);
      for (unsigned n = data[0] / 8 % 3; n > 0; --n) replace(whole, c);
      const mc::json_value value(std::move(whole), "fuzz", mc::exit_code::data);
      return check(mc::detail::tokenizer_json_reader(value, "").take(), c.rest);
    }
    }
  });
  return 0;
}
