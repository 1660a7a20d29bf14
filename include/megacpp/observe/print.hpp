// Functions for output that must arrive: a full disk or a closed pipe behind the standard output is
// an error.
#pragma once

#include <megacpp/io/descriptor.hpp>
#include <megacpp/io/error.hpp>
#include <megacpp/io/leftovers.hpp>
#include <megacpp/io/links.hpp>
#include <megacpp/observe/reader.hpp>

#include <cerrno>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

namespace mc {

namespace detail {
/// Throws the reason for which a text could not be written. EAGAIN is no error: nobody read the
/// text, and it was dropped.
inline void require_written(int problem, std::string_view what) {
  if (problem != 0 && problem != EAGAIN)
    throw error(exit_code::output, fmt::format("cannot write {}: {}{}", what, reason_of(problem),
                                               advice_on_writing(problem, "write elsewhere")));
}
} // namespace detail

/// Opens those of the descriptors 0 to 2 that are closed, as a file that cannot be written. A
/// program calls it at its start, so that no file that is opened later gets what is printed.
inline void fill_standard_descriptors() {
  for (int file = STDIN_FILENO; file <= STDERR_FILENO; ++file)
    if (::fcntl(file, F_GETFD) < 0) // the file gets this number, the lowest that is free
        [[maybe_unused]]
      const int filled = ::open("/dev/null", O_RDONLY);
}

/// Writes a text to the standard output at once. It waits for a slow reader, but drops the text
/// once a stop was requested. Throws mc::error(exit_code::output).
inline void print(std::string_view text) {
  detail::require_written(write_to_reader(STDOUT_FILENO, text), "the standard output");
}

/// Writes one line to the standard output. Line ends within the text are replaced.
inline void print_line(std::string_view text) {
  detail::require_written(write_line_to_reader(STDOUT_FILENO, {text}), "the standard output");
}

/// Writes a line about the progress of work that is useful without it. The work goes on if the
/// reader has closed the standard output. Throws mc::error(exit_code::output).
inline void print_on_the_way(std::string_view text) {
  if (const int problem = write_line_to_reader(STDOUT_FILENO, {text}); problem != EPIPE)
    detail::require_written(problem, "the standard output");
}

/// Writes a line for people to the standard error. The line is lost if nobody reads it.
inline void print_note(std::string_view text) { write_line_to_reader(STDERR_FILENO, {text}); }

/// Writes a whole text file. An old file stays until the new one is complete. For a pipe it waits
/// as print() does. Throws mc::error(exit_code::output).
inline void write_text_file(const std::string& name, std::string_view text) {
  const std::string path = detail::behind_links(name);
  struct stat s {};
  const int missing = ::stat(path.c_str(), &s) == 0 ? 0 : errno;
  const bool special = missing == 0 && !S_ISREG(s.st_mode); // the path is a pipe or a device
  const std::string at = special ? path : detail::temporary_of(path);
  const auto fail = [&](const char* what, int problem) {
    if (!special) ::unlink(at.c_str());
    throw error(exit_code::output,
                fmt::format("cannot {} {}: {}{}", what, path, reason_not_to_write(path, problem),
                            advice_on_writing(problem, "choose another file")));
  };
  if (missing == ELOOP) fail("create", missing);
  descriptor file = open_to_write(at, O_CREAT | O_TRUNC);
  if (!file) fail("create", errno);
  try {
    detail::require_written(write_to_reader(file.get(), text), path);
  } catch (...) {
    if (!special) ::unlink(at.c_str());
    throw;
  }
  if (!file.reset()) fail("write", errno);
  if (!special && ::rename(at.c_str(), path.c_str()) != 0) fail("replace", errno);
}

/// Throws mc::error(exit_code::output) if the file exists and does not begin as files of this kind
/// do, or cannot be read: it is somebody's, and must not be overwritten.
inline void check_own_kind(const std::string& path, std::string_view begin, std::string_view kind) {
  struct stat s {};
  if (::stat(path.c_str(), &s) != 0 || !S_ISREG(s.st_mode) || s.st_size == 0) return;
  const descriptor file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!file)
    throw error(exit_code::output,
                fmt::format("{} is there and cannot be read, so it is left as it is: {}; check its "
                            "permissions or choose another file",
                            path, reason_of(errno)));
  std::string is(begin.size(), '\0');
  if (::read(file.get(), is.data(), is.size()) == static_cast<::ssize_t>(is.size()) && is == begin)
    return;
  throw error(exit_code::output,
              fmt::format("{} is there and is no {}; it is left as it is: choose another file",
                          path, kind));
}

/// Throws the error that write_text_file would throw before its first byte.
inline void check_text_file(const std::string& name) {
  const std::string path = detail::behind_links(name);
  struct stat s {};
  int problem = ::stat(path.c_str(), &s) == 0 ? 0 : errno;
  const bool exists = problem == 0;
  if (exists && S_ISDIR(s.st_mode)) {
    problem = EISDIR;
  } else if (exists && !S_ISREG(s.st_mode)) {
    if (::access(path.c_str(), W_OK) == 0) return;
    problem = errno;
  } else if (exists || problem == ENOENT) {
    const std::string at = detail::temporary_of(path);
    const descriptor file(::open(at.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
    if (file && ::unlink(at.c_str()) == 0) return;
    problem = errno;
  }
  throw error(exit_code::output,
              fmt::format("cannot write {}: {}; choose another file", path, reason_of(problem)));
}

} // namespace mc
