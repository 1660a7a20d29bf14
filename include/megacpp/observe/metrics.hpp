// Metrics as JSON lines: one object a line, each written at once.
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

/// A name and a number or text, or null for a number that there is none of.
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

/// The fewest digits that read back as the same number. JSON has no word for a number that is not
/// finite, so those are the strings "nan", "inf" and "-inf".
template <std::floating_point Float> void append_json_number(std::string& line, Float v) {
  if (std::isfinite(v)) fmt::format_to(std::back_inserter(line), "{}", v);
  else line += std::isnan(v) ? "\"nan\"" : v > 0 ? "\"inf\"" : "\"-inf\"";
}
} // namespace detail

/// `{"step":10,"loss":2.345}` and a newline, appended to `line`.
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

/// A JSONL file. Each line is handed to the kernel whole before write() returns, so a run that is
/// killed leaves complete lines. Lines of up to 4 KiB allocate nothing.
class metrics_file {
public:
  /// Opens the file, or creates it, and leaves what is in it until begin() or continue_after().
  /// Throws mc::error(exit_code::output).
  explicit metrics_file(std::string path) : path_(std::move(path)) {
    line_.reserve(4096);
    struct stat s {};
    made_ = ::stat(path_.c_str(), &s) != 0;
    if (made_) place_ = detail::behind_links(path_);
    file_ = open_to_write(path_, O_CREAT | O_APPEND);
    if (!file_) fail("create", errno);
    plain_ = ::fstat(file_.get(), &s) == 0 && S_ISREG(s.st_mode);
  }
  metrics_file(const metrics_file&) = delete;
  metrics_file& operator=(const metrics_file&) = delete;
  /// A file that was made for a run that did not begin goes again; a link to it stays.
  ~metrics_file() {
    if (made_ && plain_) ::unlink(place_.c_str());
  }

  /// Empties the file. Throws mc::error(exit_code::output).
  void begin() {
    made_ = false;
    cut(0);
  }
  /// Keeps its whole lines: the last one may have been cut off by a full disk. Throws mc::error.
  void continue_after() {
    made_ = false;
    cut(end_of_lines());
  }

  /// Throws mc::error(exit_code::output) if the line could not be written; none of it is left then.
  /// A line that nobody reads is left out once a stop is asked for.
  void write(std::initializer_list<metric> metrics, std::initializer_list<metric> more = {}) {
    line_.clear();
    append_json_line(line_, metrics, more);
    struct stat before {};
    if (plain_) ::fstat(file_.get(), &before);
    const int problem = write_to_reader(file_.get(), line_);
    if (problem == 0 || problem == EAGAIN) return;
    if (plain_ && ::ftruncate(file_.get(), before.st_size) != 0) {
      // The run that goes on cuts it.
    }
    fail("write", problem);
  }

  const std::string& path() const { return path_; }

private:
  [[noreturn]] void fail(std::string_view what, int problem) const {
    throw error(exit_code::output, fmt::format("cannot {} the metrics file {}: {}{}", what, path_,
                                               reason_not_to_write(path_, problem),
                                               advice_on_writing(problem, "choose another file")));
  }
  void cut(::off_t size) {
    struct stat s {};
    if (!plain_ || (::fstat(file_.get(), &s) == 0 && s.st_size == size)) return;
    if (::ftruncate(file_.get(), size) != 0) fail("shorten", errno);
  }
  /// Behind the last line end; 0 if there is none.
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

  std::string path_, place_; ///< the second behind links, where it was made
  bool made_ = false;        ///< by this object, and of no run yet
  bool plain_ = false;       ///< not a pipe or a device
  descriptor file_;
  std::string line_;
};

} // namespace mc
