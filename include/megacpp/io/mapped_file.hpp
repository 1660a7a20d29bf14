// A regular file as read-only memory.
#pragma once

#include <megacpp/io/descriptor.hpp>
#include <megacpp/io/error.hpp>
#include <megacpp/io/lfs_pointer.hpp>
#include <megacpp/io/mapping_guard.hpp>
#include <megacpp/io/utf8.hpp>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <fmt/format.h>

namespace mc {

/// A regular, non-empty file, mapped read-only as a whole. Pages are read when they are touched, so
/// a file may be larger than memory. Throws mc::error with the given exit code (data, model, ...).
class mapped_file {
public:
  explicit mapped_file(const std::string& path, exit_code code = exit_code::data)
      : mapped_file(open(path, code), path, code) {}

  /// Takes an open descriptor, or shares one. `path`: the name of the file for messages.
  mapped_file(descriptor file, std::string path, exit_code code)
      : mapped_file(std::make_shared<const descriptor>(std::move(file)), std::move(path), code) {}
  mapped_file(std::shared_ptr<const descriptor> file, std::string path, exit_code code)
      : path_(std::make_unique<const std::string>(std::move(path))),
        code_(code),
        file_(std::move(file)) {
    const struct stat opened = examined();
    size_ = static_cast<std::uint64_t>(opened.st_size);
    written_ = opened.st_mtim;
    if (size_ == 0)
      throw error(code_, fmt::format("{} is empty; give another file, or write it again", *path_));
    if (is_lfs_pointer(file_->get(), size_)) throw lfs_pointer(*path_, code_);
    void* const p = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file_->get(), 0);
    if (p == MAP_FAILED)
      throw unexamined(
          code_, fmt::format("cannot map {} ({} bytes): {}", *path_, size_, reason_of(errno)));
    data_ = static_cast<const std::byte*>(p);
    known_ = detail::note_mapping(data_, size_, file_->get(), path_->c_str(), code_);
  }

  mapped_file(mapped_file&& other) noexcept
      : path_(std::move(other.path_)),
        code_(other.code_),
        file_(std::move(other.file_)),
        data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)),
        written_(other.written_),
        known_(std::exchange(other.known_, nullptr)) {}
  mapped_file& operator=(mapped_file&&) = delete;
  ~mapped_file() {
    if (known_) known_->begin = 0;
    if (data_) ::munmap(const_cast<std::byte*>(data_), size_);
  }

  const std::string& path() const { return *path_; }
  exit_code code() const { return code_; }
  std::uint64_t size() const { return size_; }
  const std::byte* data() const { return data_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }

  /// Throws if the file has become shorter or longer since it was opened. Reading a page that was
  /// cut off raises SIGBUS, so callers use this before they read a longer stretch. It costs one
  /// fstat.
  void check_unchanged() const {
    const auto now = static_cast<std::uint64_t>(examined().st_size);
    if (now != size_)
      throw error(code_,
                  fmt::format("{} changed while it was being read: it had {} bytes and now has "
                              "{}; do not write to it during a run",
                              path(), size_, now));
  }
  /// Returns whether the file was written or touched since it was opened.
  bool written() const {
    const struct stat now = examined();
    return now.st_mtim.tv_sec != written_.tv_sec || now.st_mtim.tv_nsec != written_.tv_nsec ||
           static_cast<std::uint64_t>(now.st_size) != size_;
  }
  /// Returns the whole file as characters. Throws as check_unchanged does.
  std::string_view text() const {
    check_unchanged();
    return {reinterpret_cast<const char*>(data_), size_};
  }

private:
  static descriptor open(const std::string& path, exit_code code) {
    // O_NONBLOCK: opening a pipe must not wait for its writer; it has no effect on regular files.
    descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (file) return file;
    if (path.empty()) throw error(code, "the path of a file to read is empty; give its name");
    if (errno == ENOENT) throw error(code, fmt::format("{} does not exist; check the path", path));
    throw error(code, fmt::format("cannot open {}: {}", path, reason_not_to_read(errno)));
  }

  struct stat examined() const {
    struct stat s {};
    if (::fstat(file_->get(), &s) != 0)
      throw unexamined(code_, fmt::format("cannot examine {}: {}", path(), reason_of(errno)));
    if (S_ISDIR(s.st_mode))
      throw error(code_, fmt::format("{} is a directory; give the path of a file", path()));
    if (!S_ISREG(s.st_mode))
      throw error(code_,
                  fmt::format("{} is not a regular file (a pipe or a device cannot be mapped); "
                              "copy its contents to a file first",
                              path()));
    return s;
  }

  std::unique_ptr<const std::string> path_; // a pointer, so that moving does not move the text
  exit_code code_;
  std::shared_ptr<const descriptor> file_;
  const std::byte* data_ = nullptr;
  std::uint64_t size_ = 0;
  struct timespec written_ {}; ///< time of the last change before it was opened
  detail::known_mapping* known_ = nullptr;
};

/// Returns the text of a file that people write, such as a list, without a byte-order mark. Throws
/// mc::error of the file's exit code for a file in UTF-16, as some editors save it.
inline std::string_view written_text(const mapped_file& file) {
  const std::string_view text = file.text();
  if (text.starts_with("\xff\xfe") || text.starts_with("\xfe\xff"))
    throw error(file.code(), fmt::format("{} is in UTF-16; save it as UTF-8", file.path()));
  return without_mark(text);
}

} // namespace mc
