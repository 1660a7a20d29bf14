// tokenizer turns texts into token ids and back by byte-level BPE. Its ids are those of Hugging
// Face's tokenizers library for a tokenizer.json, and of tiktoken for its vocabularies.
//
// A text is cut at added tokens. The texts between them are brought into normal form C, if the
// tokenizer asks for it, and cut into words by expressions. The bytes of a word are merged in pairs
// (tokenizer/pair_merges.hpp).
#pragma once

#include <megacpp/io/json_file.hpp>
#include <megacpp/io/utf8.hpp>
#include <megacpp/tokenizer/nfc.hpp>
#include <megacpp/tokenizer/pair_merges.hpp>
#include <megacpp/tokenizer/split_expression.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <unordered_map>

namespace mc {

/// added_token is a token that is found in a text by its spelling, and is not made by merges.
struct added_token {
  std::string content;
  std::int32_t id = 0;
  bool special = false;    ///< The token controls the model; decoding may leave it out.
  bool normalized = false; ///< The token is searched in the text's normal form, after the others.
  bool lstrip = false;     ///< The token takes the white space before it.
  bool rstrip = false;     ///< The token takes the white space behind it.
};

/// split_rule is one rule that cuts texts into words. Its names and their meaning are those of
/// Split in tokenizer.json.
struct split_rule {
  enum class behavior : std::uint8_t {
    removed,
    isolated,
    contiguous,
    merged_with_previous,
    merged_with_next
  };
  std::shared_ptr<const split_expression> pattern;
  behavior as = behavior::isolated;
  bool invert = false; ///< a match is what the pattern does not match
};

/// tokenizer_data has a tokenizer as its file describes it; tokenizer/tokenizer_file.hpp reads it.
struct tokenizer_data {
  std::string file;
  std::vector<std::string> tokens;     ///< The bytes of each id; empty for an id that is not used.
  std::vector<std::int32_t> unspelled; ///< Ids of tokens that are decoded, and never encoded.
  merge_table merges;
  std::vector<added_token> added;
  std::vector<split_rule> splits;
  bool composes = false;      ///< Texts are brought into normal form C.
  bool ignore_merges = false; ///< A word that is a token is not made by merges.
  bool prefix_space = false;  ///< A space is put before each text that does not begin with one.
  std::vector<std::int32_t> before, after; ///< Ids that are put before and behind every text.
};

/// tokenizer is a vocabulary with its rules. It does not change, so threads share it; each has a
/// token_encoder of its own.
class tokenizer {
public:
  /// Prepares a tokenizer. Throws mc::error(exit_code::data) for an id around texts that is no
  /// token, and mc::error(exit_code::machine) for libraries that are too old.
  explicit tokenizer(tokenizer_data parts) : p_(std::move(parts)) {
    require_unicode();
    const std::size_t own = p_.tokens.size();
    for (const added_token& a : p_.added) add(a);
    for (const std::vector<std::int32_t>* const around : {&p_.before, &p_.after})
      for (const std::int32_t id : *around)
        if (id < 0 || id >= std::ssize(p_.tokens) ||
            p_.tokens[static_cast<std::size_t>(id)].empty())
          throw error(exit_code::data,
                      fmt::format("{}: \"post_processor\" puts the id {} around texts, which is no "
                                  "token; correct the file, or download it again",
                                  p_.file, id));
    raw_.sort(), normalized_.sort();
    std::ranges::sort(p_.unspelled);
    // The strings of p_ stay where they are from here on, so that ids_ may point to them.
    for (std::size_t i = 0; i < own; ++i) {
      const auto id = static_cast<std::int32_t>(i);
      if (!p_.tokens[i].empty() && !std::ranges::binary_search(p_.unspelled, id))
        ids_.emplace(p_.tokens[i], id);
    }
    for (unsigned b = 0; b < 256; ++b) {
      const char c = static_cast<char>(b);
      const auto at = ids_.find(std::string_view(&c, 1));
      of_byte_[b] = at != ids_.end() ? at->second : -1;
      lacks_bytes_ = lacks_bytes_ || at == ids_.end();
    }
  }
  tokenizer(const tokenizer&) = delete; // A tokenizer has pointers to its own strings.
  tokenizer& operator=(const tokenizer&) = delete;

