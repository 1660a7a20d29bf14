// A chat template writes a conversation as the text that a model was trained on, and notes which
// bytes of the text are learned. A model folder has its template as a Jinja program. Published
// programs are known by their checksums, and a format of chat_formats.hpp gives the same bytes.
#pragma once

#include <megacpp/chat/chat_formats.hpp>
#include <megacpp/chat/conversation.hpp>
#include <megacpp/chat/jinja_text.hpp>
#include <megacpp/io/checksum.hpp>
#include <megacpp/io/error.hpp>
#include <megacpp/io/json_file.hpp>
#include <megacpp/io/mapped_file.hpp>
#include <megacpp/io/ordered_json.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace mc {

/// chat_turn is where an assistant's turn stands in a text. Bytes [begin, content) are the turn's
/// header. Bytes [content, end) are learned: what the assistant says, and the token that ends the
/// turn. A special token begins at `begin`, and another one ends at `end`.
struct chat_turn {
  std::size_t begin, content, end;
  bool operator==(const chat_turn&) const = default;
};

struct rendered_chat {
  std::string text;
  std::vector<chat_turn> turns; ///< The assistant's turns that are trained on, in order.
};

namespace detail {

/// Returns text.strip() of Python: the text without white space at its ends. White space is what
/// Unicode calls White_Space, and the separators U+001C to U+001F.
inline std::string_view python_strip(std::string_view text) {
  const auto blank_at_front = [](std::string_view s) -> std::size_t {
    const auto c = [s](std::size_t i) {
      return i < s.size() ? static_cast<unsigned char>(s[i]) : 0u;
    };
    if (s.empty()) return 0;
    if (c(0) == ' ' || (c(0) >= 0x09 && c(0) <= 0x0d) || (c(0) >= 0x1c && c(0) <= 0x1f)) return 1;
    if (c(0) == 0xc2 && (c(1) == 0x85 || c(1) == 0xa0)) return 2;
    if (c(0) == 0xe1 && c(1) == 0x9a && c(2) == 0x80) return 3;
    if (c(0) == 0xe2 && c(1) == 0x80 &&
        ((c(2) >= 0x80 && c(2) <= 0x8a) || c(2) == 0xa8 || c(2) == 0xa9 || c(2) == 0xaf))
      return 3;
    if (c(0) == 0xe2 && c(1) == 0x81 && c(2) == 0x9f) return 3;
    if (c(0) == 0xe3 && c(1) == 0x80 && c(2) == 0x80) return 3;
    return 0;
  };
  while (const std::size_t n = blank_at_front(text)) text.remove_prefix(n);
  while (!text.empty()) {
    std::size_t last = text.size() - 1;
    while (last > 0 && (static_cast<unsigned char>(text[last]) & 0xc0u) == 0x80u) --last;
    if (blank_at_front(text.substr(last)) != text.size() - last) break;
    text.remove_suffix(text.size() - last);
  }
  return text;
}

inline std::string_view without_leading_newlines(std::string_view text) {
  const auto at = text.find_first_not_of('\n');
  return at == std::string_view::npos ? std::string_view() : text.substr(at);
}
inline std::string_view without_trailing_newlines(std::string_view text) {
  const auto at = text.find_last_not_of('\n');
  return at == std::string_view::npos ? std::string_view() : text.substr(0, at + 1);
}

/// chat_writer builds the text of a conversation, and notes where the assistant's turns stand.
class chat_writer {
public:
  explicit chat_writer(const turn_format& f) : f_(f) {}

  void say(std::string_view text) { out_.text += text; }
  void open(std::string_view speaker) {
    say(f_.open);
    say(speaker);
    say(f_.named);
  }
  void close() {
    say(f_.end);
    say(f_.between);
  }
  void turn(std::string_view speaker, std::string_view content) {
    open(speaker);
    say(content);
    close();
  }
  /// Writes an assistant's turn, and notes where it stands if it is trained on.
  void answer(std::string_view content, bool trained) {
    chat_turn turn{};
    turn.begin = out_.text.size();
    open(name_of(chat_speaker::assistant));
    turn.content = out_.text.size();
    say(content);
    turn.end = out_.text.size() + f_.end.size();
    close();
    if (trained) out_.turns.push_back(turn);
  }
  rendered_chat take() { return std::move(out_); }

private:
  turn_format f_;
  rendered_chat out_;
};

/// divided_answer is a message of an assistant, divided into reasoning and content. A message has
/// its reasoning in a field of its own, or in the content between <think> and </think>.
struct divided_answer {
  std::string_view reasoning, content;

