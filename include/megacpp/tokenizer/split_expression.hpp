// Regular expressions of tokenizer.json cut a text into words. PCRE2 matches them, with its JIT.
//
// They are written in the dialect of the library Oniguruma. Shorthands of classes are written out
// for PCRE2: \s is Unicode's property White_Space (PropList.txt of Unicode 15; PCRE2's \s differs),
// \d is Nd, \w is L, M, Nd and Pc. Any other spelling that has two meanings in the two dialects is
// refused by name.
#pragma once

#include <megacpp/config/config.hpp>
#include <megacpp/io/error.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include <pcre2.h>

namespace mc {

namespace detail {

struct freed_by_pcre2 {
  void operator()(pcre2_code* p) const { pcre2_code_free(p); }
  void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); }
  void operator()(pcre2_match_context* p) const { pcre2_match_context_free(p); }
  void operator()(pcre2_jit_stack* p) const { pcre2_jit_stack_free(p); }
};
template <class T> using owned_by_pcre2 = std::unique_ptr<T, freed_by_pcre2>;

inline constexpr std::string_view white_space =
    R"(\t-\r\x20\x85\xA0\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";
inline constexpr std::string_view not_white_space =
    R"(\x00-\x08\x0E-\x1F!-\x{84}\x{86}-\x{9F}\x{A1}-\x{167F}\x{1681}-\x{1FFF})"
    R"(\x{200B}-\x{2027}\x{202A}-\x{202E}\x{2030}-\x{205E}\x{2060}-\x{2FFF}\x{3001}-\x{10FFFF})";

// of_words is the class \w of Oniguruma: letters, letters within signs, marks, digits and
// connectors. Outside a class, \w also has the raised digits and the fractions of Latin 1.
inline constexpr std::string_view of_words =
    R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{24B6}-\x{24E9})"
    R"(\x{1F130}-\x{1F149}\x{1F150}-\x{1F169}\x{1F170}-\x{1F189})";
inline constexpr std::string_view of_words_alone = R"(\xB2\xB3\xB9\xBC-\xBE)";

/// Returns whether letters, without regard to case, may equal another number of letters, as "ss"
/// equals U+00DF. All letters beyond ASCII are taken to be such.
inline bool is_folded_together(std::string_view letters) {
  const auto lower = [&](std::size_t i) {
    const char c = i < letters.size() ? letters[i] : '\0';
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  };
  const char first = lower(0), second = lower(1);
  return static_cast<unsigned char>(first) >= 0x80 || letters.starts_with("\\x") ||
         (first == 's' && (second == 's' || second == 't')) ||
         (first == 'f' && (second == 'f' || second == 'i' || second == 'l'));
}

/// Returns whether PCRE2 knows a script of this name.
inline bool is_script(std::string_view name) {
  const std::string property = fmt::format("\\p{{sc:{}}}", name);
  int problem = 0;
  std::size_t at = 0;
  const owned_by_pcre2<pcre2_code> code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(property.data()),
                                                      property.size(), PCRE2_UTF, &problem, &at,
                                                      nullptr));
  return code != nullptr;
}

/// Returns an expression of Oniguruma's dialect in PCRE2's dialect. Throws
/// mc::error(exit_code::data) for a spelling that the two read differently; its message begins with
/// `where`.
inline std::string in_pcre2(std::string_view expression, std::string_view where) {
  const auto refuse = [&](std::string_view what) {
    return error(exit_code::data,
                 fmt::format("{} has {}, which the library that reads it here takes differently; "
                             "write it without",
                             where, what));
  };
  std::string out;
  bool in_class = false;
  // `depth` counts the groups around byte i, and `caseless` is the depth of the group with (?i.
  int depth = 0, caseless = std::numeric_limits<int>::max();
  for (std::size_t i = 0; i < expression.size(); ++i) {
    const char c = expression[i];
    if (depth >= caseless && is_folded_together(expression.substr(i)))
      throw refuse("letters in (?i that are the same as one other letter");
    if (c == '\\' && i + 1 < expression.size()) {
      const char e = expression[++i];
      const auto set = [&](std::string_view inside) {
        if (in_class) out += inside;
        else (out += '[').append(inside) += ']';
      };
      switch (e) {
      case 's': set(white_space); break;
      case 'S': set(not_white_space); break;
      case 'd': set(R"(\p{Nd})"); break;
      case 'D': set(R"(\P{Nd})"); break;
      case 'w':
        set(in_class ? std::string(of_words) : fmt::format("{}{}", of_words, of_words_alone));
        break;
      case 'W':
        if (in_class) throw refuse("\\W within a class");
        out += fmt::format("[^{}{}]", of_words, of_words_alone);
        break;
      case 'b':
      case 'B':
      case 'h':
      case 'H':
      case 'R':
      case 'X':
      case 'y':
      case 'Y':
      case 'K':
      case 'O':
      case 'N':
      case 'z':
      case 'Z':
      case 'A':
      case 'G':
      case 'g':
      case 'k':
      case 'Q':
      case 'E':
      case 'c':
      case 'C':
      case 'M':
      case 'o':
      case 'v':
      case 'V': throw refuse(fmt::format("\\{}", e));
      case 'p':
      case 'P':
      case 'x': {
        (out += '\\') += e;
        const bool braces = expression.substr(i + 1).starts_with('{');
        if (!braces && e != 'x') throw refuse(fmt::format("\\{} without braces", e));
        if (!braces) break;
        const std::size_t end = expression.find('}', i);
        if (end == std::string_view::npos) throw refuse(fmt::format("\\{}{{ without its end", e));
        std::string_view name = expression.substr(i + 2, end - i - 2);
        out += '{';
        if (name.starts_with('^')) out += '^', name.remove_prefix(1);
        if (e != 'x' && is_script(name)) out += "sc:";
        (out += name) += '}';
        i = end;
        break;
      }
      default: (out += '\\') += e;
      }
      continue;
    }
    if (in_class) {
      if (c == '[') throw refuse("a class within a class");
      if (c == '&' && expression.substr(i).starts_with("&&")) throw refuse("the && of two classes");
      if (c == ']') in_class = false;
    } else if (c == '[') {
      in_class = true;
      out += c;
      if (i + 1 < expression.size() && expression[i + 1] == '^') out += expression[++i];
      if (i + 1 < expression.size() && expression[i + 1] == ']') throw refuse("an empty class");
      continue;
    } else if (c == '^' || c == '$') {
      throw refuse(fmt::format("{} outside a class", c));
    } else if (c == '(') {
      ++depth;
      const std::string_view rest = expression.substr(i + 1);
      if (rest.starts_with('*')) throw refuse("(*");
      if (rest.starts_with("?i)") && i > 0) throw refuse("(?i) behind its begin");
      if (rest.starts_with("?i"))
        caseless = std::min(caseless, rest.starts_with("?i)") ? 0 : depth);
      constexpr std::string_view known[] = {"?:", "?=", "?!", "?<=", "?<!", "?>", "?i:", "?i)"};
      if (rest.starts_with('?') &&
          std::ranges::none_of(known, [&](std::string_view k) { return rest.starts_with(k); }))
        throw refuse(fmt::format("({}", rest.substr(0, 2)));
    } else if (c == ')') {
      if (depth-- == caseless) caseless = std::numeric_limits<int>::max();
    } else if (c == '{' && expression.substr(i).starts_with("{,")) {
      throw refuse("{,");
    } else if (c == '}' && expression.substr(i).starts_with("}+")) {
      throw refuse("a + behind {...}"); // PCRE2 reads such a + as possessive.
    } else if (c == '}' && expression.substr(i).starts_with("}?")) {
      throw refuse("a ? behind {...}"); // Oniguruma reads {n}? as another repetition.
    }
    out += c;
  }
  return out;
}

