// Tests of whether two paths name the same file or place.
#pragma once

#include <megacpp/io/links.hpp>

#include <filesystem>
#include <string>
#include <system_error>

#include <sys/stat.h>

namespace mc::detail {

/// Tells whether two paths name the same file or folder; false if it does not exist.
inline bool is_same_file(const std::string& a, const std::string& b) {
  std::error_code ignored;
  return !a.empty() && std::filesystem::equivalent(a, b, ignored);
}
/// Tells whether a path names the file that a descriptor writes to.
inline bool is_file_of(int descriptor, const std::string& path) {
  struct stat a {};
  struct stat b {};
  return ::fstat(descriptor, &a) == 0 && ::stat(path.c_str(), &b) == 0 && S_ISREG(a.st_mode) &&
         a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}
/// Returns a path as an absolute one without symbolic links and dots. Nothing need exist there.
inline std::filesystem::path resolved_path(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const fs::path p = fs::weakly_canonical(fs::absolute(behind_links(path), ignored), ignored);
  return p.has_filename() ? p : p.parent_path();
}
/// Tells whether two paths name the same place, where nothing need exist yet.
inline bool is_same_place(const std::string& a, const std::string& b) {
  return resolved_path(a) == resolved_path(b) || is_same_file(a, b);
}

} // namespace mc::detail
