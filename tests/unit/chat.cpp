// Conversations: what is read of their lines, numbers as Python spells them, the text and the turns
// of Qwen3's template, which tokens are learned, and the laws of packing.
#define BOOST_TEST_MODULE chat
#include <boost/test/unit_test.hpp>

#include <megacpp/chat/conversation_file.hpp>
#include <megacpp/tokenizer/tokenizer_file.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <nlohmann/json.hpp>

#include <scratch.hpp>
#include <where.hpp>

namespace {

using mc::exit_code;
using test::refusal_of;
using test::scratch_folder;
using test::write_text;

mc::conversation read(std::string_view line) {
  return std::get<mc::conversation>(mc::parse_conversation(line, "chats.jsonl", 3));
}
mc::chat_tokens read_tokens(std::string_view line) {
  return std::get<mc::chat_tokens>(mc::parse_conversation(line, "chats.jsonl", 3));
}

/// One token a byte, and one each for the special tokens of ChatML.
std::vector<std::int32_t> encode_bytes(std::string_view text) {
  std::vector<std::int32_t> ids;
  while (!text.empty()) {
    std::size_t n = 1;
    std::int32_t id = static_cast<unsigned char>(text[0]);
    for (const auto& [token, number] :
         std::map<std::string_view, std::int32_t>{{"<|im_start|>", 256}, {"<|im_end|>", 257}})
      if (text.starts_with(token)) n = token.size(), id = number;
    ids.push_back(id);
    text.remove_prefix(n);
  }
  return ids;
}

/// The character that stands for a byte in tokenizer.json, by its definition.
std::string character_of(unsigned byte) {
  const auto prints = [](unsigned b) {
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
  };
  unsigned c = byte;
  if (!prints(byte)) {
    c = 256;
    for (unsigned b = 0; b < byte; ++b) c += !prints(b);
  }
  if (c < 0x80) return {static_cast<char>(c)};
  return {static_cast<char>(0xc0 | (c >> 6)), static_cast<char>(0x80 | (c & 63))};
}

/// The tokenizer that encode_bytes is.
std::unique_ptr<const mc::tokenizer> bytes_tokenizer(const scratch_folder& dir,
                                                     const char* takes_blanks = "") {
  nlohmann::json vocabulary = nlohmann::json::object(), added = nlohmann::json::array();
  for (unsigned b = 0; b < 256; ++b) vocabulary[character_of(b)] = b;
  for (const char* token : {"<|im_start|>", "<|im_end|>"})
    added.push_back({{"id", 256 + added.size()},
                     {"content", token},
                     {"single_word", false},
                     {"lstrip", takes_blanks == std::string("lstrip") && added.empty()},
                     {"rstrip", takes_blanks == std::string("rstrip") && !added.empty()},
                     {"normalized", false},
                     {"special", true}});
  write_text(
      dir / "tokenizer.json",
      nlohmann::json{
          {"added_tokens", added},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", nlohmann::json::array()}}}}
          .dump());
  return mc::open_tokenizer(dir.path().string());
}

BOOST_AUTO_TEST_SUITE(lines)

BOOST_AUTO_TEST_CASE(every_form_gives_the_same_conversation) {
  const std::string expected =
      "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
      "<|im_start|>assistant\nHello<|im_end|>\n";
  const mc::chat_template chatml(mc::chat_style::chatml);
  for (const char* line :
       {R"({"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"Hi"},)"
        R"({"role":"assistant","content":"Hello","name":null}],"id":7})",
        R"({"prompt":[{"role":"system","content":"Be brief."},{"role":"user","content":"Hi"}],)"
        R"("completion":[{"role":"assistant","content":"Hello"}]})",
        R"({"conversations":[{"from":"system","value":"Be brief."},{"from":"human","value":"Hi"},)"
        R"({"from":"gpt","value":"Hello"}]})",
        R"({"messages":[{"role":"system","content":"Be brief."},{"from":"human","value":"Hi"},)"
        R"({"role":"assistant","content":"Hello"}],"ids":null})",
        R"({"system":"Be brief.","prompt":"Hi","completion":"Hello"})"}) {
    const mc::rendered_chat chat = chatml.render(read(line));
    BOOST_TEST(chat.text == expected);
    BOOST_REQUIRE(chat.turns.size() == 1u);
    BOOST_TEST(chat.text.substr(chat.turns[0].content, chat.turns[0].end - chat.turns[0].content) ==
               "Hello<|im_end|>");
  }
}

// A question and its answer in fields of other names are the conversation that a list of messages
// has, whatever else the line says.
BOOST_AUTO_TEST_CASE(named_fields_give_the_conversation_of_messages) {
  const mc::chat_template chatml(mc::chat_style::chatml);
  const auto text_of = [&](const std::string& line, const mc::chat_fields* fields) {
    const auto chat = chatml.render(
        std::get<mc::conversation>(mc::parse_conversation(line, "chats.jsonl", 3, fields)));
    BOOST_REQUIRE(chat.turns.size() == 1u);
    return chat.text + chat.text.substr(chat.turns[0].content);
  };
  const std::string turns =
      R"({"role":"user","content":"Hi"},{"role":"assistant","content":"Yo"}]})";
  const std::string with =
      text_of(R"({"messages":[{"role":"system","content":"Be brief."},)" + turns, nullptr);
  const std::string without = text_of(R"({"messages":[)" + turns, nullptr);
  const mc::chat_fields orca{"system_prompt", "question", "response"},
      alone{"", "question", "response"};
  const std::string said = R"("question":"Hi","response":"Yo")";
  BOOST_TEST(text_of(R"({"id":"x","system_prompt":"Be brief.",)" + said + "}", &orca) == with);
  // In whatever order they stand.
  BOOST_TEST(text_of("{" + said + R"(,"system_prompt":"Be brief."})", &orca) == with);
  for (const char* empty : {R"("system_prompt":"",)", R"("system_prompt":null,)", ""})
    BOOST_TEST(text_of(std::string("{") + empty + said + "}", &orca) == without);
  // Fields that nobody names say nothing, though other lines are known by them.
  for (const char* other : {R"("system_prompt":"Be brief.",)", R"("messages":[],)", R"("ids":[1],)",
                            R"("prompt":"?",)", R"("system":"?",)"})
    BOOST_TEST(text_of(std::string("{") + other + said + "}", &alone) == without);
  // Named fields are read even where others read them otherwise.
  const mc::chat_fields odd{"tools", "history", "loss"};
  BOOST_TEST(text_of(R"({"tools":"Be brief.","history":"Hi","loss":"Yo"})", &odd) == with);
}

