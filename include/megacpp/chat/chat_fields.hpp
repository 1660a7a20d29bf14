// Conversations whose lines are no lists of messages, but have a field for what each speaker says.
#pragma once

#include <string>
#include <string_view>

namespace mc {

/// chat_fields names the fields of a line that hold a question and its answer.
struct chat_fields {
  std::string system; ///< The field of the system's turn; "" where lines have none.
  std::string user, assistant;

  bool has(std::string_view name) const {
    return name == user || name == assistant || (!system.empty() && name == system);
  }
};

} // namespace mc
