// The variables of an environment, as a launcher has set them.
#pragma once

#include <megacpp/io/error.hpp>

#include <charconv>
#include <cstdlib>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace mc {

/// Returns a text as a whole number of at least 0; nothing if it is none.
inline std::optional<int> whole_number(std::string_view digits) {
  int n = -1;
  const auto [end, problem] = std::from_chars(digits.data(), digits.data() + digits.size(), n);
  if (problem != std::errc() || end != digits.data() + digits.size() || n < 0) return std::nullopt;
  return n;
}

/// The environment of this process, or variables of a table, by which others are tried.
class environment {
public:
  using variable = std::pair<std::string_view, std::string_view>;

  environment() = default;
  explicit environment(std::span<const variable> table) : table_(table), of_process_(false) {}

  /// Returns the value of a variable; "" if it is not set. Launchers set some to "" that do not
  /// hold.
  std::string_view text(const char* name) const {
    if (of_process_) {
      const char* const value = std::getenv(name); // NOLINT(concurrency-mt-unsafe): nobody sets it
      return value == nullptr ? std::string_view() : value;
    }
    for (const auto& [key, value] : table_)
      if (key == name) return value;
    return {};
  }
  bool has(const char* name) const { return !text(name).empty(); }
  /// Returns the value as a whole number; nothing if it is not set, or none.
  std::optional<int> number(const char* name) const { return whole_number(text(name)); }
  /// Throws mc::error(exit_code::mismatch) for a variable that is no whole number.
  int require_number(const char* name) const {
    if (const std::optional<int> n = number(name)) return *n;
    const std::string value(text(name));
    throw error(exit_code::mismatch,
                std::string(name) + (value.empty() ? " is not set" : " is " + value) +
                    ": give a whole number, or leave the launcher's variables as it sets them");
  }

private:
  std::span<const variable> table_{};
  bool of_process_ = true;
};

} // namespace mc
