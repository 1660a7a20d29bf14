// The flag --chat-keys, which names a field of conversations for each speaker.
#pragma once

#include <megacpp/chat/chat_fields.hpp>
#include <megacpp/io/json_file.hpp>
#include <megacpp/options/flag.hpp>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace mc {

/// Returns the fields that --chat-keys names, as in system=about,user=question,assistant=response;
/// nothing where it has no value. Throws mc::error(exit_code::usage).
inline std::optional<chat_fields> chat_fields_of(const text_flag& flag) {
  if (flag().empty() && !flag.asked()) return std::nullopt; // as states have it
  const auto fault = [&](const std::string& why) {
    return usage("--{} is \"{}\", but {}", flag.name(), printable(flag()), why);
  };
  chat_fields fields;
  const std::pair<std::string_view, std::string*> speakers[] = {
      {"system", &fields.system}, {"user", &fields.user}, {"assistant", &fields.assistant}};
  each_between(flag(), ',', [&](std::string_view one) {
    const std::size_t is = one.find('=');
    if (is == std::string_view::npos)
      throw fault(fmt::format("\"{}\" has no =; write a role, = and the name of its field",
                              printable(one)));
    const std::string_view role = one.substr(0, is), field = one.substr(is + 1);
    const auto* const at = std::ranges::find(speakers, role, [](const auto& s) { return s.first; });
    if (at == std::end(speakers))
      throw fault(fmt::format("\"{}\" is no role; name fields for system, user and assistant",
                              printable(role)));
    if (!at->second->empty()) throw fault(fmt::format("names {} twice; give it one field", role));
    if (field.empty()) throw fault(fmt::format("the field of {} has no name; give it one", role));
    if (fields.has(field))
      throw fault(fmt::format("\"{}\" is the field of two roles; each has one of its own",
                              printable(field)));
    *at->second = field;
  });
  for (const auto& [role, field] : speakers)
    if (field->empty() && role != "system")
      throw fault(fmt::format("names no field for the {}; add {}=FIELD", role, role));
  return fields;
}

} // namespace mc
