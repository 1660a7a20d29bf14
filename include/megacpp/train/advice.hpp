// What to say to a name that is no flag.
#pragma once

#include <megacpp/train/foreign_flags.hpp>
#include <megacpp/train/help.hpp>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace mc {

/// Letters to change, insert or leave out to make one name the other (Levenshtein 1966).
inline std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

/// What to say about a name that is no flag of a command: what it is called here if other programs
/// have it, whose it is if another command has it, and else the nearest one, if any is near.
inline std::string advice_for(const std::vector<flag_entry>& list, std::string_view dashes,
                              std::string_view name, command c) {
  const auto of_another = [&](const flag_entry* e) {
    return e != nullptr && !overlaps(e->flag->commands(), c);
  };
  const auto owned = [&](const flag_entry& e) {
    std::string owners;
    for (const command_text& owner : commands)
      if (overlaps(e.flag->commands(), owner.which))
        owners += fmt::format("{}{}", owners.empty() ? "" : ", ", owner.name);
    return fmt::format("{}{} is a flag of {}", dashes, e.name, owners);
  };
  if (const foreign_flag* const f = find_foreign(name)) {
    if (!f->says.empty()) return std::string(f->says);
    const flag_entry* const ours = find_flag(list, f->ours);
    return of_another(ours) ? owned(*ours) : fmt::format("it is {}{} here", dashes, f->ours);
  }
  if (const flag_entry* const e = find_flag(list, dashed(name)); of_another(e)) return owned(*e);
  std::string best = "help";
  for (const flag_entry& e : list)
    if (overlaps(e.flag->commands(), c) && edit_distance(name, e.name) < edit_distance(name, best))
      best = e.name;
  if ((name == best && dashes.empty()) ||
      2 * edit_distance(name, best) > std::max(name.size(), best.size()))
    return "--help shows what there is";
  return fmt::format("did you mean {}{}?", dashes, best);
}

} // namespace mc
