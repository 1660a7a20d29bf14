// index_cache keeps the tables that say which tokens each sample has, in memory or as files of a
// folder that later runs map.
//
// A file of the cache, little-endian:
//   0    8 bytes   MEGACIDX
//   8    u64       version, 1
//   16   u64       bytes of the key, K
//   24   u64       bytes of the table, N
//   32   u64       XXH64 of the table
//   40   K bytes   key: a text with everything that determines the table
//   ...            zeros up to a multiple of 64, then the table
#pragma once

#include <megacpp/exec/host_memory.hpp>
#include <megacpp/io/checksum.hpp>
#include <megacpp/io/descriptor.hpp>
#include <megacpp/io/error.hpp>
#include <megacpp/io/folder.hpp>
#include <megacpp/io/folder_target.hpp>
#include <megacpp/io/leftovers.hpp>
#include <megacpp/io/mapped_file.hpp>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cstdio>

#include <fmt/format.h>

namespace mc {

/// index_table is a range of bytes, in memory or in a mapped file, that begins at a multiple of 16.
class index_table {
public:
  /// Reserves a table of zeros in memory. `what` names it in messages. Throws
  /// mc::error(exit_code::memory).
  index_table(std::uint64_t bytes, std::string_view what)
      : memory_(map(bytes, what), {bytes}), bytes_(memory_.get(), bytes) {}
  index_table(std::unique_ptr<const mapped_file> file, std::span<const std::byte> bytes)
      : file_(std::move(file)), bytes_(bytes) {}

  std::span<const std::byte> bytes() const { return bytes_; }
  /// Returns the bytes of a table in memory, to be filled.
  std::span<std::byte> memory() { return {memory_.get(), bytes_.size()}; }
  /// Returns n values, from byte `from` on, which is a multiple of their size.
  template <class T> std::span<const T> values(std::uint64_t from, std::int64_t n) const {
    return {reinterpret_cast<const T*>(bytes_.data() + from), static_cast<std::size_t>(n)};
  }
  template <class T> std::span<T> values(std::uint64_t from, std::int64_t n) {
    return {reinterpret_cast<T*>(memory_.get() + from), static_cast<std::size_t>(n)};
  }

private:
  /// Reserves memory of huge pages where the system grants them, because a shuffle jumps all over
  /// it.
  static std::byte* map(std::uint64_t bytes, std::string_view what) {
    return map_pages(pages(bytes), fmt::format("the order of {}", what).c_str(),
                     "fewer samples, less data");
  }
  static std::int64_t pages(std::uint64_t bytes) {
    return static_cast<std::int64_t>(std::max<std::uint64_t>(bytes, 1));
  }
  struct unmap {
    std::uint64_t bytes;
    void operator()(std::byte* memory) const { unmap_pages(memory, pages(bytes)); }
  };

  std::unique_ptr<std::byte, unmap> memory_;
  std::unique_ptr<const mapped_file> file_;
  std::span<const std::byte> bytes_;
};

namespace detail {

inline constexpr std::string_view table_magic = "MEGACIDX";
inline constexpr std::uint64_t table_version = 1, table_header_bytes = 40;

inline std::uint64_t table_begin(std::uint64_t key_bytes) {
  return (table_header_bytes + key_bytes + 63) / 64 * 64;
}
/// Returns the bytes in front of the table in its file.
inline std::string table_header(std::string_view key, std::span<const std::byte> table) {
  std::string header(table_magic);
  for (const std::uint64_t number :
       {table_version, std::uint64_t{key.size()}, std::uint64_t{table.size()}, xxh64::of(table)})
    header.append(reinterpret_cast<const char*>(&number), sizeof number);
  header += key;
  header.resize(table_begin(key.size()));
  return header;
}
/// Returns the table of a file, or nothing unless the file is whole and of that key.
inline std::optional<index_table> table_of(mapped_file file, std::string_view key,
                                           std::uint64_t bytes) {
  const std::uint64_t begin = table_begin(key.size());
  if (file.size() < begin || file.size() - begin != bytes) return std::nullopt;
  const auto table = file.bytes().subspan(begin);
  if (std::memcmp(file.data(), table_header(key, table).data(), begin) != 0) return std::nullopt;
  return index_table(std::make_unique<const mapped_file>(std::move(file)), table);
}

} // namespace detail

/// index_cache gives tables by their keys. Without a folder, a table is built in memory. With a
/// folder, a file that is whole and of the same key is mapped; any other file is replaced in one
/// step, so that processes that build one table at the same time do not disturb each other.
class index_cache {
public:
  index_cache() = default;
  /// Opens a folder of tables, and makes it if it is missing. Throws mc::error(exit_code::output).
  explicit index_cache(const std::string& folder) {
    if (!folder.empty()) target_.emplace(folder + "/table");
  }

