// Values of flags in JSON, as files of flags and states have them.
#pragma once

#include <megacpp/io/json_file.hpp>
#include <megacpp/options/options.hpp>

#include <algorithm>
#include <string_view>

#include <nlohmann/json.hpp>

namespace mc {

/// Tells whether a value is of the type of a flag. A list may be one text.
inline bool fits(const nlohmann::json& value, const flag_base& flag) {
  if (flag.is_list() && value.is_array())
    return std::ranges::all_of(value, [](const nlohmann::json& one) { return one.is_string(); });
  return flag.is_text()     ? value.is_string()
         : flag.is_toggle() ? value.is_boolean()
                            : value.is_number();
}

/// Reads a value that fits a flag. Throws mc::error(exit_code::usage).
inline void read_value(const nlohmann::json& value, flag_base& flag, std::string_view where) {
  if (value.is_array())
    for (const nlohmann::json& one : value) flag.read(one.get<std::string>(), where);
  else flag.read(value.is_string() ? value.get<std::string>() : value.dump(), where);
}

} // namespace mc
