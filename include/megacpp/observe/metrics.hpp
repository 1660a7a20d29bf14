// Metrics as JSON lines: a file with one object a line, each of which is written at once.
#pragma once

#include <megacpp/io/descriptor.hpp>
#include <megacpp/io/error.hpp>
#include <megacpp/io/links.hpp>
#include <megacpp/observe/reader.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

namespace mc {

/// A metric: a name with a number, a text, or null if there is no such number.
struct metric {
  std::string_view name;
  std::variant<std::int64_t, float, double, std::string_view, std::nullptr_t> value;

  metric(std::string_view n, std::integral auto v) : name(n), value(static_cast<std::int64_t>(v)) {}
  metric(std::string_view n, float v) : name(n), value(v) {}
  metric(std::string_view n, double v) : name(n), value(v) {}
  metric(std::string_view n, std::string_view v) : name(n), value(v) {}
  metric(std::string_view n, std::nullptr_t v) : name(n), value(v) {}
};

namespace detail {
inline void append_json_text(std::string& line, std::string_view text) {
  line += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') (line += '\\') += c;
    else if (static_cast<unsigned char>(c) < 0x20)
      fmt::format_to(std::back_inserter(line), "\\u{:04x}", static_cast<unsigned>(c));
    else line += c;
  }
  line += '"';
}

/// Appends the fewest digits that read back as the same number. JSON has no number that is not
/// finite: it becomes the string "nan", "inf" or "-inf".
template <std::floating_point Float> void append_json_number(std::string& line, Float v) {
  if (std::isfinite(v)) fmt::format_to(std::back_inserter(line), "{}", v);
  else line += std::isnan(v) ? "\"nan\"" : v > 0 ? "\"inf\"" : "\"-inf\"";
}
} // namespace detail

/// Appends `{"step":10,"loss":2.345}` and a newline to `line`.
inline void append_json_line(std::string& line, std::initializer_list<metric> metrics,
                             std::initializer_list<metric> more = {}) {
  line += '{';
  bool first = true;
  const auto append = [&](const metric& m) {
    if (!std::exchange(first, false)) line += ',';
    detail::append_json_text(line, m.name);
    line += ':';
    if (const auto* i = std::get_if<std::int64_t>(&m.value))
      fmt::format_to(std::back_inserter(line), "{}", *i);
    else if (const auto* f = std::get_if<float>(&m.value)) detail::append_json_number(line, *f);
    else if (const auto* d = std::get_if<double>(&m.value)) detail::append_json_number(line, *d);
    else if (const auto* t = std::get_if<std::string_view>(&m.value))
      detail::append_json_text(line, *t);
    else line += "null";
  };
  for (const metric& m : metrics) append(m);
  for (const metric& m : more) append(m);
  line += "}\n";
}

/// A file of lines. write() hands each line to the kernel before it returns, so a run that is
/// killed leaves complete lines.
class line_file {
public:
  /// Opens the file, or creates it, and leaves its contents until begin() or continue_after().
  /// `kind`: what messages call it, such as "the metrics file". Throws
  /// mc::error(exit_code::output).
  line_file(std::string path, const char* kind) : path_(std::move(path)), kind_(kind) {
    struct stat s {};
    made_ = ::stat(path_.c_str(), &s) != 0;
    if (made_) place_ = detail::behind_links(path_);
    file_ = open_to_write(path_, O_CREAT | O_APPEND);
    if (!file_) fail("create", errno);
    plain_ = ::fstat(file_.get(), &s) == 0 && S_ISREG(s.st_mode);
  }
  line_file(const line_file&) = delete;
  line_file& operator=(const line_file&) = delete;
  /// Removes a file that was created for a run that did not begin. A symbolic link to it stays.
  ~line_file() {
    if (made_ && plain_) ::unlink(place_.c_str());
  }

  /// Empties the file. Throws mc::error(exit_code::output).
  void begin() {
    made_ = false;
    cut(0);
  }
  /// Keeps the complete lines of the file: a full disk may have cut off the last one. Throws
  /// mc::error.
  void continue_after() {
    made_ = false;
    cut(end_of_lines());
  }

  /// Writes a line, with its end. Throws mc::error(exit_code::output) if it could not be written,
  /// and leaves no bytes of it then. A line that nobody reads is dropped once a stop was requested.
  void write(std::string_view line) {
    struct stat before {};
    if (plain_) ::fstat(file_.get(), &before);
    const int problem = write_to_reader(file_.get(), line);
    if (problem == 0 || problem == EAGAIN) return;
    if (plain_ && ::ftruncate(file_.get(), before.st_size) != 0) {
      // The run that continues this file removes the rest.
    }
    fail("write", problem);
  }

  const std::string& path() const { return path_; }

private:
  [[noreturn]] void fail(std::string_view what, int problem) const {
    throw error(exit_code::output, fmt::format("cannot {} {} {}: {}{}", what, kind_, path_,
                                               reason_not_to_write(path_, problem),
                                               advice_on_writing(problem, "choose another file")));
  }
  void cut(::off_t size) {
    struct stat s {};
    if (!plain_ || (::fstat(file_.get(), &s) == 0 && s.st_size == size)) return;
    if (::ftruncate(file_.get(), size) != 0) fail("shorten", errno);
  }
  /// Returns the number of bytes up to the end of the last complete line; 0 if there is none.
  ::off_t end_of_lines() const {
    const descriptor reading(::open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    struct stat s {};
    if (!plain_) return 0;
    if (!reading || ::fstat(reading.get(), &s) != 0) fail("read", errno);
    std::array<char, 4096> block;
    for (::off_t end = s.st_size; end > 0;) {
      const ::off_t begin = std::max<::off_t>(0, end - std::ssize(block));
      const ::ssize_t n =
          ::pread(reading.get(), block.data(), static_cast<std::size_t>(end - begin), begin);
      if (n != end - begin) fail("read", n < 0 ? errno : EIO);
      for (; end > begin; --end)
        if (block[static_cast<std::size_t>(end - begin - 1)] == '\n') return end;
    }
    return 0;
  }

  std::string path_, place_; ///< path as given; path behind links, if created
  const char* kind_;
  bool made_ = false;  ///< created by this object for a run that has not begun
  bool plain_ = false; ///< a regular file, not a pipe or a device
  descriptor file_;
};

/// A file with an object of JSON a line. Lines of up to 4 KiB allocate no memory.
class metrics_file : public line_file {
public:
  /// Throws mc::error(exit_code::output).
  explicit metrics_file(std::string path) : line_file(std::move(path), "the metrics file") {
    line_.reserve(4096);
  }
  /// Writes a line. Throws mc::error(exit_code::output).
  void write(std::initializer_list<metric> metrics, std::initializer_list<metric> more = {}) {
    line_.clear();
    append_json_line(line_, metrics, more);
    line_file::write(line_);
  }

private:
  std::string line_;
};

} // namespace mc
