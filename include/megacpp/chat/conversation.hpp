// A file of conversations has one conversation a line, as a JSON object in one of these spellings:
//
//   {"messages": [{"role": ..., "content": ...}, ...]}          OpenAI, Hugging Face
//   {"prompt": ..., "completion": ...}                          strings, or lists of messages
//   {"conversations": [{"from": ..., "value": ...}, ...]}       ShareGPT
//   {"ids": [...], "mask": [...]}                               token ids, 1 where trained on
//
// A line of the first three spellings may have "tools": [...], too (docs/chat.md). Messages may be
// {"role", "content"} or {"from", "value"} in each of the lists. Where fields are named for
// system, user and assistant (chat_fields), every line of the file is read by these.
#pragma once

#include <megacpp/chat/chat_fields.hpp>
#include <megacpp/chat/foreign_fields.hpp>
#include <megacpp/io/error.hpp>
#include <megacpp/io/json_file.hpp>
#include <megacpp/io/ordered_json.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

namespace mc {

enum class chat_speaker { system, user, assistant, tool };

inline std::string_view name_of(chat_speaker speaker) {
  constexpr std::array<std::string_view, 4> names{"system", "user", "assistant", "tool"};
  return names[static_cast<std::size_t>(speaker)];
}

/// tool_call is a function that an assistant asks to be called, such as a search, and its
/// arguments.
struct tool_call {
  std::string name;
  ordered_json arguments; ///< The arguments: an object, or a string that is written as it is.
};

struct chat_message {
  chat_speaker speaker{chat_speaker::user};
  std::string content; ///< The text; empty only beside calls, or as the result of a tool.
  std::optional<std::string> reasoning; ///< The assistant's thoughts, where they stand apart.
  std::vector<tool_call> calls;         ///< The calls of tools that the assistant asks for.
  bool trained = true;                  ///< An assistant's message counts in the loss.
};

struct conversation {
  std::vector<chat_message> messages;
  std::optional<std::vector<ordered_json>> tools; ///< The tools, each described by an object.
  std::string place; ///< The file and the line of the conversation, for messages of errors.
};

/// chat_tokens is a conversation as token ids, with a mask of those that are learned.
struct chat_tokens {
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> mask; ///< The mask has 1 for a token that is learned, else 0.
  /// merged_turns counts turns that are not learned, because their first characters are one token
  /// with the end of the header.
  std::int64_t merged_turns = 0;
};

namespace detail {

/// Reads the conversation of one line. `place` names the file and the line in messages of errors.
class conversation_reader {
public:
  explicit conversation_reader(std::string_view place) : place_(place) {}

  /// Reads a line in one of the spellings, or, where `fields` are named, the texts in these.
  conversation read(const ordered_json& line, const chat_fields* fields) {
    if (!line.is_object())
      throw fault("is not a JSON object; give one conversation a line, as docs/chat.md shows");
    const auto line_fault = [this](const std::string& words) { return fault(words); };
    const auto is_named = [fields](std::string_view name) {
      return fields != nullptr && fields->has(name);
    };
    if (fields != nullptr) {
      refuse_fields(line, foreign_to_lines, line_fault, is_named);
      read_named(line, *fields);
    } else {
      read_spelling(line, line_fault);
    }
    if (!is_named("tools")) read_tools(line);
    check_turns();
    read_.place = place_;
    return std::move(read_);
  }

private:
  template <class Fault> void read_spelling(const ordered_json& line, const Fault& line_fault) {
    const ordered_json* const messages = line.find("messages");
    const ordered_json* const turns = line.find("conversations");
    const ordered_json* const prompt = line.find("prompt");
    const ordered_json* const completion = line.find("completion");
    const int forms = (messages ? 1 : 0) + (turns ? 1 : 0) + (prompt || completion ? 1 : 0);
    if (forms != 1)
      throw fault(forms > 1 ? "has two of \"messages\", \"conversations\" and \"prompt\"; leave one"
                            : "has no \"messages\", \"prompt\" with \"completion\", "
                              "\"conversations\", or \"ids\" with \"mask\"; name its field so, or "
                              "tell the fields that it has by data_request::fields");
    refuse_fields(line, foreign_to_lines, line_fault);
    read_system(line, "system");
    read_system(line, "system_prompt");
    if (messages) read_list(*messages, "messages");
    else if (turns) read_list(*turns, "conversations");
    else read_pair(prompt, completion);
  }

