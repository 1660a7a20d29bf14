// Functions that write text to the reader of a log: a pipe, a terminal, or a file.
#pragma once

#include <megacpp/io/signals.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <ctime>
#include <initializer_list>
#include <string_view>

#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

namespace mc {

namespace detail {
/// Returns whether a program or a person reads the file, so that writing may wait for them. poll
/// has another meaning for other devices (/dev/random).
inline bool has_reader(int file) {
  struct stat s {};
  return ::fstat(file, &s) == 0 &&
         (S_ISFIFO(s.st_mode) || S_ISSOCK(s.st_mode) || (S_ISCHR(s.st_mode) && ::isatty(file)));
}

/// Returns whether a stop was requested so long ago that writing no longer waits for a reader.
inline bool waits_no_more() { return stop_requested() && seconds_since_stop() > 1; }

/// Waits until a descriptor takes more bytes, fails, or cannot be waited for. Returns false if
/// nobody reads and the wait is over.
inline bool takes_more(int file) {
  constexpr int look_again = 100; // milliseconds between two looks
  for (;;) {
    const bool last = waits_no_more();
    struct pollfd p {
      file, POLLOUT, 0
    };
    const int ready = ::poll(&p, 1, last ? 0 : look_again);
    if (ready > 0 || (ready < 0 && errno != EINTR && errno != EAGAIN)) return true;
    if (last) return false;
  }
}
} // namespace detail

/// Writes a whole text, however slowly it is read: it waits for a full pipe or a stopped terminal,
/// but only for a short time once a stop was requested. Returns 0 or the errno of the failure,
/// EAGAIN if nobody reads. It allocates no memory.
inline int write_to_reader(int file, std::string_view text) {
  const bool waits = detail::has_reader(file);
  while (!text.empty()) {
    if (waits && !detail::takes_more(file)) return EAGAIN;
    // A pipe that takes any bytes takes so many at once.
    const ::ssize_t n =
        ::write(file, text.data(), std::min<std::size_t>(text.size(), std::size_t{PIPE_BUF}));
    if (n < 0 && errno == EAGAIN) {
      if (detail::waits_no_more()) return EAGAIN;
      const timespec a_moment{0, 10'000'000};
      ::nanosleep(&a_moment, nullptr);
    } else if (n == 0) {
      return EIO;
    } else if (n < 0 && errno != EINTR) {
      return errno;
    }
    text.remove_prefix(n > 0 ? static_cast<std::size_t>(n) : 0);
  }
  return 0;
}

/// Writes one line, given in several texts. A path may hold any characters: those that would end
/// the line, or that a terminal would obey, become '?'. Returns as write_to_reader does. It
/// allocates no memory, since it may report the lack of it.
inline int write_line_to_reader(int file, std::initializer_list<std::string_view> parts) {
  std::array<char, PIPE_BUF> block;
  std::size_t n = 0;
  int problem = 0;
  const auto put = [&](char c) {
    block[n++] = c;
    if (n < block.size() && c != '\n') return;
    if (problem == 0) problem = write_to_reader(file, {block.data(), n});
    n = 0;
  };
  for (const std::string_view part : parts)
    for (const char c : part) put(static_cast<unsigned char>(c) < ' ' || c == 0x7f ? '?' : c);
  put('\n');
  return problem;
}

} // namespace mc
