// What a save makes beside its target, by name, and what becomes of that after a killed one.
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
inline constexpr std::string_view temporary_mark = ".megacpp-tmp-", aside_mark = ".megacpp-old-",
                                  whole_mark = ".megacpp-new-";

inline std::string beside_of(std::string_view target, std::string_view mark) {
  return fmt::format("{}{}{}", target, mark, ::getpid());
}
inline std::string temporary_of(std::string_view target) {
  return beside_of(target, temporary_mark);
}

/// An entry that a killed run may have left for a target.
struct leftover {
  std::string_view target; ///< "" for every other name
  bool aside = false;      ///< what was at the target before, not what was to come
  bool whole = false;      ///< what was to come, and is complete
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
  if (rest.size() > 1 && rest[0] == '-' && rest[1] >= '0' && rest[1] <= '9') { // an attempt
    rest.remove_prefix(1);
    drop_number(rest);
  }
  return rest.empty() || rest == "-renamed" || rest == "-old" ? leftover{target} : leftover{};
}

/// A folder opened so that it can be removed if all that it holds are files of a kind: under
/// whichever name it has by then, and without a further descriptor or memory. Never descends.
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

  /// -1 if it could not be opened, which problem() tells.
  int get() const { return folder_.get(); }
  /// What kept it from being opened and listed, as errno; 0: nothing.
  int problem() const { return problem_; }
  /// Something that it holds and that is not of its kind; "" if all is.
  const std::string& foreign() const { return foreign_; }
  const std::vector<std::string>& names() const { return names_; }
  /// Why its files cannot be removed, as errno; 0 if nothing is known to prevent it.
  int obstacle() const {
    if (problem_ != 0 || !foreign_.empty()) return problem_ != 0 ? problem_ : ENOTEMPTY;
    if (names_.empty() || ::faccessat(folder_.get(), ".", W_OK | X_OK, AT_EACCESS) == 0) return 0;
    return errno;
  }
  /// Has the file without which such a folder is not whole.
  bool marked() const { return std::find(names_.begin(), names_.end(), first_) != names_.end(); }
  bool lock() const { return folder_ && ::flock(folder_.get(), LOCK_EX | LOCK_NB) == 0; }

  /// Removes the file without which it is not whole. What prevented that, as errno.
  int unmark() const {
    if (const int before = obstacle()) return before;
    return ::unlinkat(folder_.get(), first_, 0) == 0 || errno == ENOENT ? 0 : errno;
  }
  /// Removes it by the name that it has now. What prevented that, as errno; 0 once it is gone.
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

/// After a killed run: puts a new folder in place of an old one that is partly removed; brings back
/// the old folder of a target that was renamed aside, or removes it if the new one took its place;
/// removes temporaries that belong to nobody.
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
      rename_entry(parent, name, at, RENAME_NOREPLACE);
  }
  const flat_folder there(parent, at, kind);
  const bool replaced = there.problem() == 0 && there.foreign().empty() && !there.names().empty();
  for (const std::string& name : *names) {
    if (const leftover l = leftover_of(name); l.target != target || !l.aside) continue;
    if (replaced) flat_folder(parent, name, kind).remove(parent, name);
    else if (rename_entry(parent, name, at, RENAME_NOREPLACE)) break;
  }
  for (const std::string& name : *names) {
    if (const leftover l = leftover_of(name); l.target != target || l.aside || l.whole) continue;
    if (const flat_folder left(parent, name, kind); left.lock()) left.remove(parent, name);
  }
}

} // namespace mc::detail
