// All reasons to refuse a command line are told at once, since somebody who brings a long line from
// another program should not learn of one flag at a time. So are flags that change nothing.
#pragma once

#include <megacpp/io/error.hpp>

#include <initializer_list>
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

/// Returns a line about flags, what is said of each list before its names; "" where there are none.
inline std::string note_of(
    std::initializer_list<std::pair<const char*, std::vector<std::string>>> lists) {
  std::string note;
  for (const auto& [what, names] : lists)
    if (!names.empty())
      note += fmt::format("{}{}: --{}", note.empty() ? "" : "; ", what, fmt::join(names, ", --"));
  return note;
}

/// Flags of a command line that are taken though they change nothing.
struct idle_flags {
  std::vector<std::string> agreeing;       ///< they say what was compiled in
  std::vector<std::string> without_effect; ///< nothing here depends on them

  std::string note() const {
    return note_of({{"flags that agree with this program", agreeing},
                    {"without effect here", without_effect}});
  }
};

} // namespace mc
