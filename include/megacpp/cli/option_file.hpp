// Flags from a JSON file: {"lr": 0.001, "save": "model"}, keys as the flags without their dashes.
#pragma once

#include <megacpp/cli/take_foreign.hpp>
#include <megacpp/options/refusals.hpp>

#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace mc {

namespace detail {

/// Returns the value of another program's flag as a command line has it. Throws
/// mc::error(exit_code::usage).
inline std::string foreign_value(const json_value& file, const std::string& key, int values) {
  const nlohmann::json& value = file.raw()[key];
  std::string text;
  for (const auto& one :
       values == several_values && value.is_array() ? value : nlohmann::json::array({value})) {
    if (!one.is_primitive() || one.is_null())
      throw file.fault(fmt::format("option \"{}\" must be a text, a number{}", key,
                                   values == several_values ? ", or a list of these"
                                   : values == no_value     ? ", or true or false"
                                                            : ""));
    text += (text.empty() ? "" : " ") + (one.is_string() ? one.get<std::string>() : one.dump());
  }
  return text;
}

} // namespace detail

/// Reads the flags of a file into `list`. One file may serve all subcommands: keys of the others
/// are checked and change nothing. Adds what is wrong with a key to `refused`, and flags of other
/// programs to `foreign`. Throws mc::error(exit_code::usage) naming the file.
inline void read_option_file(const std::string& path, const std::vector<named_flag>& list,
                             refusals& refused, std::vector<given_foreign>& foreign,
                             std::span<const command_text> among = commands) {
  const json_value file = read_json(path, exit_code::usage);
  const command all = all_among(among);
  const auto read = [&](const std::string& key, const nlohmann::json& value) {
    const std::string where = fmt::format("{}: \"{}\"", path, key);
    if (const named_flag* const e = find_flag(list, key)) {
      if (!e->flag->fits(value))
        throw file.fault(fmt::format("option \"{}\" must be {}", key,
                                     e->flag->is_list() && value.is_array()
                                         ? "a list of texts in quotes"
                                     : e->flag->is_text()   ? "a text in quotes"
                                     : e->flag->is_toggle() ? "true or false"
                                                            : "a number"));
      return e->flag->read_json(value, where);
    }
    const foreign_flag f = find_foreign(key, all);
    if (f.row == nullptr || !f.row->is_taken() || f.name != key)
      throw file.fault(fmt::format("there is no option \"{}\"; {}", printable(key),
                                   advice_for(list, "", key, all, among)));
    if (f.row->values == no_value && value.is_boolean() && !value.get<bool>())
      return; // it is left out
    foreign.push_back({f, detail::foreign_value(file, key, f.row->values), where, false});
  };
  for (const auto& item : file.raw().items())
    refused.collect([&] { read(item.key(), item.value()); });
}

} // namespace mc
