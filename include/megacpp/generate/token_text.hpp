// Prompts and their tokens: a tokenizer makes them, or tokens are bytes, characters of a model, or
// ids.
#pragma once

#include <megacpp/data/id_list.hpp>
#include <megacpp/inputs/run_tokenizer.hpp>
#include <megacpp/inputs/text.hpp>

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mc {

/// Turns texts into the tokens of a model, and tokens into text.
class token_text {
public:
  /// Texts are lists of token ids if `ids` is true, whatever the tokens are. `with`: the tokenizer
  /// of the model, if it has one. Throws mc::error: usage where tokens are neither bytes nor
  /// characters and no tokenizer is known, mismatch where the model in `folder` was trained on
  /// another type.
  token_text(const program_view& p, const tokenizer_request& r, const std::string& folder,
             std::optional<character_set> characters, bool ids,
             std::shared_ptr<const mc::tokenizer> with = nullptr)
      : name_(p.name),
        positions_(p.positions),
        vocabulary_(p.vocabulary),
        characters_(std::move(characters)),
        ids_(ids),
        tokenizer_(ids ? nullptr : std::move(with)) {
    if (ids_ || tokenizer_) return;
    if (r.kind() == "NullTokenizer")
      throw error(exit_code::usage,
                  "NullTokenizer has ids and no text; give the ids with sampling_request::ids, or "
                  "name their tokenizer in tokenizer_request::model");
    detail::require_tokenizer_of(folder, r, characters_.has_value());
    if (!characters_)
      detail::require_byte_vocabulary(
          p, r, "a tokenizer in tokenizer_request::model, or token ids with sampling_request::ids");
  }

  bool ids() const { return ids_; }
  /// Returns the tokenizer; nullptr if no tokenizer makes the tokens.
  const mc::tokenizer* tokenizer() const { return tokenizer_.get(); }
  std::int32_t vocabulary() const { return vocabulary_; }
  /// Returns the number of tokens, from 0 on, that may be drawn: those that stand for some text, or
  /// all if ids are written.
  std::int32_t drawn() const {
    if (ids_) return vocabulary_;
    if (tokenizer_) return std::min(vocabulary_, tokenizer_->vocabulary());
    return characters_ ? characters_->size() : std::min(256, vocabulary_);
  }
  /// Returns the token that a text without a prompt begins with: the token of a tokenizer that ends
  /// documents; else the line end, or token 0 if that is none. Messages say that `value` gives
  /// another prompt. Throws mc::error(exit_code::usage) for a tokenizer without such a token.
  std::int32_t first(std::string_view value) const {
    if (tokenizer_)
      return end_of_document(*tokenizer_, "",
                             fmt::format("give what texts begin with by {}", value));
    const std::int32_t t = characters_ ? characters_->token('\n') : '\n';
    return t >= 0 && t < vocabulary_ ? t : 0;
  }
  /// Returns the tokens of a text, which messages call `where`. Throws mc::error(code) for a text
  /// that is not made of tokens.
  std::vector<std::int32_t> read(std::string_view text, std::string_view where,
                                 exit_code code) const {
    if (ids_) return token_ids(text, vocabulary_, where, code);
    std::vector<std::int32_t> tokens;
    if (tokenizer_) {
      if (const std::size_t at = first_not_utf8(text); at != text.size())
        throw error(code, fmt::format("{}: byte {} is not part of UTF-8; leave it out", where, at));
      tokens = tokenizer_->encode(text, false);
      for (const std::int32_t t : tokens)
        if (t >= vocabulary_)
          throw error(code, fmt::format("{}: \"{}\" is token {} of {}, but the vocabulary of {} "
                                        "has {}; give the tokenizer of the model",
                                        where, printable(std::string(tokenizer_->bytes_of(t))), t,
                                        tokenizer_->file(), name_, vocabulary_));
      return tokens;
    }
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
  /// Returns the tokens of a prompt, for which the model must have positions: a longer prompt is
  /// refused before it takes memory. Throws mc::error(code).
  std::vector<std::int32_t> read_prompt(std::string_view text, std::string_view where,
                                        exit_code code) const {
    std::vector<std::int32_t> tokens;
    // A token of a tokenizer has at least one byte, and at most so many.
    constexpr std::int64_t longest = 1 << 10;
    std::int64_t n = std::ssize(text);
    if (ids_)
      tokens = token_ids(text, vocabulary_, where, code, positions_), n = std::ssize(tokens);
    else if (tokenizer_ && n <= longest * positions_) {
      const std::span<const std::int32_t> begin = tokenizer_->begin();
      tokens.assign(begin.begin(), begin.end());
      const std::vector<std::int32_t> rest = read(text, where, code);
      tokens.insert(tokens.end(), rest.begin(), rest.end());
      n = std::ssize(tokens);
    } else if (n <= positions_) {
      tokens = read(text, where, code);
    }
    if (n > positions_)
      throw error(code, fmt::format("{}: the prompt has {}{} tokens, but {} has {} positions; make "
                                    "it shorter",
                                    where, ids_ ? "at least " : "", n, name_, positions_));
    return tokens;
  }
  /// Returns the tokens of a text that a chat template wrote, to which none are added. Throws
  /// mc::error(code) for one that is longer than the positions of the model.
  std::vector<std::int32_t> read_template(std::string_view text, std::string_view where,
                                          exit_code code) const {
    std::vector<std::int32_t> tokens = read(text, where, code);
    if (std::ssize(tokens) > positions_)
      throw error(code, fmt::format("{}: it has {} tokens, but {} has {} positions; begin anew",
                                    where, tokens.size(), name_, positions_));
    return tokens;
  }
  /// Appends a token as text.
  void write(std::int32_t token, std::string& to) const {
    if (ids_) fmt::format_to(std::back_inserter(to), "{}{}", to.empty() ? "" : " ", token);
    else if (tokenizer_ == nullptr || !tokenizer_->is_special(token)) to += bytes_of(token);
  }
  /// Returns the bytes of a token that may be drawn; of a special token, its name.
  std::string bytes_of(std::int32_t token) const {
    if (ids_) return "";
    if (tokenizer_) return std::string(tokenizer_->bytes_of(token));
    return {static_cast<char>(characters_ ? characters_->bytes()[static_cast<std::size_t>(token)]
                                          : static_cast<std::uint8_t>(token))};
  }

private:
  std::string name_;
  std::int64_t positions_;
  int vocabulary_;
  std::optional<character_set> characters_;
  bool ids_;
  std::shared_ptr<const mc::tokenizer> tokenizer_;
};

} // namespace mc