  explicit divided_answer(const chat_message& message) : content(message.content) {
    constexpr std::string_view open = "<think>", close = "</think>";
    if (message.reasoning) {
      reasoning = *message.reasoning;
      return;
    }
    const auto first = content.find(close);
    if (first == std::string_view::npos) return;
    reasoning = without_trailing_newlines(content.substr(0, first));
    if (const auto at = reasoning.rfind(open); at != std::string_view::npos)
      reasoning.remove_prefix(at + open.size());
    reasoning = without_leading_newlines(reasoning);
    content = without_leading_newlines(content.substr(content.rfind(close) + close.size()));
  }
};

} // namespace detail

/// chat_template writes conversations as the text that one model was trained on.
class chat_template {
public:
  /// Makes the template of a style. `default_system` is what the system says in a conversation
  /// without a system's turn (ChatML, Qwen2.5). `begin` is the token that begins a text of Llama.
  explicit chat_template(chat_style style, std::string default_system = {},
                         std::string begin = "<|begin_of_text|>")
      : style_(style), default_system_(std::move(default_system)), begin_(std::move(begin)) {}

  /// Returns the template that writes what a Jinja program writes. `place` names the program's file
  /// in messages. Throws mc::error(exit_code::model) for a program that is not known.
  static chat_template of_jinja(std::string_view jinja, std::string_view place,
                                std::string begin = "<|begin_of_text|>");
  /// Returns the template of a model folder, from its chat_template.jinja or from "chat_template"
  /// in its tokenizer_config.json. Throws mc::error(exit_code::model) where both are missing, or
  /// where the program is not known.
  static chat_template of_folder(const std::string& folder);

  chat_style style() const { return style_; }
  std::string_view name() const { return format().name; }
  /// Returns the token that ends a turn. Generation stops at it.
  std::string_view end_of_turn() const { return format().turn.end; }
  /// Returns the text between the end of a turn and the next turn, and the token that begins a
  /// turn.
  std::pair<std::string, std::string> before_turn() const {
    return {std::string(format().turn.between), std::string(format().turn.open)};
  }
  /// `date` is today's date in the system's turn of Llama 3.1 and later. The default is the date
  /// that their published templates have.
  std::string date = "26 Jul 2024";

  /// Returns the text of a whole conversation. Throws mc::error(exit_code::data) for a conversation
  /// that the template cannot write, such as one with tools where the template has none.
  rendered_chat render(const conversation& chat) const {
    detail::chat_writer out(format().turn);
    write(chat, out);
    return out.take();
  }

  /// Returns the prompt that makes the model give the next turn: the conversation, then the header
  /// of an assistant's turn. With `thinking` false, Qwen3 is to answer without reasoning.
  std::string prompt(const conversation& chat, bool thinking = true) const {
    detail::chat_writer out(format().turn);
    write(chat, out);
    out.open(name_of(chat_speaker::assistant));
    out.say(format().after_prompt);
    if (!thinking) out.say(format().without_thinking);
    return out.take().text;
  }

private:
  /// Returns `t`. If its texts begin with a token, it gets the one that the files of the folder
  /// name. Throws mc::error(exit_code::model) where they name none, or two.
  static chat_template with_begin(chat_template t, const std::filesystem::path& folder,
                                  const std::optional<json_value>& config);

  const detail::chat_format& format() const {
    return detail::chat_formats[static_cast<std::size_t>(style_)];
  }
  error fault(const conversation& chat, std::string_view sentence) const {
    const std::string place = chat.place.empty() ? std::string() : chat.place + ": ";
    return error(exit_code::data, fmt::format("{}the template of {} {}", place, name(), sentence));
  }

