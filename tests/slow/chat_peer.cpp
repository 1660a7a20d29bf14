// chat_peer FOLDER < CONVERSATIONS: what the chat template of a folder makes of each line, as one
// line of JSON, for chat_peer.py to compare.
#include <megacpp/data/chat_template.hpp>
#include <megacpp/data/conversation.hpp>

#include <cstdint>
#include <iostream>
#include <string>
#include <variant>

#include <nlohmann/json.hpp>

namespace {

nlohmann::json answer(const mc::chat_template& style, const std::string& line,
                      std::int64_t number) {
  mc::conversation chat = std::get<mc::conversation>(mc::parse_conversation(line, "input", number));
  const mc::rendered_chat whole = style.render(chat);
  nlohmann::json turns = nlohmann::json::array();
  for (const mc::chat_turn& t : whole.turns) turns.push_back({t.begin, t.words, t.end});
  nlohmann::json out{{"text", whole.text}, {"turns", turns}};
  if (chat.messages.size() > 1) chat.messages.pop_back();
  out["prompt"] = style.prompt(chat);
  out["without_thinking"] = style.prompt(chat, false);
  return out;
}

} // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  try {
    mc::chat_template style = mc::chat_template::of_folder(argv[1]);
    style.date = "01 Feb 2026";
    std::string line;
    for (std::int64_t number = 1; std::getline(std::cin, line); ++number)
      std::cout << answer(style, line, number).dump() << '\n';
  } catch (const mc::error& e) {
    std::cerr << e.what() << '\n';
    return static_cast<int>(e.code());
  }
  return std::cout.flush() ? 0 : 6;
}