  /// Reads the text of each speaker from the field that is named for it.
  void read_named(const ordered_json& line, const chat_fields& fields) {
    if (!fields.system.empty()) read_system(line, fields.system);
    for (const auto& [speaker, name] : {std::pair{chat_speaker::user, &fields.user},
                                        std::pair{chat_speaker::assistant, &fields.assistant}}) {
      const ordered_json* const text = line.find(*name);
      if (!text)
        throw fault(
            fmt::format("has no \"{}\", which data_request::fields names for the {}; give "
                        "it one, or leave the line out",
                        printable(*name), name_of(speaker)));
      if (!text->is_string())
        throw fault(
            fmt::format("has a \"{}\" that is not a string; make it one", printable(*name)));
      if (text->text.empty())
        throw fault(fmt::format("has an empty \"{}\", and a turn is not empty; leave it out",
                                printable(*name)));
      read_.messages.push_back({speaker, text->text, {}, {}});
    }
  }

  error fault(std::string_view sentence) const {
    return error(exit_code::data, fmt::format("{} {}", place_, sentence));
  }
  /// Returns an error about the message that is being read. Messages of a line count from 1.
  error message_fault(std::string_view sentence) const {
    return error(exit_code::data,
                 fmt::format("{}, message {}: {}", place_, read_.messages.size() + 1, sentence));
  }

  /// Throws for a field that other programs read and this one does not, unless the field is empty.
  /// A field of which is_read(name) tells is read.
  template <class Fields, class Fault, class Read = decltype(&is_read_nowhere)>
  static void refuse_fields(const ordered_json& object, const Fields& fields, Fault fault,
                            const Read& is_read = &is_read_nowhere) {
    if (const foreign_field* const f = foreign_field_in(object, fields, is_read))
      throw fault(
          fmt::format("has \"{}\", which others read and megacpp does not: {}; leave the "
                      "field out",
                      f->name, f->advice));
  }

  void read_system(const ordered_json& line, std::string_view name) {
    const ordered_json* const system = line.find(name);
    if (!system) return;
    if (!system->is_string())
      throw fault(fmt::format("has a \"{}\" that is not a string; make it one", printable(name)));
    if (system->text.empty()) return;
    if (has_system_) {
      if (read_.messages[0].content == system->text) return;
      throw fault("has a \"system\" and another \"system_prompt\"; leave one of them out");
    }
    has_system_ = true;
    read_.messages.push_back({chat_speaker::system, system->text, {}, {}});
  }

  void read_list(const ordered_json& list, std::string_view name) {
    if (!list.is_list())
      throw fault(fmt::format("has \"{}\" that are not a list; give a list of messages", name));
    for (const ordered_json& message : list.items) read_message(message);
  }

  /// Reads a prompt and its completion. Two strings are a turn of the user and one of the
  /// assistant. In two lists of messages, the messages of the completion alone are trained on.
  void read_pair(const ordered_json* prompt, const ordered_json* completion) {
    if (!prompt || !completion)
      throw fault("has only one of \"prompt\" and \"completion\"; give both");
    if (prompt->is_string() && completion->is_string()) {
      for (const auto& [name, text] :
           {std::pair{"prompt", &prompt->text}, std::pair{"completion", &completion->text}})
        if (text->empty())
          throw fault(
              fmt::format("has an empty \"{}\", and a turn is not empty; leave it out", name));
      read_.messages.push_back({chat_speaker::user, prompt->text, {}, {}});
      read_.messages.push_back({chat_speaker::assistant, completion->text, {}, {}});
      return;
    }
    if (!prompt->is_list() || !completion->is_list())
      throw fault(
          "has a \"prompt\" and a \"completion\" that are neither two strings nor two lists "
          "of messages; make them so");
    read_list(*prompt, "prompt");
    for (chat_message& m : read_.messages) m.trained = false;
    read_list(*completion, "completion");
  }