  void write(const conversation& chat, detail::chat_writer& out) const {
    using places = detail::tools_format::places;
    const detail::chat_format& f = format();
    if (chat.messages.empty()) throw fault(chat, "needs a message");
    if (f.tools.place == places::nowhere) refuse_tools(chat);
    const bool tools = chat.tools && (f.tools.lists_none || !chat.tools->empty());
    if (f.begins) out.say(begin_);
    std::size_t i = write_system(chat, tools, out);
    if (tools && f.tools.place == places::first_user_turn) write_first_query(chat, i++, out);
    const std::size_t query = last_query(chat.messages);
    for (; i < chat.messages.size(); ++i) {
      const chat_message& m = chat.messages[i];
      if (m.speaker == chat_speaker::tool) write_result(chat.messages, i, out);
      else if (m.speaker != chat_speaker::assistant)
        out.turn(name_of(m.speaker), stripped(m.content));
      else out.answer(answer(chat, i, query), m.trained);
    }
  }

  std::string_view stripped(std::string_view content) const {
    return format().strips ? detail::python_strip(content) : content;
  }

  /// Throws mc::error(exit_code::data) for a conversation with tools, for which a format has no
  /// place.
  void refuse_tools(const conversation& chat) const {
    bool any = chat.tools && !chat.tools->empty();
    for (const chat_message& m : chat.messages) any = any || !m.calls.empty();
    if (any)
      throw fault(chat,
                  "has no place for tools and their calls; write them into the words of the "
                  "messages, or leave the conversation out");
  }

  void list_tools(const conversation& chat, detail::chat_writer& out) const {
    const detail::tools_format& f = format().tools;
    out.say(f.open);
    for (const ordered_json& tool : *chat.tools) {
      out.say(f.before);
      out.say(python_json(tool, f.indent));
      out.say(f.behind);
    }
    out.say(f.close);
  }

  /// Writes the system's turn, if there is one, and returns how many messages it has written.
  std::size_t write_system(const conversation& chat, bool tools, detail::chat_writer& out) const {
    const detail::chat_format& f = format();
    const bool own = chat.messages[0].speaker == chat_speaker::system,
               lists = tools && f.tools.place == detail::tools_format::places::system_turn,
               speaks = own || f.always_system || !default_system_.empty();
    if (!speaks && !lists) return 0;
    out.open(name_of(chat_speaker::system));
    if (tools) out.say(f.tools_note);
    if (!f.before_date.empty()) out.say(fmt::format("{}{}\n\n", f.before_date, date));
    out.say(stripped(own ? std::string_view(chat.messages[0].content) : default_system_));
    if (lists && speaks) out.say("\n\n");
    if (lists) list_tools(chat, out);
    out.close();
    return own ? 1 : 0;
  }

  /// Writes message i, which must be the user's, with the list of tools in front of its content.
  void write_first_query(const conversation& chat, std::size_t i, detail::chat_writer& out) const {
    if (i == chat.messages.size() || chat.messages[i].speaker != chat_speaker::user)
      throw fault(chat,
                  "tells of tools in the first turn of the user, but another turn stands there");
    out.open(name_of(chat_speaker::user));
    list_tools(chat, out);
    out.say(stripped(chat.messages[i].content));
    out.close();
  }

  /// Writes message i, the result of a tool. Results that follow each other may share a turn.
  void write_result(const std::vector<chat_message>& messages, std::size_t i,
                    detail::chat_writer& out) const {
    const detail::result_format& f = format().result;
    const auto joins = [&](std::size_t other) {
      return f.joins && other < messages.size() && messages[other].speaker == chat_speaker::tool;
    };
    if (i > 0 && joins(i - 1)) out.say("\n");
    else out.open(f.speaker);
    const std::string& content = messages[i].content;
    out.say(f.open);
    if (f.as_json) out.say(python_json(ordered_json::of(ordered_json::kinds::string, content)));
    else out.say(stripped(content));
    out.say(f.close);
    if (!joins(i + 1)) out.close();
  }