  /// Returns whether tables are kept in a folder.
  explicit operator bool() const { return target_.has_value(); }

  /// Returns the table of `bytes` bytes that `key` determines; `fill` builds it where no file has
  /// it. `kind` begins the name of its file, and `what` names it in messages. Throws
  /// mc::error(exit_code::output) if the file cannot be written.
  index_table get(std::string_view kind, const std::string& key, std::uint64_t bytes,
                  std::string_view what, const std::function<void(index_table&)>& fill) const {
    const auto hash = xxh64::of(std::as_bytes(std::span(key)));
    const std::string name = fmt::format("{}-{:016x}.index", kind, hash);
    if (target_)
      if (auto there = open(name, key, bytes)) return *std::move(there);
    index_table table(bytes, what);
    fill(table);
    if (!target_) return table;
    write(name, key, table);
    auto written = open(name, key, bytes); // Processes share the pages of a file.
    return written ? *std::move(written) : std::move(table);
  }

private:
  std::optional<index_table> open(const std::string& name, const std::string& key,
                                  std::uint64_t bytes) const {
    const std::string path = target_->folder + '/' + name;
    struct stat s {};
    descriptor file(::openat(target_->parent->get(), name.c_str(),
                             O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    if (!file || ::fstat(file.get(), &s) != 0 || !S_ISREG(s.st_mode) || s.st_size == 0)
      return std::nullopt;
    return detail::table_of(mapped_file(std::move(file), path, exit_code::data), key, bytes);
  }

  void write(const std::string& name, const std::string& key, const index_table& table) const {
    const int folder = target_->parent->get();
    const std::string path = target_->folder + '/' + name;
    remove_leftovers(name);
    // Ranks of one process count together, so that no two of them have one file name.
    static std::atomic<unsigned> made = 0;
    std::string temporary;
    descriptor file;
    while (!file) {
      temporary = fmt::format("{}-{}", detail::temporary_of(name), made++);
      file = descriptor(::openat(folder, temporary.c_str(),
                                 O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
      if (!file && errno != EEXIST) throw detail::output_error("create", path, errno);
      if (!file) continue;
      ::flock(file.get(), LOCK_EX); // Another process holds this lock for a moment at most.
      struct stat s {};             // That process may have removed the file meanwhile.
      if (::fstat(file.get(), &s) == 0 && s.st_nlink == 0) file.reset();
    }
    const auto fail = [&](const char* what) {
      const int problem = errno;
      ::unlinkat(folder, temporary.c_str(), 0);
      return detail::output_error(what, path, problem);
    };
    const std::string header = detail::table_header(key, table.bytes());
    for (auto bytes : {std::as_bytes(std::span(header)), table.bytes()})
      while (!bytes.empty()) {
        const ::ssize_t n = ::write(file.get(), bytes.data(), bytes.size());
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) throw fail("write");
        bytes = bytes.subspan(static_cast<std::size_t>(n));
      }
    if (::fsync(file.get()) != 0) throw fail("make durable");
    if (::renameat(folder, temporary.c_str(), folder, name.c_str()) != 0) throw fail("rename");
    target_->made->keep();
    if (!detail::sync_folder(folder)) throw detail::output_error("make durable", path, errno);
  }

  /// Removes files that killed runs left. A file that is being written is locked and stays. On file
  /// systems without locks, all leftovers stay.
  void remove_leftovers(std::string_view name) const {
    const int folder = target_->parent->get();
    for (const std::string& entry :
         detail::list_folder(folder).value_or(std::vector<std::string>())) {
      if (detail::leftover_of(entry).target != name) continue;
      const int flags = O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
      const descriptor left(::openat(folder, entry.c_str(), flags));
      if (left && ::flock(left.get(), LOCK_EX | LOCK_NB) == 0) ::unlinkat(folder, entry.c_str(), 0);
    }
  }

  std::optional<folder_target> target_; ///< The folder, as the place of a file in it.
};

} // namespace mc
