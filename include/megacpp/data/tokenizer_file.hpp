// Files of tokenizers: Hugging Face's tokenizer.json, vocab.json with merges.txt, both with what
// their folder says beside them, and tiktoken's vocabularies. What would change ids and is not
// supported is refused by its name.
#pragma once

#include <megacpp/data/tokenizer.hpp>
#include <megacpp/data/tokenizer_config.hpp>
#include <megacpp/io/mapped_file.hpp>

#include <charconv>
#include <filesystem>
#include <map>
#include <set>
#include <system_error>

namespace mc {

inline constexpr std::size_t tokenizer_size_limit = std::size_t{256} << 20; // bytes

namespace detail {

/// The expressions by which published tokenizers cut texts (their tokenizer.json files, and for
/// those of tiktoken the same in that dialect).
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

inline split_step isolated_by(std::string_view expression, std::string where) {
  return {std::make_shared<const split_expression>(expression, std::move(where))};
}

/// The characters that stand for bytes in GPT-2's files: those that print for themselves, the other
/// 68 in order for U+0100 on.
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

/// The bytes of a token as GPT-2's files spell it; nothing for one that has other characters, which
/// no text has: decoding writes those as they stand.
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

/// What is read of a tokenizer's file, step by step.
class tokenizer_reader {
public:
  explicit tokenizer_reader(std::string file) { p_.file = std::move(file); }
  tokenizer_parts take() { return std::move(p_); }

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

  /// Merge number `rank` of a vocabulary.
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
    if (!bytes_of_token(left + right)) return; // of characters that stand for no byte
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

  /// Adds the tokens that a folder names beside the vocabulary, with the ids that AutoTokenizer
  /// gives them: their own of the vocabulary, or the next that is free. How a token is looked for
  /// follows the list of the folder. Throws for an id that a file states otherwise.
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

  void split_by(split_step step) { p_.splits.push_back(std::move(step)); }
  void cut_by(split_step step, bool composes, bool prefix_space = false) {
    split_by(std::move(step));
    p_.composes = composes, p_.prefix_space = prefix_space;
  }
  /// Whether an added token is looked for as it is spelled, with nothing around it.
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

  /// The id that AutoTokenizer gives a token.
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
  /// A token that two places look for in two ways is looked for otherwise by each version of
  /// transformers.
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
  tokenizer_parts p_;
  std::size_t last_ = 0; ///< one more than the largest id of the vocabulary
  std::set<std::string> contents_;
  std::set<std::int32_t> added_;
};

/// A tokenizer.json with what its folder says, "" being none. Truncation and padding are what its
/// last user asked of one call, and AutoTokenizer passes them over, too; of padding remains that
/// its token is one.
class tokenizer_json_reader : public tokenizer_reader {
public:
  tokenizer_json_reader(const json_value& file, const std::string& folder)
      : tokenizer_reader(file.file()) {
    known_fields(file, {"version", "truncation", "padding", "added_tokens", "normalizer",
                        "pre_tokenizer", "post_processor", "decoder", "model"});
    model(file.field<json_value>("model"));
    if (file.has("added_tokens"))
      for (const json_value& a : file.field<std::vector<json_value>>("added_tokens")) add(a);
    if (file.has("normalizer")) normalize(file.field<json_value>("normalizer"));
    if (file.has("pre_tokenizer")) cut(file.field<json_value>("pre_tokenizer"));
    if (!by_bytes_) throw unsupported("field \"pre_tokenizer\" without a ByteLevel step");
    if (file.has("post_processor")) surround(file.field<json_value>("post_processor"));
    if (file.has("decoder")) decode(file.field<json_value>("decoder"));
    std::string padding;
    if (file.has("padding") && file.field<json_value>("padding").has("pad_token"))
      padding = file.field<json_value>("padding").field<std::string>("pad_token");
    const tokenizer_config c = read_tokenizer_config(folder, padding);
    agree(c);
    named(*own_, c);
  }

private:
  static std::string type_of(const json_value& v) { return v.field<std::string>("type"); }
  error unsupported_type(const json_value& v) const {
    return unsupported(fmt::format("field \"{}\" of type {}", v.path(), printable(type_of(v))));
  }
  void known_fields(const json_value& v, std::initializer_list<std::string_view> names) const {
    for (const auto& [name, value] : v.raw().items())
      if (std::ranges::find(names, name) == names.end() && !value.is_null())
        throw unsupported(fmt::format("field \"{}{}{}\"", v.path(), v.path().empty() ? "" : ".",
                                      printable(name)));
  }
  template <class F> void each(const json_value& v, const char* list, F f) {
    for (const json_value& one : v.field<std::vector<json_value>>(list)) f(one);
  }
  static bool flag(const json_value& v, const char* name, bool otherwise) {
    return v.has(name) ? v.field<bool>(name) : otherwise;
  }