inline std::string pcre2_message(int code) {
  PCRE2_UCHAR text[256] = {};
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

} // namespace detail

/// split_expression is a compiled expression. Threads share it, and each has a split_search of its
/// own.
class split_expression {
public:
  /// Compiles an expression, which `where` names in messages. Throws mc::error(exit_code::data) for
  /// an expression that PCRE2 refuses, or reads otherwise than its author meant.
  split_expression(std::string_view expression, std::string where, bool literal = false)
      : where_(std::move(where)) {
    const std::string text =
        literal ? std::string(expression) : detail::in_pcre2(expression, where_);
    int problem = 0;
    std::size_t at = 0;
    code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                              PCRE2_UTF | (literal ? PCRE2_LITERAL : PCRE2_NEVER_BACKSLASH_C),
                              &problem, &at, nullptr));
    if (!code_)
      throw error(
          exit_code::data,
          fmt::format("{} is no expression: {} (at byte {} of what PCRE2 is given); correct it",
                      where_, detail::pcre2_message(problem), at));
    const int compiled = pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE);
    by_jit_ = compiled == 0; // A system may forbid memory that is written and then executed.
  }

  const std::string& where() const { return where_; }

private:
  friend class split_search;
  std::string where_;
  detail::owned_by_pcre2<pcre2_code> code_;
  bool by_jit_ = false;
};

/// split_search finds the matches of an expression, on one thread.
class split_search {
public:
  explicit split_search(const split_expression& e) : expression_(&e) {
    data_.reset(pcre2_match_data_create(1, nullptr));
    context_.reset(pcre2_match_context_create(nullptr));
    stack_.reset(pcre2_jit_stack_create(32 << 10, 16 << 20, nullptr));
    if (!data_ || !context_ || !stack_) throw std::bad_alloc();
    pcre2_set_match_limit(context_.get(), match_limit);
    pcre2_set_heap_limit(context_.get(), 64 << 10); // The limit is in KiB.
    pcre2_jit_stack_assign(context_.get(), nullptr, stack_.get());
  }

  struct match {
    std::size_t begin = 0, end = 0;
  };
  /// Returns the first match in a text of UTF-8, from byte `from` on. Throws
  /// mc::error(exit_code::data) where the expression backtracks too much.
  std::optional<match> next(std::string_view text, std::size_t from) {
    const auto* const subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    const int found = expression_->by_jit_
                          ? pcre2_jit_match(expression_->code_.get(), subject, text.size(), from, 0,
                                            data_.get(), context_.get())
                          : pcre2_match(expression_->code_.get(), subject, text.size(), from,
                                        PCRE2_NO_UTF_CHECK, data_.get(), context_.get());
    if (found == PCRE2_ERROR_NOMATCH) return std::nullopt;
    if (found < 0)
      throw error(
          exit_code::data,
          fmt::format("{} cannot be applied to a text of {} bytes, at byte {}: {}; shorten "
                      "the text, or write the expression so that it does not backtrack",
                      expression_->where(), text.size(), from, detail::pcre2_message(found)));
    const std::size_t* const at = pcre2_get_ovector_pointer(data_.get());
    return match{at[0], at[1]};
  }

private:
  static constexpr std::uint32_t match_limit = 50'000'000;

  const split_expression* expression_;
  detail::owned_by_pcre2<pcre2_match_data> data_;
  detail::owned_by_pcre2<pcre2_match_context> context_;
  detail::owned_by_pcre2<pcre2_jit_stack> stack_;
};

} // namespace mc
