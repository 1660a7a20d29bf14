// tokenizer_reader takes what a tokenizer's files say in this order: tokens, merges, added tokens.
// This header also has the expressions by which published tokenizers cut texts.
#pragma once

#include <megacpp/io/mapped_file.hpp>
#include <megacpp/tokenizer/tokenizer.hpp>
#include <megacpp/tokenizer/tokenizer_config.hpp>

#include <charconv>
#include <map>
#include <set>

namespace mc {

/// tokenizer_size_limit is the most bytes of a tokenizer's file.
inline constexpr std::size_t tokenizer_size_limit = std::size_t{256} << 20;

namespace detail {

// Published tokenizers cut texts by these expressions, which are those of their tokenizer.json
// files. Expressions of tiktoken are written in the same dialect.
inline constexpr std::string_view gpt2_expression =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view cl100k_expression =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3})"
    R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view qwen2_expression =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N})"
    R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view o200k_expression =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

inline split_rule isolated_by(std::string_view expression, std::string where) {
  return {std::make_shared<const split_expression>(expression, std::move(where))};
}

/// Returns the bytes that characters stand for in GPT-2's files, or -1. A printable byte is its own
/// character; the other 68 bytes are U+0100 and the characters behind it, in order.
inline const std::array<std::int16_t, 0x144>& bytes_of_characters() {
  static const auto table = [] {
    std::array<std::int16_t, 0x144> t{};
    t.fill(-1);
    unsigned next = 0x100;
    for (unsigned b = 0; b < 256; ++b) {
      const bool prints =
          (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff);
      t[prints ? b : next++] = static_cast<std::int16_t>(b);
    }
    return t;
  }();
  return table;
}

/// Returns the bytes of a token that is spelled as in GPT-2's files. Returns nothing for a token
/// with other characters: no text is encoded to it, and decoding writes its characters as they are.
inline std::optional<std::string> bytes_of_token(std::string_view spelled) {
  std::string bytes;
  while (!spelled.empty()) {
    utf8proc_int32_t c = 0;
    const utf8proc_ssize_t n =
        utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(spelled.data()),
                         static_cast<utf8proc_ssize_t>(spelled.size()), &c);
    const auto& table = bytes_of_characters();
    if (n <= 0 || static_cast<std::size_t>(c) >= table.size() ||
        table[static_cast<unsigned>(c)] < 0)
      return std::nullopt;
    bytes += static_cast<char>(table[static_cast<unsigned>(c)]);
    spelled.remove_prefix(static_cast<std::size_t>(n));
  }
  return bytes;
}

/// tokenizer_reader collects what the files of a tokenizer say, and checks it.
class tokenizer_reader {
public:
  explicit tokenizer_reader(std::string file) { p_.file = std::move(file); }
  tokenizer_data take() { return std::move(p_); }

  error fault(std::string_view sentence) const {
    return error(exit_code::data, fmt::format("{}: {}", p_.file, sentence));
  }
  error unsupported(std::string_view what) const {
    return fault(
        fmt::format("{} is not supported, and would change the ids; use a byte-level BPE "
                    "tokenizer without it",
                    what));
  }

  void vocabulary(const nlohmann::json& list) {
    if (!list.is_object()) throw fault("field \"model.vocab\" is not an object of tokens and ids");
    for (const auto& [spelled, id] : list.items()) {
      if (!id.is_number_unsigned() || id.get<std::uint64_t>() > most_ids)
        throw fault(fmt::format("the id of the token \"{}\" is {}, but must be from 0 to {}",
                                printable(spelled), printable(id.dump()), most_ids));
      const auto at = id.get<std::size_t>();
      if (at >= p_.tokens.size()) p_.tokens.resize(std::max(at + 1, p_.tokens.size() * 3 / 2));
      if (spelled.empty())
        throw fault(
            fmt::format("the token of id {} is empty, so merges with it would never end; "
                        "remove it",
                        at));
      std::string& token = p_.tokens[at];
      if (!token.empty())
        throw fault(
            fmt::format("the id {} has two tokens, \"{}\" and another; give each an id of its "
                        "own",
                        at, printable(spelled)));
      if (auto bytes = bytes_of_token(spelled)) {
        token = *std::move(bytes);
      } else {
        token = spelled;
        p_.unspelled.push_back(static_cast<std::int32_t>(at));
      }
      last_ = std::max(last_, at + 1);
    }
    p_.tokens.resize(last_);
  }

