// Pointers of Git LFS: small files that stand in place of large ones in a clone that was made
// without git-lfs.
#pragma once

#include <megacpp/io/error.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <unistd.h>

#include <fmt/format.h>

namespace mc {

/// Returns whether a file of `size` bytes that begins with `text` is a pointer: it has fewer than
/// 1024 bytes, and its first line is its version (git-lfs, docs/spec.md).
inline bool is_lfs_pointer(std::string_view text, std::uint64_t size) {
  return size < 1024 && text.starts_with("version https://git-lfs.github.com/spec/");
}
/// Returns whether an open file is a pointer; false if the file cannot be read.
inline bool is_lfs_pointer(int file, std::uint64_t size) {
  std::array<char, 64> begin;
  const ::ssize_t n = size < 1024 ? ::pread(file, begin.data(), begin.size(), 0) : 0;
  return n > 0 && is_lfs_pointer({begin.data(), static_cast<std::size_t>(n)}, size);
}

/// Returns the error about a pointer. The file that it stands for may be right.
inline unexamined lfs_pointer(std::string_view path, exit_code code) {
  return {code, fmt::format("{} is a pointer of Git LFS, and the file that it stands for was not "
                            "downloaded; install git-lfs and run git lfs pull in that clone",
                            path)};
}

} // namespace mc
