// Advice about a name that is no flag or command of a program.
#pragma once

#include <megacpp/cli/foreign_flags.hpp>
#include <megacpp/cli/help.hpp>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mc {

/// Returns how many letters are to be changed, inserted, left out or swapped with the next to make
/// one name the other, none of them twice (Damerau 1964).
inline std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before, last(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    before = std::exchange(last, row);
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j - 1] + (a[i - 1] != b[j - 1]), last[j] + 1, row[j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[b.size()];
}

namespace detail {

/// Returns the names of some commands: "train, eval".
inline std::string names_of(command some, std::span<const command_text> among) {
  std::string names;
  for (const command_text& c : among)
    if (overlaps(some, c.which)) names += fmt::format("{}{}", names.empty() ? "" : ", ", c.name);
  return names;
}

/// Returns the commands that have every flag that a sentence names.
inline command having_flags_of(const std::vector<named_flag>& list, std::string_view sentence) {
  command some = command::all | command::all_of_data;
  for (std::size_t at = 0; (at = sentence.find("--", at)) != std::string_view::npos; at += 2) {
    const std::string_view name =
        sentence.substr(at + 2, sentence.find_first_of(" ,;:", at) - at - 2);
    if (const named_flag* const e = find_flag(list, name)) some = some & e->flag->commands();
  }
  return some;
}

/// Offers a name that is spelled almost alike: one letter of up to nine is another, two of up to
/// fourteen, and so on.
inline std::string if_near(std::string_view dashes, std::string_view name, std::string_view best) {
  const std::size_t most = std::max<std::size_t>(1, std::max(name.size(), best.size()) / 5);
  return edit_distance(name, best) > most || best.empty()
             ? std::string("--help shows what there is")
             : fmt::format("did you mean {}{}?", dashes, best);
}

} // namespace detail

/// Returns advice about a name that is no flag of a command: what another program's flag is called
/// here, which command has the flag, or else the nearest name, if any is near.
inline std::string advice_for(const std::vector<named_flag>& list, std::string_view dashes,
                              std::string_view name, command c,
                              std::span<const command_text> among = commands) {
  const foreign_flag foreign = find_foreign(name, c);
  const named_flag* const ours = find_flag(
      list, foreign.row != nullptr ? std::string(foreign.row->ours) : dashed(std::string(name)));
  const bool has = ours != nullptr && overlaps(ours->flag->commands(), c);
  if (foreign.row != nullptr && has)
    return fmt::format("it is {}{} here", dashes, foreign.row->ours);
  if (foreign.row != nullptr) {
    std::string says = foreign.row->sentence();
    const command some = detail::having_flags_of(list, says);
    if (!overlaps(some, c))
      return !foreign.row->build.empty()
                 ? "a build decides it" + foreign.row->how_built()
                 : fmt::format("for {}, {}", detail::names_of(some, among), says);
    if (!says.empty()) return says;
    if (ours == nullptr) return fmt::format("it is spelled {}{}", dashes, foreign.name);
  }
  if (ours != nullptr && !has)
    return fmt::format("{}{} is a flag of {}", dashes, ours->name,
                       detail::names_of(ours->flag->commands(), among));
  std::string typed = dashed(std::string(name)), best = "help";
  for (char& letter : typed)
    if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
  for (const named_flag& e : list)
    if (overlaps(e.flag->commands(), c) &&
        edit_distance(typed, e.name) < edit_distance(typed, best))
      best = e.name;
  return detail::if_near(dashes, typed, name == best && dashes.empty() ? "" : best);
}

/// Returns advice about a name that is no command.
inline std::string advice_for_command(std::string_view name, std::span<const command_text> among) {
  const auto best = std::min_element(
      among.begin(), among.end(), [&](const command_text& a, const command_text& b) {
        return edit_distance(name, a.name) < edit_distance(name, b.name);
      });
  return detail::if_near("", name, best->name);
}

} // namespace mc