BOOST_AUTO_TEST_CASE(lines_without_the_fields_that_are_named_are_refused_with_their_place) {
  const mc::chat_fields orca{"system_prompt", "question", "response"};
  const auto require = [&](const char* line, const std::string& sentence) {
    CHECK_REFUSED(mc::parse_conversation(line, "chats.jsonl", 3, &orca), exit_code::data, sentence);
  };
  require("[]", "chats.jsonl: line 3 is not a JSON object");
  require(R"({"response":"a"})",
          "chats.jsonl: line 3 has no \"question\", which "
          "data_request::fields names for the user; give");
  require(R"({"question":"a","response":null})",
          "line 3 has no \"response\", which "
          "data_request::fields names for the assistant");
  require(R"({"messages":[{"role":"assistant","content":"a"}]})", "line 3 has no \"question\"");
  require(R"({"ids":[1],"mask":[1]})", "line 3 has no \"question\"");
  require(R"({"question":["a"],"response":"a"})", "line 3 has a \"question\" that is not a string");
  require(R"({"question":"a","response":1})", "line 3 has a \"response\" that is not a string");
  require(R"({"system_prompt":{},"question":"a","response":"b"})",
          "line 3 has a \"system_prompt\" that is not a string");
  require(R"({"question":"a","response":""})", "line 3 has an empty \"response\", and a turn");
  require(R"({"question":"","response":"a"})", "line 3 has an empty \"question\", and a turn");
  require(R"({"question":"a","response":"b","weight":0})", "has \"weight\", which others read");
}

BOOST_AUTO_TEST_CASE(calls_of_tools_are_read_in_every_form) {
  const std::string expected =
      "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1.0}}\n</tool_call>";
  const mc::chat_template qwen(mc::chat_style::qwen3_2507);
  for (
      const char* call :
      {R"({"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function",)"
       R"("function":{"name":"f","arguments":{"x":1.0}}}]})",
       R"({"role":"assistant","tool_calls":[{"name":"f","arguments":{"x":1.0}}]})",
       R"({"role":"assistant","content":"","tool_calls":[{"name":"f","arguments":"{\"x\": 1.0}"}]})"}) {
    const auto line = std::string(R"({"messages":[{"role":"user","content":"?"},)") + call +
                      R"(,{"role":"tool","content":""}],"tools":"[{\"name\":\"f\"}]"})";
    const std::string text = qwen.render(read(line)).text;
    BOOST_TEST(text.find("<|im_start|>assistant\n" + expected +
                         "<|im_end|>\n<|im_start|>user\n"
                         "<tool_response>\n\n</tool_response><|im_end|>\n") != std::string::npos,
               text);
    BOOST_TEST(text.find("<tools>\n{\"name\": \"f\"}\n</tools>") != std::string::npos, text);
  }
  const std::string text =
      qwen.render(read(R"({"conversations":[{"from":"human","value":"?"},{"from":"function_call",)"
                       R"("value":"{\"name\":\"f\",\"arguments\":{\"x\":1.0}}"},)"
                       R"({"from":"observation","value":"1"}]})"))
          .text;
  BOOST_TEST(text.ends_with("assistant\n" + expected +
                            "<|im_end|>\n<|im_start|>user\n<tool_response>\n1\n</tool_response>"
                            "<|im_end|>\n"),
             text);
}

BOOST_AUTO_TEST_CASE(a_prompt_and_a_turn_of_weight_0_are_not_learned) {
  const mc::chat_template chatml(mc::chat_style::chatml);
  const auto turns = [&](const char* line) { return chatml.render(read(line)).turns.size(); };
  BOOST_TEST(turns(R"({"prompt":[{"role":"user","content":"a"},{"role":"assistant","content":"b"},)"
                   R"({"role":"user","content":"c"}],"completion":[{"role":"assistant",)"
                   R"("content":"d"}]})") == 1u);
  BOOST_TEST(
      turns(R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b",)"
            R"("weight":0},{"role":"assistant","content":"c","weight":1}]})") == 1u);
}

// By the names that OpenAI (weight), ms-swift and LLaMA-Factory (loss), axolotl (train, training) and
// verl (trainable) have for it.
BOOST_AUTO_TEST_CASE(turns_say_whether_they_are_learned) {
  const mc::chat_template chatml(mc::chat_style::chatml);
  const auto line = [](const std::string& field) {
    return R"({"messages":[{"role":"user","content":"1+1?","weight":1},{"role":"assistant",)"
           R"("content":"3",)" +
           field + R"(},{"role":"user","content":"Wrong."},{"role":"assistant","content":"2"}]})";
  };
  for (const char* name : {"weight", "loss", "train", "training", "trainable"})
    for (const auto& [value, turns] : {std::pair{"0", 1u},
                                       {"false", 1u},
                                       {"0.0", 1u},
                                       {"1", 2u},
                                       {"true", 2u},
                                       {"1.0", 2u},
                                       {"null", 2u}})
      BOOST_TEST(
          chatml.render(read(line(fmt::format("\"{}\":{}", name, value)))).turns.size() == turns,
          name << ' ' << value);
  BOOST_TEST(chatml.render(read(line(R"("loss":false,"weight":0)"))).turns.size() == 1u);
  for (const auto& wrong :
       {std::pair{R"("loss":0.5)", "message 2: its \"loss\" is neither 0 nor 1"},
        {R"("train":"no")", "its \"train\" is neither 0 nor 1"},
        {R"("loss":false,"weight":1)", "its \"weight\" and its \"loss\" contradict each other"},
        {R"("train_detail":[{"begin_offset":0}])", "has \"train_detail\", which others read"},
        {R"("loss_scale":2)", "has \"loss_scale\", which others read and megacpp does not"},
        {R"("reasoning":"r")", "thoughts are read from \"reasoning_content\""},
        {R"("images":["a.png"])", "megacpp trains on text alone"}})
    CHECK_REFUSED(read(line(wrong.first)), exit_code::data, wrong.second);
  const char* answered = R"({"role":"assistant","content":"b"}]})";
  for (const char* name : {"loss", "train", "training", "trainable"}) {
    const auto asks = [&](const char* value) {
      return fmt::format(R"({{"messages":[{{"role":"user","content":"a","{}":{}}},{})", name, value,
                         answered);
    };
    CHECK_REFUSED(read(asks("true")), exit_code::data,
                  fmt::format("its \"{}\" asks to learn a turn of the user", name));
    BOOST_TEST(chatml.render(read(asks("false"))).turns.size() == 1u);
  }
}

