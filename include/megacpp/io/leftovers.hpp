// The names of files and folders that a save makes beside its target, and the tidying after a
// killed save.
#pragma once

#include <megacpp/io/descriptor.hpp>
#include <megacpp/io/folder.hpp>

#include <algorithm>
#include <cerrno>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>
#include <cstdio>

#include <fmt/format.h>

namespace mc::detail {

/// Renames an entry of a folder by renameat2, or by plain rename if the file system lacks its
/// flags: plain rename replaces only an empty folder, and cannot exchange.
inline bool rename_in_folder(int folder, const std::string& from, const std::string& to,
                             unsigned flags) {
  if (::renameat2(folder, from.c_str(), folder, to.c_str(), flags) == 0) return true;
  if (flags != RENAME_NOREPLACE || (errno != EINVAL && errno != ENOSYS)) return false;
  if (::faccessat(folder, to.c_str(), F_OK, AT_SYMLINK_NOFOLLOW) == 0) return errno = EEXIST, false;
  return ::renameat(folder, from.c_str(), folder, to.c_str()) == 0;
}

/// The marks in the names of what a save makes beside its target: the target's name, a mark, and
/// the number of the process. By these marks a later save recognises what a killed one left.
inline constexpr std::string_view temporary_mark = ".megacpp-tmp-", aside_mark = ".megacpp-old-",
                                  whole_mark = ".megacpp-new-";

inline std::string beside_of(std::string_view target, std::string_view mark) {
  return fmt::format("{}{}{}", target, mark, ::getpid());
}
inline std::string temporary_of(std::string_view target) {
  return beside_of(target, temporary_mark);
}

/// The meaning of a name that a killed save may have left beside a target.
struct leftover {
  std::string_view target; ///< "" if the name is none of a save
  bool aside = false;      ///< the name is of the target's old folder
  bool whole = false;      ///< the name is of a complete new folder
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
  if (auto [target, rest] = split(whole_mark); drop_number(rest) && rest.empty())
    return {target, false, true};
  auto [target, rest] = split(temporary_mark);
  if (!drop_number(rest)) return {};
  // "-N" at the end of the name is the number of a further attempt.
  if (rest.size() > 1 && rest[0] == '-' && rest[1] >= '0' && rest[1] <= '9') {
    rest.remove_prefix(1);
    drop_number(rest);
  }
  return rest.empty() || rest == "-renamed" || rest == "-old" ? leftover{target} : leftover{};
}

/// A folder that is open to be removed, under whatever name it has by then, if all that it holds
/// are files of a kind. Removing needs no further descriptor or memory, and never enters
/// subfolders.
class flat_folder {
public:
  flat_folder(int parent, const std::string& name, const folder_kind& kind)
      : folder_(::openat(parent, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)),
        first_(kind.first) {
    if (!folder_) {
      problem_ = errno;
      return;
    }
    auto names = list_folder(folder_.get());
    if (!names) {
      problem_ = errno;
      return;
    }
    names_ = *std::move(names);
    for (const std::string& file : names_)
      if (foreign_.empty() && !(kind.holds(file) && is_plain_file(folder_.get(), file)))
        foreign_ = file;
  }

  /// Returns the descriptor; -1 if the folder could not be opened (problem()).
  int get() const { return folder_.get(); }
  /// Returns the errno of opening or listing the folder; 0 on success.
  int problem() const { return problem_; }
  /// Returns the name of an entry that is not of the kind; "" if there is none.
  const std::string& foreign() const { return foreign_; }
  const std::vector<std::string>& names() const { return names_; }
  /// Returns the errno for which the files cannot be removed; 0 if no reason is known.
  int obstacle() const {
    if (problem_ != 0 || !foreign_.empty()) return problem_ != 0 ? problem_ : ENOTEMPTY;
    if (names_.empty() || ::faccessat(folder_.get(), ".", W_OK | X_OK, AT_EACCESS) == 0) return 0;
    return errno;
  }
  /// Returns whether the folder has the file without which it is incomplete.
  bool marked() const { return std::find(names_.begin(), names_.end(), first_) != names_.end(); }
  bool lock() const { return folder_ && ::flock(folder_.get(), LOCK_EX | LOCK_NB) == 0; }

  /// Removes the file without which the folder is incomplete. Returns the errno of a failure, or 0.
  int unmark() const {
    if (const int before = obstacle()) return before;
    return ::unlinkat(folder_.get(), first_, 0) == 0 || errno == ENOENT ? 0 : errno;
  }
  /// Removes the folder by its present name. Returns the errno of a failure; 0 once it is gone.
  int remove(int parent, const std::string& name) const {
    if (const int before = obstacle()) return before;
    int first = 0;
    for (const std::string& file : names_)
      if (::unlinkat(folder_.get(), file.c_str(), 0) != 0 && errno != ENOENT && first == 0)
        first = errno;
    if (::unlinkat(parent, name.c_str(), AT_REMOVEDIR) != 0 && first == 0) first = errno;
    return first;
  }

private:
  descriptor folder_;
  const char* first_;
  int problem_ = 0;
  std::string foreign_;
  std::vector<std::string> names_;
};

/// Tidies after a killed save. A complete new folder replaces an old one that is partly removed. An
/// old folder that was renamed aside is brought back, or removed if the new one took its place.
/// Temporary folders that belong to no process are removed.
inline void tidy(int parent, std::string_view target, const folder_kind& kind) {
  const auto names = list_folder(parent);
  if (!names) return;
  const std::string at(target);
  for (const std::string& name : *names) {
    if (const leftover l = leftover_of(name); l.target != target || !l.whole) continue;
    const flat_folder left(parent, name, kind), old(parent, at, kind);
    if (!left.lock()) continue;
    if (old.marked()) left.remove(parent, name);
    else if (old.problem() == ENOENT || old.remove(parent, at) == 0)
      rename_in_folder(parent, name, at, RENAME_NOREPLACE);
  }
  const flat_folder there(parent, at, kind);
  const bool replaced = there.problem() == 0 && there.foreign().empty() && !there.names().empty();
  for (const std::string& name : *names) {
    if (const leftover l = leftover_of(name); l.target != target || !l.aside) continue;
    if (replaced) flat_folder(parent, name, kind).remove(parent, name);
    else if (rename_in_folder(parent, name, at, RENAME_NOREPLACE)) break;
  }
  for (const std::string& name : *names) {
    if (const leftover l = leftover_of(name); l.target != target || l.aside || l.whole) continue;
    if (const flat_folder left(parent, name, kind); left.lock()) left.remove(parent, name);
  }
}

} // namespace mc::detail
