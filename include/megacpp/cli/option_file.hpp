// Options from a JSON file: {"lr": 0.001, "save": "model"}, keys as the flags without their dashes.
#pragma once

#include <megacpp/cli/advice.hpp>
#include <megacpp/io/json_file.hpp>

namespace mc {

/// Reads the flags of a file into `list`. One file may serve all subcommands: keys of the others
/// are checked and change nothing. Throws mc::error(exit_code::usage) naming file and key.
inline void read_option_file(const std::string& path, const std::vector<flag_entry>& list,
                             std::span<const command_text> among = commands) {
  const json_value file = read_json(path, exit_code::usage);
  std::string_view key_of_text;
  const auto text_of = [&](const nlohmann::json& value) {
    auto text = value.get<std::string>();
    if (text.find('\0') != std::string::npos)
      throw file.fault(fmt::format("option \"{}\" has a NUL in its text", key_of_text));
    return text;
  };
  for (const auto& [key, value] : file.raw().items()) {
    const flag_entry* const e = find_flag(list, key);
    if (e == nullptr)
      throw file.fault(
          fmt::format("there is no option \"{}\"; {}", printable(key),
                      advice_for(list, "", key, command::all | command::all_of_data, among)));
    const flag_base& f = *e->flag;
    key_of_text = key;
    if (f.is_list() && value.is_array()) {
      for (const auto& one : value) {
        if (!one.is_string())
          throw file.fault(fmt::format("option \"{}\" must be a list of texts in quotes", key));
        e->flag->read(text_of(one), fmt::format("{}: \"{}\"", path, key));
      }
      continue;
    }
    const bool fits = f.is_text()     ? value.is_string()
                      : f.is_toggle() ? value.is_boolean()
                                      : value.is_number();
    if (!fits)
      throw file.fault(fmt::format("option \"{}\" must be {}", key,
                                   f.is_text()     ? "a text in quotes"
                                   : f.is_toggle() ? "true or false"
                                                   : "a number"));
    e->flag->read(f.is_text() ? text_of(value) : value.dump(),
                  fmt::format("{}: \"{}\"", path, key));
  }
}

} // namespace mc
