// What a path names behind its symbolic links.
#pragma once

#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

namespace mc::detail {

/// What a path names behind its symbolic links, which stay as they are when it is replaced. Of
/// links without an end, one of them, for which stat fails with ELOOP; and the last one of links
/// whose text is no path to what they name (/proc/self/fd/1, of a pipe).
inline std::string behind_links(std::string path) {
  namespace fs = std::filesystem;
  std::error_code problem;
  for (int links = 0; links < 40; ++links) {
    const fs::path to = fs::read_symlink(path, problem);
    if (problem) break; // no link
    std::string next = (fs::path(path).parent_path() / to).string();
    if (fs::exists(path, problem) && !fs::exists(next, problem)) break;
    path = std::move(next);
  }
  return path;
}

} // namespace mc::detail
