// The observer that writes the lines in which Katib's metrics collector finds numbers.
#pragma once

#include <megacpp/io/error.hpp>
#include <megacpp/observe/metrics.hpp>
#include <megacpp/observe/observer.hpp>
#include <megacpp/observe/reader.hpp>
#include <megacpp/observe/text.hpp>

#include <cmath>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include <unistd.h>

#include <fmt/format.h>

namespace mc {

/// Writes a line `2026-11-20T07:00:00.123Z loss=0.3 grad_norm=1.2` for each step and evaluation to
/// the end of a file, or to the standard output. Katib's collectors StdOut and File find
/// `name=number` in it by their own filter, the time of it at its beginning; a number that is not
/// finite is left out, since the filter takes none.
class katib_lines : public observer {
public:
  /// `path`: "-" is the standard output.
  explicit katib_lines(std::string path) : path_(std::move(path)) {}

  std::string name() const override {
    return path_ == "-" ? "Katib, which reads the standard output," : "Katib's file " + path_;
  }
  void see(const observed_start&) override { open(); }
  void see(const observed_step& s) override {
    write(s.time, {{"step", static_cast<double>(s.step)},
                   {"loss", s.loss},
                   {"grad_norm", s.grad_norm},
                   {"learning_rate", s.lr},
                   {"tokens_per_second", s.tokens_per_second()},
                   {"mfu", s.mfu}});
  }
  void see(const observed_evaluation& e) override {
    std::string loss = e.of_test ? "test_loss" : "validation_loss";
    if (!e.set.empty()) loss += "_";
    for (const char c : e.set) { // the filter takes letters, digits, _, - and |
      const bool plain = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
      loss += plain || c == '-' ? c : '_';
    }
    write(e.time, {{"step", static_cast<double>(e.step)}, {loss, e.loss}});
  }

private:
  struct number {
    std::string_view name;
    double value;
  };
  /// Opens the file behind its last whole line, and makes its folder.
  void open() {
    if (path_ == "-") return;
    std::error_code failed; // of which opening the file tells
    const std::filesystem::path folder = std::filesystem::path(path_).parent_path();
    if (!folder.empty()) std::filesystem::create_directories(folder, failed);
    file_.emplace(path_, "Katib's file");
    file_->continue_after();
  }
  void write(double time, std::initializer_list<number> numbers) {
    if (!file_) open();
    line_ = utc_text_with_milliseconds(time);
    for (const auto& [name, v] : numbers)
      if (std::isfinite(v)) line_ += fmt::format(" {}={:.9g}", name, v);
    line_ += '\n';
    if (file_) return file_->write(line_);
    if (const int problem = write_to_reader(STDOUT_FILENO, line_); problem != 0)
      throw error(exit_code::output,
                  fmt::format("cannot write lines for Katib to the standard output: {}",
                              reason_of(problem)));
  }

  std::string path_, line_;
  std::optional<line_file> file_;
};

} // namespace mc
