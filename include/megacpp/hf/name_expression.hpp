// Regular expressions of layers' names, as adapter_config.json of PEFT has them.
#pragma once

#include <cstddef>
#include <optional>
#include <regex>
#include <string>
#include <string_view>
#include <utility>

namespace mc {

/// A regular expression that Python's re, by which PEFT matches it, and std::regex read alike.
class name_expression {
public:
  /// Returns an expression that must match a whole name (re.fullmatch), or, with `or_end`, a name
  /// or its end behind a point (peft/utils/other.py, get_pattern_key). Returns nothing for a text
  /// that is no expression, or which the two might read as different ones.
  static std::optional<name_expression> read(const std::string& text, bool or_end = false) {
    if (!is_common(text)) return std::nullopt;
    try {
      std::regex whole(text);
      return name_expression(text,
                             or_end ? std::regex("(.*\\.)?(" + text + ")") : std::move(whole));
    } catch (const std::regex_error&) {
      return std::nullopt;
    }
  }

  const std::string& text() const { return text_; }
  bool matches(const std::string& name) const { return std::regex_match(name, compiled_); }

private:
  name_expression(std::string text, std::regex compiled)
      : text_(std::move(text)), compiled_(std::move(compiled)) {}

  /// Tells whether an expression has nothing that only one of the two knows: escapes such as \A and
  /// \Z, which are letters to std::regex; references; classes such as [:alpha:]; a set that begins
  /// with its end; and repetitions of repetitions, which in Python do not give back what they took.
  static bool is_common(std::string_view text) {
    constexpr int most_nested = 64;       // std::regex takes memory of the stack for each
    constexpr std::size_t longest = 4096; // and for each letter
    if (text.size() > longest) return false;
    bool in_set = false;
    int nested = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
      const char c = text[i], next = i + 1 < text.size() ? text[i + 1] : '\0';
      if (c == '\\') {
        const bool is_word = (next >= 'a' && next <= 'z') || (next >= 'A' && next <= 'Z') ||
                             (next >= '0' && next <= '9');
        if (is_word && std::string_view("dDwWsSbB").find(next) == std::string_view::npos)
          return false;
        ++i;
      } else if (in_set) {
        if (c == '[' && (next == ':' || next == '=' || next == '.')) return false;
        in_set = c != ']';
      } else if (c == '[') {
        in_set = true;
        if (next == '^') ++i;
        if (i + 1 < text.size() && text[i + 1] == ']') return false;
      } else if (c == '*' || c == '+' || c == '?' || c == '}') {
        if (next == '*' || next == '+' || next == '{') return false;
      } else if (c == '(') {
        if (++nested > most_nested) return false;
      } else if (c == ')') {
        --nested;
      }
    }
    return true;
  }

  std::string text_;
  std::regex compiled_;
};

} // namespace mc
