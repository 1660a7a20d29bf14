// A flag of another program in a command line or a file is taken for what it is here, or refused.
#pragma once

#include <megacpp/cli/advice.hpp>
#include <megacpp/io/json_file.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <fmt/format.h>

namespace mc {

/// A flag of another program that a command line or a file gives.
struct given_foreign {
  foreign_flag flag;
  std::string value;
  std::string where; ///< name for messages
  bool asked = true; ///< the command line gives it, which overrides a file
};

namespace detail {

/// Tells whether a value is one of those with which a flag changes nothing, as a number or a text.
inline bool changes_nothing(const foreign_row& row, std::string_view value) {
  if (row.values == no_value) return value == "true";
  bool any = false;
  each_between(row.idle, '|', [&](std::string_view one) {
    double a = 0, b = 0;
    any = any || one == "*" || one == value ||
          (read_number(one, a) == std::errc() && read_number(value, b) == std::errc() && a == b);
  });
  return any && !row.idle.empty();
}

} // namespace detail

/// Takes such a flag for what it is here, once those of `list` have their values. Adds the name of
/// one that changes nothing to `idle`. Throws mc::error(exit_code::usage).
inline void take_foreign(const given_foreign& given, const std::vector<named_flag>& list, command c,
                         std::vector<std::string>& idle) {
  const foreign_row& row = *given.flag.row;
  const std::string& where = given.where;
  std::string value = given.value;
  if (row.values == no_value && value != "true" && row.beside.empty())
    throw usage("{} takes no value, but is given \"{}\"; leave one of them out", where,
                printable(value));
  if (!row.is_honoured()) {
    const named_flag* const beside = find_flag(list, row.beside); // null: the row names none
    const bool alone = beside != nullptr && overlaps(beside->flag->commands(), c) &&
                       beside->flag->text() != "true";
    if (detail::changes_nothing(row, value) && !alone)
      return idle.emplace_back(given.flag.name), void();
    throw usage("{}{} is not taken; {}", where,
                row.values == no_value ? "" : " " + printable(value), row.sentence());
  }
  const named_flag& ours = *find_flag(list, row.ours);
  if (!overlaps(ours.flag->commands(), c)) return idle.emplace_back(given.flag.name), void();
  if (row.times > 1) {
    std::int64_t n = 0;
    if (read_number(value, n) != std::errc() || n < 0 || n > std::int64_t{1} << 40)
      throw usage("{} is \"{}\", but must be a whole number", where, printable(value));
    value = std::to_string(n * row.times);
  }
  if (!row.fixed.empty()) value = row.fixed;
  if (!given.asked && ours.flag->asked()) return;
  const bool before = ours.flag->asked() || (!given.asked && ours.flag->given());
  const std::string text = ours.flag->text();
  if (ours.flag->is_list()) ours.flag->forget();
  if (given.asked) ours.flag->ask(value, where);
  else ours.flag->read(value, where);
  if (before && ours.flag->text() != text)
    throw usage("{} means --{} here, which is given as {}, too, and not as {}; give one of them",
                where, ours.name, printable(text), ours.flag->text());
}

} // namespace mc
