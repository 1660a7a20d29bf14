// Prompts of `generate`: texts, token ids, or messages of a chat, and the texts that continue them.
#pragma once

#include <megacpp/chat/chat_template.hpp>
#include <megacpp/generate/token_text.hpp>
#include <megacpp/io/mapped_file.hpp>
#include <megacpp/request/requests.hpp>

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mc::detail {

/// A prompt and the tokens that continue it.
struct continued_text {
  std::string prompt;               ///< prompt as the user gave it
  std::vector<std::int32_t> tokens; ///< tokens of the prompt, then new ones
  std::size_t given = 0;            ///< number of the prompt's tokens
  std::int64_t number = 0;          ///< number of the prompt, from 0
  std::int64_t sample = 0;          ///< number of the text among those of its prompt, from 0
  int adapter = -1;    ///< number among those of the request; -1: that of all texts, or none
  std::string written; ///< the prompt and the new tokens, as text
  std::vector<double> logprobs; ///< log probability of each new token, if asked for
  const char* end = nullptr;    ///< why the text is finished: "stop", "length" or "positions"

  std::int64_t fresh() const { return std::ssize(tokens) - static_cast<std::int64_t>(given); }
};

/// Prompts that are conversations, in the format of the model's chat template.
class chat_prompts {
public:
  /// `folder`: the model's folder, whose template is used unless the request names another. Throws
  /// mc::error.
  chat_prompts(const sampling_request& asked, const tokenizer_request& r, const token_text& tokens,
               const std::string& folder)
      : tokens_(&tokens),
        system_(asked.system_prompt),
        thinks_(asked.thinks),
        style_(chat_template::of_folder(r.model ? *r.model : folder)) {
    if (tokens.tokenizer() == nullptr)
      throw error(
          exit_code::usage,
          "sampling_request::chat needs the tokenizer of the model, and sampling_request::ids or "
          "a tokenizer_request::type of bytes "
          "contradict it; leave them out");
    const std::optional<std::int32_t> end = tokens.tokenizer()->id_of(style_.end_of_turn());
    if (!end)
      throw error(exit_code::model,
                  fmt::format("{} has no token {}, by which turns of the template {} end; give the "
                              "tokenizer of the template",
                              tokens.tokenizer()->file(), style_.end_of_turn(), style_.name()));
    end_ = *end;
    if (asked.insists_on_thinking && style_.style() != chat_style::qwen3)
      throw error(
          exit_code::usage,
          fmt::format("sampling_request::thinks changes nothing: it is a switch of the template "
                      "of Qwen3, and this one is of {}; leave it out",
                      style_.name()));
  }

  std::int32_t end_of_turn() const { return end_; }
  /// Returns a conversation that has the system's message, if there is one.
  conversation begun() const {
    conversation c;
    if (!system_.empty()) say(c, chat_speaker::system, system_);
    return c;
  }
  static void say(conversation& c, chat_speaker speaker, std::string words) {
    c.messages.emplace_back();
    c.messages.back().speaker = speaker, c.messages.back().content = std::move(words);
  }
  /// Returns the prompt that asks for the assistant's next message. Throws mc::error(code) for one
  /// that is too long.
  continued_text asking(const conversation& c, const std::string& where, exit_code code) const {
    continued_text t;
    t.tokens = tokens_->read_template(style_.prompt(c, thinks_), where, code);
    t.given = t.tokens.size();
    return t;
  }

private:
  const token_text* tokens_;
  std::string system_;
  bool thinks_;
  chat_template style_;
  std::int32_t end_ = 0;
};

/// Takes the name of an adapter and the tab behind it from the begin of a prompt, and returns the
/// number of the adapter; -1 for the name -, the model without one. Throws mc::error(code).
inline int take_adapter(std::span<const named_adapter> all, std::string_view& prompt,
                        const std::string& where, exit_code code) {
  std::string names = "-";
  for (const named_adapter& a : all) names += ", " + a.name;
  const std::size_t end = prompt.find('\t');
  if (end == std::string_view::npos)
    throw error(code, fmt::format("{}: the prompt names no adapter; write one of {} and a tab "
                                  "before it",
                                  where, names));
  const std::string_view name = prompt.substr(0, end);
  prompt.remove_prefix(end + 1);
  if (name == "-") return -1;
  for (std::size_t i = 0; i < all.size(); ++i)
    if (all[i].name == name) return static_cast<int>(i);
  throw error(code, fmt::format("{}: there is no adapter {}; write one of {} before the tab", where,
                                printable(name), names));
}

/// Returns the prompts of a request and then those of its file. Where `adapters` have names, each
/// begins with one. Throws mc::error with usage or data for a prompt that is empty, too long, or
/// has an id that is no token.
inline std::vector<continued_text> read_prompts(const sampling_request& asked,
                                                const token_text& tokens,
                                                const chat_prompts* chat = nullptr,
                                                std::span<const named_adapter> adapters = {}) {
  std::vector<continued_text> list;
  const auto add = [&](std::string_view prompt, const std::string& where, exit_code code) {
    const int adapter = are_named(adapters) ? take_adapter(adapters, prompt, where, code) : -1;
    if (chat != nullptr) {
      if (prompt.find_first_not_of(" \t") == std::string_view::npos)
        throw error(code, fmt::format("{}: the question is empty; leave it out", where));
      conversation c = chat->begun();
      chat_prompts::say(c, chat_speaker::user, std::string(prompt));
      list.push_back(chat->asking(c, where, code));
      list.back().prompt = prompt, list.back().adapter = adapter;
      return;
    }
    continued_text t;
    t.tokens = tokens.read_prompt(prompt, where, code);
    t.prompt = prompt, t.given = t.tokens.size(), t.adapter = adapter;
    if (t.tokens.empty())
      throw error(code, fmt::format("{}: the prompt is empty; {}", where,
                                    tokens.ids() ? "give at least one token id"
                                                 : "leave it out to begin with a line end"));
    for (const std::int32_t token : t.tokens)
      if (tokens.ids()) tokens.write(token, t.written);
    if (!tokens.ids()) t.written = t.prompt;
    list.push_back(std::move(t));
  };
  for (const std::string& prompt : asked.prompts)
    add(prompt, "sampling_request::prompts", exit_code::usage);
  if (asked.prompts_file) {
    const mapped_file file(*asked.prompts_file, exit_code::data);
    std::string_view rest = written_text(file);
    for (int line = 1; !rest.empty(); ++line) {
      const std::size_t end = std::min(rest.find('\n'), rest.size());
      std::string_view prompt = rest.substr(0, end);
      if (prompt.ends_with('\r')) prompt.remove_suffix(1);
      add(prompt, fmt::format("{}, line {}", file.path(), line), exit_code::data);
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
  }
  if (!list.empty()) return list;
  if (tokens.ids())
    throw error(
        exit_code::usage,
        "sampling_request::ids needs sampling_request::prompts or sampling_request::prompts_file "
        "with token ids");
  list.emplace_back();
  list.back().tokens = {tokens.first("sampling_request::prompts")}, list.back().given = 1;
  return list;
}

/// Returns a text for each prompt and each of its `n` samples.
inline std::vector<continued_text> with_samples(std::vector<continued_text> prompts,
                                                std::int64_t n) {
  std::vector<continued_text> texts;
  texts.reserve(prompts.size() * static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < prompts.size(); ++i)
    for (std::int64_t k = 0; k < n; ++k) {
      texts.push_back(prompts[i]);
      texts.back().number = static_cast<std::int64_t>(i), texts.back().sample = k;
    }
  return texts;
}

} // namespace mc::detail
