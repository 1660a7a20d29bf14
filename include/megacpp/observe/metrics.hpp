// Metrics as JSON lines: one object a line, each written at once.
#pragma once

#include <megacpp/data/descriptor.hpp>
#include <megacpp/exec/error.hpp>

#include <cerrno>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include <fcntl.h>
#include <unistd.h>

#include <fmt/format.h>

namespace mc {

/// A name and a number or text.
struct metric {
  std::string_view name;
  std::variant<std::int64_t, float, double, std::string_view> value;

  metric(std::string_view n, std::integral auto v) : name(n), value(static_cast<std::int64_t>(v)) {}
  metric(std::string_view n, float v) : name(n), value(v) {}
  metric(std::string_view n, double v) : name(n), value(v) {}
  metric(std::string_view n, std::string_view v) : name(n), value(v) {}
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
inline void append_json_line(std::string& line, std::initializer_list<metric> metrics) {
  line += '{';
  bool first = true;
  for (const metric& m : metrics) {
    if (!std::exchange(first, false)) line += ',';
    detail::append_json_text(line, m.name);
    line += ':';
    if (const auto* i = std::get_if<std::int64_t>(&m.value))
      fmt::format_to(std::back_inserter(line), "{}", *i);
    else if (const auto* f = std::get_if<float>(&m.value)) detail::append_json_number(line, *f);
    else if (const auto* d = std::get_if<double>(&m.value)) detail::append_json_number(line, *d);
    else detail::append_json_text(line, std::get<std::string_view>(m.value));
  }
  line += "}\n";
}

/// A JSONL file. Each line is handed to the kernel whole before write() returns, so a run that is
/// killed leaves complete lines. Lines of up to 4 KiB allocate nothing.
class metrics_file {
public:
  /// Creates the file, or continues it if `append`. Throws mc::error(exit_code::output).
  explicit metrics_file(std::string path, bool append = false) : path_(std::move(path)) {
    line_.reserve(4096);
    const int start = append ? O_APPEND : O_APPEND | O_TRUNC;
    file_ = descriptor(::open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | start, 0666));
    if (!file_) fail("create", errno);
  }

  /// Throws mc::error(exit_code::output) if the line could not be written.
  void write(std::initializer_list<metric> metrics) {
    line_.clear();
    append_json_line(line_, metrics);
    for (std::string_view rest = line_; !rest.empty();) {
      const ::ssize_t n = ::write(file_.get(), rest.data(), rest.size());
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) fail("write", n == 0 ? EIO : errno);
      rest.remove_prefix(static_cast<std::size_t>(n));
    }
  }

  const std::string& path() const { return path_; }

private:
  [[noreturn]] void fail(std::string_view what, int problem) const {
    throw error(exit_code::output,
                fmt::format("cannot {} the metrics file {}: {}; free some space or choose "
                            "another file",
                            what, path_, reason_of(problem)));
  }

  std::string path_;
  descriptor file_;
  std::string line_;
};

} // namespace mc
