// The target of a path that is a symbolic link.
#pragma once

#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

namespace mc::detail {

/// Returns the path of the file that symbolic links lead to, so that the links stay when the file
/// is replaced. For an endless chain of links it returns one of them, for which stat fails with
/// ELOOP. A link whose text is no path to its target, such as /proc/self/fd/1 of a pipe, is
/// returned itself.
inline std::string behind_links(std::string path) {
  namespace fs = std::filesystem;
  std::error_code problem;
  for (int links = 0; links < 40; ++links) {
    const fs::path to = fs::read_symlink(path, problem);
    if (problem) break; // path is no link
    std::string next = (fs::path(path).parent_path() / to).string();
    if (fs::exists(path, problem) && !fs::exists(next, problem)) break;
    path = std::move(next);
  }
  return path;
}

} // namespace mc::detail
