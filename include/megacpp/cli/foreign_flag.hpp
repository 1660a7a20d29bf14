// A row of the table of other programs' flags (cli/foreign_flags.hpp).
#pragma once

#include <megacpp/options/compiled_flags.hpp>

#include <algorithm>
#include <string>
#include <string_view>

namespace mc {

/// Flags of other programs that are one thing here. (Megatron-LM: megatron/training/arguments.py
/// and config/, main of August 2026, and versions from 1.0 on.)
struct foreign_row {
  /// The names, with blanks between them. One that ends in * stands for all names that begin so
  /// and have no row of their own.
  std::string_view names;
  int values = 1;            ///< that follow such a flag, at most
  std::string_view ours{};   ///< the flag of this program that means the same; "" is none
  std::string_view reason{}; ///< why it is refused; beside `ours`, in commands that lack it
  std::string_view build{};  ///< key of a build that decides it, with a value, if one is meant
  /// The values, with | between them, with which it changes nothing here, so that it is taken:
  /// "*" is any, "" is none.
  std::string_view idle{};
  std::string_view beside{}; ///< a flag of this program beside which it changes nothing
  int times = 0;             ///< it is taken for `ours`, with so many times its value; 0: it is not
  std::string_view fixed{};  ///< a switch that is taken for `ours` with this value

  constexpr bool is_honoured() const { return times > 0 || !fixed.empty(); }
  /// Tells whether a command line may have the flags.
  constexpr bool is_taken() const { return is_honoured() || !idle.empty() || !beside.empty(); }
  /// Returns why these flags of another program are refused, and how a build decides them; "" if no
  /// reason is given.
  std::string sentence() const {
    return build.empty()
               ? std::string(reason)
               : (reason.empty() ? "a build decides it" : std::string(reason)) + how_built();
  }
  /// Returns the row of `build` in the table of keys; nullptr: there is none.
  constexpr const build_key* key() const {
    return find_build_key(build.substr(0, build.find(' ')));
  }
  /// Returns how a program is built that decides about the flags otherwise.
  std::string how_built() const {
    const std::size_t key_ends = std::min(build.find(' '), build.size() - 1);
    return detail::built_with(*key(), build.substr(key_ends + 1), ": ");
  }
};

namespace detail {

constexpr foreign_row idle(int values, std::string_view names) {
  return {.names = names, .values = values, .idle = "*"};
}
constexpr foreign_row idle_if(std::string_view value, std::string_view names,
                              std::string_view reason) {
  return {.names = names, .reason = reason, .idle = value};
}
constexpr foreign_row same_as(std::string_view ours, std::string_view names, int times = 1) {
  return {.names = names, .ours = ours, .times = times};
}
constexpr foreign_row given_as(std::string_view ours, std::string_view value,
                               std::string_view names) {
  return {.names = names, .values = no_value, .ours = ours, .fixed = value};
}
/// A name that is not taken, as its numbers may be of another unit.
constexpr foreign_row means(std::string_view ours, std::string_view names) {
  return {.names = names, .ours = ours};
}
constexpr foreign_row refused(std::string_view names, std::string_view reason) {
  return {.names = names, .reason = reason};
}
constexpr foreign_row built_by(std::string_view build, std::string_view names,
                               std::string_view reason = "") {
  return {.names = names, .reason = reason, .build = build};
}

} // namespace detail

} // namespace mc
