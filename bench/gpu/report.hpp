// A report of the checks that passed and failed, which is printed as it comes and written as one
// JSON file. Parts of the program have a time limit: a check that does not begin within it has
// failed, and a call that does not return ends the program.
#pragma once

#include <megacpp/io/error.hpp>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

namespace gpu {

/// The figures of one check: names, and numbers or texts.
using figures = std::vector<std::pair<std::string, std::variant<double, std::string>>>;

class report {
public:
  /// `facts` stand at the head of the file, which is written to `path` after each check, unless
  /// path is empty, and is complete at any time. `alive` throws mc::error if the device does no
  /// more work.
  report(std::string path, figures facts, std::function<void()> alive);
  ~report();

  /// Runs a part, which may take so many seconds.
  void part(const std::string& name, double seconds, const std::function<void()>& f);
  /// Runs one check with a name: f returns figures, or throws mc::error with a sentence.
  void check(const std::string& name, const std::function<figures()>& f);
  /// Adds a figure of the whole file, such as a ceiling.
  void fact(const std::string& name, std::variant<double, std::string> value);
  double fact(const std::string& name) const;

  std::int64_t passed() const;
  std::int64_t failed() const;
  /// Prints the last line and returns the exit code.
  int end();

private:
  struct outcome {
    std::string part, name, fault; // fault: empty if the check passed
    figures of;
  };
  using clock = std::chrono::steady_clock;

  std::string path_, part_, running_;
  figures facts_;
  std::function<void()> alive_;
  std::vector<outcome> done_;
  std::string checks_; // lines of the file about checks that are done
  clock::time_point until_{};
  bool lost_ = false, late_ = false, ending_ = false, inside_ = false;
  mutable std::mutex mutex_; // protects all of these, between the program and its watch
  std::condition_variable changed_;
  std::thread watch_;

  void add(outcome o);
  void keep(outcome o);
  void write() const;
  void watch();
  std::string totals() const;
};

} // namespace gpu
