// Prompts as tokens, and tokens as what is written: bytes, the characters of a model, or ids.
#pragma once

#include <megacpp/train/text.hpp>

#include <charconv>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace mc {

/// A whole number for each id in a list separated by blanks, or by one comma each. `where` names
/// the list in messages. Throws mc::error(code) for what is no id of the vocabulary. What follows
/// the first `most` + 1 of them is not read.
inline std::vector<std::int32_t> token_ids(
    std::string_view list, int vocabulary, std::string_view where, exit_code code,
    std::int64_t most = std::numeric_limits<std::int64_t>::max()) {
  std::vector<std::int32_t> ids;
  constexpr std::string_view blanks = " \t\r\n", between = " ,\t\r\n";
  bool expected = false; // after a comma
  for (std::size_t at = list.find_first_not_of(blanks);
       (expected || at != std::string_view::npos) && std::ssize(ids) <= most;) {
    at = std::min(at, list.size());
    const std::size_t end = std::min(list.find_first_of(between, at), list.size());
    const std::string_view word = list.substr(at, end - at);
    std::int64_t id = -1;
    const auto [stopped, problem] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (problem == std::errc::invalid_argument || stopped != word.data() + word.size())
      throw error(code, fmt::format("{}: \"{}\" is not a token id; give whole numbers separated by "
                                    "blanks or commas",
                                    where, printable(std::string(word.substr(0, 80)))));
    if (problem != std::errc() || id < 0 || id >= vocabulary)
      throw error(code, fmt::format("{}: token {} is outside the vocabulary of 0 to {}; leave it "
                                    "out",
                                    where, word, vocabulary - 1));
    ids.push_back(static_cast<std::int32_t>(id));
    at = list.find_first_not_of(blanks, end);
    expected = at != std::string_view::npos && list[at] == ',';
    if (expected) at = list.find_first_not_of(blanks, at + 1);
  }
  return ids;
}

/// How a model's tokens are read and written.
class token_text {
public:
  /// Throws mc::error: usage for texts where the tokens are neither bytes nor characters, mismatch
  /// for a --tokenizer-type that the model was not trained with. `ids`: whatever the model's
  /// tokens are, their ids are read and written.
  token_text(const program_view& p, const options& o, std::optional<character_set> characters)
      : token_text(p, o, std::move(characters), o.sampling.ids()) {}
  token_text(const program_view& p, const options& o, std::optional<character_set> characters,
             bool ids)
      : name_(p.name),
        positions_(p.positions),
        vocabulary_(p.vocabulary),
        characters_(std::move(characters)),
        ids_(ids) {
    if (ids_) return;
    detail::require_tokenizer_of(o, characters_.has_value());
    if (!characters_) detail::require_byte_vocabulary(p, o, "--ids");
  }

  bool ids() const { return ids_; }
  /// Tokens that may be drawn, from 0 on: those that stand for no byte are not, unless ids are
  /// written.
  std::int32_t drawn() const {
    if (ids_) return vocabulary_;
    return characters_ ? characters_->size() : std::min(256, vocabulary_);
  }
  /// What a text without a prompt begins with: a line end, or the first token if there is none.
  std::int32_t first() const {
    const std::int32_t t = characters_ ? characters_->token('\n') : '\n';
    return t >= 0 && t < vocabulary_ ? t : 0;
  }
  /// The tokens of a text. Throws mc::error(code) for what has none.
  std::vector<std::int32_t> read(std::string_view text, std::string_view where,
                                 exit_code code) const {
    if (ids_) return token_ids(text, vocabulary_, where, code);
    std::vector<std::int32_t> tokens;
    tokens.reserve(text.size());
    for (std::size_t i = 0; i < text.size(); ++i) {
      const auto byte = static_cast<std::uint8_t>(text[i]);
      const std::int32_t t = characters_ ? characters_->token(byte) : byte;
      if (t < 0 || t >= vocabulary_)
        throw error(code, fmt::format("{}: byte {} at position {} is not a token of this model; "
                                      "leave it out",
                                      where, byte, i));
      tokens.push_back(t);
    }
    return tokens;
  }
  /// The same of a prompt, which the positions of the model must hold: a longer one is refused
  /// before it takes memory.
  std::vector<std::int32_t> read_prompt(std::string_view text, std::string_view where,
                                        exit_code code) const {
    std::vector<std::int32_t> tokens;
    if (ids_) tokens = token_ids(text, vocabulary_, where, code, positions_);
    else if (std::ssize(text) <= positions_) tokens = read(text, where, code);
    if (const std::int64_t n = ids_ ? std::ssize(tokens) : std::ssize(text); n > positions_)
      throw error(code, fmt::format("{}: the prompt has {}{} tokens, but {} has {} positions; make "
                                    "it shorter",
                                    where, ids_ ? "at least " : "", n, name_, positions_));
    return tokens;
  }
  /// Appends what a token is written as.
  void write(std::int32_t token, std::string& to) const {
    if (ids_) {
      fmt::format_to(std::back_inserter(to), "{}{}", to.empty() ? "" : " ", token);
    } else {
      to += static_cast<char>(characters_ ? characters_->bytes()[static_cast<std::size_t>(token)]
                                          : static_cast<std::uint8_t>(token));
    }
  }

private:
  std::string name_;
  std::int64_t positions_;
  int vocabulary_;
  std::optional<character_set> characters_;
  bool ids_;
};

} // namespace mc
