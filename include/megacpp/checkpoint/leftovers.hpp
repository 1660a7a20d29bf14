// What a save makes beside its target, by name, and what becomes of that after a killed one.
#pragma once

#include <megacpp/checkpoint/folder.hpp>
#include <megacpp/data/descriptor.hpp>

#include <algorithm>
#include <cerrno>
#include <string>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>
#include <cstdio>

#include <fmt/format.h>

namespace mc::detail {

/// renameat2 within a folder, with plain rename where the file system lacks its flags: that one
/// replaces only an empty folder, and cannot exchange.
inline bool rename_entry(int folder, const std::string& from, const std::string& to,
                         unsigned flags) {
  if (::renameat2(folder, from.c_str(), folder, to.c_str(), flags) == 0) return true;
  if (flags != RENAME_NOREPLACE || (errno != EINVAL && errno != ENOSYS)) return false;
  if (::faccessat(folder, to.c_str(), F_OK, AT_SYMLINK_NOFOLLOW) == 0) return errno = EEXIST, false;
  return ::renameat(folder, from.c_str(), folder, to.c_str()) == 0;
}

/// Between a target's name and the number of the process, in the names of what that makes beside
/// the target: what a killed run left is known by it, and nobody names anything of his own so.
inline constexpr std::string_view temporary_mark = ".megacpp-tmp-", aside_mark = ".megacpp-old-";

inline std::string temporary_of(std::string_view target) {
  return fmt::format("{}{}{}", target, temporary_mark, ::getpid());
}

/// An entry that a killed run may have left for a target.
struct leftover {
  std::string_view target; ///< "" for every other name
  bool aside = false;      ///< what was at the target before, not what was to come
};
inline leftover leftover_of(std::string_view name) {
  const auto drop_number = [](std::string_view& text) {
    const std::size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
    text.remove_prefix(digits);
    return digits != 0;
  };
  const auto split = [&](std::string_view mark) {
    const auto at = name.rfind(mark);
    return at == std::string_view::npos
               ? std::pair(std::string_view(), std::string_view())
               : std::pair(name.substr(0, at), name.substr(at + mark.size()));
  };
  if (auto [target, rest] = split(aside_mark); drop_number(rest) && rest.empty())
    return {target, true};
  auto [target, rest] = split(temporary_mark);
  if (!drop_number(rest)) return {};
  if (rest.size() > 1 && rest[0] == '-' && rest[1] >= '0' && rest[1] <= '9') { // an attempt
    rest.remove_prefix(1);
    drop_number(rest);
  }
  return rest.empty() || rest == "-renamed" || rest == "-old" ? leftover{target} : leftover{};
}

/// Removes a folder if all that it holds are files of the kind; else it stays as it is, and so does
/// what cannot be removed. Never descends.
inline void remove_flat_folder(int parent, const std::string& name, const folder_kind& kind) {
  const descriptor folder(
      ::openat(parent, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!folder) return;
  const auto names = list_folder(folder.get());
  if (!names || !std::all_of(names->begin(), names->end(), [&](const std::string& file) {
        return kind.holds(file) && is_plain_file(folder.get(), file);
      }))
    return;
  for (const std::string& file : *names) ::unlinkat(folder.get(), file.c_str(), 0);
  ::unlinkat(parent, name.c_str(), AT_REMOVEDIR);
}

/// After a killed run: brings back the old folder of a target that was renamed aside, removes
/// temporaries that belong to nobody.
inline void tidy(int parent, std::string_view target, const folder_kind& kind) {
  const auto names = list_folder(parent);
  if (!names) return;
  for (const std::string& name : *names)
    if (const leftover l = leftover_of(name);
        l.target == target && l.aside &&
        rename_entry(parent, name, std::string(target), RENAME_NOREPLACE))
      break;
  for (const std::string& name : *names) {
    if (const leftover l = leftover_of(name); l.target != target || l.aside) continue;
    const descriptor folder(
        ::openat(parent, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (folder && ::flock(folder.get(), LOCK_EX | LOCK_NB) == 0)
      remove_flat_folder(parent, name, kind);
  }
}

} // namespace mc::detail