BOOST_AUTO_TEST_CASE(fields_of_lines_that_others_honour_are_honoured_or_refused) {
  const mc::chat_template chatml(mc::chat_style::chatml);
  const auto line = [](const std::string& field) {
    return "{" + field + R"(,"prompt":"a","completion":"b"})";
  };
  const std::string said = chatml.render(read(line(R"("system":"Be brief.")"))).text;
  for (const char* field :
       {R"("system_prompt":"Be brief.")", R"("system_prompt":"Be brief.","system":"Be brief.")",
        R"("system_prompt":"Be brief.","system":"","images":[],"id":3)"})
    BOOST_TEST(chatml.render(read(line(field))).text == said, field);
  for (const auto& wrong :
       {std::pair{R"("system":"a","system_prompt":"b")", "leave one of them out"},
        {R"("system_prompt":1)", "\"system_prompt\" that is not a string"},
        {R"("loss":false)", "line 3 has \"loss\", which others read and megacpp does not"},
        {R"("functions":[{}])", "tools are read from \"tools\""},
        {R"("history":[["a","b"]])", "all turns stand in \"messages\""},
        {R"("chat_template_kwargs":{"enable_thinking":false})", "has \"chat_template_kwargs\""},
        {R"("images":["a.png"])", "megacpp trains on text alone"}})
    CHECK_REFUSED(read(line(wrong.first)), exit_code::data, wrong.second);
  // OpenAI's older form of a call.
  const auto call = [](const char* fields) {
    return fmt::format(
        R"({{"messages":[{{"role":"user","content":"?"}},{{"role":"assistant",{}}}]}})", fields);
  };
  const mc::chat_template qwen(mc::chat_style::qwen3_2507);
  BOOST_TEST(qwen.render(read(call(R"("function_call":{"name":"f","arguments":"{}"})"))).text ==
             qwen.render(read(call(R"("tool_calls":[{"name":"f","arguments":"{}"}])"))).text);
  CHECK_REFUSED(read(call(R"("tool_calls":[],"function_call":{"name":"f","arguments":"{}"})")),
                exit_code::data, "has \"tool_calls\" and a \"function_call\"");
}

BOOST_AUTO_TEST_CASE(lines_of_ids_are_taken_as_they_are) {
  const mc::chat_tokens tokens =
      read_tokens(R"({"mask":[0,1,true,false],"ids":[5,0,2147483647,7]})");
  BOOST_TEST(tokens.ids == (std::vector<std::int32_t>{5, 0, 2147483647, 7}),
             boost::test_tools::per_element());
  BOOST_TEST(tokens.mask == (std::vector<std::uint8_t>{0, 1, 1, 0}),
             boost::test_tools::per_element());
  BOOST_TEST(mc::line_of(tokens) == "{\"ids\": [5, 0, 2147483647, 7], \"mask\": [0, 1, 1, 0]}\n");
  for (const auto& one : std::map<std::string, std::string>{
           {R"({"ids":[1]})", "line 3 has no list \"mask\""},
           {R"({"ids":1,"mask":[1]})", "has no list"},
           {R"({"ids":[],"mask":[]})", "has no \"ids\""},
           {R"({"ids":[1],"mask":[1],"messages":[{}]})", "has \"ids\" and \"messages\" too"},
           {R"({"ids":[1],"mask":[1],"loss_mask":[0]})", "has \"ids\" and \"loss_mask\" too"},
           {R"({"ids":[1,2],"mask":[1]})", "has 2 \"ids\", but a \"mask\" of 1"},
           {R"({"ids":[1,-2],"mask":[1,0]})", "has -2 as id 1, which is no token"},
           {R"({"ids":[2147483648],"mask":[1]})", "has 2147483648 as id 0"},
           {R"({"ids":[1.0],"mask":[1]})", "has 1.0 as id 0"},
           {R"({"ids":[1],"mask":[2]})", "has 2 at 0 of its \"mask\""}})
    CHECK_REFUSED(read_tokens(one.first), exit_code::data, one.second);
}