  /// Adds the merge with number `rank`.
  void merge(const nlohmann::json& vocabulary, std::size_t rank, const std::string& left,
             const std::string& right) {
    const auto id_of = [&](const std::string& spelled) {
      const auto at = vocabulary.find(spelled);
      if (at == vocabulary.end())
        throw fault(
            fmt::format("merge {}, of \"{}\" and \"{}\", needs \"{}\", which is no token of the "
                        "vocabulary; the file is damaged",
                        rank, printable(left), printable(right), printable(spelled)));
      return at->get<std::int32_t>();
    };
    if (left.empty() || right.empty())
      throw fault(fmt::format(
          "merge {} has an empty part, so it would never end; the file is damaged", rank));
    const std::int32_t l = id_of(left), r = id_of(right), into = id_of(left + right);
    if (!bytes_of_token(left + right))
      return; // Such a merge has characters that stand for no byte.
    if (!p_.merges.insert(l, r, {static_cast<std::uint32_t>(rank), into}))
      throw fault(fmt::format("merge {}, of \"{}\" and \"{}\", is there twice; remove one", rank,
                              printable(left), printable(right)));
  }

  void merges(const nlohmann::json& vocabulary, const nlohmann::json& list) {
    if (!list.is_array()) throw fault("field \"model.merges\" is not a list");
    p_.merges = merge_table(list.size());
    for (std::size_t rank = 0; rank < list.size(); ++rank) {
      const nlohmann::json& m = list[rank];
      if (m.is_string()) {
        const auto& both = m.get_ref<const std::string&>();
        const std::size_t blank = both.find(' ');
        if (blank != std::string::npos && both.find(' ', blank + 1) == std::string::npos) {
          merge(vocabulary, rank, both.substr(0, blank), both.substr(blank + 1));
          continue;
        }
      } else if (m.is_array() && m.size() == 2 && m[0].is_string() && m[1].is_string()) {
        merge(vocabulary, rank, m[0].get<std::string>(), m[1].get<std::string>());
        continue;
      }
      throw fault(
          fmt::format("merge {} is {}, but must be two tokens, as \"a b\" or [\"a\", \"b\"]", rank,
                      printable(m.dump())));
    }
  }

  void added(const nlohmann::json& vocabulary, added_token a) {
    if (a.content.empty()) throw fault(fmt::format("the added token of id {} is empty", a.id));
    const auto own = vocabulary.find(a.content);
    const bool other = own != vocabulary.end() && *own != a.id;
    const auto id = static_cast<std::size_t>(a.id);
    const bool taken = own == vocabulary.end() && id < last_ && !p_.tokens[id].empty();
    const bool twice = !contents_.insert(a.content).second, same = !added_.insert(a.id).second;
    if (other || twice || taken || same)
      throw fault(fmt::format("{} \"{}\"; give each token one id of its own",
                              other || twice
                                  ? "two ids are given to the added token"
                                  : fmt::format("the id {} is that of another token than "
                                                "the added",
                                                a.id),
                              printable(a.content)));
    p_.added.push_back(std::move(a));
  }

