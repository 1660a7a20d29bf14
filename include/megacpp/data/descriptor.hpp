// Ownership of a POSIX file descriptor, and the words for an errno value.
#pragma once

#include <string>
#include <system_error>
#include <utility>

#include <unistd.h>

namespace mc {

/// "No space left on device" for ENOSPC; thread-safe, always in English.
inline std::string reason_of(int error_number) {
  return std::generic_category().message(error_number);
}

/// Closes a file descriptor at the end of its life. -1 is "none".
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

  /// Closes now; false, with errno set, if the kernel reports an error (which for a written file
  /// can be the first word of a failed write).
  bool reset() {
    const int number = std::exchange(number_, -1);
    return number < 0 || ::close(number) == 0;
  }

private:
  int number_ = -1;
};

} // namespace mc
