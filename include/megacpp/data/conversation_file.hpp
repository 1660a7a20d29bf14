// A file of conversations, read into tokens.
#pragma once

#include <megacpp/data/chat_template.hpp>
#include <megacpp/data/conversation.hpp>
#include <megacpp/data/packed_conversations.hpp>
#include <megacpp/io/error.hpp>
#include <megacpp/io/json_file.hpp>
#include <megacpp/io/mapped_file.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include <fmt/format.h>

namespace mc {

/// Makes tokens of lines: by a template and an encoder, or, without them, of lines that have ids.
class conversation_encoder {
public:
  /// For {"ids", "mask"} alone.
  explicit conversation_encoder(std::int64_t vocabulary) : vocabulary_(vocabulary) {}
  /// Throws mc::error(exit_code::model) where the tokens of the template are no tokens of the
  /// vocabulary: a model that knows only their letters would have to learn them anew.
  conversation_encoder(std::int64_t vocabulary, chat_template style, text_encoder encode,
                       trained_on trained = trained_on::assistant)
      : vocabulary_(vocabulary),
        style_(std::move(style)),
        encode_(std::move(encode)),
        trained_(trained) {
    if (encode_(style_->end_of_turn()).size() != 1)
      throw error(exit_code::model,
                  fmt::format("the chat template of {} ends turns by {}, which is no token of this "
                              "tokenizer; give the folder whose template and tokenizer belong "
                              "together",
                              style_->name(), style_->end_of_turn()));
  }

  /// Throws mc::error(exit_code::data) naming file and line.
  chat_tokens operator()(std::string_view line, std::string_view file, std::int64_t number) const {
    std::variant<conversation, chat_tokens> read = parse_conversation(line, file, number);
    const auto fault = [&](const std::string& sentence) {
      return error(exit_code::data, fmt::format("{}, line {} {}", file, number, sentence));
    };
    if (const conversation* const chat = std::get_if<conversation>(&read)) {
      if (!style_)
        throw fault(
            "is a conversation in words, but no tokenizer is given; give one, or lines of "
            "\"ids\" and \"mask\"");
      read = encode_chat(style_->render(*chat), encode_, trained_);
    }
    chat_tokens tokens = std::get<chat_tokens>(std::move(read));
    for (std::size_t i = 0; i < tokens.ids.size(); ++i)
      if (tokens.ids[i] < 0 || tokens.ids[i] >= vocabulary_)
        throw fault(
            fmt::format("has the token {} at {}, but the vocabulary has {}; use the "
                        "tokenizer of the model",
                        tokens.ids[i], i, vocabulary_));
    return tokens;
  }

private:
  std::int64_t vocabulary_;
  std::optional<chat_template> style_;
  text_encoder encode_;
  trained_on trained_ = trained_on::assistant;
};

/// Calls f(line, number from 1) for every line of a text that is not blank; one above 16 MiB is
/// refused by its number.
template <class F> void for_chat_lines(std::string_view text, std::string_view file, F&& f) {
  for (std::int64_t number = 1; !text.empty(); ++number) {
    const auto end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.size() > json_size_limit)
      throw error(exit_code::data,
                  fmt::format("{}, line {} has {} bytes, more than the {} allowed for a line", file,
                              number, line.size(), json_size_limit));
    if (line.find_first_not_of(" \t\r") != std::string_view::npos) f(line, number);
  }
}

/// Every conversation of a file. Throws mc::error(exit_code::data).
inline conversation_store read_conversations(const std::string& path,
                                             const conversation_encoder& encode) {
  const mapped_file file(path);
  file.check_unchanged();
  const std::string_view text(reinterpret_cast<const char*>(file.data()),
                              static_cast<std::size_t>(file.size()));
  conversation_store store;
  for_chat_lines(text, path, [&](std::string_view line, std::int64_t number) {
    store.add(encode(line, path, number));
  });
  if (store.size() == 0)
    throw error(exit_code::data,
                fmt::format("{} has no conversation: all its lines are blank", path));
  return store;
}

} // namespace mc
