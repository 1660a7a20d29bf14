// Published chat templates as a table. A template is a set of strings, and the positions of the
// system's turn, tools, results and reasoning in a text; chat_template.hpp writes texts by it.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace mc {

/// chat_style is a published way to write conversations. Templates of one style differ in what the
/// system says by default.
enum class chat_style {
  chatml,
  llama3,
  llama3_1,
  qwen2_5,
  qwen3,
  qwen3_thinking_2507,
  qwen3_2507,
  qwen3_training,
};

namespace detail {

/// turn_format says how a turn is written: `open`, who speaks, `named`, the content, `end`,
/// `between`. The strings `open` and `end` are special tokens.
struct turn_format {
  std::string_view open, named, end, between;
};

/// tools_format says where the tools are listed that the assistant may call, and how: `open`, then
/// `before`, JSON and `behind` for each tool, then `close`.
struct tools_format {
  enum class places { nowhere, system_turn, first_user_turn };
  places place = places::nowhere;
  std::string_view open = {}, before = {}, behind = {}, close = {};
  int indent = 0;          ///< The indent of the JSON of a tool, or 0 for JSON on one line.
  bool lists_none = false; ///< An empty list of tools is written, too.
};

/// result_format says how the result of a tool is written: as a turn of `speaker`, between `open`
/// and `close`.
struct result_format {
  std::string_view speaker = "tool", open = {}, close = {};
  bool joins = false;   ///< Neighbouring results stand in one turn, a line end between them.
  bool as_json = false; ///< A result is written as a string of JSON.
};

/// call_format says how an assistant's call of a tool is written: `open`, the name of the tool,
/// `middle`, the arguments as JSON, `close`.
struct call_format {
  std::string_view open = {}, middle = {}, close = {};
  bool alone = false;         ///< A turn has one call at most, and nothing else.
  bool keeps_strings = false; ///< Arguments that are a string are written without quotes.
};

/// reasoning_place says where the reasoning of an assistant is written: within its content, as it
/// is given; between tags in front of the content, in turns behind the last query of the user; or
/// between tags in every turn.
enum class reasoning_place { in_content, behind_last_query, every_turn };

/// chat_format says how a chat_style writes conversations, by strings and positions.
struct chat_format {
  std::string_view name;
  turn_format turn = {"<|im_start|>", "\n", "<|im_end|>", "\n"};
  bool begins = false;        ///< The text begins with the folder's token for the begin of texts.
  bool strips = false;        ///< Contents lose the white space at their ends.
  bool always_system = false; ///< There is a system's turn, even if nobody gave one.
  std::string_view tools_note = {};  ///< The system's turn begins with this where there are tools.
  std::string_view before_date = {}; ///< The system's turn has this text, the date, an empty line.
  tools_format tools = {};
  result_format result = {};
  call_format call = {};
  reasoning_place reasoning = reasoning_place::in_content;
  std::string_view after_prompt = {}; ///< A prompt ends with this, behind the answer's header.
  std::string_view without_thinking =
      {}; ///< A prompt for an answer without reasoning has this end.
};

inline constexpr turn_format llama_turn{"<|start_header_id|>", "<|end_header_id|>\n\n",
                                        "<|eot_id|>", ""};
inline constexpr tools_format llama_tools{
    tools_format::places::first_user_turn,
    "Given the following functions, please respond with a JSON for a function call with its proper "
    "arguments that best answers the given prompt.\n\nRespond in the format {\"name\": function "
    "name, \"parameters\": dictionary of argument name and its value}.Do not use variables.\n\n",
    "",
    "\n\n",
    "",
    4,
    true};
inline constexpr tools_format qwen_tools{
    tools_format::places::system_turn,
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>",
    "\n", "",
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments "
    "within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, "
    "\"arguments\": <args-json-object>}\n</tool_call>"};
inline constexpr result_format qwen_result{"user", "<tool_response>\n", "\n</tool_response>", true};
inline constexpr call_format llama_call{"{\"name\": \"", "\", \"parameters\": ", "}", true},
    qwen2_5_call{"<tool_call>\n{\"name\": \"", "\", \"arguments\": ", "}\n</tool_call>"},
    qwen3_call{qwen2_5_call.open, qwen2_5_call.middle, qwen2_5_call.close, false, true};

/// chat_formats has the format of each chat_style, in their order.
inline constexpr std::array<chat_format, 8> chat_formats{{
    {.name = "ChatML"},
    {.name = "Llama 3", .turn = llama_turn, .begins = true, .strips = true},
    {.name = "Llama 3.1",
     .turn = llama_turn,
     .begins = true,
     .strips = true,
     .always_system = true,
     .tools_note = "Environment: ipython\n",
     .before_date = "Cutting Knowledge Date: December 2023\nToday Date: ",
     .tools = llama_tools,
     .result = {.speaker = "ipython", .as_json = true},
     .call = llama_call},
    {.name = "Qwen2.5",
     .always_system = true,
     .tools = qwen_tools,
     .result = qwen_result,
     .call = qwen2_5_call},
    {.name = "Qwen3",
     .tools = qwen_tools,
     .result = qwen_result,
     .call = qwen3_call,
     .reasoning = reasoning_place::behind_last_query,
     .without_thinking = "<think>\n\n</think>\n\n"},
    {.name = "Qwen3-Thinking-2507",
     .tools = qwen_tools,
     .result = qwen_result,
     .call = qwen3_call,
     .reasoning = reasoning_place::behind_last_query,
     .after_prompt = "<think>\n"},
    {.name = "Qwen3-Instruct-2507", .tools = qwen_tools, .result = qwen_result, .call = qwen3_call},
    {.name = "Qwen3 for training",
     .tools = qwen_tools,
     .result = qwen_result,
     .call = qwen3_call,
     .reasoning = reasoning_place::every_turn,
     .without_thinking = "<think>\n\n</think>\n\n"},
}};

/// known_template is a published template: a Jinja program, by its checksum, that writes a style.
struct known_template {
  std::uint64_t checksum; ///< XXH64 of the program, as canonical_jinja spells it.
  chat_style style;
  std::string_view default_system; ///< The text of the system's turn where a conversation has none.
};

inline constexpr std::array<known_template, 19> known_templates{{
    {0x1cdd4672d9b32048u, chat_style::chatml, ""},
    // This program gives add_generation_prompt a default.
    {0x0983223554d41f62u, chat_style::chatml, ""},
    // Qwen1.5 and Qwen2 have these programs.
    {0x8c16abf2649ef6c3u, chat_style::chatml, "You are a helpful assistant"},
    {0x36825a590e095d4eu, chat_style::chatml, "You are a helpful assistant."},
    {0x6393514f05dd622eu, chat_style::chatml,
     "You are a helpful AI assistant named SmolLM, trained by Hugging Face"},
    {0xf922ed76ecd7ae24u, chat_style::llama3, ""},
    // Llama 3.1 and Llama 3.2 have these programs.
    {0xc23c3efee445351au, chat_style::llama3_1, ""},
    {0x32144667ad6ec5a0u, chat_style::llama3_1, ""},
    // Chat models, base models and Qwen2.5-Math have these programs.
    {0x4f193b64eac588dcu, chat_style::qwen2_5,
     "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."},
    {0xa3638f734afdc8e5u, chat_style::qwen2_5, "You are a helpful assistant."},
    {0xf03955b312cf944cu, chat_style::qwen2_5,
     "Please reason step by step, and put your final answer within \\boxed{}."},
    // The first of these is Qwen3's program as it was published at first.
    {0x493fb3182111d2f9u, chat_style::qwen3, ""},
    {0x6b9d98d97968b36cu, chat_style::qwen3, ""},
    {0xae3f8b47935bbb2au, chat_style::qwen3_thinking_2507, ""},
    {0x106ba7dbdb67ca34u, chat_style::qwen3_2507, ""},
    // TRL trains with programs of its own, which say the same but for Qwen3's reasoning.
    {0xe9a2e3d9ecd0b775u, chat_style::llama3, ""},
    {0xd3ef1c9fc13f4b67u, chat_style::qwen2_5,
     "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."},
    {0x0611c31095fedeeeu, chat_style::qwen3_training, ""},
    {0x3fd4030fb8c9e44du, chat_style::qwen3_2507, ""},
}};

} // namespace detail

} // namespace mc
