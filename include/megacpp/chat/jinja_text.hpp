// Jinja programs that differ in blanks or comments alone write the same conversations. This header
// brings a program into one spelling, so that such programs have the same checksum.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace mc {

namespace detail {

/// jinja_reader reads a template as Jinja's lexer does with trim_blocks and lstrip_blocks, the
/// settings of transformers. It keeps the text between tags that rendering would write.
class jinja_reader {
public:
  explicit jinja_reader(std::string_view source) {
    for (std::size_t i = 0; i < source.size(); ++i) {
      if (source[i] == '\r' && i + 1 < source.size() && source[i + 1] == '\n') continue;
      text_ += source[i] == '\r' ? '\n' : source[i];
    }
    if (text_.ends_with('\n')) text_.pop_back();
  }

  std::optional<std::string> read() {
    if (has_other_blanks()) return std::nullopt;
    while (at_ < text_.size()) {
      const std::size_t begin = next_tag();
      if (begin == text_.size()) {
        out_.append(text_, at_);
        break;
      }
      const char kind = text_[begin + 1];
      say_between(begin, kind);
      if (!(kind == '#' ? skip_comment() : read_tag(kind))) return std::nullopt;
    }
    return std::move(out_);
  }

private:
  static bool is_blank(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r') || (c >= '\x1c' && c <= '\x1f');
  }
  static bool is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  }
  static bool is_number(char c) { return c >= '0' && c <= '9'; }

  bool follows(std::string_view s) const {
    return std::string_view(text_).substr(at_).starts_with(s);
  }
  char ahead(std::size_t n) const { return at_ + n < text_.size() ? text_[at_ + n] : '\0'; }

  /// Returns whether the template has white space beyond ASCII. Jinja strips that, too; this reader
  /// refuses it instead, since no published template has any.
  bool has_other_blanks() const {
    const auto byte = [this](std::size_t i) {
      return i < text_.size() ? static_cast<unsigned char>(text_[i]) : 0u;
    };
    for (std::size_t i = 0; i < text_.size(); ++i) {
      const unsigned a = byte(i), b = byte(i + 1), c = byte(i + 2);
      if ((a == 0xc2 && (b == 0x85 || b == 0xa0)) || (a == 0xe1 && b == 0x9a && c == 0x80) ||
          (a == 0xe2 && (b == 0x80 || b == 0x81)) || (a == 0xe3 && b == 0x80 && c == 0x80))
        return true;
    }
    return false;
  }

  std::size_t next_tag() const {
    for (std::size_t i = at_; i + 1 < text_.size(); ++i)
      if (text_[i] == '{' && (text_[i + 1] == '%' || text_[i + 1] == '{' || text_[i + 1] == '#'))
        return i;
    return text_.size();
  }

  /// Writes the text before the tag that starts at `begin`, without the blanks that the tag strips,
  /// and moves behind the tag's sign, '-' or '+'.
  void say_between(std::size_t begin, char kind) {
    std::string_view data = std::string_view(text_).substr(at_, begin - at_);
    at_ = begin + 2;
    const char sign = ahead(0);
    if (sign == '-' || sign == '+') ++at_;
    if (sign == '-') {
      while (!data.empty() && is_blank(data.back())) data.remove_suffix(1);
    } else if (sign != '+' && kind != '{') {
      const std::size_t line = data.rfind('\n') + 1; // It is 0 where `data` has no line end.
      if ((line > 0 || line_starts_) &&
          std::all_of(data.begin() + static_cast<std::ptrdiff_t>(line), data.end(), is_blank))
        data = data.substr(0, line);
    }
    out_ += data;
  }

  /// Moves behind the `length` bytes that end a tag. With `all`, it moves behind the blanks that
  /// follow, too; with `line_end`, behind one line end.
  void skip_end(std::size_t length, bool all, bool line_end) {
    at_ += length;
    if (all)
      while (at_ < text_.size() && is_blank(text_[at_])) ++at_;
    else if (line_end && ahead(0) == '\n') ++at_;
    line_starts_ = text_[at_ - 1] == '\n';
  }

  bool skip_comment() {
    const std::size_t end = text_.find("#}", at_);
    if (end == std::string::npos) return false;
    const char sign = end > at_ ? text_[end - 1] : '\0';
    at_ = end;
    skip_end(2, sign == '-', sign != '+');
    return true;
  }

  /// Writes a tag with one blank before each name, number, string and sign in it.
  bool read_tag(char kind) {
    (out_ += '{') += kind;
    const std::string_view end = kind == '{' ? "}}" : "%}";
    std::size_t words = 0;
    std::string open; // The brackets that are open here.
    for (; at_ < text_.size(); ++words) {
      while (at_ < text_.size() && is_blank(text_[at_])) ++at_;
      if (open.empty()) {
        const bool strips = ahead(0) == '-' && ahead(1) == end[0] && ahead(2) == end[1],
                   keeps = kind == '%' && follows("+%}");
        if (strips || keeps || follows(end)) {
          skip_end(strips || keeps ? 3 : 2, strips, kind == '%' && !keeps);
          (out_ += ' ') += end;
          return true;
        }
      }
      const std::size_t begin = at_;
      if (!skip_token(open)) return false;
      const std::string word = text_.substr(begin, at_ - begin);
      if (words == 0 && word == "raw") return false;
      out_ += ' ';
      for (const char c : word)
        c == '\n' ? out_ += "\\n" : out_ += c; // A string may have line ends.
    }
    return false;
  }

  bool skip_token(std::string& open) {
    const char c = ahead(0);
    if (c == '\'' || c == '"') return skip_string(c);
    if (is_letter(c) || is_number(c)) {
      const bool number = is_number(c);
      while (is_letter(ahead(0)) || is_number(ahead(0)) ||
             (number && is_number(ahead(1)) &&
              (ahead(0) == '.' || ((ahead(0) == '+' || ahead(0) == '-') &&
                                   (text_[at_ - 1] == 'e' || text_[at_ - 1] == 'E')))))
        ++at_;
      return true;
    }
    if (c <= ' ' || c > '~') return false; // The template ends here, or is not ASCII.
    constexpr std::string_view opens = "([{", closes = ")]}";
    if (opens.find(c) != std::string_view::npos) open += c;
    if (const std::size_t closed = closes.find(c); closed != std::string_view::npos) {
      if (open.empty() || open.back() != opens[closed]) return false;
      open.pop_back();
    }
    constexpr std::string_view pairs[] = {"==", "!=", ">=", "<=", "//", "**"};
    at_ += std::ranges::any_of(pairs, [this](std::string_view p) { return follows(p); }) ? 2 : 1;
    return true;
  }

  bool skip_string(char quote) {
    for (++at_; at_ < text_.size(); ++at_) {
      if (text_[at_] == '\\') ++at_;
      else if (text_[at_] == quote) return ++at_, true;
    }
    return false;
  }

  std::string text_, out_;
  std::size_t at_ = 0;
  bool line_starts_ = true; ///< A line starts at the position of the reader.
};

} // namespace detail

/// Returns a Jinja template in one spelling: with \n as line end, one blank between the words of a
/// tag, no comments, no blanks that tags strip, and line ends in strings as \n. Templates with one
/// result are the same program. Returns nothing where the text is no template, has {% raw %}, or
/// has white space beyond ASCII.
inline std::optional<std::string> canonical_jinja(std::string_view source) {
  return detail::jinja_reader(source).read();
}

} // namespace mc
