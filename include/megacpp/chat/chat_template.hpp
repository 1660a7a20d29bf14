// A chat template writes a conversation as the text that a model was trained on, and notes which
// bytes of the text are learned. A model folder has its template as a Jinja program. This header
// knows published programs by their checksums, and C++ in it writes the bytes that they write.
#pragma once

#include <megacpp/chat/conversation.hpp>
#include <megacpp/chat/jinja_text.hpp>
#include <megacpp/io/checksum.hpp>
#include <megacpp/io/error.hpp>
#include <megacpp/io/json_file.hpp>
#include <megacpp/io/mapped_file.hpp>
#include <megacpp/io/ordered_json.hpp>

#include <algorithm>
#include <array>
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

/// chat_turn is where an assistant's turn stands in a text. Bytes [begin, words) are the turn's
/// header. Bytes [words, end) are learned: what the assistant says, and the token that ends the
/// turn. A special token begins at `begin`, and another one ends at `end`.
struct chat_turn {
  std::size_t begin, words, end;
  bool operator==(const chat_turn&) const = default;
};

struct rendered_chat {
  std::string text;
  std::vector<chat_turn> turns; ///< The assistant's turns that are trained on, in order.
};

/// chat_style is one of the programs that write conversations; a template is a style and its texts.
enum class chat_style { chatml, llama3, llama3_1, qwen2_5, qwen3, qwen3_thinking_2507, qwen3_2507 };

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

/// chat_writer builds the text of a conversation, and notes where the assistant's turns stand in
/// it.
class chat_writer {
public:
  explicit chat_writer(std::string_view end_of_turn) : end_of_turn_(end_of_turn) {}

  void say(std::string_view text) { out_.text += text; }
  /// Writes an assistant's turn: its header, then `words`, then the token that ends turns.
  void answer(std::string_view header, std::string_view words, bool trained) {
    chat_turn turn{};
    turn.begin = out_.text.size();
    say(header);
    turn.words = out_.text.size();
    say(words);
    say(end_of_turn_);
    turn.end = out_.text.size();
    if (trained) out_.turns.push_back(turn);
  }
  rendered_chat take() { return std::move(out_); }

private:
  std::string_view end_of_turn_;
  rendered_chat out_;
};

/// qwen_chat has the texts that all templates of Qwen write. Their special tokens are ChatML's.
struct qwen_chat {
  static constexpr std::string_view header = "<|im_start|>assistant\n";
  static constexpr std::string_view end = "<|im_end|>";

  static void turn(chat_writer& out, std::string_view role, std::string_view content) {
    out.say("<|im_start|>");
    out.say(role);
    out.say("\n");
    out.say(content);
    out.say("<|im_end|>\n");
  }

  /// Writes the end of the system's turn, which lists the tools that the assistant may call.
  static void tools(chat_writer& out, const std::vector<ordered_json>& tools) {
    out.say(
        "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
        "You are provided with function signatures within <tools></tools> XML tags:\n<tools>");
    for (const ordered_json& tool : tools) {
      out.say("\n");
      out.say(python_json(tool));
    }
    out.say(
        "\n</tools>\n\nFor each function call, return a json object with function name and "
        "arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": "
        "<function-name>, \"arguments\": <args-json-object>}\n</tool_call><|im_end|>\n");
  }

  static std::string call(const tool_call& call, bool string_as_it_is) {
    const bool plain = string_as_it_is && call.arguments.is_string();
    return fmt::format("<tool_call>\n{{\"name\": \"{}\", \"arguments\": {}}}\n</tool_call>",
                       call.name, plain ? call.arguments.text : python_json(call.arguments));
  }

  /// Writes the result of a tool, which is message i. Qwen writes results as a turn of the user;
  /// results that follow each other stand in one turn.
  static void result(chat_writer& out, const std::vector<chat_message>& messages, std::size_t i) {
    if (i == 0 || messages[i - 1].role != chat_role::tool) out.say("<|im_start|>user");
    out.say("\n<tool_response>\n");
    out.say(messages[i].content);
    out.say("\n</tool_response>");
    if (i + 1 == messages.size() || messages[i + 1].role != chat_role::tool)
      out.say("<|im_end|>\n");
  }
};

/// qwen3_words divides a message of an assistant into reasoning and answer. A message has its
/// reasoning in a field of its own, or in the content between <think> and </think>.
struct qwen3_words {
  std::string_view reasoning, content;