  /// Returns the index of the user's last turn that is not the result of a tool, or of the last
  /// message where there is no such turn.
  static std::size_t last_query(const std::vector<chat_message>& messages) {
    for (std::size_t i = messages.size(); i-- > 0;) {
      const std::string_view content = messages[i].content;
      if (messages[i].speaker == chat_speaker::user &&
          !(content.starts_with("<tool_response>") && content.ends_with("</tool_response>")))
        return i;
    }
    return messages.size() - 1;
  }

  /// Returns what is written for message i, an assistant's: its reasoning, content and calls.
  /// Reasoning has tags around it. The last turn, or every turn, has the tags even where there is
  /// no reasoning.
  std::string answer(const conversation& chat, std::size_t i, std::size_t query) const {
    const detail::call_format& f = format().call;
    const chat_message& m = chat.messages[i];
    std::string_view content = stripped(m.content);
    std::string text;
    if (f.alone && m.calls.size() > 1)
      throw fault(
          chat, fmt::format("has one call of a tool in a turn, but there are {}", m.calls.size()));
    if (f.alone && !m.calls.empty()) content = {};
    if (format().reasoning != detail::reasoning_place::in_content) {
      const detail::divided_answer said(m);
      content = said.content;
      const bool last = i + 1 == chat.messages.size();
      if (format().reasoning == detail::reasoning_place::every_turn ||
          (i > query && (last || !said.reasoning.empty())))
        text = fmt::format(
            "<think>\n{}\n</think>\n\n{}",
            detail::without_leading_newlines(detail::without_trailing_newlines(said.reasoning)),
            detail::without_leading_newlines(content));
    }
    if (text.empty()) text = content;
    for (std::size_t k = 0; k < m.calls.size(); ++k) {
      const tool_call& call = m.calls[k];
      const bool plain = f.keeps_strings && call.arguments.is_string();
      if (k > 0 || !content.empty()) text += '\n';
      text += fmt::format("{}{}{}{}{}", f.open, call.name, f.middle,
                          plain ? call.arguments.text : python_json(call.arguments), f.close);
    }
    return text;
  }

  chat_style style_;
  std::string default_system_, begin_;
};

namespace detail {

inline std::string spelled_token(const json_value& config, std::string_view name,
                                 std::string otherwise) {
  if (!config.has(name)) return otherwise;
  const nlohmann::json& token = config.raw().at(std::string(name));
  return token.is_object() ? config.field<json_value>(name).field<std::string>("content")
                           : config.field<std::string>(name);
}

} // namespace detail

inline chat_template chat_template::of_jinja(std::string_view jinja, std::string_view place,
                                             std::string begin) {
  if (const std::optional<std::string> program = canonical_jinja(jinja)) {
    const std::uint64_t checksum = xxh64::of(std::as_bytes(std::span(*program)));
    for (const detail::known_template& known : detail::known_templates)
      if (known.checksum == checksum)
        return chat_template(known.style, std::string(known.default_system), std::move(begin));
  }
  throw error(
      exit_code::model,
      fmt::format("{}: its chat template (XXH64 {:016x}) is none that megacpp knows, which "
                  "are those of ChatML, Llama 3, Qwen2.5 and Qwen3 as published; let its "
                  "own program write the conversations as token ids: "
                  "examples/render_conversations.py {} FILE >LINES.jsonl, and give LINES.jsonl to "
                  "data_request::kind chat (docs/chat.md has the command for prompts, too)",
                  place, xxh64::of(std::as_bytes(std::span(jinja))),
                  std::filesystem::path(place).parent_path().string()));
}

