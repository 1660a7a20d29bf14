// Options from a JSON file: {"lr": 0.001, "save": "model"}, keys as the flags without their dashes.
#pragma once

#include <megacpp/checkpoint/json_file.hpp>
#include <megacpp/train/options.hpp>

namespace mc {

/// Reads the flags of a file into `list`. One file may serve all subcommands: keys of others than
/// `c` are checked and change nothing there. Throws mc::error(exit_code::usage) naming file and
/// key.
inline void read_option_file(const std::string& path, const std::vector<flag_entry>& list,
                             command c) {
  const json_value file = read_json(path, exit_code::usage);
  for (const auto& [key, value] : file.raw().items()) {
    const flag_entry* const e = find_flag(list, key);
    if (e == nullptr)
      throw file.fault(fmt::format("there is no option \"{}\"; {}", printable(key),
                                   advice_for(list, key, command::all)));
    const bool text = value.is_string(), scalar = text || value.is_number() || value.is_boolean();
    if (!scalar)
      throw file.fault(fmt::format("option \"{}\" must be a number, a text, true or false", key));
    // A number in quotes is refused as what it is: a text.
    if (text && (e->flag->is_toggle() || e->flag->placeholder().size() == 1))
      throw file.fault(fmt::format("option \"{}\" is a text, but must be {}", key,
                                   e->flag->is_toggle() ? "true or false" : "a number"));
    if (!text && !e->flag->is_toggle() && e->flag->placeholder().size() != 1)
      throw file.fault(fmt::format("option \"{}\" must be a text in quotes", key));
    e->flag->read(text ? value.get<std::string>() : value.dump(),
                  fmt::format("{}: \"{}\"", path, key));
  }
}

} // namespace mc