  explicit qwen3_words(const chat_message& message) : content(message.content) {
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
  std::string_view name() const {
    constexpr std::array<std::string_view, 7> names{"ChatML",
                                                    "Llama 3",
                                                    "Llama 3.1",
                                                    "Qwen2.5",
                                                    "Qwen3",
                                                    "Qwen3-Thinking-2507",
                                                    "Qwen3-Instruct-2507"};
    return names[static_cast<std::size_t>(style_)];
  }
  /// The token that ends a turn; generation stops at it.
  std::string_view end_of_turn() const {
    return is_llama() ? std::string_view("<|eot_id|>") : detail::qwen_chat::end;
  }
  /// Returns the text between the end of a turn and the next turn, and the token that begins a
  /// turn.
  std::pair<std::string, std::string> before_turn() const {
    return is_llama() ? std::pair{"", "<|start_header_id|>"} : std::pair{"\n", "<|im_start|>"};
  }
  /// `date` is today's date in the system's turn of Llama 3.1 and later. The default is the date
  /// that their published templates have.
  std::string date = "26 Jul 2024";

  /// Returns the text of a whole conversation. Throws mc::error(exit_code::data) for a conversation
  /// that the template cannot write, such as one with tools where the template has none.
  rendered_chat render(const conversation& chat) const {
    detail::chat_writer out(end_of_turn());
    write(chat, out);
    return out.take();
  }

  /// Returns the prompt that makes the model give the next turn: the conversation, then the header
  /// of an assistant's turn. With `thinking` false, Qwen3 is to answer without reasoning.
  std::string prompt(const conversation& chat, bool thinking = true) const {
    detail::chat_writer out(end_of_turn());
    write(chat, out);
    out.say(is_llama() ? llama_header : detail::qwen_chat::header);
    if (style_ == chat_style::qwen3_thinking_2507) out.say("<think>\n");
    if (style_ == chat_style::qwen3 && !thinking) out.say("<think>\n\n</think>\n\n");
    return out.take().text;
  }

private:
  /// Returns `t` with the token that begins a text of Llama, as the files of the folder name it.
  /// Throws mc::error(exit_code::model) where they name none, or two.
  static chat_template with_begin(chat_template t, const std::filesystem::path& folder,
                                  const std::optional<json_value>& config);

  static constexpr std::string_view llama_header =
      "<|start_header_id|>assistant<|end_header_id|>\n\n";

  bool is_llama() const { return style_ == chat_style::llama3 || style_ == chat_style::llama3_1; }
  error fault(const conversation& chat, std::string_view sentence) const {
    const std::string place = chat.place.empty() ? std::string() : chat.place + ": ";
    return error(exit_code::data, fmt::format("{}the template of {} {}", place, name(), sentence));
  }

  void write(const conversation& chat, detail::chat_writer& out) const {
    if (chat.messages.empty()) throw fault(chat, "needs a message");
    switch (style_) {
    case chat_style::chatml: return write_chatml(chat, out);
    case chat_style::llama3: return write_llama3(chat, out);
    case chat_style::llama3_1: return write_llama3_1(chat, out);
    case chat_style::qwen2_5: return write_qwen2_5(chat, out);
    case chat_style::qwen3:
    case chat_style::qwen3_thinking_2507:
    case chat_style::qwen3_2507: return write_qwen3(chat, out);
    }
  }

  /// Throws mc::error(exit_code::data) for a conversation with tools: the templates of ChatML and
  /// of the first Llama 3 do not write tools.
  void refuse_tools(const conversation& chat) const {
    bool any = chat.tools && !chat.tools->empty();
    for (const chat_message& m : chat.messages) any = any || !m.calls.empty();
    if (any)
      throw fault(chat,
                  "has no place for tools and their calls; write them into the words of the "
                  "messages, or leave the conversation out");
  }

  void write_chatml(const conversation& chat, detail::chat_writer& out) const {
    using qwen = detail::qwen_chat;
    refuse_tools(chat);
    if (!default_system_.empty() && chat.messages[0].role != chat_role::system)
      qwen::turn(out, "system", default_system_);
    for (const chat_message& m : chat.messages) {
      if (m.role != chat_role::assistant) {
        qwen::turn(out, name_of(m.role), m.content);
        continue;
      }
      out.answer(qwen::header, m.content, m.trained);
      out.say("\n");
    }
  }

  void write_llama_turn(const chat_message& m, detail::chat_writer& out) const {
    const std::string_view content = detail::python_strip(m.content);
    if (m.role == chat_role::assistant) return out.answer(llama_header, content, m.trained);
    out.say(fmt::format("<|start_header_id|>{}<|end_header_id|>\n\n{}<|eot_id|>", name_of(m.role),
                        content));
  }

  void write_llama3(const conversation& chat, detail::chat_writer& out) const {
    refuse_tools(chat);
    out.say(begin_);
    for (const chat_message& m : chat.messages) write_llama_turn(m, out);
  }

  void write_llama3_1(const conversation& chat, detail::chat_writer& out) const {
    std::size_t i = chat.messages[0].role == chat_role::system ? 1 : 0;
    out.say(begin_);
    out.say("<|start_header_id|>system<|end_header_id|>\n\n");
    if (chat.tools) out.say("Environment: ipython\n");
    out.say("Cutting Knowledge Date: December 2023\nToday Date: ");
    out.say(date);
    out.say("\n\n");
    if (i == 1) out.say(detail::python_strip(chat.messages[0].content));
    out.say("<|eot_id|>");
    if (chat.tools) {
      if (i == chat.messages.size() || chat.messages[i].role != chat_role::user)
        throw fault(chat,
                    "tells of tools in the first turn of the user, but another turn stands "
                    "there");
      out.say(
          "<|start_header_id|>user<|end_header_id|>\n\nGiven the following functions, please "
          "respond with a JSON for a function call with its proper arguments that best answers "
          "the given prompt.\n\nRespond in the format {\"name\": function name, \"parameters\": "
          "dictionary of argument name and its value}.Do not use variables.\n\n");
      for (const ordered_json& tool : *chat.tools) {
        out.say(python_json(tool, 4));
        out.say("\n\n");
      }
      out.say(detail::python_strip(chat.messages[i].content));
      out.say("<|eot_id|>");
      ++i;
    }
    for (; i < chat.messages.size(); ++i) write_llama3_1_turn(chat, chat.messages[i], out);
  }

  void write_llama3_1_turn(const conversation& chat, const chat_message& m,
                           detail::chat_writer& out) const {
    if (m.role == chat_role::tool) {
      out.say("<|start_header_id|>ipython<|end_header_id|>\n\n");
      out.say(python_json(ordered_json::of(ordered_json::kinds::string, m.content)));
      out.say("<|eot_id|>");
    } else if (m.calls.empty()) {
      write_llama_turn(m, out);
    } else {
      if (m.calls.size() > 1)
        throw fault(chat, fmt::format("has one call of a tool in a turn, but there are {}",
                                      m.calls.size()));
      const tool_call& call = m.calls[0];
      out.answer(llama_header,
                 fmt::format("{{\"name\": \"{}\", \"parameters\": {}}}", call.name,
                             python_json(call.arguments)),
                 m.trained);
    }
  }

  void write_qwen2_5(const conversation& chat, detail::chat_writer& out) const {
    using qwen = detail::qwen_chat;
    const std::vector<chat_message>& messages = chat.messages;
    const bool own = messages[0].role == chat_role::system;
    const std::string_view system = own ? messages[0].content : default_system_;
    if (chat.tools && !chat.tools->empty()) {
      out.say("<|im_start|>system\n");
      out.say(system);
      out.say("\n\n");
      qwen::tools(out, *chat.tools);
    } else {
      qwen::turn(out, "system", system);
    }
    for (std::size_t i = own ? 1 : 0; i < messages.size(); ++i) {
      const chat_message& m = messages[i];
      if (m.role == chat_role::tool) {
        qwen::result(out, messages, i);
      } else if (m.role != chat_role::assistant) {
        qwen::turn(out, name_of(m.role), m.content);
      } else {
        std::string words = m.content;
        for (const tool_call& call : m.calls) {
          if (!words.empty()) words += "\n";
          words += qwen::call(call, false);
        }
        out.answer(qwen::header, words, m.trained);
        out.say("\n");
      }
    }
  }

  /// Returns the index of the user's last turn that is not the result of a tool, or of the last
  /// message where there is no such turn.
  static std::size_t last_query(const std::vector<chat_message>& messages) {
    for (std::size_t i = messages.size(); i-- > 0;) {
      const std::string_view words = messages[i].content;
      if (messages[i].role == chat_role::user &&
          !(words.starts_with("<tool_response>") && words.ends_with("</tool_response>")))
        return i;
    }
    return messages.size() - 1;
  }

  /// Returns what Qwen3 writes for message i, an assistant's. Reasoning is written in turns behind
  /// the last query only; the last turn has the tags of reasoning even where there is none.
  std::string qwen3_answer(const std::vector<chat_message>& messages, std::size_t i,
                           std::size_t query) const {
    const chat_message& m = messages[i];
    std::string words;
    std::string_view content = m.content;
    if (style_ == chat_style::qwen3_2507) {
      words = content;
    } else {
      const detail::qwen3_words said(m);
      content = said.content;
      if (i > query && (i + 1 == messages.size() || !said.reasoning.empty()))
        words = fmt::format(
            "<think>\n{}\n</think>\n\n{}",
            detail::without_leading_newlines(detail::without_trailing_newlines(said.reasoning)),
            detail::without_leading_newlines(content));
      else words = content;
    }
    for (std::size_t k = 0; k < m.calls.size(); ++k) {
      if (k > 0 || !content.empty()) words += "\n";
      words += detail::qwen_chat::call(m.calls[k], true);
    }
    return words;
  }

  void write_qwen3(const conversation& chat, detail::chat_writer& out) const {
    using qwen = detail::qwen_chat;
    const std::vector<chat_message>& messages = chat.messages;
    const bool own = messages[0].role == chat_role::system;
    if (chat.tools && !chat.tools->empty()) {
      out.say("<|im_start|>system\n");
      if (own) {
        out.say(messages[0].content);
        out.say("\n\n");
      }
      qwen::tools(out, *chat.tools);
    } else if (own) {
      qwen::turn(out, "system", messages[0].content);
    }
    const std::size_t query = last_query(messages);
    for (std::size_t i = own ? 1 : 0; i < messages.size(); ++i) {
      const chat_message& m = messages[i];
      if (m.role == chat_role::tool) {
        qwen::result(out, messages, i);
      } else if (m.role != chat_role::assistant) {
        qwen::turn(out, name_of(m.role), m.content);
      } else {
        out.answer(qwen::header, qwen3_answer(messages, i, query), m.trained);
        out.say("\n");
      }
    }
  }

  chat_style style_;
  std::string default_system_, begin_;
};

namespace detail {

struct known_template {
  std::uint64_t checksum; ///< XXH64 of canonical_jinja
  chat_style style;
  std::string_view default_system;
};

// Each row is a template as published: the checksum of its program, its style, and what its system
// says where a conversation has no system's turn.
inline constexpr std::array<known_template, 15> known_templates{{
    {0x1cdd4672d9b32048u, chat_style::chatml, ""},
    {0x0983223554d41f62u, chat_style::chatml, ""}, // its add_generation_prompt has a default
    {0x8c16abf2649ef6c3u, chat_style::chatml, "You are a helpful assistant"},  // Qwen1.5
    {0x36825a590e095d4eu, chat_style::chatml, "You are a helpful assistant."}, // Qwen2
    {0x6393514f05dd622eu, chat_style::chatml,
     "You are a helpful AI assistant named SmolLM, trained by Hugging Face"},
    {0xf922ed76ecd7ae24u, chat_style::llama3, ""},
    {0xc23c3efee445351au, chat_style::llama3_1, ""},
    {0x32144667ad6ec5a0u, chat_style::llama3_1, ""}, // Llama 3.2
    {0x4f193b64eac588dcu, chat_style::qwen2_5,
     "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."},
    {0xa3638f734afdc8e5u, chat_style::qwen2_5, "You are a helpful assistant."}, // base models
    {0xf03955b312cf944cu, chat_style::qwen2_5,
     "Please reason step by step, and put your final answer within \\boxed{}."}, // Math
    {0x493fb3182111d2f9u, chat_style::qwen3, ""}, // as first published
    {0x6b9d98d97968b36cu, chat_style::qwen3, ""},
    {0xae3f8b47935bbb2au, chat_style::qwen3_thinking_2507, ""},
    {0x106ba7dbdb67ca34u, chat_style::qwen3_2507, ""},
}};

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
  if (apart) { // transformers prefers it, too
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
  if (!t.is_llama()) return t;
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
        encode(text.substr(turn.begin, turn.words - turn.begin));
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
