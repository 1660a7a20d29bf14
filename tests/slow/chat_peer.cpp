// chat_peer TOKENIZER FOLDER...: what the chat template of a folder makes of each line of its
// conversations.jsonl, as one line of JSON of its answers.jsonl, for chat_peer.py to compare.
#include <megacpp/chat/chat_template.hpp>
#include <megacpp/chat/conversation.hpp>
#include <megacpp/chat/conversation_file.hpp>
#include <megacpp/tokenizer/tokenizer_file.hpp>

#include <cstdint>
#include <fstream>
#include <iostream>
#include <string>
#include <variant>

#include <nlohmann/json.hpp>

namespace {

nlohmann::json answer(const mc::chat_template& style, const mc::text_encoder& encode,
                      const std::string& line, std::int64_t number) {
  mc::conversation chat = std::get<mc::conversation>(mc::parse_conversation(line, "input", number));
  const mc::rendered_chat whole = style.render(chat);
  nlohmann::json turns = nlohmann::json::array();
  for (const mc::chat_turn& t : whole.turns) turns.push_back({t.begin, t.content, t.end});
  nlohmann::json out{{"text", whole.text}, {"turns", turns}};
  const mc::chat_tokens tokens = mc::encode_chat(whole, encode);
  out["ids"] = tokens.ids;
  out["mask"] = tokens.mask;
  out["merged_turns"] = tokens.merged_turns;
  if (chat.messages.size() > 1) chat.messages.pop_back();
  out["prompt"] = style.prompt(chat);
  out["without_thinking"] = style.prompt(chat, false);
  return out;
}

} // namespace

int main(int argc, char** argv) {
  try {
    const auto tokenizer = mc::open_tokenizer(argv[1]);
    const mc::text_encoder encode = mc::encoder_of(*tokenizer);
    for (int i = 2; i < argc; ++i) {
      const std::string folder = argv[i];
      mc::chat_template style = mc::chat_template::of_folder(folder);
      style.date = "01 Feb 2026";
      std::ifstream in(folder + "/conversations.jsonl");
      std::ofstream out(folder + "/answers.jsonl");
      std::string line;
      for (std::int64_t number = 1; std::getline(in, line); ++number)
        out << answer(style, encode, line, number).dump() << '\n';
      if (!out.flush()) return 6;
    }
  } catch (const mc::error& e) {
    std::cerr << e.what() << '\n';
    return static_cast<int>(e.code());
  }
  return 0;
}