  std::optional<chat_speaker> speaker_named(std::string_view name, bool share_gpt) const {
    using entry = std::pair<std::string_view, chat_speaker>;
    constexpr std::array<entry, 4> roles{{{"system", chat_speaker::system},
                                          {"user", chat_speaker::user},
                                          {"assistant", chat_speaker::assistant},
                                          {"tool", chat_speaker::tool}}};
    constexpr std::array<entry, 4> share_gpt_roles{{{"human", chat_speaker::user},
                                                    {"gpt", chat_speaker::assistant},
                                                    {"observation", chat_speaker::tool},
                                                    {"function_call", chat_speaker::assistant}}};
    for (const entry& e : roles)
      if (e.first == name) return e.second;
    if (share_gpt)
      for (const entry& e : share_gpt_roles)
        if (e.first == name) return e.second;
    return std::nullopt;
  }

  /// Throws where a message has both spellings, {"role", "content"} and {"from", "value"}, and they
  /// differ: other programs read the one or the other.
  void require_one_spelling(const ordered_json& message, chat_speaker speaker) const {
    const ordered_json* const from = message.find("from");
    if (!from || !from->is_string() || !message.find("role")) return;
    const std::optional<chat_speaker> other = speaker_named(from->text, true);
    if (!other) return; // "from" is no role, but may be somebody's name.
    const ordered_json* const content = message.find("content");
    const ordered_json* const value = message.find("value");
    const bool same = !value || (content && value->is_string() && value->text == content->text);
    if (*other != speaker || !same)
      throw message_fault(
          "has \"role\" and \"content\", and another \"from\" or \"value\"; leave two of them out");
  }

  void read_message(const ordered_json& message) {
    if (!message.is_object())
      throw message_fault("is not an object with a role and a content; make it one");
    const bool share_gpt = message.find("from") != nullptr && message.find("role") == nullptr;
    const ordered_json* const role = message.find(share_gpt ? "from" : "role");
    if (!role || !role->is_string())
      throw message_fault("has no \"role\" (or \"from\"); say whose turn it is");
    const std::optional<chat_speaker> known = speaker_named(role->text, share_gpt);
    if (!known)
      throw message_fault(fmt::format(
          "the role \"{}\" is not one of system, user, assistant, "
          "tool{}; rename it or leave the message out",
          printable(role->text), share_gpt ? ", human, gpt, observation, function_call" : ""));
    require_one_spelling(message, *known);
    chat_message read;
    read.speaker = *known;
    refuse_fields(message, foreign_to_turns,
                  [this](const std::string& words) { return message_fault(words); });
    const std::string_view words = share_gpt ? "value" : "content";
    const ordered_json* const content = message.find(words);
    if (content) {
      if (!content->is_string())
        throw message_fault(
            fmt::format("its \"{}\" is not a string; megacpp trains on text alone", words));
      read.content = content->text;
    }
    if (share_gpt && role->text == "function_call") read_function_call(read);
    read_calls(message, read);
    if (const ordered_json* const call = message.find("function_call"))
      read_old_call(message, *call, read);
    read_reasoning(message, read);
    read_weight(message, read);
    if (!content && read.speaker == chat_speaker::tool)
      throw message_fault(
          fmt::format("has no \"{}\"; give what the tool has answered, \"\" where "
                      "that is nothing",
                      words));
    if (read.content.empty() && read.calls.empty() && read.speaker != chat_speaker::tool)
      throw message_fault("the turn is empty; leave it out, or the conversation");
    read_.messages.push_back(std::move(read));
  }

  void read_reasoning(const ordered_json& message, chat_message& read) {
    const ordered_json* const reasoning = message.find("reasoning_content");
    if (!reasoning) return;
    if (!reasoning->is_string())
      throw message_fault(
          "its \"reasoning_content\" is not a string; make it one, or leave it out");
    if (read.speaker != chat_speaker::assistant)
      throw message_fault("has a \"reasoning_content\", which only an assistant has; leave it out");
    read.reasoning = reasoning->text;
  }

