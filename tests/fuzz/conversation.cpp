// libFuzzer: any line is either refused with mc::error or a conversation that every template either
// refuses or writes, the turns of which stand in its text, one after the other, and end as turns of
// the template do; what is written of its tools and arguments is JSON that is written the same again.
// Of lines with texts, or with a field for each role, each is refused or has those texts that a
// parser of whole documents finds, and of a file each is read once, in order, from wherever reading
// begins. Half of the inputs are text; most of the others draw parts for a line that is valid.
//
// clang++ -std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -Iinclude
//   tests/fuzz/conversation.cpp -lfmt
#include <megacpp/chat/chat_template.hpp>
#include <megacpp/chat/conversation.hpp>
#include <megacpp/data/text_lines.hpp>
#include <megacpp/io/line_reader.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

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
    require(at <= turn.begin && turn.begin < turn.content && turn.content < turn.end &&
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
      require(tokens.mask[i] == (i >= turn.content));
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
    for (int style = 0; style <= static_cast<int>(mc::chat_style::qwen3_training); ++style)
      value_or_sentence([&] {
        const mc::chat_template used(static_cast<mc::chat_style>(style), "system");
        const mc::rendered_chat written = used.render(chat);
        check_turns(written, used.end_of_turn());
        check_tokens(written);
        require(!used.prompt(chat, style % 2 == 0).empty());
      });
  });
}

void check_texts(std::string_view line, const std::vector<std::string>& names) {
  using nlohmann::json;
  const bool strict = json::accept(line);
  const json whole =
      json::parse(strict ? line : mc::detail::json_of_python(line).text, nullptr, false);
  std::vector<std::string> expected;
  for (const std::string& name : names) {
    const json text = whole.is_object() ? whole.value(name, json()) : whole;
    if (text.is_string() && (whole.is_object() || names.size() == 1)) expected.push_back(text);
  }
  const bool has_all = expected.size() == names.size();
  std::int64_t replaced = 0;
  const auto texts_of = [&](std::string_view of, mc::invalid_utf8 policy) {
    return mc::texts_of_line(of, {names, policy}, "fuzz: line 1", replaced);
  };
  for (const auto policy : {mc::invalid_utf8::refuse, mc::invalid_utf8::replace})
    value_or_sentence([&] {
      const auto texts = texts_of(line, policy);
      require(has_all && texts == expected);
      require(replaced == 0 || (!strict && policy == mc::invalid_utf8::replace));
    });
  // Written again no name is there twice, and nothing but depth can be refused.
  const auto opens = [](char c) { return c == '[' || c == '{'; };
  if (has_all && std::ranges::count_if(line, opens) < mc::json_depth_limit)
    require(texts_of(whole.dump(), mc::invalid_utf8::refuse) == expected);
}

/// A line with a field for each role is refused, or has the texts that another parser finds there.
void check_fields(std::string_view line) {
  value_or_sentence([&] {
    const mc::chat_fields fields{"c", "a", "b"};
    const auto chat = std::get<mc::conversation>(mc::parse_conversation(line, "fuzz", 1, &fields));
    const auto whole = nlohmann::json::parse(line, nullptr, false);
    require(whole.is_object());
    const auto& said = chat.messages;
    const std::string about = whole.contains("c") && whole["c"].is_string() ? whole["c"] : "";
    require(said.size() == (about.empty() ? 2u : 3u));
    require(about.empty() || said[0].content == about);
    require(said[said.size() - 2].content == whole["a"] && said.back().content == whole["b"]);
  });
}

void check_file(std::string_view bytes) {
  const mc::descriptor memory(::memfd_create("fuzz", MFD_CLOEXEC));
  require(memory && ::write(memory.get(), bytes.data(), bytes.size()) == std::ssize(bytes));
  const std::string path = fmt::format("/proc/self/fd/{}", memory.get());
  mc::line_place middle;
  const auto read_from = [&](const mc::line_place& place) {
    std::string_view rest = bytes.substr(static_cast<std::size_t>(place.offset));
    std::int64_t line = place.line;
    mc::line_reader reader({path}, place);
    for (mc::line_batch batch; reader.next(batch);) {
      require(batch.first.offset == std::ssize(bytes) - std::ssize(rest));
      batch.each([&](std::string_view text, std::int64_t number) {
        require(number == line++ && !rest.empty());
        if (static_cast<std::size_t>(std::ssize(bytes) - std::ssize(rest)) <= bytes.size() / 2)
          middle = {0, number, std::ssize(bytes) - std::ssize(rest)};
        const std::size_t end = std::min(rest.find('\n'), rest.size());
        const std::string_view spelled = rest.substr(0, end);
        require(text == spelled.substr(0, end - (spelled.ends_with('\r') ? 1 : 0)));
        rest.remove_prefix(std::min(end + 1, rest.size()));
      });
      require(batch.next.line == line);
    }
    require(rest.empty());
  };
  read_from({});
  read_from(middle);
  mc::line_reader whole({path}, {}, path);
  mc::line_batch batch;
  require(whole.next(batch) == !bytes.empty() && batch.text == bytes && !whole.next(batch));
}

/// A line of texts, of parts that are valid one by one.
std::string drawn_texts(const std::uint8_t* data, std::size_t size) {
  static constexpr std::string_view parts[] = {
      R"("a":"x")",         R"("b":"\u00e9\n")",  R"("a":"")",      R"("\u0061":"\ud83d\ude00")",
      R"("c":{"a":["x"]})", R"("c":[{"b":1.5}])", R"("b":null)",    R"("a":["x"])",
      R"("c":-1)",          R"("b":{"b":"x"})",   R"("a\u0000":0)", R"("":true)"};
  std::string line = "{";
  for (std::size_t i = 1; i < size && i < 8; ++i)
    line += std::string(i > 1 ? "," : "") + std::string(parts[data[i] % std::size(parts)]);
  return line + '}';
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
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  if (size < 2 || data[0] % 8 != 7) {
    if (size > 0 && data[0] & 1) check_line(drawn(data, size));
    else check_line(bytes);
  } else if (data[1] % 16 == 0) {
    value_or_sentence([&] { check_file(bytes.substr(2)); }); // compressed ones are refused
    if (data[1] != 0) return 0;
    std::string batches(bytes); // of a line that fills one
    batches.append(mc::line_reader::batch_bytes, 'x').append("\n").append(bytes);
    value_or_sentence([&] { check_file(batches); });
  } else {
    check_fields(data[1] & 1 ? drawn_texts(data + 1, size - 1) : bytes.substr(2));
    for (const std::vector<std::string>& names : {std::vector<std::string>{"a"}, {"a", "b"}})
      if (data[1] & 1) check_texts(drawn_texts(data + 1, size - 1), names);
      else check_texts(bytes.substr(2), names);
  }
  return 0;
}
