// Options from a JSON file: {"lr": 0.001, "save": "model"}, keys as the flags without their dashes.
#pragma once

#include <megacpp/cli/advice.hpp>
#include <megacpp/io/json_file.hpp>
#include <megacpp/options/refusals.hpp>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace mc {

/// Whether one of the values that an entry lists, with | between, is this one, as a number or as a
/// text.
inline bool changes_nothing(const foreign_flag& f, std::string_view value) {
  const auto number = [](std::string_view text) {
    double x = std::numeric_limits<double>::quiet_NaN();
    const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), x);
    return problem == std::errc() && end == text.data() + text.size()
               ? x
               : std::numeric_limits<double>::quiet_NaN();
  };
  if (f.words == is_switch) return value == "true";
  for (std::string_view rest = f.idle; !rest.empty();) {
    const std::string_view one = rest.substr(0, rest.find('|'));
    if (one == "*" || one == value || number(one) == number(value)) return true;
    rest.remove_prefix(std::min(one.size() + 1, rest.size()));
  }
  return false;
}

/// A flag of another program that a command line or a file has.
struct given_foreign {
  const foreign_flag* flag = nullptr;
  std::string value;
  std::string where; ///< what messages call it
  bool asked = true; ///< by the command line, which overrides a file
};

/// Takes such a flag for what it is here, once those of `list` have their values. What is taken
/// without an effect is added to `idle`. Throws mc::error(exit_code::usage).
inline void take_foreign(const given_foreign& given, const std::vector<flag_entry>& list, command c,
                         std::vector<std::string>& idle) {
  const foreign_flag& f = *given.flag;
  const std::string& where = given.where;
  std::string value = given.value;
  const auto usage = [](const std::string& sentence) { return error(exit_code::usage, sentence); };
  if (f.words == is_switch && value != "true" && f.beside.empty())
    throw usage(fmt::format("{} takes no value, but is given \"{}\"; leave one of them out", where,
                            printable(value)));
  if (!f.is_honoured()) {
    const flag_entry* const beside = find_flag(list, f.beside);
    if (changes_nothing(f, value) ? f.beside.empty() || beside->flag->text() == "true" : false)
      return idle.emplace_back(f.name), void();
    throw usage(fmt::format("{}{} is not taken; {}", where,
                            f.words == is_switch ? "" : " " + printable(value), f.says));
  }
  const flag_entry& ours = *find_flag(list, f.ours);
  if (!overlaps(ours.flag->commands(), c)) return idle.emplace_back(f.name), void();
  if (f.times > 1) {
    std::int64_t n = 0;
    const auto [end, problem] = std::from_chars(value.data(), value.data() + value.size(), n);
    if (problem != std::errc() || end != value.data() + value.size() || n < 0 ||
        n > std::int64_t{1} << 40)
      throw usage(fmt::format("{} is \"{}\", but must be a whole number", where, printable(value)));
    value = std::to_string(n * f.times);
  }
  if (!f.fixed.empty()) value = f.fixed;
  if (!given.asked && ours.flag->asked()) return;
  const bool before = ours.flag->asked() || (!given.asked && ours.flag->given());
  const std::string text = ours.flag->text();
  if (ours.flag->is_list()) ours.flag->forget();
  if (given.asked) ours.flag->ask(value, where);
  else ours.flag->read(value, where);
  if (before && ours.flag->text() != text)
    throw usage(fmt::format("{} is --{} here, and that is {} and {}; give one of them", where,
                            ours.name, printable(text), ours.flag->text()));
}

/// Reads the flags of a file into `list`. One file may serve all subcommands: keys of the others
/// are checked and change nothing. What is wrong with a key is added to `refused`, and other
/// programs' flags to `foreign`. Throws mc::error(exit_code::usage) naming the file.
inline void read_option_file(const std::string& path, const std::vector<flag_entry>& list,
                             refusals& refused, std::vector<given_foreign>& foreign,
                             std::span<const command_text> among = commands) {
  const json_value file = read_json(path, exit_code::usage);
  const command any = among.front().which;
  const command all = overlaps(any, command::all) ? command::all : command::all_of_data;
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
      if (f != nullptr && f->is_taken() && f->name == key && value.is_primitive())
        return foreign.push_back(
            {f, value.is_string() ? text_of(key, value) : value.dump(), where, false});
      throw file.fault(fmt::format("there is no option \"{}\"; {}", printable(key),
                                   advice_for(list, "", key, all, among)));
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