  const std::string& file() const { return p_.file; }
  /// Returns one more than the largest id.
  std::int32_t vocabulary() const { return static_cast<std::int32_t>(p_.tokens.size()); }
  /// Returns the bytes of a token; nothing for an id that is not used.
  std::string_view bytes_of(std::int32_t id) const {
    return id >= 0 && id < vocabulary() ? std::string_view(p_.tokens[static_cast<std::size_t>(id)])
                                        : std::string_view();
  }
  bool is_special(std::int32_t id) const {
    return id >= 0 && static_cast<std::size_t>(id) < is_special_.size() &&
           is_special_[static_cast<std::size_t>(id)];
  }
  /// Returns the id of an added token, or else of the token with these bytes.
  std::optional<std::int32_t> id_of(std::string_view token) const {
    if (const auto added = by_content_.find(std::string(token)); added != by_content_.end())
      return added->second;
    const auto at = ids_.find(token);
    return at != ids_.end() ? std::optional(at->second) : std::nullopt;
  }

  /// Returns the ids that are put before every text.
  std::span<const std::int32_t> begin() const { return p_.before; }

  /// Returns the ids of one text; for many texts, a token_encoder is faster. With `around`, ids are
  /// put around the text as the tokenizer's file says. Throws mc::error(exit_code::data) for a text
  /// that is not UTF-8.
  std::vector<std::int32_t> encode(std::string_view text, bool around = true) const;
  /// Returns the bytes of tokens as a text. Throws mc::error(exit_code::data) for an id that is no
  /// token.
  std::string decode(std::span<const std::int32_t> ids, bool skip_special = false) const;

private:
  friend class token_encoder;

  /// finder finds added tokens in a text: the leftmost one, and of several that begin there the
  /// longest.
  class finder {
  public:
    void add(const added_token& a, std::string spelled) {
      if (spelled.empty()) return;
      begins_[static_cast<unsigned char>(spelled[0])] = true;
      list_.push_back({std::move(spelled), a});
    }
    void sort() {
      std::ranges::stable_sort(list_, std::ranges::greater(),
                               [](const spelled_token& e) { return e.spelled.size(); });
      for (std::size_t i = 0; i < list_.size(); ++i)
        of_byte_[static_cast<unsigned char>(list_[i].spelled[0])].push_back(&list_[i]);
    }
    bool empty() const { return list_.empty(); }

    struct found {
      const added_token* token;
      std::size_t begin,
          end; ///< The token's range in the text, with the white space that it takes.
    };
    /// Returns the first added token from byte `from` on, or nothing. Its range never begins before
    /// `from`.
    std::optional<found> next(std::string_view text, std::size_t from) const {
      for (std::size_t i = from; i < text.size(); ++i) {
        const auto c = static_cast<unsigned char>(text[i]);
        if (!begins_[c]) continue;
        for (const spelled_token* e : of_byte_[c]) {
          if (!text.substr(i).starts_with(e->spelled)) continue;
          found f{&e->token, i, i + e->spelled.size()};
          if (e->token.lstrip) f.begin = white_space_before(text, from, i);
          if (e->token.rstrip) f.end = white_space_behind(text, f.end);
          return f;
        }
      }
      return std::nullopt;
    }

  private:
    struct spelled_token {
      std::string spelled;
      added_token token;
    };
    std::vector<spelled_token> list_;
    std::array<std::vector<const spelled_token*>, 256> of_byte_;
    std::array<bool, 256> begins_{};
  };

  void add(const added_token& a) {
    const auto id = static_cast<std::size_t>(a.id);
    if (id >= p_.tokens.size()) p_.tokens.resize(id + 1);
    is_special_.resize(std::max(is_special_.size(), id + 1));
    is_special_[id] = a.special;
    p_.tokens[id] = a.content;
    by_content_[a.content] = a.id;
    finder& f = a.normalized ? normalized_ : raw_;
    f.add(a, a.normalized && p_.composes ? nfc(a.content) : a.content);
  }

  static bool is_white_space(std::string_view code_point) {
    utf8proc_int32_t c = 0;
    utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(code_point.data()),
                     static_cast<utf8proc_ssize_t>(code_point.size()), &c);
    const utf8proc_category_t category = utf8proc_category(c);
    return (c >= 9 && c <= 13) || c == 0x85 || category == UTF8PROC_CATEGORY_ZS ||
           category == UTF8PROC_CATEGORY_ZL || category == UTF8PROC_CATEGORY_ZP;
  }
  static std::size_t white_space_before(std::string_view text, std::size_t from, std::size_t at) {
    while (at > from) {
      std::size_t begin = at - 1;
      while (begin > from && (static_cast<unsigned char>(text[begin]) & 0xc0u) == 0x80u) --begin;
      if (!is_white_space(text.substr(begin, at - begin))) break;
      at = begin;
    }
    return at;
  }
  static std::size_t white_space_behind(std::string_view text, std::size_t at) {
    while (at < text.size()) {
      const std::size_t n = code_point_at(text, at);
      if (!is_white_space(text.substr(at, n))) break;
      at += n;
    }
    return at;
  }

