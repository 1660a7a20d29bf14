// This header reads files of conversations and turns each conversation into token ids.
#pragma once

#include <megacpp/chat/chat_template.hpp>
#include <megacpp/chat/conversation.hpp>
#include <megacpp/chat/packed_conversations.hpp>
#include <megacpp/io/error.hpp>
#include <megacpp/io/line_reader.hpp>
#include <megacpp/threads/in_order.hpp>
#include <megacpp/tokenizer/tokenizer.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <fmt/format.h>

namespace mc {

/// Returns an encoder for one thread, which the tokenizer must outlive. The encoder does not add
/// the ids that the tokenizer's file puts around every text, because the chat template writes them.
inline text_encoder encoder_of(const tokenizer& t) {
  return [encoder = std::make_shared<token_encoder>(t)](std::string_view text) {
    std::vector<std::int32_t> ids;
    encoder->encode(text, ids, false);
    return ids;
  };
}

/// conversation_rules has what a reader needs to turn lines of conversations into token ids.
struct conversation_rules {
  std::int64_t vocabulary = 0;
  /// `style` is the chat template. Without a template and a tokenizer, a reader accepts only lines
  /// of {"ids", "mask"}.
  std::optional<chat_template> style = {};
  std::optional<error> no_style = {}; ///< The reason why the folder's template cannot be used.
  const mc::tokenizer* tokenizer{};   ///< The tokenizer, which must outlive every reader.
  trained_on trained = trained_on::assistant;
  /// The fields that lines have for each speaker, where lines are no lists of messages.
  std::optional<chat_fields> fields = {};

  /// Takes the template of a folder. Where the template is missing or not known, the error is kept,
  /// and thrown by the first line that needs a template.
  void take_template(const std::string& folder) {
    try {
      style = chat_template::of_folder(folder);
    } catch (const error& e) {
      no_style = e;
    }
  }
};

/// conversation_encoder turns lines of a file of conversations into token ids, on one thread.
class conversation_encoder {
public:
  /// Throws mc::error(exit_code::model) where the vocabulary has no single token for the text that
  /// ends the template's turns: the template and the tokenizer do not belong together.
  explicit conversation_encoder(conversation_rules rules) : rules_(std::move(rules)) {
    if (!rules_.style) return;
    encode_ = encoder_of(*rules_.tokenizer);
    const std::string_view end = rules_.style->end_of_turn();
    if (encode_(end).size() != 1)
      throw error(exit_code::model,
                  fmt::format("the chat template of {} ends turns by {}, which is no token of this "
                              "tokenizer; give the folder whose template and tokenizer belong "
                              "together",
                              rules_.style->name(), end));
    // Each turn is encoded alone. The text between two turns must have the same ids so as it has
    // when both turns are encoded at once.
    const auto [between, start] = rules_.style->before_turn();
    const auto encode_both = [this](const std::string& a, const std::string& b) {
      std::vector<std::int32_t> ids = encode_(a);
      const std::vector<std::int32_t> more = encode_(b);
      ids.insert(ids.end(), more.begin(), more.end());
      return ids;
    };
    const std::string ended(end);
    const std::vector<std::int32_t> whole = encode_(ended + between + start);
    if (whole != encode_both(ended, between + start) ||
        whole != encode_both(ended + between, start))
      rules_.no_style = error(
          exit_code::model,
          fmt::format("the ids of a turn depend on its neighbours by {}, of which {} takes blanks "
                      "beside it away (\"rstrip\" or \"lstrip\" of an added token); write the "
                      "conversations beforehand as lines of \"ids\" and \"mask\", by "
                      "examples/render_conversations.py",
                      rules_.tokenizer->file(), end));
  }

  /// Returns the token ids of a line. Throws mc::error(exit_code::data) that names the file and the
  /// line.
  chat_tokens operator()(std::string_view line, std::string_view file, std::int64_t number) const {
    std::variant<conversation, chat_tokens> read =
        parse_conversation(line, file, number, rules_.fields ? &*rules_.fields : nullptr);
    const auto fault = [&](const std::string& sentence) {
      return error(exit_code::data, fmt::format("{}: line {} {}", file, number, sentence));
    };
    if (const conversation* const chat = std::get_if<conversation>(&read)) {
      if (rules_.no_style) throw *rules_.no_style;
      if (!rules_.style)
        throw fault(
            "is a conversation in words, but no tokenizer is given; give one, or lines of "
            "\"ids\" and \"mask\"");
      read = encode_chat(rules_.style->render(*chat), encode_, rules_.trained);
    }
    chat_tokens tokens = std::get<chat_tokens>(std::move(read));
    for (std::size_t i = 0; i < tokens.ids.size(); ++i)
      if (tokens.ids[i] < 0 || tokens.ids[i] >= rules_.vocabulary)
        throw fault(
            fmt::format("has the token {} at {}, but the vocabulary has {}; use the "
                        "tokenizer of the model",
                        tokens.ids[i], i, rules_.vocabulary));
    return tokens;
  }

private:
  conversation_rules rules_;
  text_encoder encode_;
};

/// Reads the conversations of files on `threads` threads, and calls to(tokens) for each of them in
/// order. Without a path it reads the standard input. Blank lines are skipped. Throws
/// mc::error(exit_code::data) for the first line that is wrong.
template <class To> void read_conversations(const std::vector<std::string>& paths,
                                            const conversation_rules& rules, int threads,
                                            const To& to) {
  struct piece {
    line_batch lines;
    std::vector<chat_tokens> conversations;
  };
  std::vector<conversation_encoder> encoders;
  encoders.reserve(static_cast<std::size_t>(threads));
  for (int thread = 0; thread < threads; ++thread) encoders.emplace_back(rules);
  line_reader lines(paths);
  in_order<piece>(
      threads, [&](piece& p) { return lines.next(p.lines); },
      [&](int thread, piece& p) {
        p.conversations.clear();
        p.lines.each([&](std::string_view line, std::int64_t number) {
          if (line.find_first_not_of(" \t") != std::string_view::npos)
            p.conversations.push_back(encoders[static_cast<std::size_t>(thread)](
                line, lines.name(p.lines.first.file), number));
        });
      },
      [&](const piece& p) {
        for (const chat_tokens& tokens : p.conversations) to(tokens);
      });
}

/// Returns all conversations of files as token ids. Throws mc::error(exit_code::data) for the first
/// line that is wrong, and where the files have no conversation.
inline std::shared_ptr<const tokenized_conversations> conversations_of(
    const std::vector<std::string>& paths, const conversation_rules& rules, int threads) {
  const auto store = std::make_shared<tokenized_conversations>();
  read_conversations(paths, rules, threads, [&](const chat_tokens& t) { store->add(t); });
  if (store->size() == 0)
    throw error(exit_code::data,
                fmt::format("{} has no conversation: it is empty, or all its lines "
                            "are blank",
                            paths[0]));
  return store;
}

} // namespace mc
