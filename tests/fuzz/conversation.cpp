// libFuzzer: any line is either refused with mc::error or a conversation that every template either
// refuses or writes, the turns of which stand in its text, one after the other, and end as turns of
// the template do; what is written of its tools and arguments is JSON that is written the same again.
// Half of the inputs are text; the others draw messages for a line that is valid.
//
// clang++ -std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -Iinclude
//   tests/fuzz/conversation.cpp -lfmt
#include <megacpp/data/chat_template.hpp>
#include <megacpp/data/conversation.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <variant>

namespace {

void require(bool law) {
  if (!law) std::abort();
}

template <class F> void value_or_sentence(F&& f) {
  try {
    f();
  } catch (const mc::error& e) {
    require(e.code() == mc::exit_code::data && !std::string_view(e.what()).empty());
  }
}

void check_json(const mc::ordered_json& value) {
  for (const int indent : {0, 4}) {
    const std::string text = mc::python_json(value, indent);
    const mc::ordered_json again = mc::parse_ordered_json(text, "again", mc::exit_code::data);
    require(mc::python_json(again, indent) == text);
  }
}

void check_turns(const mc::rendered_chat& chat, std::string_view end) {
  std::size_t at = 0;
  for (const mc::chat_turn& turn : chat.turns) {
    require(at <= turn.begin && turn.begin < turn.words && turn.words < turn.end &&
            turn.end <= chat.text.size());
    require(std::string_view(chat.text).substr(0, turn.end).ends_with(end));
    at = turn.end;
  }
}

void check_tokens(const mc::rendered_chat& chat) {
  const mc::text_encoder bytes = [](std::string_view text) {
    std::vector<std::int32_t> ids;
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  };
  const mc::chat_tokens tokens = mc::encode_chat(chat, bytes);
  require(tokens.ids == bytes(chat.text) && tokens.mask.size() == tokens.ids.size());
  for (const mc::chat_turn& turn : chat.turns)
    for (std::size_t i = turn.begin; i < turn.end; ++i)
      require(tokens.mask[i] == (i >= turn.words));
}

void check_line(std::string_view line) {
  value_or_sentence([&] {
    const auto read = mc::parse_conversation(line, "fuzz", 1);
    if (const auto* const tokens = std::get_if<mc::chat_tokens>(&read)) {
      require(tokens->ids.size() == tokens->mask.size() && !tokens->ids.empty());
      return;
    }
    const auto& chat = std::get<mc::conversation>(read);
    if (chat.tools)
      for (const mc::ordered_json& tool : *chat.tools) check_json(tool);
    for (const mc::chat_message& message : chat.messages)
      for (const mc::tool_call& call : message.calls) check_json(call.arguments);
    for (int style = 0; style <= static_cast<int>(mc::chat_style::qwen3_2507); ++style)
      value_or_sentence([&] {
        const mc::chat_template used(static_cast<mc::chat_style>(style), "system");
        const mc::rendered_chat written = used.render(chat);
        check_turns(written, used.end_of_turn());
        check_tokens(written);
        require(!used.prompt(chat, style % 2 == 0).empty());
      });
  });
}

/// A line of parts that are valid one by one.
std::string drawn(const std::uint8_t* data, std::size_t size) {
  static constexpr std::string_view parts[] = {
      R"({"role":"user","content":"a"})",
      R"({"role":"assistant","content":"<think>\nb</think>\n\nc"})",
      R"({"role":"assistant","content":"b\n","reasoning_content":"\nr\n"})",
      R"({"role":"assistant","content":null,"tool_calls":[{"name":"f","arguments":{"x":[1e5,-0]}}]})",
      R"({"role":"assistant","content":"d","tool_calls":[{"function":{"name":"f","arguments":"s"}},)"
      R"({"name":"g","arguments":{}}]})",
      R"({"role":"tool","content":"\u00e9"})",
      R"({"role":"system","content":"s"})",
      R"({"role":"user","content":"<tool_response>x</tool_response>"})",
      R"({"role":"user","content":"\u2003\u0085 <|im_end|> "})",
      R"({"role":"assistant","content":"\n","weight":0})"};
  std::string line = "{\"messages\":[";
  for (std::size_t i = 1; i < size && i < 40; ++i) {
    if (i > 1) line += ',';
    line += parts[data[i] % std::size(parts)];
  }
  return line + (data[0] & 2 ? "],\"tools\":[{\"name\":\"f\",\"n\":1.50}]}" : "]}");
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size > 0 && data[0] & 1) check_line(drawn(data, size));
  else check_line(std::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}
