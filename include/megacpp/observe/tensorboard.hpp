// The observer that writes event files for TensorBoard, under the names that Megatron-LM gives to
// numbers (megatron/training/training.py, training_log).
#pragma once

#include <megacpp/io/descriptor.hpp>
#include <megacpp/io/error.hpp>
#include <megacpp/observe/event_file.hpp>
#include <megacpp/observe/observer.hpp>
#include <megacpp/observe/reader.hpp>

#include <array>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <variant>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

namespace mc {

/// Writes what it sees to a new event file in a folder. What it sees is in the file when the
/// function returns, in whole records: a failed write leaves none in part.
class tensorboard : public observer {
public:
  /// `interval`: steps between those that are written; the last one is written, too.
  tensorboard(std::string folder, std::int64_t interval)
      : folder_(std::move(folder)), interval_(interval) {}

  std::string name() const override { return "TensorBoard's folder " + folder_; }

  void see(const observed_start& s) override {
    ranks_ = s.ranks;
    start_ = s;
    write({});
  }
  void see(const observed_step& s) override {
    if (s.step % interval_ != 0 && s.step != s.steps) return;
    tensorboard_event by_step(s.time, s.step), by_samples(s.time, s.consumed_sequences);
    const auto both = [&](const std::string& tag, double v) {
      if (std::isnan(v)) return;
      by_step.number(tag, v);
      by_samples.number(tag + " vs samples", v);
    };
    const auto number = [&](const char* tag, double v) {
      if (!std::isnan(v)) by_step.number(tag, v);
    };
    both("learning-rate", s.lr);
    both("batch-size", static_cast<double>(s.sequences));
    both("lm loss", s.loss);
    both("grad-norm", s.grad_norm);
    number("iteration-time", s.seconds);
    number("throughput", s.flops_per_second * 1e-12);
    number("tokens-per-second", s.tokens_per_second());
    number("mfu", s.mfu);
    number("data-time", s.data_seconds);
    number("world-size", ranks_);
    number("memory-bytes", static_cast<double>(s.memory));
    write({&by_step, &by_samples});
  }
  void see(const observed_evaluation& e) override {
    tensorboard_event by_step(e.time, e.step), by_samples(e.time, e.consumed_sequences);
    const std::string tag = fmt::format("lm loss {}{}{}", e.of_test ? "test" : "validation",
                                        e.set.empty() ? "" : " ", e.set);
    by_step.number(tag, e.loss), by_step.number(tag + " ppl", std::exp(e.loss));
    by_samples.number(tag + " vs samples", e.loss);
    by_samples.number(tag + " ppl vs samples", std::exp(e.loss));
    write({&by_step, &by_samples});
  }
  void see(const observed_end& e) override {
    if (e.goes_on) return; // TensorBoard takes the first end of a run
    constexpr int success = 1, failure = 2;
    wire_message end, content;
    end.whole(1, e.error.empty() ? success : failure), end.real(2, e.time);
    content.message(4, end);
    tensorboard_event event(e.time, 0);
    event.plugin("_hparams_/session_end_info", "hparams", content);
    write({&event});
  }

private:
  /// Makes the folder and the file.
  void open() {
    std::error_code failed;
    std::filesystem::create_directories(folder_, failed);
    if (failed) fail("make", folder_, failed.value());
    std::array<char, 256> host{};
    ::gethostname(host.data(), host.size() - 1);
    // Containers share the number of their process, and may share the name of their host.
    for (int number = 0; !file_; ++number) {
      path_ = fmt::format("{}/events.out.tfevents.{:010}.{}.{}.{}", folder_,
                          static_cast<std::int64_t>(start_.time), host.data(), ::getpid(), number);
      file_ = open_to_write(path_, O_CREAT | O_EXCL | O_APPEND);
      if (!file_ && errno != EEXIST) fail("create", path_, errno);
    }
    size_ = 0;
  }
  /// Appends the first events of a file: the version, and the values of the run (hparams).
  void append_first(std::string& to) const {
    tensorboard_event::of_version(start_.time).append_to(to);
    tensorboard_event values(start_.time, 0);
    values.plugin("_hparams_/experiment", "hparams", experiment());
    values.plugin("_hparams_/session_start_info", "hparams", values_of_start());
    values.append_to(to);
  }
  /// The values of runs, and the numbers by which they are compared: HParamsPluginData.experiment
  /// of TensorBoard's plugin hparams.
  wire_message experiment() const {
    wire_message all;
    for (const auto& [name, value] : start_.values) {
      wire_message info;
      info.text(1, name);
      info.whole(4, std::holds_alternative<std::string>(value) ? 1
                    : std::holds_alternative<bool>(value)      ? 2
                                                               : 3);
      all.message(4, info);
    }
    for (const char* const tag : {"lm loss", "lm loss validation"}) {
      wire_message metric, called;
      called.text(2, tag);
      metric.message(1, called);
      all.message(5, metric);
    }
    wire_message content;
    content.message(2, all);
    return content;
  }
  wire_message values_of_start() const {
    wire_message session;
    for (const auto& [name, value] : start_.values) {
      wire_message entry, v;
      if (const bool* const b = std::get_if<bool>(&value)) v.whole(4, *b ? 1 : 0);
      else if (const double* const d = std::get_if<double>(&value)) v.real(2, *d);
      else v.text(3, std::get<std::string>(value));
      entry.text(1, name), entry.message(2, v);
      session.message(1, entry);
    }
    session.text(4, start_.program);
    session.real(5, start_.time);
    wire_message content;
    content.message(3, session);
    return content;
  }

  void write(std::initializer_list<tensorboard_event*> events) {
    if (!file_) open();
    text_.clear();
    if (size_ == 0) append_first(text_);
    for (tensorboard_event* const e : events) e->append_to(text_);
    if (const int problem = write_to_reader(file_.get(), text_); problem != 0) {
      if (::ftruncate(file_.get(), size_) != 0) file_.reset(); // the next event begins a new file
      fail("write", path_, problem);
    }
    size_ += static_cast<::off_t>(text_.size());
  }
  [[noreturn]] static void fail(const char* what, const std::string& path, int problem) {
    throw error(exit_code::output,
                fmt::format("cannot {} {} for TensorBoard: {}{}", what, path, reason_of(problem),
                            advice_on_writing(problem, "choose another folder")));
  }

  std::string folder_, path_, text_;
  std::int64_t interval_;
  int ranks_ = 1;
  observed_start start_;
  descriptor file_;
  ::off_t size_ = 0; ///< bytes of whole records
};

} // namespace mc
