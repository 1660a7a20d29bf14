// Keys, tokens and headers that hold them.
#pragma once

#include <megacpp/io/descriptor.hpp>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace mc {

/// A text that nobody may read but the server that it is for. It comes from the environment or a
/// file, never from a command line. It cannot be printed, formatted, compared or copied, and is
/// wiped where it ends.
class secret {
public:
  secret() = default;
  /// Takes a text without the blanks and line ends around it, as files of tokens have them.
  explicit secret(std::string_view text) {
    constexpr std::string_view blank = " \t\r\n";
    const std::size_t begin = std::min(text.find_first_not_of(blank), text.size());
    text = text.substr(begin, text.find_last_not_of(blank) + 1 - begin);
    bytes_.assign(text.begin(), text.end());
  }
  secret(secret&& o) noexcept : bytes_(std::exchange(o.bytes_, {})) {}
  secret& operator=(secret&& o) noexcept {
    std::swap(bytes_, o.bytes_);
    return *this;
  }
  ~secret() {
    if (char* const text = bytes_.data()) ::explicit_bzero(text, bytes_.size());
  }

  bool empty() const { return bytes_.empty(); }
  /// Tells whether the text can stand in a header of HTTP: it has no control characters.
  bool fits_header() const {
    for (const char c : bytes_)
      if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) return false;
    return true;
  }
  /// Calls f with the text, of which f may hand nothing to anybody but the server.
  template <class F> decltype(auto) with(F f) const {
    return f(std::string_view(bytes_.data(), bytes_.size()));
  }

private:
  std::vector<char> bytes_;
};

/// Returns the secret in a file; nothing if it is no regular file of at most 64 KiB that can be
/// read.
inline std::optional<secret> secret_in_file(const std::string& path) {
  constexpr std::size_t most = 65536;
  const descriptor file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  struct stat s {};
  if (!file || ::fstat(file.get(), &s) != 0 || !S_ISREG(s.st_mode)) return std::nullopt;
  std::vector<char> bytes(most + 1);
  const ::ssize_t n = ::read(file.get(), bytes.data(), bytes.size());
  if (n < 0 || static_cast<std::size_t>(n) > most) return std::nullopt;
  secret text(std::string_view(bytes.data(), static_cast<std::size_t>(n)));
  ::explicit_bzero(bytes.data(), bytes.size());
  return text;
}

} // namespace mc
