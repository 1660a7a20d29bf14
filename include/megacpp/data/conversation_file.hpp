// A file of conversations, read into tokens.
#pragma once

#include <megacpp/data/chat_template.hpp>
#include <megacpp/data/conversation.hpp>
#include <megacpp/data/packed_conversations.hpp>
#include <megacpp/exec/parallel.hpp>
#include <megacpp/io/error.hpp>
#include <megacpp/io/mapped_file.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <fmt/format.h>

namespace mc {

/// How lines become tokens.
struct conversation_form {
  std::int64_t vocabulary = 0;
  /// Without a template and an encoder only lines of {"ids", "mask"} are read.
  std::optional<chat_template> style = {};
  /// Makes an encoder for one thread.
  std::function<text_encoder()> encoder = {};
  trained_on trained = trained_on::assistant;
};

/// Makes tokens of lines, on one thread.
class conversation_encoder {
public:
  /// Throws mc::error(exit_code::model) where the token that ends a turn of the template is none of
  /// the vocabulary: the model would not know what it is to learn.
  explicit conversation_encoder(conversation_form form) : form_(std::move(form)) {
    if (!form_.style) return;
    encode_ = form_.encoder();
    const std::string_view end = form_.style->end_of_turn();
    if (encode_(end).size() != 1)
      throw error(exit_code::model,
                  fmt::format("the chat template of {} ends turns by {}, which is no token of this "
                              "tokenizer; give the folder whose template and tokenizer belong "
                              "together",
                              form_.style->name(), end));
  }

  /// Throws mc::error(exit_code::data) naming file and line.
  chat_tokens operator()(std::string_view line, std::string_view file, std::int64_t number) const {
    std::variant<conversation, chat_tokens> read = parse_conversation(line, file, number);
    const auto fault = [&](const std::string& sentence) {
      return error(exit_code::data, fmt::format("{}, line {} {}", file, number, sentence));
    };
    if (const conversation* const chat = std::get_if<conversation>(&read)) {
      if (!form_.style)
        throw fault(
            "is a conversation in words, but no tokenizer is given; give one, or lines of "
            "\"ids\" and \"mask\"");
      read = encode_chat(form_.style->render(*chat), encode_, form_.trained);
    }
    chat_tokens tokens = std::get<chat_tokens>(std::move(read));
    for (std::size_t i = 0; i < tokens.ids.size(); ++i)
      if (tokens.ids[i] < 0 || tokens.ids[i] >= form_.vocabulary)
        throw fault(
            fmt::format("has the token {} at {}, but the vocabulary has {}; use the "
                        "tokenizer of the model",
                        tokens.ids[i], i, form_.vocabulary));
    return tokens;
  }

private:
  conversation_form form_;
  text_encoder encode_;
};

/// Calls f(line, number from 1) for every line of a text that is not blank.
template <class F> void for_chat_lines(std::string_view text, F&& f) {
  for (std::int64_t number = 1; !text.empty(); ++number) {
    const auto end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.find_first_not_of(" \t\r") != std::string_view::npos) f(line, number);
  }
}

/// Encodes lines on all threads and hands over their tokens in order; holds some megabytes.
class conversation_batch {
public:
  /// `to(tokens)` takes each conversation.
  conversation_batch(const conversation_form& form, std::string file,
                     std::function<void(const chat_tokens&)> to)
      : file_(std::move(file)), to_(std::move(to)) {
    for (int slot = thread_count(); slot-- > 0;) encoders_.emplace_back(form);
  }

  /// Takes a copy of the line.
  void add(std::string_view line, std::int64_t number) {
    bytes_ += line.size();
    lines_.push_back({std::string(line), number, {}, {}});
    if (lines_.size() == 4096 || bytes_ >= (4u << 20)) finish();
  }
  /// Hands over what is held; throws what the first line that is refused throws.
  void finish() {
    std::atomic<std::size_t> next{0};
    on_slots(static_cast<int>(encoders_.size()), [this, &next](int slot) {
      for (std::size_t i; (i = next.fetch_add(1)) < lines_.size();)
        lines_[i].encode(encoders_[static_cast<std::size_t>(slot)], file_);
    });
    for (const entry& e : lines_) {
      if (e.problem) std::rethrow_exception(e.problem);
      to_(e.tokens);
    }
    lines_.clear();
    bytes_ = 0;
  }

private:
  struct entry {
    std::string line;
    std::int64_t number;
    chat_tokens tokens;
    std::exception_ptr problem;

    void encode(const conversation_encoder& by, std::string_view file) {
      try {
        tokens = by(line, file, number);
      } catch (...) {
        problem = std::current_exception();
      }
    }
  };

  std::string file_;
  std::function<void(const chat_tokens&)> to_;
  std::vector<conversation_encoder> encoders_; // one a thread
  std::vector<entry> lines_;
  std::size_t bytes_ = 0;
};

/// Every conversation of a file, encoded on all threads. Throws mc::error(exit_code::data) for the
/// first line that is refused.
inline conversation_store read_conversations(const std::string& path,
                                             const conversation_form& form) {
  const mapped_file file(path);
  file.check_unchanged();
  const std::string_view text(reinterpret_cast<const char*>(file.data()),
                              static_cast<std::size_t>(file.size()));
  conversation_store store;
  conversation_batch batch(form, path, [&](const chat_tokens& tokens) { store.add(tokens); });
  for_chat_lines(text,
                 [&](std::string_view line, std::int64_t number) { batch.add(line, number); });
  batch.finish();
  if (store.size() == 0)
    throw error(exit_code::data,
                fmt::format("{} has no conversation: all its lines are blank", path));
  return store;
}

} // namespace mc