  /// Throws mc::error(exit_code::machine) where a library knows less than Unicode 14. Older
  /// libraries lack letters, numbers and compositions, and would cut words otherwise.
  void require_unicode() const {
    char pcre2[64] = {};
    pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, pcre2);
    for (const auto& [library, version] : {std::pair<const char*, const char*>{"PCRE2", pcre2},
                                           {"utf8proc", utf8proc_unicode_version()}})
      if (std::atoi(version) < 14)
        throw error(
            exit_code::machine,
            fmt::format("{} on this machine knows Unicode {}, and words are cut by Unicode 14 "
                        "or later; install a newer {}",
                        library, version, library));
  }

  tokenizer_data p_;
  std::unordered_map<std::string_view, std::int32_t>
      ids_; ///< The ids of tokens that are not added.
  std::unordered_map<std::string, std::int32_t> by_content_;
  std::array<std::int32_t, 256> of_byte_{}; ///< The id of each byte, or -1 where it has none.
  bool lacks_bytes_ = false;
  std::vector<bool> is_special_; ///< whether a token is special, by its id
  finder raw_, normalized_;
};

/// token_encoder encodes texts with one tokenizer, on one thread. It remembers the ids of words
/// that it has met lately.
class token_encoder {
public:
  /// Prepares to encode with a tokenizer, which must outlive the encoder.
  explicit token_encoder(const tokenizer& t) : t_(&t), known_(known_words) {
    for (const split_rule& s : t.p_.splits) searches_.emplace_back(*s.pattern);
  }

  /// Appends the ids of a text. With `around`, ids are put around the text as the tokenizer's file
  /// says. Throws mc::error(exit_code::data) for a text that is not UTF-8.
  void encode(std::string_view text, std::vector<std::int32_t>& to, bool around = true) {
    if (const std::size_t at = first_not_utf8(text); at != text.size())
      throw error(
          exit_code::data,
          fmt::format("the byte 0x{:02x} at offset {} of a text is not part of UTF-8; convert "
                      "the text to UTF-8",
                      static_cast<unsigned char>(text[at]), at));
    to_ = &to;
    const tokenizer_data& p = t_->p_;
    if (around) to.insert(to.end(), p.before.begin(), p.before.end());
    cut_at(t_->raw_, text, [&](std::string_view between) {
      if (p.composes && !is_below_marks(between)) {
        const std::string composed = nfc(between);
        cut_at(t_->normalized_, composed, [&](std::string_view rest) { words_of(rest); });
      } else {
        cut_at(t_->normalized_, between, [&](std::string_view rest) { words_of(rest); });
      }
    });
    if (around) to.insert(to.end(), p.after.begin(), p.after.end());
  }

private:
  /// known_word is a word of up to 22 bytes with its ids, in one cache line.
  struct alignas(64) known_word {
    std::uint8_t bytes = 0, count = 0;
    std::array<char, 22> text{};
    std::array<std::int32_t, 10> ids{};
  };
  static_assert(sizeof(known_word) == 64);
  static constexpr std::size_t known_words = std::size_t{1} << 15; // The words take 2 MiB.

  template <class Between>
  void cut_at(const tokenizer::finder& added, std::string_view text, Between between) {
    std::size_t from = 0;
    while (!added.empty()) {
      const auto f = added.next(text, from);
      if (!f) break;
      if (f->begin > from) between(text.substr(from, f->begin - from));
      to_->push_back(f->token->id);
      from = f->end;
    }
    if (from < text.size()) between(text.substr(from));
  }

  void words_of(std::string_view text) {
    if (t_->p_.prefix_space && !text.starts_with(' ')) {
      const std::string spaced = ' ' + std::string(text);
      return cut(0, spaced);
    }
    cut(0, text);
  }

  void cut(std::size_t i, std::string_view text) {
    if (i == searches_.size()) return word(text);
    const split_rule& s = t_->p_.splits[i];
    std::size_t begin = 0, end = 0; // The range of a word that may still grow.
    bool matched = false;
    const auto flush = [&] {
      if (end > begin) cut(i + 1, text.substr(begin, end - begin));
      begin = end;
    };
    const auto piece = [&](std::size_t from, std::size_t to, bool match) {
      using enum split_rule::behavior;
      match = match != s.invert;
      const bool joins = (s.as == contiguous && match == matched) ||
                         (s.as == merged_with_previous && match && !matched) ||
                         (s.as == merged_with_next && !match && matched);
      if (!joins || end != from) flush(), begin = from;
      end = to, matched = match;
      if (s.as == removed && match) begin = end;
    };
    std::size_t from = 0, at = 0, last = std::string_view::npos;
    while (at < text.size()) {
      const auto m = searches_[i].next(text, at);
      if (!m) break;
      at = m->end;
      if (m->end == m->begin) { // An empty match cuts, too, but not at the end of another match.
        if (m->begin < text.size()) at += code_point_at(text, m->begin);
        else at = text.size() + 1;
        if (m->begin == last) continue;
      }
      if (m->begin > from) piece(from, m->begin, false);
      piece(m->begin, m->end, true);
      from = last = m->end;
    }
    if (from < text.size()) piece(from, text.size(), false);
    flush();
  }