  /// Adds the tokens that a folder names beside the vocabulary. A token gets the id that
  /// AutoTokenizer gives it: its id in the vocabulary, or the next free one. Tokens are searched as
  /// the folder's list says. Throws where a file gives a token another id.
  void named(const nlohmann::json& vocabulary, const tokenizer_config& c) {
    refuse_two_ways(c);
    for (const named_token& t : c.listed) {
      const std::int32_t id = id_of(vocabulary, t.token.content);
      if (t.id != id)
        throw error(
            exit_code::data,
            fmt::format("{} is the token \"{}\" with the id {}, but with {} AutoTokenizer gives it "
                        "{}; correct the id, or add the token to a tokenizer.json",
                        t.place, printable(t.token.content), t.id.value_or(-1), p_.file, id));
      const auto known = std::ranges::find(p_.added, t.token.content, &added_token::content);
      if (known != p_.added.end()) *known = t.token, known->id = id;
      else name(vocabulary, t);
    }
    for (const named_token& t : c.special)
      if (!contents_.contains(t.token.content)) name(vocabulary, t);
    for (const named_token& t : c.others)
      if (!contents_.contains(t.token.content))
        throw error(
            exit_code::data,
            fmt::format("{} names the token \"{}\", which is no added token of {}; versions of "
                        "transformers take that differently: add it to added_tokens_decoder, or "
                        "change the field",
                        t.place, printable(t.token.content), p_.file));
  }

  void split_by(split_rule step) { p_.splits.push_back(std::move(step)); }
  void cut_by(split_rule step, bool composes, bool prefix_space = false) {
    split_by(std::move(step));
    p_.composes = composes, p_.prefix_space = prefix_space;
  }
  /// Returns whether an added token is searched by its spelling alone, without white space around
  /// it and without normal form.
  bool is_plain(const std::string& content) const {
    const auto at = std::ranges::find(p_.added, content, &added_token::content);
    return at == p_.added.end() || !(at->lstrip || at->rstrip || at->normalized);
  }
  /// Puts an added token before every text.
  void begin_by(const std::string& content) {
    p_.before.push_back(std::ranges::find(p_.added, content, &added_token::content)->id);
  }
  std::string where(std::string_view field) const {
    return fmt::format("{}: field \"{}\"", p_.file, field);
  }

  /// Returns the id that AutoTokenizer gives a token.
  std::int32_t id_of(const nlohmann::json& vocabulary, const std::string& content) const {
    if (added_.empty() || !contents_.contains(content)) {
      if (const auto own = vocabulary.find(content); own != vocabulary.end())
        return own->get<std::int32_t>();
      const auto size = static_cast<std::int32_t>(vocabulary.size());
      return added_.empty() ? size : std::max(size, *added_.rbegin() + 1);
    }
    return std::ranges::find(p_.added, content, &added_token::content)->id;
  }

  static constexpr std::uint64_t most_ids = (1u << 24) - 1;

private:
  /// Throws where two places say differently how a token is searched, since versions of
  /// transformers differ in which place wins.
  static void refuse_two_ways(const tokenizer_config& c) {
    std::map<std::string_view, const named_token*> ways;
    for (const named_token& t : c.listed) ways.emplace(t.token.content, &t);
    for (const named_token& t : c.special) {
      const auto [at, is_first] = ways.emplace(t.token.content, &t);
      const named_token& other = *at->second;
      if (is_first || (c.lists_rules && other.id) ||
          (t.token.lstrip == other.token.lstrip && t.token.rstrip == other.token.rstrip))
        continue;
      throw error(
          exit_code::data,
          fmt::format("{} and {} name the token \"{}\" with another \"lstrip\" or \"rstrip\"; "
                      "make them agree",
                      t.place, other.place, printable(t.token.content)));
    }
  }

  void name(const nlohmann::json& vocabulary, const named_token& t) {
    added_token a = t.token;
    a.id = id_of(vocabulary, a.content);
    added(vocabulary, std::move(a));
  }

protected:
  tokenizer_data p_;
  std::size_t last_ = 0; ///< One more than the largest id of the vocabulary.
  std::set<std::string> contents_;
  std::set<std::int32_t> added_;
};

/// Calls f(line, number) for each line of a file, without its line end. Numbers count from 1.
template <class F> void each_line(std::string_view text, F f) {
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    if (line.ends_with('\r')) line.remove_suffix(1);
    f(line, number);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

} // namespace detail

} // namespace mc