BOOST_AUTO_TEST_CASE(what_is_no_conversation_is_refused_with_its_place) {
  const std::string user = R"({"role":"user","content":"a"},)",
                    said = R"({"role":"assistant","content":"b"})";
  const auto messages = [](const std::string& list) { return R"({"messages":[)" + list + "]}"; };
  const std::vector<std::pair<std::string, std::string>> cases{
      {"{", "chats.jsonl: line 3 is not valid JSON at byte 2"},
      {"[1]", "chats.jsonl: line 3 is not a JSON object"},
      {"{\"messages\":[1e999]}", "is not valid JSON"},
      {"{\"a\":1,\"a\":2}", "the key \"a\" appears twice"},
      {"{\"messages\":\"\xff\"}", "is not valid JSON"},
      {"{}", "line 3 has no \"messages\""},
      {R"({"messages":[],"prompt":"a"})", "has two of"},
      {messages(R"({"role":"user","from":"gpt","content":"a"},)" + said), "and another \"from\""},
      {messages(R"({"role":"user","from":"human","content":"a","value":"b"},)" + said),
       "message 1: has \"role\" and \"content\", and another"},
      {R"({"prompt":"a"})", "has only one of \"prompt\" and \"completion\""},
      {R"({"prompt":"a","completion":[]})", "neither two strings nor two lists"},
      {R"({"messages":{}})", "has \"messages\" that are not a list"},
      {messages(""), "has no turn of an assistant"},
      {messages("1"), "line 3, message 1: is not an object"},
      {messages(user + R"({"content":"x"})"), "message 2: has no \"role\""},
      {messages(user + R"({"role":"bot","content":"x"})"),
       "message 2: the role \"bot\" is not one of system, user, assistant, tool"},
      {R"({"conversations":[{"from":"bing","value":"x"}]})", "human, gpt, observation"},
      {messages(R"({"role":"user","content":["x"]},)" + said),
       "message 1: its \"content\" is not a string"},
      {messages(R"({"role":"user","content":""},)" + said), "message 1: the turn is empty"},
      {messages(user + R"({"role":"assistant","content":null})"), "message 2: the turn is empty"},
      {messages(user + R"({"role":"user","content":"x"})"), "has no turn of an assistant"},
      {messages(user + R"({"role":"tool","content":"x"},)" + said),
       "message 2: the result of a tool follows no turn of an assistant"},
      {messages(R"({"role":"user","content":"x","reasoning_content":"y"},)" + said),
       "which only an assistant has"},
      {messages(R"({"role":"user","content":"x","tool_calls":[1]},)" + said),
       "which only an assistant has"},
      {messages(user + R"({"role":"assistant","content":"x","reasoning_content":1})"),
       "its \"reasoning_content\" is not a string"},
      {messages(user + R"({"role":"assistant","tool_calls":1})"), "\"tool_calls\" are not a list"},
      {messages(user + R"({"role":"assistant","tool_calls":[1]})"), "has no \"name\""},
      {messages(user + R"({"role":"assistant","tool_calls":[{"name":"f"}]})"),
       "the call of \"f\" has no \"arguments\""},
      {messages(user + R"({"role":"assistant","content":"x","weight":0.5})"),
       "its \"weight\" is neither 0 nor 1"},
      {R"({"system":1,"prompt":"a","completion":"b"})", "\"system\" that is not a string"},
      {R"({"system":"s","messages":[{"role":"system","content":"x"},)" + user + said + "]}",
       "has a \"system\" beside a turn of the system"},
      {messages(user + said + R"(,{"role":"tool","content":null},)" + said),
       "message 3: has no \"content\"; give what the tool has answered"},
      {messages(user + said + R"(,{"role":"tool"},)" + said), "message 3: has no \"content\""},
      {R"({"prompt":"a","completion":""})", "has an empty \"completion\""},
      {R"({"prompt":"","completion":"b"})", "has an empty \"prompt\""},
      {R"({"tools":{},"prompt":"a","completion":"b"})", "has \"tools\" that are not a list"},
      {R"({"tools":[1],"prompt":"a","completion":"b"})", "of which one is not an object"},
      {R"({"tools":"[","prompt":"a","completion":"b"})", "its \"tools\" is not valid JSON"}};
  for (const auto& one : cases) CHECK_REFUSED(read(one.first), exit_code::data, one.second);
}

BOOST_AUTO_TEST_CASE(files_are_read_line_by_line) {
  const scratch_folder dir;
  const auto words = bytes_tokenizer(dir);
  const mc::conversation_rules form{.vocabulary = 258,
                                    .style = mc::chat_template(mc::chat_style::chatml),
                                    .tokenizer = words.get()};
  write_text(dir / "chats",
             "\n{\"prompt\":\"a\",\"completion\":\"b\"}\r\n \n{\"ids\":[1,2],\"mask\":[0,1]}");
  const auto read = mc::conversations_of({dir / "chats"}, form, 2);
  const mc::tokenized_conversations& store = *read;
  BOOST_REQUIRE(store.size() == 2);
  const std::string text = "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n";
  const std::vector<std::int32_t> expected = encode_bytes(text);
  std::vector<std::int32_t> ids;
  std::string learned;
  for (const std::uint32_t word : store[0]) {
    ids.push_back(static_cast<std::int32_t>(word & ~mc::tokenized_conversations::learned));
    if (word & mc::tokenized_conversations::learned)
      learned += ids.back() < 256 ? static_cast<char>(ids.back()) : '$';
  }
  BOOST_TEST(ids == expected, boost::test_tools::per_element());
  BOOST_TEST(learned == "b$");
  BOOST_TEST(store[1].size() == 2u);
  BOOST_TEST(store[1][1] == (2u | mc::tokenized_conversations::learned));

  write_text(dir / "chats", "\n\n{\"prompt\":\"a\"}\n");
  CHECK_REFUSED(mc::conversations_of({dir / "chats"}, form, 2), exit_code::data,
                "chats: line 3 has");
  write_text(dir / "chats", " \n\n");
  CHECK_REFUSED(mc::conversations_of({dir / "chats"}, form, 2), exit_code::data, "no conversation");
  write_text(dir / "chats", "{\"ids\":[1,2],\"mask\":[0,1]}\n{\"ids\":[1,258],\"mask\":[0,1]}");
  CHECK_REFUSED(mc::conversations_of({dir / "chats"}, form, 2), exit_code::data,
                "line 2 has the token 258 at 1, but the vocabulary has 258");
  write_text(dir / "chats",
             "{\"ids\":[1,2],\"mask\":[0,1]}\n{\"prompt\":\"a\",\"completion\":\"b\"}");
  CHECK_REFUSED(mc::conversations_of({dir / "chats"}, mc::conversation_rules{.vocabulary = 10}, 1),
                exit_code::data, "line 2 is a conversation in words, but no tokenizer is given");
  for (const char* blanks : {"lstrip", "rstrip"}) { // beside the ends of turns
    const auto takes = bytes_tokenizer(dir, blanks);
    mc::conversation_rules of = form;
    of.tokenizer = takes.get();
    const mc::conversation_encoder encode(of);
    BOOST_TEST(encode("{\"ids\":[1],\"mask\":[1]}", "f", 1).ids.size() == 1u);
    CHECK_REFUSED(encode("{\"prompt\":\"a\",\"completion\":\"b\"}", "f", 1), exit_code::model,
                  "<|im_end|> takes blanks beside it away");
  }
  mc::conversation_rules named = form; // of all lines alike
  named.fields = mc::chat_fields{"", "q", "a"};
  write_text(dir / "named", "{\"q\":\"b\",\"a\":\"c\"}\n\n{\"q\":\"b\"}\n");
  CHECK_REFUSED(mc::conversations_of({dir / "named"}, named, 2), exit_code::data,
                "named: line 3 has no \"a\"");
  // A folder without a template is enough for ids.
  mc::conversation_rules without{.vocabulary = 10};
  without.take_template(dir / "no_folder");
  CHECK_REFUSED(mc::conversations_of({dir / "chats"}, without, 1), exit_code::model,
                "no_folder has no chat_template.jinja");
  write_text(dir / "chats", "{\"ids\":[1,2],\"mask\":[0,1]}\n");
  BOOST_TEST(mc::conversations_of({dir / "chats"}, without, 1)->size() == 1);
  write_text(dir / "chats", "\n" + std::string((16u << 20) + 1, '[') + "\n");
  CHECK_REFUSED(mc::conversations_of({dir / "chats"}, form, 2), exit_code::data,
                "line 2 is longer than 16 MiB");
  mc::conversation_rules other = form;
  other.style = mc::chat_template(mc::chat_style::llama3);
  CHECK_REFUSED(mc::conversations_of({dir / "chats"}, other, 2), exit_code::model,
                "ends turns by <|eot_id|>, which is no token");
  // The first line that is refused is named, however many threads read.
  std::string many;
  for (int i = 0; i < 6000; ++i)
    many +=
        i == 5000 || i > 5500 ? "{}\n" : fmt::format("{{\"ids\":[{}],\"mask\":[1]}}\n", i % 200);
  write_text(dir / "chats", many);
  CHECK_REFUSED(mc::conversations_of({dir / "chats"}, form, 2), exit_code::data,
                "line 5001 has no");
  write_text(dir / "chats", many.substr(0, many.find("{}")));
  const auto kept = mc::conversations_of({dir / "chats"}, form, 2);
  const mc::tokenized_conversations& all = *kept;
  BOOST_REQUIRE(all.size() == 5000);
  for (std::int64_t i = 0; i < 5000; ++i)
    BOOST_TEST((all[i][0] & ~mc::tokenized_conversations::learned) ==
               static_cast<std::uint32_t>(i % 200));
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(python)

BOOST_AUTO_TEST_CASE(numbers_are_spelled_as_json_dumps_does) {
  // What json.dumps(json.loads(x)) prints of x.
  const std::vector<std::pair<std::string, std::string>> spelled{
      {"0", "0"},
      {"-0", "0"},
      {"-0.0", "-0.0"},
      {"1.0", "1.0"},
      {"1.50", "1.5"},
      {"1e5", "100000.0"},
      {"1E5", "100000.0"},
      {"0.1e1", "1.0"},
      {"1e15", "1000000000000000.0"},
      {"1e16", "1e+16"},
      {"1e22", "1e+22"},
      {"1e23", "1e+23"},
      {"100000000000000000.0", "1e+17"},
      {"9007199254740993.0", "9007199254740992.0"},
      {"123456789012345680.0", "1.2345678901234568e+17"},
      {"0.0001", "0.0001"},
      {"1e-4", "0.0001"},
      {"0.00001", "1e-05"},
      {"1.5e-7", "1.5e-07"},
      {"5e-324", "5e-324"},
      {"2.5e300", "2.5e+300"},
      {"0.30000000000000004", "0.30000000000000004"},
      {"18446744073709551615", "18446744073709551615"},
      {"18446744073709551616", "18446744073709551616"},
      {"-98765432109876543210", "-98765432109876543210"},
      {"-9223372036854775808", "-9223372036854775808"}};
  for (const auto& [given, expected] : spelled)
    BOOST_TEST(mc::python_json(mc::parse_ordered_json(given, "x", exit_code::data)) == expected);
}

BOOST_AUTO_TEST_CASE(values_are_laid_out_as_json_dumps_does) {
  const mc::ordered_json value = mc::parse_ordered_json(
      "{\"z\":[1,{\"b\":[],\"a\":{}}], \"a\" : "
      "\"\\u00e9\\ud83d\\ude00\\u0001\\u007f\\/\\\"\\\\\\n\\t\\b\\f\\r\",\n"
      "\"n\":null,\"t\":true}",
      "x", exit_code::data);
  const std::string words = "\"\xc3\xa9\xf0\x9f\x98\x80\\u0001\x7f/\\\"\\\\\\n\\t\\b\\f\\r\"";
  BOOST_TEST(mc::python_json(value) == "{\"z\": [1, {\"b\": [], \"a\": {}}], \"a\": " + words +
                                           ", \"n\": null, \"t\": true}");
  BOOST_TEST(
      mc::python_json(value, 4) ==
      "{\n    \"z\": [\n        1,\n        {\n            \"b\": [],\n            \"a\": {}\n"
      "        }\n    ],\n    \"a\": " +
          words + ",\n    \"n\": null,\n    \"t\": true\n}");
}

BOOST_AUTO_TEST_CASE(texts_are_stripped_as_python_strips_them) {
  BOOST_TEST(
      mc::detail::python_strip("\xe3\x80\x80\x1c\xc2\xa0 a\xe2\x80\x8b \xe2\x80\xa8\xc2\x85\n") ==
      "a\xe2\x80\x8b"); // U+200B is no White_Space
  BOOST_TEST(mc::detail::python_strip(" \n\t ").empty());
  BOOST_TEST(mc::detail::python_strip("\xc2\xa9 \xe4\xb8\x80") == "\xc2\xa9 \xe4\xb8\x80");
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(templates)

BOOST_AUTO_TEST_CASE(published_conversations_have_their_text_prompt_and_mask) {
  const std::string& shared = test::shared_dir;
  if (shared.empty()) return test::left_out("chat_public.json: there are no fixtures");
  const scratch_folder dir;
  write_text(dir / "tokenizer_config.json",
             test::read_text(shared + "/data/tokenizers/qwen3-tokenizer_config.json"));
  const mc::chat_template qwen3 = mc::chat_template::of_folder(dir.path().string());
  BOOST_TEST(qwen3.name() == "Qwen3");
  const auto words = mc::open_tokenizer(shared + "/data/tokenizers/qwen3-tokenizer.json");
  const mc::text_encoder encode = mc::encoder_of(*words);
  const auto chats =
      nlohmann::json::parse(test::read_text(shared + "/fixtures/chat_public.json"))["chats"];
  BOOST_REQUIRE(chats.size() == 12u);
  for (const auto& chat : chats) {
    const std::string line = nlohmann::json{{"messages", chat["messages"]}}.dump();
    mc::conversation read_again = read(line);
    const mc::rendered_chat rendered = qwen3.render(read_again);
    BOOST_TEST(rendered.text == chat["text"].get<std::string>());
    const mc::chat_tokens tokens = mc::encode_chat(rendered, encode);
    BOOST_TEST(tokens.ids == chat["ids"].get<std::vector<std::int32_t>>(),
               boost::test_tools::per_element());
    BOOST_TEST(tokens.mask == chat["mask"].get<std::vector<std::uint8_t>>(),
               boost::test_tools::per_element());
    read_again.messages.pop_back();
    BOOST_TEST(qwen3.prompt(read_again) == chat["prompt"].get<std::string>());
  }
}

BOOST_AUTO_TEST_CASE(other_templates_are_refused_with_advice) {
  const scratch_folder dir;
  const auto of_folder = [&] { return mc::chat_template::of_folder(dir.path().string()); };
  CHECK_REFUSED(of_folder(), exit_code::model, "there is no chat template");
  write_text(dir / "tokenizer_config.json", "{\"bos_token\":\"<s>\"}");
  CHECK_REFUSED(of_folder(), exit_code::model, "has no \"chat_template\"");
  write_text(dir / "tokenizer_config.json", "{\"chat_template\":[{\"name\":\"default\"}]}");
  CHECK_REFUSED(of_folder(), exit_code::model, "is not one template");
  write_text(dir / "tokenizer_config.json", "{\"chat_template\":\"{{ messages }}\"}");
  CHECK_REFUSED(of_folder(), exit_code::model,
                fmt::format("examples/render_conversations.py {} FILE", dir.path().string()));
  write_text(dir / "chat_template.jinja", "{{ other }}");
  CHECK_REFUSED(of_folder(), exit_code::model, "chat_template.jinja: its chat template (XXH64");
}

// Two spellings of a program, as Jinja's lexer reads them with trim_blocks and lstrip_blocks.
BOOST_AUTO_TEST_CASE(templates_are_known_by_what_they_write) {
  const std::string chatml =
      "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + "
      "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
      "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
  const auto edited = [&](std::string_view from, std::string_view to) {
    std::string text = chatml;
    for (auto at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
      text.replace(at, from.size(), to);
    return text;
  };
  const auto is_chatml = [](const std::string& text) {
    return !refusal_of(
        [&] { BOOST_TEST(mc::chat_template::of_jinja(text, "x").name() == "ChatML"); });
  };
  for (const std::string& same :
       {chatml, chatml + "\n", edited("\n", "\r\n"), edited("\n", "\r"), edited("\n", "\\n"),
        edited("{% if", "\n  {% if"), edited("{% if", "{# says \n more #}\n{% if"),
        edited("{% endfor %}", "{%endfor%}\n"),
        edited("{% endfor %}", " \n\t {%- endfor -%} \n\n "), edited(" + ", "+"),
        edited("['role']", "[ 'role' ]"), edited("{{", "\n\n{{-\t"),
        edited("in messages", "in\n    messages")})
    BOOST_TEST(is_chatml(same), same);
  for (const std::string& other :
       {chatml + "\n\n\n", edited("{% if", " {% if"), edited("{% if", "\n  {%+ if"),
        edited("{% if", "\n\n{% if"), edited("{% endfor %}", "{% endfor %}\n\n"),
        edited("{% endfor %}", " {% endfor %}"), edited("{{", "\n\n{{"), edited("}}", "}}\n"),
        edited("message['role']",
               "message['role'] "
               "+ ' '"),
        edited("'<|im_end|>'", "' <|im_end|>'"), edited("in messages", "inmessages"),
        edited("{% endfor %}", "{% endfor %"), edited("{% if", "{% raw %}{% endraw %}{% if"),
        edited("{% if", "\u00a0{%- if"), edited("assistant", "Assistant"), std::string()})
    BOOST_TEST(!is_chatml(other), other);
}

// A template has reasoning in the answer to the last query, in every answer, or as it was given.
BOOST_AUTO_TEST_CASE(reasoning_stands_where_the_template_has_it) {
  const mc::conversation chat =
      read(R"({"messages":[{"role":"user","content":"a"},)"
           R"({"role":"assistant","content":"<think>\nx\n</think>\n\nb"},)"
           R"({"role":"user","content":"c"},{"role":"assistant","content":"d"}]})");
  const auto answers = [&](mc::chat_style style) {
    const mc::rendered_chat chat_text = mc::chat_template(style).render(chat);
    std::vector<std::string> found;
    for (const auto& [begin, content, end] : chat_text.turns)
      found.push_back(chat_text.text.substr(content, end - content));
    return found;
  };
  const std::string x = "<think>\nx\n</think>\n\nb<|im_end|>",
                    none = "<think>\n\n</think>\n\nd<|im_end|>", b = "b<|im_end|>",
                    d = "d<|im_end|>";
  using mc::chat_style;
  using all = std::vector<std::string>;
  BOOST_TEST(answers(chat_style::qwen3) == (all{b, none}));
  BOOST_TEST(answers(chat_style::qwen3_thinking_2507) == (all{b, none}));
  BOOST_TEST(answers(chat_style::qwen3_training) == (all{x, none}));
  BOOST_TEST(answers(chat_style::qwen3_2507) == (all{x, d}));
  BOOST_TEST(answers(chat_style::qwen2_5) == (all{x, d}));
}

BOOST_AUTO_TEST_CASE(what_a_template_cannot_say_is_refused) {
  const mc::conversation calls =
      read(R"({"messages":[{"role":"user","content":"?"},{"role":"assistant","tool_calls":[)"
           R"({"name":"f","arguments":{}},{"name":"g","arguments":{}}]}]})");
  for (const mc::chat_style plain : {mc::chat_style::chatml, mc::chat_style::llama3})
    CHECK_REFUSED(mc::chat_template(plain).render(calls), exit_code::data,
                  "chats.jsonl: line 3: the template of");
  CHECK_REFUSED(mc::chat_template(mc::chat_style::llama3_1).render(calls), exit_code::data,
                "has one call of a tool in a turn, but there are 2");
  const mc::conversation late =
      read(R"({"messages":[{"role":"assistant","content":"?"}],"tools":[{"name":"f"}]})");
  CHECK_REFUSED(mc::chat_template(mc::chat_style::llama3_1).render(late), exit_code::data,
                "in the first turn of the user");
  CHECK_REFUSED(mc::chat_template(mc::chat_style::qwen3).prompt({}), exit_code::data,
                "needs a message");
}

BOOST_AUTO_TEST_CASE(the_prompt_for_a_turn_leads_into_that_turn) {
  // What a model is asked with is what it was trained behind: header and words of the last turn.
  const mc::conversation chat =
      read(R"({"messages":[{"role":"system","content":"s"},{"role":"user","content":"q"},)"
           R"({"role":"assistant","content":"a","reasoning_content":"r"}]})");
  mc::conversation asked = chat;
  asked.messages.pop_back();
  using mc::chat_style;
  for (const chat_style style :
       {chat_style::chatml, chat_style::llama3, chat_style::llama3_1, chat_style::qwen2_5,
        chat_style::qwen3, chat_style::qwen3_thinking_2507, chat_style::qwen3_2507,
        chat_style::qwen3_training}) {
    const mc::chat_template used(style);
    const mc::rendered_chat whole = used.render(chat);
    BOOST_REQUIRE(whole.turns.size() == 1u);
    const std::string prompt = used.prompt(asked),
                      header = whole.text.substr(0, whole.turns[0].content);
    BOOST_TEST(prompt == header + (style == chat_style::qwen3_thinking_2507 ? "<think>\n" : ""));
    BOOST_TEST(whole.text.starts_with(prompt));
    BOOST_TEST(whole.text.substr(0, whole.turns[0].end).ends_with(used.end_of_turn()));
  }
  mc::conversation at_once = chat;
  at_once.messages.back().reasoning.reset();
  const mc::chat_template qwen3(chat_style::qwen3);
  BOOST_TEST(qwen3.render(at_once).text.starts_with(qwen3.prompt(asked, false)));
  BOOST_TEST(!qwen3.render(chat).text.starts_with(qwen3.prompt(asked, false)));
}

BOOST_AUTO_TEST_CASE(ids_are_those_of_the_whole_text_and_words_are_learned) {
  const mc::conversation chat =
      read(R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"\na"},)"
           R"({"role":"user","content":"q"},{"role":"assistant","content":"bc"}]})");
  const mc::rendered_chat text = mc::chat_template(mc::chat_style::chatml).render(chat);
  const mc::chat_tokens tokens = mc::encode_chat(text, encode_bytes);
  BOOST_TEST(tokens.ids == encode_bytes(text.text), boost::test_tools::per_element());
  std::string learned;
  for (std::size_t i = 0; i < tokens.ids.size(); ++i)
    if (tokens.mask[i]) learned += tokens.ids[i] < 256 ? static_cast<char>(tokens.ids[i]) : '$';
  BOOST_TEST(learned == "\na$bc$");
  const mc::chat_tokens all = mc::encode_chat(text, encode_bytes, mc::trained_on::all);
  BOOST_TEST(all.ids == tokens.ids, boost::test_tools::per_element());
  BOOST_TEST(std::count(all.mask.begin(), all.mask.end(), 1) == std::ssize(all.ids));

  // Where two line ends are one token, no prompt leads to the first turn.
  const auto pairs = [](std::string_view s) {
    std::vector<std::int32_t> ids = encode_bytes(s), out;
    for (const std::int32_t id : ids)
      if (id == '\n' && !out.empty() && out.back() == '\n') out.back() = 300;
      else out.push_back(id);
    return out;
  };
  const mc::chat_tokens merged = mc::encode_chat(text, pairs);
  BOOST_TEST(merged.ids == pairs(text.text), boost::test_tools::per_element());
  learned.clear();
  for (std::size_t i = 0; i < merged.ids.size(); ++i)
    if (merged.mask[i]) learned += merged.ids[i] < 256 ? static_cast<char>(merged.ids[i]) : '$';
  BOOST_TEST(learned == "bc$");
  BOOST_TEST(merged.merged_turns == 1);
  BOOST_TEST(tokens.merged_turns == 0);
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(packing)

struct row_data {
  std::vector<std::int32_t> tokens, labels, positions, documents;
  explicit row_data(std::int64_t s)
      : tokens(static_cast<std::size_t>(s)), labels(tokens), positions(tokens), documents(tokens) {}
  mc::sample_row view() { return {tokens, labels, positions, documents}; }
};

/// Token ids tell conversation and place: 1000 * (i + 1) + t.
mc::tokenized_conversations random_store(std::mt19937& rng, int n, int longest) {
  mc::tokenized_conversations store;
  for (int i = 0; i < n; ++i) {
    mc::chat_tokens c;
    const int length = std::uniform_int_distribution<int>(1, longest)(rng);
    for (int t = 0; t < length; ++t) {
      c.ids.push_back(1000 * (i + 1) + t);
      c.mask.push_back(rng() % 3 == 0);
    }
    store.add(c);
  }
  return store;
}

/// All conversations of a store, packed.
mc::packed_conversations packed(const mc::tokenized_conversations& store, std::int64_t sequence,
                                std::optional<std::uint64_t> seed, std::int64_t epochs = 0,
                                std::int32_t padding = 0) {
  return {"chats",
          std::make_shared<const mc::tokenized_conversations>(store),
          {0, store.size()},
          sequence,
          seed,
          epochs,
          padding};
}

BOOST_AUTO_TEST_CASE(an_epoch_has_every_learned_token_once_in_whole_documents) {
  std::mt19937 rng(1);
  for (int round = 0; round < 20; ++round) {
    const std::int64_t s = 24;
    const mc::tokenized_conversations store = random_store(rng, 1 + round * 7, 40);
    std::multiset<std::pair<std::int32_t, std::int32_t>> expected; // token, label
    for (std::int64_t i = 0; i < store.size(); ++i)
      for (std::int64_t t = 0; t + 1 < std::min<std::int64_t>(s, std::ssize(store[i])); ++t)
        if (store[i][static_cast<std::size_t>(t + 1)] & mc::tokenized_conversations::learned) {
          const auto id = static_cast<std::int32_t>(1000 * (i + 1) + t);
          expected.insert({id, id + 1});
        }
    if (expected.empty()) continue;
    const mc::packed_conversations set = packed(store, s, 7, 3, 1);
    BOOST_TEST(set.size() == 3 * set.per_epoch());
    BOOST_TEST(set.counts().labels == std::ssize(expected));
    row_data row(s);
    for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
      std::multiset<std::pair<std::int32_t, std::int32_t>> seen;
      std::int64_t tokens = 0;
      for (std::int64_t k = 0; k < set.per_epoch(); ++k) {
        set.fill(epoch * set.per_epoch() + k, row.view());
        for (std::size_t t = 0; t < row.tokens.size(); ++t) {
          const bool begins = row.positions[t] == 0;
          if (t == 0) BOOST_TEST((begins && row.documents[t] == 0));
          else
            BOOST_TEST((begins ? row.documents[t] == row.documents[t - 1] + 1
                               : row.documents[t] == row.documents[t - 1] &&
                                     row.positions[t] == row.positions[t - 1] + 1));
          if (row.tokens[t] == 1) { // padding: to the end, without labels
            BOOST_TEST(row.labels[t] == mc::ignored_label);
            BOOST_TEST((t + 1 == row.tokens.size() || row.tokens[t + 1] == 1));
            continue;
          }
          ++tokens;
          BOOST_TEST(row.tokens[t] % 1000 == row.positions[t]);
          if (row.labels[t] != mc::ignored_label) seen.insert({row.tokens[t], row.labels[t]});
        }
      }
      BOOST_TEST((seen == expected));
      BOOST_TEST(tokens == set.counts().tokens);
    }
  }
}

BOOST_AUTO_TEST_CASE(the_longest_go_first_to_the_first_row_with_room) {
  std::mt19937 rng(2);
  for (int round = 0; round < 20; ++round) {
    const std::int64_t s = 32;
    const mc::tokenized_conversations store = random_store(rng, 60, 40);
    const mc::packed_conversations set = packed(store, s, std::nullopt);
    // Again by plain loops.
    std::vector<std::pair<std::int64_t, std::int32_t>> order; // -length, number
    std::int64_t cut = 0;
    for (std::int64_t i = 0; i < store.size(); ++i) {
      const std::int64_t length = std::min<std::int64_t>(s, std::ssize(store[i]));
      bool learned = false;
      for (std::int64_t t = 1; t < length; ++t)
        learned |=
            (store[i][static_cast<std::size_t>(t)] & mc::tokenized_conversations::learned) != 0;
      if (learned) order.emplace_back(-length, static_cast<std::int32_t>(i));
      if (learned) cut += std::ssize(store[i]) - length;
    }
    std::sort(order.begin(), order.end());
    std::vector<std::int64_t> room;
    std::vector<std::vector<std::int32_t>> rows;
    for (const auto& [negative, i] : order) {
      std::size_t r = 0;
      while (r < room.size() && room[r] < -negative) ++r;
      if (r == room.size()) room.push_back(s), rows.emplace_back();
      room[r] += negative;
      rows[r].push_back(i);
    }
    BOOST_TEST(set.per_epoch() == std::ssize(rows));
    for (std::size_t r = 0; r < rows.size(); ++r) {
      const auto ours = set.row(static_cast<std::int64_t>(r));
      BOOST_TEST(std::vector<std::int32_t>(ours.begin(), ours.end()) == rows[r],
                 boost::test_tools::per_element());
    }
    BOOST_TEST(set.counts().tokens_cut == cut);
    BOOST_TEST(set.counts().packed == std::ssize(order));
    BOOST_TEST(set.counts().nothing_to_learn == 60 - std::ssize(order));
  }
}

BOOST_AUTO_TEST_CASE(samples_are_functions_of_seed_and_number) {
  std::mt19937 rng(3);
  const mc::tokenized_conversations store = random_store(rng, 200, 20);
  const auto first_tokens = [&](std::optional<std::uint64_t> seed, std::int64_t epoch) {
    const mc::packed_conversations set = packed(store, 16, seed);
    BOOST_TEST(set.size() == std::numeric_limits<std::int64_t>::max());
    row_data row(16);
    std::vector<std::int32_t> firsts;
    for (std::int64_t k = set.per_epoch(); k-- > 0;) { // in any order
      set.fill(epoch * set.per_epoch() + k, row.view());
      firsts.insert(firsts.begin(), row.tokens[0]);
    }
    return firsts;
  };
  BOOST_TEST((first_tokens(1, 0) == first_tokens(1, 0)));
  BOOST_TEST((first_tokens(1, 0) != first_tokens(1, 1)));
  BOOST_TEST((first_tokens(1, 0) != first_tokens(2, 0)));
  BOOST_TEST((first_tokens(std::nullopt, 0) == first_tokens(std::nullopt, 5)));
  const mc::packed_conversations once = packed(store, 16, 1, 1, 9);
  row_data row(16);
  once.fill(once.size(), row.view());
  BOOST_TEST((row.tokens == std::vector<std::int32_t>(16, 9)));
  BOOST_TEST((row.labels == std::vector<std::int32_t>(16, mc::ignored_label)));
}

BOOST_AUTO_TEST_CASE(a_range_is_packed_as_if_there_were_no_others) {
  std::mt19937 rng(4);
  const auto all = std::make_shared<mc::tokenized_conversations>();
  mc::tokenized_conversations some;
  for (int i = 0; i < 90; ++i) {
    mc::chat_tokens c;
    const int length = std::uniform_int_distribution<int>(2, 20)(rng);
    for (int t = 0; t < length; ++t) c.ids.push_back(100 * i + t), c.mask.push_back(t % 2 == 1);
    c.merged_turns = i % 4;
    all->add(c);
    if (i >= 30 && i < 70) some.add(c);
  }
  const mc::packed_conversations range("chats", all, {30, 70}, 16, 5), alone = packed(some, 16, 5);
  BOOST_TEST((range.counts() == alone.counts()));
  BOOST_TEST(range.counts().merged_turns == 10 * (0 + 1 + 2 + 3));
  row_data a(16), b(16);
  for (std::int64_t k = 0; k < 2 * alone.per_epoch(); ++k) {
    range.fill(k, a.view()), alone.fill(k, b.view());
    BOOST_TEST((a.tokens == b.tokens && a.labels == b.labels && a.positions == b.positions &&
                a.documents == b.documents));
  }
}

BOOST_AUTO_TEST_CASE(what_packing_did_is_told) {
  mc::tokenized_conversations store;
  store.add({{1, 2, 3, 4, 5, 6}, {0, 1, 0, 0, 0, 1}}); // cut to 4, one label remains
  store.add({{1, 2, 3, 4, 5}, {1, 0, 0, 0, 1}});       // cut to 4, none remains
  store.add({{1, 2}, {0, 1}, 1});
  const mc::packed_conversations set = packed(store, 4, std::nullopt, 1);
  BOOST_TEST(
      mc::sentence_of(set.counts(), 4) ==
      "2 of 3 conversations are packed into 2 sequences of 4: 6 tokens, 75.0 % of the room, "
      "of which 2 are learned; 1 are longer than a sequence and lose 2 tokens at their ends; "
      "1 have nothing to learn and are left out; 1 turns begin with a line end that is one "
      "token with that of their header, and are not learned");
  mc::tokenized_conversations none;
  none.add({{1, 2, 3}, {1, 0, 1}});
  CHECK_REFUSED(packed(none, 2, std::nullopt), exit_code::data,
                "none with a token to learn among its first 2");
}

BOOST_AUTO_TEST_SUITE_END()

} // namespace