  /// Reads the field that says whether a turn is learned. OpenAI, ms-swift, LLaMA-Factory, axolotl
  /// and verl each have a name of their own for it.
  void read_weight(const ordered_json& message, chat_message& read) {
    std::string_view said_by;
    for (const std::string_view name : {"weight", "loss", "train", "training", "trainable"}) {
      const ordered_json* const weight = message.find(name);
      if (!weight) continue;
      const bool is_no = is_one_of(*weight, {"0", "0.0", "false"});
      if ((weight->kind != ordered_json::kinds::number &&
           weight->kind != ordered_json::kinds::boolean) ||
          (!is_no && !is_one_of(*weight, {"1", "1.0", "true"})))
        throw message_fault(fmt::format(
            "its \"{}\" is neither 0 nor 1, false nor true; give 1 where the turn is learned",
            name));
      if (read.speaker != chat_speaker::assistant && !is_no && name != "weight")
        throw message_fault(fmt::format(
            "its \"{}\" asks to learn a turn of the {}, and what the assistant says is "
            "learned alone; leave it out (data_request::learned all learns every token)",
            name, name_of(read.speaker)));
      if (!said_by.empty() && read.trained == is_no)
        throw message_fault(
            fmt::format("its \"{}\" and its \"{}\" contradict each other; leave one of them out",
                        said_by, name));
      read.trained = !is_no, said_by = name;
    }
  }
  static bool is_one_of(const ordered_json& value, std::initializer_list<std::string_view> words) {
    return std::find(words.begin(), words.end(), value.text) != words.end();
  }

  void read_calls(const ordered_json& message, chat_message& read) {
    const ordered_json* const calls = message.find("tool_calls");
    if (!calls) return;
    if (!calls->is_list())
      throw message_fault("its \"tool_calls\" are not a list; make them one, or leave them out");
    if (read.speaker != chat_speaker::assistant && !calls->items.empty())
      throw message_fault("has \"tool_calls\", which only an assistant has; leave them out");
    for (const ordered_json& call : calls->items) read_call(call, read);
  }

  /// Reads "function_call", OpenAI's older field, which holds the one call of a turn.
  void read_old_call(const ordered_json& message, const ordered_json& call, chat_message& read) {
    if (read.speaker != chat_speaker::assistant)
      throw message_fault("has a \"function_call\", which only an assistant has; leave it out");
    if (message.find("tool_calls"))
      throw message_fault("has \"tool_calls\" and a \"function_call\"; leave one of them out");
    read_call(call, read);
  }

  void read_call(const ordered_json& call, chat_message& read) {
    const ordered_json* const function = call.is_object() ? call.find("function") : nullptr;
    const ordered_json& called = function ? *function : call;
    const ordered_json* const name = called.is_object() ? called.find("name") : nullptr;
    const ordered_json* const arguments = called.is_object() ? called.find("arguments") : nullptr;
    if (!name || !name->is_string() || name->text.empty())
      throw message_fault("a call of a tool has no \"name\"; say which tool is called");
    if (!arguments || !(arguments->is_object() || arguments->is_string()))
      throw message_fault(
          fmt::format("the call of \"{}\" has no \"arguments\" that are an object or "
                      "a string; give {{}} where there are none",
                      printable(name->text)));
    read.calls.push_back({name->text, *arguments});
  }

  /// Reads a turn of ShareGPT whose text is a call of a tool, or a list of calls, as JSON.
  void read_function_call(chat_message& read) {
    const std::string where =
        fmt::format("{}, message {}: its \"value\"", place_, read_.messages.size() + 1);
    const ordered_json calls = parse_ordered_json(read.content, where, exit_code::data);
    read.content.clear();
    if (!calls.is_list()) return read_call(calls, read);
    for (const ordered_json& call : calls.items) read_call(call, read);
  }

  /// Reads "tools", which is a list of objects, or a string that holds such a list as JSON.
  void read_tools(const ordered_json& line) {
    const ordered_json* const given = line.find("tools");
    if (!given || (given->is_string() && given->text.empty())) return;
    const ordered_json parsed =
        given->is_string()
            ? parse_ordered_json(given->text, fmt::format("{}: its \"tools\"", place_),
                                 exit_code::data)
            : *given;
    if (!parsed.is_list()) throw fault("has \"tools\" that are not a list; give a list of objects");
    for (const ordered_json& tool : parsed.items)
      if (!tool.is_object())
        throw fault("has \"tools\" of which one is not an object; make it one, or leave it out");
    read_.tools = parsed.items;
  }

