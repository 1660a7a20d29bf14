// Reasons to refuse a command line are collected and told at once, since somebody who brings a long
// line from elsewhere should not learn of one flag at a time. Flags that are taken though they
// change nothing are collected beside them.
#pragma once

#include <megacpp/io/error.hpp>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace mc {

class refusals {
public:
  void add(exit_code code, std::string sentence) { all_.emplace_back(code, std::move(sentence)); }

  /// Carries out f, and keeps the mc::error that it throws: false.
  template <class F> bool collect(const F& f) {
    try {
      f();
    } catch (const error& e) {
      add(e.code(), e.what());
      return false;
    }
    return true;
  }

  /// Throws mc::error for what was refused, if anything was: its own sentence for one thing, a line
  /// each for several. The exit code is that of all of them, or of a command line that is wrong.
  void raise() const {
    if (all_.empty()) return;
    exit_code code = all_.front().first;
    for (const auto& one : all_)
      if (one.first != code) code = exit_code::usage;
    if (all_.size() == 1) throw error(code, all_.front().second);
    std::vector<std::string> sentences;
    for (const auto& one : all_) sentences.push_back(one.second);
    throw errors(code, fmt::format("{} things are refused:", all_.size()), std::move(sentences));
  }
  const std::vector<std::pair<exit_code, std::string>>& all() const { return all_; }

private:
  std::vector<std::pair<exit_code, std::string>> all_;
};

/// Flags of a command line that are taken though they change nothing: those that say what was
/// compiled in, and those on which nothing here depends.
struct idle_flags {
  std::vector<std::string> agreeing, without_effect;

  /// One line about them; "" where there are none.
  std::string note() const {
    const auto list = [](const char* what, const std::vector<std::string>& names) {
      return names.empty() ? std::string()
                           : fmt::format("{}: --{}", what, fmt::join(names, ", --"));
    };
    const std::string a = list("flags that agree with this program", agreeing),
                      b = list("without effect here", without_effect);
    return a + (a.empty() || b.empty() ? "" : "; ") + b;
  }
};

} // namespace mc