  void word(std::string_view w) {
    if (w.size() > std::tuple_size_v<decltype(known_word::text)>) return merged(w, *to_);
    known_word& k = known_[std::hash<std::string_view>()(w) % known_words];
    if (k.bytes != w.size() || std::memcmp(k.text.data(), w.data(), w.size()) != 0) {
      const std::size_t before = to_->size();
      merged(w, *to_);
      const std::size_t n = to_->size() - before;
      if (n > k.ids.size()) return;
      k.bytes = static_cast<std::uint8_t>(w.size()), k.count = static_cast<std::uint8_t>(n);
      std::ranges::copy(w, k.text.begin());
      std::copy_n(to_->begin() + static_cast<std::ptrdiff_t>(before), n, k.ids.begin());
      return;
    }
    to_->insert(to_->end(), k.ids.begin(), k.ids.begin() + k.count);
  }

  void merged(std::string_view w, std::vector<std::int32_t>& to) {
    const tokenizer_data& p = t_->p_;
    if (p.ignore_merges)
      if (const auto at = t_->ids_.find(w); at != t_->ids_.end()) return to.push_back(at->second);
    symbols_.resize(w.size());
    std::ranges::transform(w, symbols_.begin(),
                           [&](char c) { return t_->of_byte_[static_cast<unsigned char>(c)]; });
    if (t_->lacks_bytes_)
      if (const auto none = std::ranges::find(symbols_, -1); none != symbols_.end())
        throw error(exit_code::data,
                    fmt::format("{} has no token for the byte 0x{:02x}, which a text has; take it "
                                "out of the text, or use a tokenizer with all 256 bytes",
                                p.file,
                                static_cast<unsigned char>(
                                    w[static_cast<std::size_t>(none - symbols_.begin())])));
    if (w.size() > 1)
      merger_.merge(
          p.merges, [&](std::int32_t id) { return t_->bytes_of(id).size(); }, symbols_);
    to.insert(to.end(), symbols_.begin(), symbols_.end());
  }

  const tokenizer* t_;
  std::vector<split_search> searches_;
  word_merger merger_;
  std::vector<std::int32_t> symbols_;
  std::vector<known_word> known_;
  std::vector<std::int32_t>* to_ = nullptr;
};

/// token_decoder turns tokens into text one by one. It holds back bytes that are not a whole
/// character yet.
class token_decoder {
public:
  explicit token_decoder(const tokenizer& t, bool skip_special = false)
      : t_(&t), skip_special_(skip_special) {}

  /// Appends the characters that a token completes. Throws mc::error(exit_code::data) for an id
  /// that is no token.
  void add(std::int32_t id, std::string& to) {
    const std::string_view bytes = t_->bytes_of(id);
    if (bytes.empty())
      throw error(exit_code::data,
                  fmt::format("{} is no token of {}, which has the ids 0 to {}; give "
                              "ids of this vocabulary",
                              id, t_->file(), t_->vocabulary() - 1));
    if (skip_special_ && t_->is_special(id)) return;
    held_ += bytes;
    const std::size_t whole = held_.size() - unfinished_utf8(held_);
    to.append(held_, 0, whole);
    held_.erase(0, whole);
  }
  /// Appends the bytes that were held back, at the end of all tokens.
  void finish(std::string& to) {
    to += held_;
    held_.clear();
  }

private:
  const tokenizer* t_;
  bool skip_special_;
  std::string held_;
};

inline std::vector<std::int32_t> tokenizer::encode(std::string_view text, bool around) const {
  std::vector<std::int32_t> ids;
  token_encoder(*this).encode(text, ids, around);
  return ids;
}

inline std::string tokenizer::decode(std::span<const std::int32_t> ids, bool skip_special) const {
  std::string text;
  token_decoder d(*this, skip_special);
  for (const std::int32_t id : ids) d.add(id, text);
  d.finish(text);
  return text;
}

} // namespace mc