inline chat_template chat_template::of_folder(const std::string& folder) {
  const std::filesystem::path path(folder);
  const std::string config_path = (path / "tokenizer_config.json").string();
  const std::string jinja_path = (path / "chat_template.jinja").string();
  std::error_code ignored;
  const bool apart = std::filesystem::exists(jinja_path, ignored);
  const bool configured = std::filesystem::exists(config_path, ignored);
  if (!apart && !configured)
    throw error(exit_code::model, fmt::format("{} has no chat_template.jinja and no "
                                              "tokenizer_config.json, so that there is no chat "
                                              "template; give the folder of a chat model",
                                              folder));
  std::optional<json_value> config;
  if (configured) config = read_json(config_path);
  if (apart) { // transformers prefers chat_template.jinja, too.
    const mapped_file file(jinja_path, exit_code::model);
    return with_begin(of_jinja(file.text(), jinja_path), path, config);
  }
  if (!config->has("chat_template"))
    throw config->fault(
        "has no \"chat_template\", and there is no chat_template.jinja beside it; "
        "give the folder of a chat model");
  if (!config->raw().at("chat_template").is_string())
    throw config->fault(
        "field \"chat_template\" is not one template; write the one that is meant "
        "to chat_template.jinja beside it");
  return with_begin(of_jinja(config->field<std::string>("chat_template"), config_path), path,
                    config);
}

inline chat_template chat_template::with_begin(chat_template t, const std::filesystem::path& folder,
                                               const std::optional<json_value>& config) {
  if (!t.format().begins) return t;
  const char* const name = "bos_token";
  if (!config || !config->has(name))
    throw error(exit_code::model,
                fmt::format("{} has no tokenizer_config.json with a \"{}\", by which texts of the "
                            "template {} begin; write it there",
                            folder.string(), name, t.name()));
  t.begin_ = detail::spelled_token(*config, name, "");
  const std::string map = (folder / "special_tokens_map.json").string();
  std::error_code ignored;
  if (!std::filesystem::exists(map, ignored)) return t;
  const json_value other = read_json(map);
  if (const std::string says = detail::spelled_token(other, name, t.begin_); says != t.begin_)
    throw other.fault(
        fmt::format("field \"{}\" is {}, and that of tokenizer_config.json is {}; "
                    "make them one",
                    name, printable(says), printable(t.begin_)));
  return t;
}

/// trained_on says which tokens count in the loss: those of the assistant's turns, or all tokens.
enum class trained_on { assistant, all };

/// text_encoder is a function that turns a text into token ids, and knows special tokens in it.
using text_encoder = std::function<std::vector<std::int32_t>(std::string_view)>;

/// Returns the token ids of a whole conversation, and which of them are learned.
///
/// Each turn is encoded alone. Special tokens stand at a turn's edges, and no other token crosses
/// them, so the ids are those of the text encoded at once. A turn may begin with a character, such
/// as a line end, that is one token with the end of its header. Such a turn is not learned, because
/// no prompt ends with that token: the model is never asked to go on from there.
inline chat_tokens encode_chat(const rendered_chat& chat, const text_encoder& encode,
                               trained_on trained = trained_on::assistant) {
  chat_tokens out;
  const std::string_view text(chat.text);
  const auto add = [&](const std::vector<std::int32_t>& ids, std::size_t plain) {
    out.ids.insert(out.ids.end(), ids.begin(), ids.end());
    out.mask.resize(out.mask.size() + plain, trained == trained_on::all ? 1 : 0);
    out.mask.resize(out.ids.size(), 1);
  };
  std::size_t at = 0;
  for (const chat_turn& turn : chat.turns) {
    if (turn.begin > at) {
      const std::vector<std::int32_t> before = encode(text.substr(at, turn.begin - at));
      add(before, before.size());
    }
    const std::vector<std::int32_t> header =
        encode(text.substr(turn.begin, turn.content - turn.begin));
    const std::vector<std::int32_t> whole = encode(text.substr(turn.begin, turn.end - turn.begin));
    const bool leads =
        whole.size() > header.size() && std::equal(header.begin(), header.end(), whole.begin());
    if (!leads && trained == trained_on::assistant) ++out.merged_turns;
    add(whole, leads ? header.size() : whole.size());
    at = turn.end;
  }
  if (at < text.size()) {
    const std::vector<std::int32_t> rest = encode(text.substr(at));
    add(rest, rest.size());
  }
  return out;
}

} // namespace mc
