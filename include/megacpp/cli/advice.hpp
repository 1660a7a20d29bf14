// What to say to a name that is no flag.
#pragma once

#include <megacpp/cli/foreign_flags.hpp>
#include <megacpp/cli/help.hpp>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mc {

/// Letters to change, insert, leave out or swap with the next to make one name the other, none of
/// them twice (Damerau 1964).
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

/// The names of commands: "train, eval".
inline std::string names_of(command some, std::span<const command_text> among) {
  std::string names;
  for (const command_text& c : among)
    if (overlaps(some, c.which)) names += fmt::format("{}{}", names.empty() ? "" : ", ", c.name);
  return names;
}

/// The commands that have every flag that a text names.
inline command having_flags_of(const std::vector<flag_entry>& list, std::string_view text) {
  command some = command::all | command::all_of_data;
  for (std::size_t at = 0; (at = text.find("--", at)) != std::string_view::npos; at += 2) {
    const std::string_view name = text.substr(at + 2, text.find_first_of(" ,;:", at) - at - 2);
    if (const flag_entry* const e = find_flag(list, name)) some = some & e->flag->commands();
  }
  return some;
}

/// A sentence up to where it names a flag that the command lacks; one that begins with such a flag
/// says whose it is.
inline std::string fitting(const std::vector<flag_entry>& list, std::string_view says, command c,
                           std::span<const command_text> among) {
  std::size_t end = std::string_view::npos;
  while (!overlaps(having_flags_of(list, says.substr(0, end)), c)) {
    if (end = says.rfind("; ", end - 1); end == std::string_view::npos)
      return fmt::format("for {}, {}", names_of(having_flags_of(list, says), among), says);
  }
  return std::string(says.substr(0, end));
}

/// Offers a name that is spelled almost alike: one letter of up to nine is another, two of up to
/// fourteen, and so on.
inline std::string if_near(std::string_view dashes, std::string_view name, std::string_view best) {
  const std::size_t most = std::max<std::size_t>(1, std::max(name.size(), best.size()) / 5);
  return edit_distance(name, best) > most || best.empty()
             ? std::string("--help shows what there is")
             : fmt::format("did you mean {}{}?", dashes, best);
}

/// A name in small letters, with - for _.
inline std::string plain(std::string_view name) {
  std::string text = dashed(name);
  for (char& c : text)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return text;
}

} // namespace detail

/// What to say about a name that is no flag of a command: what it is called here if other programs
/// have it, whose it is if another command has it, and else the nearest one, if any is near.
inline std::string advice_for(const std::vector<flag_entry>& list, std::string_view dashes,
                              std::string_view name, command c,
                              std::span<const command_text> among = commands) {
  const auto of_another = [&](const flag_entry* e) {
    return e != nullptr && !overlaps(e->flag->commands(), c);
  };
  const auto owned = [&](const flag_entry& e) {
    return fmt::format("{}{} is a flag of {}", dashes, e.name,
                       detail::names_of(e.flag->commands(), among));
  };
  if (const foreign_flag* const f = find_foreign(name, c)) {
    const flag_entry* const ours = find_flag(list, f->ours);
    if (!f->says.empty() && (ours == nullptr || of_another(ours)))
      return detail::fitting(list, f->says, c, among);
    if (ours == nullptr) return fmt::format("it is spelled {}{}", dashes, f->name);
    return of_another(ours) ? owned(*ours) : fmt::format("it is {}{} here", dashes, f->ours);
  }
  if (const flag_entry* const e = find_flag(list, dashed(name)); of_another(e)) return owned(*e);
  const std::string typed = detail::plain(name);
  std::string best = "help";
  for (const flag_entry& e : list)
    if (overlaps(e.flag->commands(), c) &&
        edit_distance(typed, e.name) < edit_distance(typed, best))
      best = e.name;
  return detail::if_near(dashes, typed, name == best && dashes.empty() ? "" : best);
}

/// The same about a word that is no command.
inline std::string advice_for_command(std::string_view word, std::span<const command_text> among) {
  const auto best = std::min_element(
      among.begin(), among.end(), [&](const command_text& a, const command_text& b) {
        return edit_distance(word, a.name) < edit_distance(word, b.name);
      });
  return detail::if_near("", word, best->name);
}

} // namespace mc
