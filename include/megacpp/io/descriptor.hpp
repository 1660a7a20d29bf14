// The ownership of a POSIX file descriptor, opening a file to write, and sentences about errno
// values.
#pragma once

#include <cerrno>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace mc {

/// Returns the reason that an errno value stands for, such as "No space left on device" for ENOSPC.
/// It is thread-safe and always in English.
inline std::string reason_of(int error_number) {
  std::string reason = std::generic_category().message(error_number);
  if (error_number == EMFILE) reason += " (ulimit -n raises the limit)";
  if (error_number == EFBIG) reason += " (ulimit -f raises the limit)";
  if (error_number == ENFILE) reason += " (sysctl fs.file-max raises the limit)";
  return reason;
}

/// Returns the reason why a file or folder cannot be read, with advice if permissions are missing.
inline std::string reason_not_to_read(int error_number) {
  const bool rights = error_number == EACCES || error_number == EPERM;
  return reason_of(error_number) + (rights ? "; check its permissions" : "");
}

/// Owns a file descriptor, and closes it at the end of its life. -1 stands for none.
class descriptor {
public:
  descriptor() = default;
  explicit descriptor(int number) : number_(number) {}
  descriptor(descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  descriptor& operator=(descriptor&& other) noexcept {
    if (this != &other) {
      reset();
      number_ = std::exchange(other.number_, -1);
    }
    return *this;
  }
  ~descriptor() { reset(); }

  int get() const { return number_; }
  explicit operator bool() const { return number_ >= 0; }

  /// Closes the descriptor now. Returns false, with errno set, if the kernel reports an error,
  /// which may be the first sign of a failed write.
  bool reset() {
    const int number = std::exchange(number_, -1);
    return number < 0 || ::close(number) == 0;
  }

private:
  int number_ = -1;
};

/// Opens a file to write, with further flags of open. A pipe that nobody reads gives ENXIO, not an
/// endless wait. Returns none, with errno set, on failure.
inline descriptor open_to_write(const std::string& path, int flags) {
  descriptor file(::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NONBLOCK | flags, 0666));
  if (file) ::fcntl(file.get(), F_SETFL, ::fcntl(file.get(), F_GETFL) & ~O_NONBLOCK);
  return file;
}
/// Returns advice that follows the reason why a file cannot be written, such as to
/// `choose_another`; "" if the reason contains the advice.
inline std::string advice_on_writing(int error_number, std::string_view choose_another) {
  std::string advice;
  switch (error_number) {
  case EMFILE: // reason_of() names the limit
  case ENFILE:
  case EFBIG:
  case ENOMEM: return "";
  case EPIPE: return ", since whoever read it has closed it";
  case ENOSPC:
  case EDQUOT: advice = "; free some space or "; break;
  case EACCES:
  case EPERM: advice = "; check its permissions or "; break;
  default: advice = "; "; break;
  }
  return advice += choose_another;
}

/// Returns the reason why a file cannot be written.
inline std::string reason_not_to_write(const std::string& path, int error_number) {
  struct stat s {};
  if (error_number != ENXIO || ::stat(path.c_str(), &s) != 0) return reason_of(error_number);
  if (S_ISFIFO(s.st_mode)) return "it is a pipe that nobody reads, so start its reader first";
  if (S_ISSOCK(s.st_mode)) return "it is a socket, which cannot be opened as a file";
  return reason_of(error_number);
}

} // namespace mc