  void check_turns() const {
    const auto at_message = [this](std::size_t i, std::string_view sentence) {
      return error(exit_code::data, fmt::format("{}, message {}: {}", place_, i + 1, sentence));
    };
    bool answered = false;
    if (has_system_ && read_.messages.size() > 1 &&
        read_.messages[1].speaker == chat_speaker::system)
      throw fault("has a \"system\" beside a turn of the system; leave one of them out");
    for (std::size_t i = 0; i < read_.messages.size(); ++i) {
      const chat_speaker speaker = read_.messages[i].speaker;
      answered = answered || speaker == chat_speaker::assistant;
      if (speaker != chat_speaker::tool) continue;
      const bool called = i > 0 && (read_.messages[i - 1].speaker == chat_speaker::assistant ||
                                    read_.messages[i - 1].speaker == chat_speaker::tool);
      if (!called)
        throw at_message(i,
                         "the result of a tool follows no turn of an assistant; add it, or leave "
                         "the conversation out");
    }
    if (!answered)
      throw fault(
          "has no turn of an assistant, so that there is nothing to train on; leave it out");
  }

  std::string place_;
  conversation read_;
  bool has_system_ = false; ///< The line has a "system" or a "system_prompt" beside its messages.
};

inline chat_tokens read_chat_tokens(const nlohmann::json& line, std::string_view place) {
  const auto fault = [place](std::string_view sentence) {
    return error(exit_code::data, fmt::format("{} {}", place, sentence));
  };
  const auto refuse = [&](std::string_view name, std::string_view advice) {
    const auto at = line.find(name);
    const bool says = at != line.end() && !at->is_null() && !(at->is_structured() && at->empty()) &&
                      !(at->is_string() && at->get_ref<const std::string&>().empty());
    if (says) throw fault(fmt::format("has \"ids\" and \"{}\" too; {}", name, advice));
  };
  for (const char* const form : {"messages", "conversations", "prompt", "completion"})
    refuse(form, "leave one of them");
  for (const foreign_field& f : foreign_to_lines) refuse(f.name, f.advice);
  const auto mask_at = line.find("mask");
  const nlohmann::json& ids = line["ids"];
  if (mask_at == line.end() || !ids.is_array() || !mask_at->is_array())
    throw fault("has no list \"mask\" beside a list \"ids\"; give both");
  if (ids.size() != mask_at->size())
    throw fault(fmt::format("has {} \"ids\", but a \"mask\" of {}; give one for each", ids.size(),
                            mask_at->size()));
  if (ids.empty()) throw fault("has no \"ids\"; leave it out");
  chat_tokens tokens;
  tokens.ids.reserve(ids.size());
  tokens.mask.reserve(ids.size());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const nlohmann::json &id = ids[i], &kept = (*mask_at)[i];
    if (!id.is_number_unsigned() ||
        id.get<std::uint64_t>() > std::numeric_limits<std::int32_t>::max())
      throw fault(fmt::format("has {} as id {}, which is no token; use the ids of a tokenizer",
                              printable(id.dump()), i));
    const bool whole = kept.is_number_unsigned() && kept.get<std::uint64_t>() <= 1;
    if (!whole && !kept.is_boolean())
      throw fault(fmt::format(
          "has {} at {} of its \"mask\", which is neither 0 nor 1; give 1 where a token is learned",
          printable(kept.dump()), i));
    tokens.ids.push_back(id.get<std::int32_t>());
    tokens.mask.push_back(kept.is_boolean() ? kept.get<bool>() : kept.get<std::uint64_t>() == 1);
  }
  return tokens;
}

} // namespace detail

/// Returns the line of a file of conversations that holds these tokens as {"ids", "mask"}.
inline std::string line_of(const chat_tokens& tokens) {
  return fmt::format("{{\"ids\": [{}], \"mask\": [{}]}}\n", fmt::join(tokens.ids, ", "),
                     fmt::join(tokens.mask, ", "));
}

/// Reads one line of a file of conversations, by `fields` if they are named. Throws
/// mc::error(exit_code::data) that names the file, the line and the message.
inline std::variant<conversation, chat_tokens> parse_conversation(
    std::string_view line, std::string_view file, std::int64_t number,
    const chat_fields* fields = nullptr) {
  const std::string place = fmt::format("{}: line {}", file, number);
  if (fields == nullptr && line.find("\"ids\"") != std::string_view::npos) {
    // A line may have millions of ids. nlohmann::json needs less memory for them than ordered_json.
    const nlohmann::json value = parse_json(line, place, exit_code::data);
    if (value.is_object() && value.contains("ids") && !value["ids"].is_null())
      return detail::read_chat_tokens(value, place);
  }
  return detail::conversation_reader(place).read(parse_ordered_json(line, place, exit_code::data),
                                                 fields);
}

} // namespace mc
