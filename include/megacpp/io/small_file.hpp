// A small file of a folder, which is replaced as a whole.
#pragma once

#include <megacpp/io/descriptor.hpp>
#include <megacpp/io/error.hpp>
#include <megacpp/io/folder_writer.hpp>
#include <megacpp/io/leftovers.hpp>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace mc::detail {

/// A file of at most a page, to be read and replaced. A process that reads the file while it is
/// replaced, or after a crash, finds either the whole old text or the whole new one.
class small_file {
public:
  /// The file `name` of an open folder, which messages call `path`.
  small_file(int folder, std::string path, const char* name)
      : folder_(folder), path_(std::move(path)), name_(name), temporary_(temporary_of(name)) {}

  /// Returns the file's text; nothing if there is no regular file of at most a page.
  std::optional<std::string> read() const {
    const descriptor file(::openat(folder_, name_, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    struct stat s {};
    if (!file || ::fstat(file.get(), &s) != 0 || !S_ISREG(s.st_mode)) return std::nullopt;
    std::string text(page_bytes, '\0');
    const ::ssize_t n = ::read(file.get(), text.data(), text.size());
    if (n < 0 || n != s.st_size) return std::nullopt;
    text.resize(static_cast<std::size_t>(n));
    return text;
  }
  /// Replaces the file's text, so that it survives a crash. Throws mc::error(exit_code::output).
  void replace(std::string_view text) const {
    write_temporary(text);
    if (::renameat(folder_, temporary_.c_str(), folder_, name_) != 0) throw undo("replace");
    if (!sync_folder(folder_)) throw fault("make durable");
  }
  /// Rehearses replace(): writes the new text to a temporary file and removes that file. Throws
  /// mc::error(exit_code::output).
  void rehearse(std::string_view text) const {
    write_temporary(text);
    struct stat s {};
    const bool taken =
        ::fstatat(folder_, name_, &s, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(s.st_mode);
    if (taken) errno = EISDIR;
    if (taken || ::unlinkat(folder_, temporary_.c_str(), 0) != 0) throw undo("replace");
  }

private:
  error fault(const char* what) const {
    const int problem = errno;
    return output_error(what, path_ + '/' + name_, problem);
  }
  error undo(const char* what) const {
    error e = fault(what);
    ::unlinkat(folder_, temporary_.c_str(), 0);
    return e;
  }
  void write_temporary(std::string_view text) const {
    ::unlinkat(folder_, temporary_.c_str(), 0);
    descriptor file(::openat(folder_, temporary_.c_str(),
                             O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
    if (!file) throw fault("create");
    ::ssize_t n = 0;
    do n = ::write(file.get(), text.data(), text.size());
    while (n < 0 && errno == EINTR);
    if (n >= 0 && n != static_cast<::ssize_t>(text.size())) errno = ENOSPC, n = -1;
    if (n < 0) throw undo("write");
    if (::fsync(file.get()) != 0) throw undo("make durable");
    if (!file.reset()) throw undo("close");
  }

  int folder_;
  std::string path_;
  const char* name_;
  std::string temporary_;
};

} // namespace mc::detail