  void model(const json_value& m) {
    known_fields(m,
                 {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                  "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"});
    if (m.has("type") && type_of(m) != "BPE") throw unsupported_type(m);
    if (m.has("dropout") && m.field<double>("dropout") != 0)
      throw unsupported("field \"model.dropout\"");
    for (const char* mark : {"continuing_subword_prefix", "end_of_word_suffix"})
      if (m.has(mark) && !m.field<std::string>(mark).empty())
        throw unsupported(fmt::format("field \"model.{}\"", mark));
    p_.ignore_merges = flag(m, "ignore_merges", false);
    if (!m.has("vocab") || !m.has("merges"))
      throw fault("field \"model\" has no vocabulary or no merges; the file is no BPE tokenizer");
    own_ = &m.raw()["vocab"];
    vocabulary(*own_);
    merges(*own_, m.raw()["merges"]);
  }

  void add(const json_value& a) {
    known_fields(a, {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    added_token t{.content = a.field<std::string>("content"),
                  .id = a.field<std::int32_t>("id", 0, static_cast<std::int32_t>(most_ids)),
                  .special = flag(a, "special", false),
                  .normalized = flag(a, "normalized", false),
                  .lstrip = flag(a, "lstrip", false),
                  .rstrip = flag(a, "rstrip", false)};
    if (flag(a, "single_word", false))
      throw unsupported(fmt::format("single_word of the added token \"{}\"", printable(t.content)));
    added(*own_, std::move(t));
  }

  void normalize(const json_value& n) {
    const std::string type = type_of(n);
    if (type == "Sequence") each(n, "normalizers", [&](const json_value& one) { normalize(one); });
    else if (type == "NFC") p_.composes = true;
    else throw unsupported_type(n);
  }

  void cut(const json_value& c) {
    const std::string type = type_of(c);
    if (type == "Sequence")
      return each(c, "pretokenizers", [&](const json_value& one) { cut(one); });
    if (by_bytes_) throw unsupported(fmt::format("field \"{}\" behind ByteLevel", c.path()));
    if (type == "ByteLevel") {
      known_fields(c, {"type", "add_prefix_space", "trim_offsets", "use_regex"});
      by_bytes_ = true;
      if (flag(c, "add_prefix_space", true)) {
        if (!p_.splits.empty())
          throw unsupported(
              fmt::format("add_prefix_space in \"{}\" behind another step", c.path()));
        p_.prefix_space = true;
      }
      if (flag(c, "use_regex", true)) split_by(isolated_by(gpt2_expression, where(c.path())));
    } else if (type == "Split") {
      known_fields(c, {"type", "pattern", "behavior", "invert"});
      const auto pattern = c.field<json_value>("pattern");
      known_fields(pattern, {"Regex", "String"});
      const bool literal = pattern.has("String");
      split_by(
          {std::make_shared<const split_expression>(
               pattern.field<std::string>(literal ? "String" : "Regex"), where(c.path()), literal),
           behavior(c), flag(c, "invert", false)});
    } else if (type == "Digits") {
      known_fields(c, {"type", "individual_digits"});
      split_by(isolated_by(flag(c, "individual_digits", false) ? R"(\p{N})" : R"(\p{N}+)",
                           where(c.path())));
    } else {
      throw unsupported_type(c);
    }
  }
  split_step::behavior behavior(const json_value& c) const {
    using enum split_step::behavior;
    const auto name = c.field<std::string>("behavior");
    for (const auto& [spelled, is] :
         {std::pair{"Removed", removed}, std::pair{"Isolated", isolated},
          std::pair{"Contiguous", contiguous},
          std::pair{"MergedWithPrevious", merged_with_previous},
          std::pair{"MergedWithNext", merged_with_next}})
      if (name == spelled) return is;
    throw unsupported(fmt::format("behavior {} in \"{}\"", printable(name), c.path()));
  }

  /// Which ids stand around every text.
  void surround(const json_value& s) {
    const std::string type = type_of(s);
    if (type == "Sequence")
      return each(s, "processors", [&](const json_value& one) { surround(one); });
    if (type == "ByteLevel") return; // of offsets
    if (type != "TemplateProcessing") throw unsupported_type(s);
    if (std::exchange(templated_, true)) throw unsupported("a second template");
    const auto special = s.field<json_value>("special_tokens");
    bool behind = false;
    each(s, "single", [&](const json_value& part) {
      if (part.has("Sequence")) {
        if (part.field<json_value>("Sequence").field<std::string>("id") != "A")
          throw unsupported("a template of a second text");
        if (std::exchange(behind, true)) throw unsupported("a template that repeats its text");
        return;
      }
      const auto name = part.field<json_value>("SpecialToken").field<std::string>("id");
      if (!special.has(name))
        throw fault(
            fmt::format("the template names {}, which special_tokens does not", printable(name)));
      for (const std::int32_t id :
           special.field<json_value>(name).field<std::vector<std::int32_t>>("ids"))
        (behind ? p_.after : p_.before).push_back(id);
    });
    if (!behind) throw fault("the template of \"post_processor\" does not hold the text");
  }

  void decode(const json_value& d) {
    const std::string type = type_of(d);
    if (type == "Sequence") return each(d, "decoders", [&](const json_value& one) { decode(one); });
    if (type != "ByteLevel") throw unsupported_type(d);
  }

  /// A rule that both files state must be the same, since versions of transformers differ in
  /// which wins.
  void agree(const tokenizer_config& c) const {
    require_known_class(c);
    const auto differ = [&](const char* field, bool says, std::string_view other) {
      return fault(
          fmt::format("{} says otherwise than field \"{}\" of {}, which is {}; make them agree",
                      other, field, c.file, says));
    };
    if (c.prefix_space && *c.prefix_space != p_.prefix_space)
      throw differ("add_prefix_space", *c.prefix_space, "its \"pre_tokenizer\"");
    if (c.type != "LlamaTokenizer") return;
    // Of this class 4.51 makes the template, and 5 takes that of tokenizer.json.
    const auto around = [&](const char* field, const char* task, const char* otherwise, bool wanted,
                            const std::vector<std::int32_t>& ids) {
      const auto at = std::ranges::find(c.special, task, &named_token::task);
      const std::string token = at == c.special.end() ? otherwise : at->token.content;
      std::vector<std::int32_t> theirs;
      if (wanted) theirs.push_back(id_of(*own_, token));
      if (ids != theirs) throw differ(field, wanted, "its \"post_processor\"");
    };
    around("add_bos_token", "bos_token", "<s>", c.begins.value_or(true), p_.before);
    around("add_eos_token", "eos_token", "</s>", c.ends.value_or(false), p_.after);
  }

  /// Other classes have tokens and templates of their own, which each version adds otherwise.
  void require_known_class(const tokenizer_config& c) const {
    constexpr std::array known{"",
                               "PreTrainedTokenizer",
                               "TokenizersBackend",
                               "GPT2Tokenizer",
                               "Qwen2Tokenizer",
                               "LlamaTokenizer"};
    if (std::ranges::find(known, c.type) == known.end())
      throw error(
          exit_code::data,
          fmt::format("{}: field \"tokenizer_class\" is {}, a class with rules of its own beside "
                      "those of tokenizer.json, which versions of transformers apply differently; "
                      "write PreTrainedTokenizerFast if tokenizer.json has all rules",
                      c.file, printable(c.type)));
  }

  const nlohmann::json* own_ = nullptr; ///< the vocabulary, in the file's document
  bool by_bytes_ = false, templated_ = false;
};

/// Each line of a file, without its end and with its number from 1.
template <class F> void each_line(std::string_view text, F f) {
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    if (line.ends_with('\r')) line.remove_suffix(1);
    f(line, number);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

/// The bytes of Base64 (RFC 4648); nothing for what is none.
inline std::optional<std::string> from_base64(std::string_view text) {
  constexpr std::string_view letters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  if (text.empty() || text.size() % 4 != 0) return std::nullopt;
  std::size_t padding = 0;
  while (padding < 2 && text.ends_with('=')) text.remove_suffix(1), ++padding;
  std::string bytes;
  std::uint32_t bits = 0;
  int held = 0;
  for (const char c : text) {
    const std::size_t value = letters.find(c);
    if (value == std::string_view::npos) return std::nullopt;
    bits = bits << 6 | static_cast<std::uint32_t>(value);
    if ((held += 6) < 8) continue;
    held -= 8;
    bytes += static_cast<char>(bits >> held & 0xffu);
  }
  return bytes;
}

} // namespace detail

/// Reads a tokenizer.json, and what the folder says beside it, "" being none. Throws
/// mc::error(exit_code::data).
inline tokenizer_parts read_tokenizer_json(const std::string& path,
                                           const std::string& folder = "") {
  const json_value file = read_json(mapped_file(path, exit_code::data), tokenizer_size_limit);
  return detail::tokenizer_json_reader(file, folder).take();
}

namespace detail {

/// The rules of transformers' class for a vocabulary with merges. Throws mc::error(exit_code::data)
/// for a class whose rules are not known.
inline void apply_rules(tokenizer_reader& reader, const nlohmann::json& vocabulary,
                        const tokenizer_config& c) {
  const bool qwen2 = c.type == "Qwen2Tokenizer";
  const auto fault = [&c](std::string_view sentence) {
    return error(exit_code::data,
                 fmt::format("{} {}; write a tokenizer.json once, by transformers: "
                             "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)",
                             c.file, sentence));
  };
  if (!qwen2 && c.type != "GPT2Tokenizer" && !c.type.empty())
    throw fault(
        fmt::format("names the class {}, and of a vocab.json with merges.txt the rules of "
                    "GPT2Tokenizer and Qwen2Tokenizer alone are known",
                    printable(c.type)));
  reader.named(vocabulary, c);
  if (c.ends.value_or(false)) throw fault("has a true \"add_eos_token\", which is not supported");
  if (qwen2) {
    if (c.prefix_space.value_or(false) || c.begins.value_or(false))
      throw fault(
          "has a true \"add_prefix_space\" or \"add_bos_token\", which Qwen2Tokenizer's "
          "rules here do not have");
    for (const named_token& t : c.special)
      if (!reader.is_plain(t.token.content))
        throw fault(
            fmt::format("has the token \"{}\" with a true \"lstrip\", \"rstrip\" or "
                        "\"normalized\", which is not supported for Qwen2Tokenizer",
                        printable(t.token.content)));
    return reader.cut_by(isolated_by(qwen2_expression, "Qwen2's expression"), true);
  }
  if (c.begins.value_or(false)) {
    const auto begin = std::ranges::find(c.special, "bos_token", &named_token::task);
    if (begin == c.special.end()) throw fault("has a true \"add_bos_token\", but no \"bos_token\"");
    reader.begin_by(begin->token.content);
  }
  reader.cut_by(isolated_by(gpt2_expression, "GPT-2's expression"), false,
                c.prefix_space.value_or(false));
}

} // namespace detail

/// Reads a vocabulary, tokens with their ids, and its merges, one a line. They are cut by the rules
/// of the class that their folder names, and the folder's other files name more tokens; "" is no
/// folder: GPT-2's own two files, whose token <|endoftext|> is special where there is one. Throws
/// mc::error(exit_code::data).
inline tokenizer_parts read_vocabulary_and_merges(const std::string& vocabulary,
                                                  const std::string& merges,
                                                  const std::string& folder = "") {
  const json_value list = read_json(mapped_file(vocabulary, exit_code::data), tokenizer_size_limit);
  const mapped_file file(merges, exit_code::data);
  detail::tokenizer_reader reader(vocabulary);
  reader.vocabulary(list.raw());
  std::size_t rank = 0;
  detail::each_line(written_text(file), [&](std::string_view line, std::size_t number) {
    if (line.empty() || (number == 1 && line.starts_with("#version"))) return;
    const std::size_t blank = line.find(' ');
    if (blank == std::string_view::npos || line.find(' ', blank + 1) != std::string_view::npos)
      throw error(
          exit_code::data,
          fmt::format("{}: line {} is \"{}\", but must be two tokens with a blank between them",
                      merges, number, printable(line)));
    reader.merge(list.raw(), rank++, std::string(line.substr(0, blank)),
                 std::string(line.substr(blank + 1)));
  });
  const tokenizer_config config = read_tokenizer_config(folder);
  constexpr const char* end = "<|endoftext|>";
  if (const auto at = list.raw().find(end); config.type.empty() && at != list.raw().end())
    reader.added(list.raw(), {.content = end, .id = at->get<std::int32_t>(), .special = true});
  detail::apply_rules(reader, list.raw(), config);
  return reader.take();
}

/// What a .tiktoken file does not say: the expression that cuts texts, and its special tokens.
struct tiktoken_rules {
  std::string expression;
  std::vector<added_token> special;
};

/// The names whose rules are known; those that end in _base are known without it, too.
inline constexpr std::array<std::string_view, 10> tiktoken_names{
    "gpt2",       "r50k_base", "p50k_base", "p50k_edit", "cl100k_base",
    "o200k_base", "llama3",    "llama3_1",  "qwen",      "qwen2"};

namespace detail {

/// The special tokens of Llama 3, 256 from 128000 on; 3.1 and later have given four of those in
/// reserve a task, so that the others have other names (their tokenizer.json files).
inline std::vector<added_token> llama3_tokens(bool of_3_1) {
  constexpr std::int32_t first = 128000, count = 256;
  using entry = std::pair<std::int32_t, std::string_view>;
  std::vector<entry> named{{0, "<|begin_of_text|>"},
                           {1, "<|end_of_text|>"},
                           {6, "<|start_header_id|>"},
                           {7, "<|end_header_id|>"},
                           {9, "<|eot_id|>"}};
  if (of_3_1)
    named.insert(named.end(),
                 {{4, "<|finetune_right_pad_id|>"}, {8, "<|eom_id|>"}, {10, "<|python_tag|>"}});
  std::vector<added_token> tokens;
  int reserved = 0;
  for (std::int32_t i = 0; i < count; ++i) {
    const auto at = std::ranges::find(named, i, &entry::first);
    tokens.push_back({.content = at != named.end()
                                     ? std::string(at->second)
                                     : fmt::format("<|reserved_special_token_{}|>", reserved++),
                      .id = first + i,
                      .special = true});
  }
  return tokens;
}

} // namespace detail

/// The rules of a name: of tiktoken's own files (openai_public.py of 0.14), of Llama 3 and of Qwen;
/// nothing for another.
inline std::optional<tiktoken_rules> tiktoken_rules_of(std::string_view name) {
  const auto rules = [](std::string_view expression,
                        std::initializer_list<std::pair<std::string_view, std::int32_t>> special) {
    tiktoken_rules r{std::string(expression), {}};
    for (const auto& [content, id] : special)
      r.special.push_back({.content = std::string(content), .id = id, .special = true});
    return r;
  };
  const auto is = [name](std::string_view known) {
    constexpr std::string_view base = "_base";
    return name == known ||
           (known.ends_with(base) && name == known.substr(0, known.size() - base.size()));
  };
  if (is("gpt2") || is("r50k_base") || is("p50k_base"))
    return rules(detail::gpt2_expression, {{"<|endoftext|>", 50256}});
  if (is("p50k_edit"))
    return rules(detail::gpt2_expression, {{"<|endoftext|>", 50256},
                                           {"<|fim_prefix|>", 50281},
                                           {"<|fim_middle|>", 50282},
                                           {"<|fim_suffix|>", 50283}});
  if (is("cl100k_base"))
    return rules(detail::cl100k_expression, {{"<|endoftext|>", 100257},
                                             {"<|fim_prefix|>", 100258},
                                             {"<|fim_middle|>", 100259},
                                             {"<|fim_suffix|>", 100260},
                                             {"<|endofprompt|>", 100276}});
  if (is("o200k_base"))
    return rules(detail::o200k_expression,
                 {{"<|endoftext|>", 199999}, {"<|endofprompt|>", 200018}});
  if (is("llama3") || is("llama3_1")) // which cut as cl100k_base does
    return tiktoken_rules{std::string(detail::cl100k_expression),
                          detail::llama3_tokens(is("llama3_1"))};
  if (is("qwen") || is("qwen2"))
    return rules(detail::qwen2_expression,
                 {{"<|endoftext|>", 151643}, {"<|im_start|>", 151644}, {"<|im_end|>", 151645}});
  return std::nullopt;
}

/// The rules that a flag asks for: by a name, or by "regex:" and an expression, which has no
/// special tokens. Throws mc::error(exit_code::usage) for a name that is not known.
inline tiktoken_rules tiktoken_rules_by(std::string_view flag, std::string_view asked) {
  constexpr std::string_view mark = "regex:";
  if (asked.starts_with(mark)) return {std::string(asked.substr(mark.size())), {}};
  if (auto rules = tiktoken_rules_of(asked)) return *std::move(rules);
  throw error(
      exit_code::usage,
      fmt::format("{} \"{}\" is none of {}; give one of these, or regex: and the expression "
                  "that cuts texts, as regex:\\p{{L}}+|\\P{{L}}+",
                  flag, printable(asked), fmt::join(tiktoken_names, ", ")));
}

/// Reads a .tiktoken file: a line for each token, its bytes in Base64 and its rank, which is its
/// id. Of adjacent symbols those merge whose bytes together are a token, the one of lowest rank
/// first: each way of cutting a token in two tokens is a merge of that rank. `special`: tokens
/// that get the ids behind those of the file, instead of those of the rules. Throws
/// mc::error(exit_code::data).
inline tokenizer_parts read_tiktoken(const std::string& path, tiktoken_rules rules,
                                     std::optional<std::vector<std::string>> special = {}) {
  const mapped_file file(path, exit_code::data);
  tokenizer_parts p;
  p.file = path;
  std::unordered_map<std::string, std::int32_t> ids;
  detail::each_line(written_text(file), [&](std::string_view line, std::size_t number) {
    if (line.empty()) return;
    const auto refuse = [&](std::string_view why) {
      return error(exit_code::data, fmt::format("{}: line {} is \"{}\", but {}", path, number,
                                                printable(line), why));
    };
    const std::size_t blank = std::min(line.find(' '), line.size());
    const std::optional<std::string> bytes = detail::from_base64(line.substr(0, blank));
    const std::string_view rank = line.substr(std::min(blank + 1, line.size()));
    std::uint32_t id = 0;
    const auto [end, problem] = std::from_chars(rank.data(), rank.data() + rank.size(), id);
    if (!bytes || problem != std::errc() || end != rank.data() + rank.size() ||
        id > detail::tokenizer_reader::most_ids)
      throw refuse("must be Base64 and a rank");
    if (id >= p.tokens.size()) p.tokens.resize(id + 1);
    if (!p.tokens[id].empty()) throw refuse("the rank is that of another line, too");
    if (!ids.emplace(*bytes, static_cast<std::int32_t>(id)).second)
      throw refuse("its token is that of another line, too");
    p.tokens[id] = *bytes;
  });
  for (const auto& [bytes, id] : ids)
    for (std::size_t cut = 1; cut < bytes.size(); ++cut) {
      const auto left = ids.find(bytes.substr(0, cut)), right = ids.find(bytes.substr(cut));
      if (left != ids.end() && right != ids.end())
        p.merges.insert(left->second, right->second, {static_cast<std::uint32_t>(id), id});
    }
  if (special) {
    rules.special.clear();
    for (const std::string& content : *special)
      rules.special.push_back(
          {.content = content,
           .id = static_cast<std::int32_t>(p.tokens.size() + rules.special.size()),
           .special = true});
  }
  std::set<std::string> contents;
  for (const added_token& a : rules.special) {
    const auto id = static_cast<std::size_t>(a.id);
    if ((id < p.tokens.size() && !p.tokens[id].empty()) || ids.contains(a.content) ||
        a.content.empty() || !contents.insert(a.content).second)
      throw error(
          exit_code::data,
          fmt::format("{}: the special token {} has the id {}, which is that of another token; "
                      "give the rules of this vocabulary",
                      path, a.content, a.id));
  }
  p.added = std::move(rules.special);
  p.splits.push_back(detail::isolated_by(rules.expression, path + ": its expression"));
  return p;
}

/// The path of the one .tiktoken file of a folder whose name says its rules; "" if there is none.
inline std::string tiktoken_in(const std::string& folder) {
  namespace fs = std::filesystem;
  std::string found;
  std::error_code ignored;
  for (const fs::directory_entry& e : fs::directory_iterator(folder, ignored)) {
    const fs::path& path = e.path();
    if (path.extension() != ".tiktoken" || !tiktoken_rules_of(path.stem().string())) continue;
    if (!found.empty()) return "";
    found = path.string();
  }
  return found;
}

namespace detail {

/// The tokens that a folder names must be those of its .tiktoken file, whose rules are known by its
/// name. Throws mc::error(exit_code::data).
inline void require_named(const tokenizer& t, const tokenizer_config& c) {
  for (const std::vector<named_token>* const list : {&c.listed, &c.special})
    for (const named_token& named : *list) {
      const auto id = t.id_of(named.token.content);
      if (!id || (named.id && *named.id != *id))
        throw error(
            exit_code::data,
            fmt::format("{} is the token \"{}\"{}, which the rules for the name of {} do "
                        "not have; give that file alone, or its rules by --tiktoken-pattern",
                        named.place, printable(named.token.content),
                        named.id ? fmt::format(" with the id {}", *named.id) : "", t.file()));
    }
}

/// Whether a file begins as those of tiktoken do, whatever its name is: by a token in Base64 and
/// its rank.
inline bool has_tiktoken_lines(std::string_view text) {
  const std::string_view line = text.substr(0, std::min(text.find('\n'), std::size_t{1} << 12));
  const std::size_t blank = std::min(line.find(' '), line.size());
  std::string_view rank = line.substr(std::min(blank + 1, line.size()));
  if (rank.ends_with('\r')) rank.remove_suffix(1);
  return blank > 0 && from_base64(line.substr(0, blank)) && !rank.empty() &&
         rank.find_first_not_of("0123456789") == std::string_view::npos;
}
inline bool is_tiktoken_file(const std::string& path) {
  std::error_code ignored;
  return path.ends_with(".tiktoken") ||
         (std::filesystem::is_regular_file(path, ignored) &&
          std::filesystem::file_size(path, ignored) > 0 &&
          has_tiktoken_lines(written_text(mapped_file(path, exit_code::data))));
}

/// Whether a file is a model of SentencePiece: a message of protobuf, whose first field is a piece,
/// a message in turn that begins with its text, and has its score as four bytes.
inline bool is_sentencepiece(std::string_view text) {
  return text.size() > 3 && text[0] == '\n' && text[2] == '\n' &&
         text.substr(0, 64).find('\0') != std::string_view::npos;
}

/// Throws mc::error(exit_code::data) for the file of a tokenizer that is of another form than
/// JSON, as a tokenizer.model is.
inline void refuse_other_forms(const std::string& path) {
  const mapped_file file(path, exit_code::data);
  if (is_sentencepiece(file.text()))
    throw error(
        exit_code::data,
        fmt::format("{} is a model of SentencePiece, and byte-level BPE alone is read; give "
                    "the model's tokenizer.json where that is of this kind, or turn texts "
                    "into token ids by another program",
                    path));
  if (has_tiktoken_lines(written_text(file)))
    throw error(exit_code::data,
                fmt::format("{} is a file of tiktoken's, and its name does not say how texts are "
                            "cut; give it the name of the rules that it has, such as "
                            "llama3.tiktoken for Llama 3's tokenizer.model (known are {}), or, to "
                            "megacpp-data, name them by --tiktoken-pattern",
                            path, fmt::join(tiktoken_names, ", ")));
}

} // namespace detail

/// Opens a tokenizer: a folder with a tokenizer.json, with vocab.json and merges.txt, or with a
/// .tiktoken file; a tokenizer.json of any name; or a .tiktoken file, by the rules of its name.
/// Throws mc::error(exit_code::data).
inline std::unique_ptr<const tokenizer> open_tokenizer(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const fs::path at(path);
  if (!path.empty() && fs::status(at, ignored).type() == fs::file_type::not_found)
    throw error(exit_code::data,
                fmt::format("{} does not exist; give the path of a tokenizer's folder or file (the "
                            "name of a model on a hub is none: download its files first)",
                            path));
  if (fs::is_directory(at, ignored)) {
    const std::string whole = (at / "tokenizer.json").string(),
                      tokens = (at / "vocab.json").string(), merges = (at / "merges.txt").string();
    if (fs::exists(whole, ignored))
      return std::make_unique<tokenizer>(read_tokenizer_json(whole, path));
    if (fs::exists(tokens, ignored) && fs::exists(merges, ignored))
      return std::make_unique<tokenizer>(read_vocabulary_and_merges(tokens, merges, path));
    if (const std::string ranks = tiktoken_in(path); !ranks.empty()) {
      auto t = open_tokenizer(ranks);
      detail::require_named(*t, read_tokenizer_config(path));
      return t;
    }
    for (const char* other : {"tokenizer.model", "spiece.model", "sentencepiece.bpe.model"})
      if (fs::is_regular_file(at / other, ignored)) detail::refuse_other_forms(at / other);
    throw error(
        exit_code::data,
        fmt::format(
            "{} has no tokenizer.json, nor vocab.json and merges.txt, nor one of tiktoken's "
            "files; give the folder or the file of a tokenizer",
            path));
  }
  if (at.extension() == ".tiktoken") {
    std::optional<tiktoken_rules> rules = tiktoken_rules_of(at.stem().string());
    if (!rules)
      throw error(
          exit_code::data,
          fmt::format(
              "{} does not say how texts are cut, since its name is none of {}; give it the "
              "name of the one whose rules it has, or, to megacpp-data, name them by "
              "--tiktoken-pattern",
              path, fmt::join(tiktoken_names, ", ")));
    return std::make_unique<tokenizer>(read_tiktoken(path, std::move(*rules)));
  }
  detail::refuse_other_forms(path);
  return std::make_unique<tokenizer>(read_tokenizer_json(path));
}

/// The token that ends a document: the one that is asked for, or else that of published
/// vocabularies. `advice`: what to do where there is none of these. Throws
/// mc::error(exit_code::usage) for one that there is not.
inline std::int32_t end_of_document(
    const tokenizer& t, const std::string& asked = "",
    std::string_view advice = "name the one that ends a document by --eod-token") {
  const std::string_view known[] = {"<|endoftext|>", "<|end_of_text|>", "</s>"};
  for (const std::string_view name : known)
    if (asked.empty())
      if (const auto id = t.id_of(name)) return *id;
  if (const auto id = t.id_of(asked); id && !asked.empty()) return *id;
  throw error(
      exit_code::usage,
      asked.empty()
          ? fmt::format("{} has no token {}; {}", t.file(), fmt::join(known, ", "), advice)
          : fmt::format("\"{}\", which is to end documents, is no token of {}; give one of its own "
                        "by --eod-token",
                        printable(asked), t.file()));
}

} // namespace mc
