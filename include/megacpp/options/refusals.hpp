// All reasons to refuse a command line are told at once, since somebody who brings a long line from
// another program should not learn of one flag at a time. So are flags that change nothing.
#pragma once

#include <megacpp/io/error.hpp>

#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace mc {

/// Reasons to refuse a command line.
class refusals {
public:
  void add(exit_code code, std::string sentence) { all_.emplace_back(code, std::move(sentence)); }

  /// Carries out f, and keeps the mc::error that it throws. Returns false if it throws one.
  template <class F> bool collect(const F& f) {
    try {
      f();
    } catch (const error& e) {
      add(e.code(), e.what());
      return false;
    }
    return true;
  }

  /// Throws mc::error if anything was refused, with a line for each of several reasons. The exit
  /// code is that of all reasons, or usage where they differ.
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

/// Flags that are taken and told.
struct told_flags {
  std::vector<std::string> agreeing{};       ///< they say what was compiled in
  std::vector<std::string> without_effect{}; ///< nothing here depends on them
  std::vector<std::string> repeated{};       ///< they were given several values
  std::vector<std::string> added_up{};       ///< lists that were given several times

  /// Returns a line about flags that were given several times, and one about the others.
  std::vector<std::string> notes() const {
    std::vector<std::string> lines(2);
    const auto add = [&](unsigned line, const char* what, const std::vector<std::string>& names) {
      if (!names.empty())
        lines[line] += fmt::format("{}{}: --{}", lines[line].empty() ? "" : "; ", what,
                                   fmt::join(names, ", --"));
    };
    add(0, "given several times, of which the last counts", repeated);
    add(0, "given several times, of which all count", added_up);
    add(1, "flags that agree with this program", agreeing);
    add(1, "without effect here", without_effect);
    std::erase(lines, "");
    return lines;
  }
};

} // namespace mc
