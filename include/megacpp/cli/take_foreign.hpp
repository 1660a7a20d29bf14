// A flag of another program in a command line or a file is taken for what it is here, or refused.
#pragma once

#include <megacpp/cli/advice.hpp>
#include <megacpp/io/json_file.hpp>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <fmt/format.h>

namespace mc {

/// The set of all commands of the program that has the commands in `among`.
inline command all_among(std::span<const command_text> among) {
  return overlaps(among.front().which, command::all) ? command::all : command::all_of_data;
}

/// True if a value is one of those that an entry lists with | between, as a number or as a text.
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
    const flag_entry* const beside = find_flag(list, f.beside); // null: the entry has none
    const bool alone = beside != nullptr && overlaps(beside->flag->commands(), c) &&
                       beside->flag->text() != "true";
    if (changes_nothing(f, value) && !alone) return idle.emplace_back(f.name), void();
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

} // namespace mc
