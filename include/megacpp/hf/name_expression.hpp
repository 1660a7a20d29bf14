// Regular expressions of layers' names, as adapter_config.json of PEFT has them.
#pragma once

#include <megacpp/config/config.hpp>
#include <megacpp/io/json_file.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <regex>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include <pcre2.h>

namespace mc {

/// A regular expression that Python's re, by which PEFT matches it, std::regex and PCRE2 read
/// alike. std::regex judges it, and PCRE2 matches it, since it can be told to give up.
class name_expression {
public:
  /// Returns an expression that must match a whole name (re.fullmatch), or, with `or_end`, a name
  /// or its end behind a point (peft/utils/other.py, get_pattern_key). Returns nothing for a text
  /// that is no expression, or which the two might read as different ones.
  static std::optional<name_expression> read(const std::string& text, bool or_end = false) {
    if (!is_common(text)) return std::nullopt;
    try {
      static_cast<void>(std::regex(text));
    } catch (const std::regex_error&) {
      return std::nullopt;
    }
    const std::string whole = or_end ? "(.*\\.)?(" + text + ")" : "(" + text + ")";
    int problem = 0;
    std::size_t at = 0;
    std::shared_ptr<pcre2_code> compiled(
        pcre2_compile(reinterpret_cast<PCRE2_SPTR>(whole.data()), whole.size(),
                      PCRE2_ANCHORED | PCRE2_ENDANCHORED, &problem, &at, nullptr),
        &pcre2_code_free);
    if (compiled == nullptr) return std::nullopt;
    return name_expression(text, std::move(compiled));
  }

  const std::string& text() const { return text_; }
  /// Throws mc::error(exit_code::model) where it would take very long to say.
  bool matches(const std::string& name) const {
    constexpr std::uint32_t most_steps = 100'000; // the longest names take some hundreds
    const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> data(
        pcre2_match_data_create(1, nullptr), &pcre2_match_data_free);
    const std::unique_ptr<pcre2_match_context, decltype(&pcre2_match_context_free)> context(
        pcre2_match_context_create(nullptr), &pcre2_match_context_free);
    pcre2_set_match_limit(context.get(), most_steps);
    const int found = pcre2_match(compiled_.get(), reinterpret_cast<PCRE2_SPTR>(name.data()),
                                  name.size(), 0, 0, data.get(), context.get());
    if (found < 0 && found != PCRE2_ERROR_NOMATCH)
      throw error(
          exit_code::model,
          fmt::format("the expression \"{}\" of an adapter_config.json takes too long to be "
                      "compared with {}; write a simpler one",
                      printable(text_), name));
    return found >= 0;
  }

private:
  name_expression(std::string text, std::shared_ptr<pcre2_code> compiled)
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
  std::shared_ptr<pcre2_code> compiled_;
};

} // namespace mc
