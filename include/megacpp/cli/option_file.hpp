// Options from a JSON file: {"lr": 0.001, "save": "model"}, keys as the flags without their dashes.
#pragma once

#include <megacpp/cli/take_foreign.hpp>
#include <megacpp/io/json_file.hpp>
#include <megacpp/options/refusals.hpp>

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mc {

/// Reads the flags of a file into `list`. One file may serve all subcommands: keys of the others
/// are checked and change nothing. What is wrong with a key is added to `refused`, and other
/// programs' flags to `foreign`. Throws mc::error(exit_code::usage) naming the file.
inline void read_option_file(const std::string& path, const std::vector<flag_entry>& list,
                             refusals& refused, std::vector<given_foreign>& foreign,
                             std::span<const command_text> among = commands) {
  const json_value file = read_json(path, exit_code::usage);
  const command all = all_among(among);
  const auto text_of = [&](std::string_view key, const nlohmann::json& value) {
    auto text = value.get<std::string>();
    if (text.find('\0') != std::string::npos)
      throw file.fault(fmt::format("option \"{}\" has a NUL in its text", key));
    return text;
  };
  const auto read = [&](const std::string& key, const nlohmann::json& value) {
    const std::string where = fmt::format("{}: \"{}\"", path, key);
    const flag_entry* const e = find_flag(list, key);
    if (e == nullptr) {
      const foreign_flag* const f = find_foreign(key, all);
      if (f == nullptr || !f->is_taken() || f->name != key)
        throw file.fault(fmt::format("there is no option \"{}\"; {}", printable(key),
                                     advice_for(list, "", key, all, among)));
      if (f->words == is_switch && value.is_boolean() && !value.get<bool>()) return; // left out
      const bool several = f->words == several_values && value.is_array();
      std::string text;
      for (const auto& one : several ? value : nlohmann::json::array({value})) {
        if (!one.is_primitive() || one.is_null())
          throw file.fault(fmt::format("option \"{}\" must be a text, a number{}", key,
                                       f->words == several_values ? ", or a list of these"
                                       : f->words == is_switch    ? ", or true or false"
                                                                  : ""));
        text += (text.empty() ? "" : " ") + (one.is_string() ? text_of(key, one) : one.dump());
      }
      return foreign.push_back({f, text, where, false});
    }
    flag_base& f = *e->flag;
    if (f.is_list() && value.is_array()) {
      for (const auto& one : value) {
        if (!one.is_string())
          throw file.fault(fmt::format("option \"{}\" must be a list of texts in quotes", key));
        f.read(text_of(key, one), where);
      }
      return;
    }
    const bool fits = f.is_text()     ? value.is_string()
                      : f.is_toggle() ? value.is_boolean()
                                      : value.is_number();
    if (!fits)
      throw file.fault(fmt::format("option \"{}\" must be {}", key,
                                   f.is_text()     ? "a text in quotes"
                                   : f.is_toggle() ? "true or false"
                                                   : "a number"));
    f.read(f.is_text() ? text_of(key, value) : value.dump(), where);
  };
  for (const auto& item : file.raw().items())
    refused.collect([&] { read(item.key(), item.value()); });
}

} // namespace mc
