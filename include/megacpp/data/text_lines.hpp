// A file of JSON lines has on each line a text: a string, or an object with strings in named
// fields.
#pragma once

#include <megacpp/io/json_file.hpp>
#include <megacpp/io/utf8.hpp>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

namespace mc {

namespace detail {

/// text_fields takes the texts of a line from the events of a JSON parser: the outermost object's
/// fields of certain names, or the outermost string.
class text_fields final : public nlohmann::json_sax<nlohmann::json> {
public:
  text_fields(std::span<const std::string> names, std::string_view where)
      : names_(names), where_(where), texts_(names.size()), found_(names.size()) {}

  /// Returns the texts. Throws mc::error(exit_code::data) that tells which texts `line` has, where
  /// a field is missing.
  std::vector<std::string> take(std::string_view line) {
    for (std::size_t i = 0; i < names_.size(); ++i)
      if (!found_[i])
        throw error(exit_code::data,
                    fmt::format("{} has no text \"{}\", but {}; name the field by text_rules::keys",
                                where_, names_[i], fields_of(line)));
    return std::move(texts_);
  }

  bool null() override { return other("null"); }
  bool boolean(bool) override { return other("true or false"); }
  bool number_integer(number_integer_t) override { return other("a number"); }
  bool number_unsigned(number_unsigned_t) override { return other("a number"); }
  bool number_float(number_float_t, const string_t&) override { return other("a number"); }
  bool binary(binary_t&) override { return other("binary"); }
  bool string(string_t& v) override {
    if (depth_ == 0) {
      if (names_.size() != 1) return other("a text");
      keep(0, v);
    } else if (depth_ == 1 && key_ < names_.size()) {
      keep(key_, v);
    }
    return true;
  }
  bool start_object(std::size_t) override {
    if (depth_ == 1 && key_ < names_.size()) return other("an object");
    return deeper();
  }
  bool start_array(std::size_t) override {
    if (depth_ == 0 || (depth_ == 1 && key_ < names_.size())) return other("a list");
    return deeper();
  }
  bool end_object() override { return --depth_, true; }
  bool end_array() override { return --depth_, true; }
  bool key(string_t& name) override {
    if (depth_ == 1)
      key_ = static_cast<std::size_t>(std::ranges::find(names_, name) - names_.begin());
    return true;
  }
  bool parse_error(std::size_t byte, const std::string&,
                   const nlohmann::detail::exception& problem) override {
    fault_ = json_fault(where_, exit_code::data, byte, problem);
    return false;
  }
  /// Returns the error that ended the parsing.
  const error& fault() const { return *fault_; }

private:
  void keep(std::size_t i, string_t& v) {
    if (found_[i])
      throw error(exit_code::data,
                  fmt::format("{} has the text \"{}\" twice; remove one", where_, names_[i]));
    texts_[i] = std::move(v);
    found_[i] = true;
  }
  bool deeper() {
    if (++depth_ > json_depth_limit)
      throw error(exit_code::data, fmt::format("{} is nested deeper than {} levels; flatten it",
                                               where_, json_depth_limit));
    return true;
  }
  static std::string fields_of(std::string_view line) {
    std::vector<std::string> names;
    const auto object = nlohmann::ordered_json::parse(line, nullptr, false);
    if (object.is_object())
      for (const auto& [name, value] : object.items())
        if (value.is_string() && names.size() < 8) names.push_back('"' + printable(name) + '"');
    return names.empty() ? "none of any other name"
                         : fmt::format("the texts {}", fmt::join(names, ", "));
  }
  bool other(std::string_view what) const {
    if (depth_ > 1 || (depth_ == 1 && key_ >= names_.size())) return true;
    throw error(
        exit_code::data,
        depth_ == 0
            ? fmt::format("{} is no {}; give one a line", where_,
                          names_.size() == 1 ? "text in quotes nor an object with one" : "object")
            : fmt::format("{}: the field \"{}\" is {}, not a text; name another by "
                          "text_rules::keys, or leave the line out",
                          where_, names_[key_], what));
  }

  std::span<const std::string> names_;
  std::string_view where_;
  std::vector<std::string> texts_;
  std::vector<bool> found_;
  std::optional<error> fault_;
  std::size_t key_ = 0;
  int depth_ = 0;
};

/// python_spelled is a line of Python's json module, rewritten as JSON. Python writes and reads
/// NaN, infinities, and escapes of one half of a surrogate pair, which JSON does not have.
struct python_spelled {
  std::string text;     ///< The line as JSON, with 0 and U+FFFD in place of values that JSON lacks.
  bool differs = false; ///< The line had values that JSON lacks.
  std::int64_t halves = 0;    ///< The number of escapes of one half of a surrogate pair.
  std::size_t first_half = 0; ///< The offset of the first such escape.
};

constexpr bool is_digit(char c) { return c >= '0' && c <= '9'; }
constexpr bool is_of_number(char c) {
  return is_digit(c) || c == '.' || c == 'e' || c == 'E' || c == '+' || c == '-';
}

/// Returns the length of the JSON number that begins at byte i, or 0 if none begins there.
constexpr std::size_t json_number_at(std::string_view text, std::size_t i) {
  const auto at = [text](std::size_t k) { return k < text.size() ? text[k] : '\0'; };
  const auto digits = [&at](std::size_t k) {
    std::size_t n = 0;
    while (is_digit(at(k + n))) ++n;
    return n;
  };
  std::size_t end = i + (at(i) == '-' ? 1 : 0);
  const std::size_t whole = digits(end);
  if (whole == 0 || (whole > 1 && at(end) == '0')) return 0;
  end += whole;
  if (at(end) == '.') {
    const std::size_t n = digits(end + 1);
    if (n == 0) return 0;
    end += 1 + n;
  }
  if (at(end) == 'e' || at(end) == 'E') {
    const std::size_t begin = end + (at(end + 1) == '+' || at(end + 1) == '-' ? 2 : 1),
                      n = digits(begin);
    if (n == 0) return 0;
    end = begin + n;
  }
  return end - i;
}

/// Rewrites a line of Python's json module as JSON: NaN, infinities and numbers too large for
/// double become 0, and an escape of one half of a surrogate pair becomes U+FFFD. All other bytes
/// keep their offsets.
inline python_spelled json_of_python(std::string_view line) {
  python_spelled p{std::string(line), false, 0, 0};
  const auto overwrite = [&p](std::size_t at, std::size_t length, std::string_view by) {
    p.text.replace(at, length, std::string(by) + std::string(length - by.size(), ' '));
    p.differs = true;
  };
  // surrogate_at returns the half of a surrogate pair that is escaped at an offset, or 0.
  const auto surrogate_at = [line](std::size_t at) -> unsigned {
    if (at + 6 > line.size() || line.substr(at, 2) != "\\u") return 0;
    unsigned unit = 0;
    const char* const end = line.data() + at + 6;
    const bool whole = std::from_chars(line.data() + at + 2, end, unit, 16).ptr == end;
    return whole && unit >= 0xd800 && unit < 0xe000 ? unit : 0;
  };
  for (std::size_t i = 0; i < line.size();) {
    if (line[i] == '"') {
      for (++i; i < line.size() && line[i] != '"'; ++i) {
        if (line[i] != '\\') continue;
        const unsigned unit = surrogate_at(i);
        if (unit != 0 && unit < 0xdc00 && surrogate_at(i + 6) >= 0xdc00) {
          i += 11;
        } else if (unit != 0) {
          if (p.halves++ == 0) p.first_half = i;
          overwrite(i, 6, "\\ufffd");
          i += 5;
        } else {
          ++i; // An escaped quote does not end the string.
        }
      }
      ++i;
      continue;
    }
    const bool begins = i == 0 || !is_of_number(line[i - 1]);
    for (const std::string_view name : {"NaN", "Infinity", "-Infinity"})
      if (begins && line.substr(i).starts_with(name)) overwrite(i, name.size(), "0");
    const std::size_t length = begins ? json_number_at(line, i) : 0;
    double value = 0;
    if (length > 0 && std::from_chars(line.data() + i, line.data() + i + length, value).ec ==
                          std::errc::result_out_of_range)
      overwrite(i, length, "0");
    i += std::max<std::size_t>(length, 1);
  }
  return p;
}

} // namespace detail

/// invalid_utf8 says what is done with a text that is not UTF-8: it is refused, or each wrong byte
/// is replaced by U+FFFD.
enum class invalid_utf8 : std::uint8_t { refuse, replace };

/// text_rules say how the texts of lines are read.
struct text_rules {
  std::vector<std::string> keys{"text"}; ///< The fields of an object that hold texts.
  invalid_utf8 invalid = invalid_utf8::refuse;
};

/// Returns `text` where it is UTF-8; else a text in `copy` with U+FFFD for each wrong byte, which
/// are added to `replaced`. `where` names the text in messages. Throws mc::error(exit_code::data)
/// where `policy` refuses wrong bytes.
inline std::string_view as_utf8(std::string_view text, std::string_view where, invalid_utf8 policy,
                                std::string& copy, std::int64_t& replaced) {
  const std::size_t at = first_not_utf8(text);
  if (at == text.size()) return text;
  if (policy == invalid_utf8::refuse)
    throw error(
        exit_code::data,
        fmt::format("{} is not UTF-8 at byte {} (0x{:02x}); convert it, or let text_rules::invalid "
                    "replace put U+FFFD there",
                    where, at + 1, static_cast<unsigned char>(text[at])));
  copy = as_utf8(text, &replaced);
  return copy;
}

/// Returns the texts of one line, one for each key; a line that is a string has one text. Other
/// fields may be NaN or infinite, as Python's json module writes them. One half of a surrogate pair
/// is treated as a byte that is not UTF-8. Throws mc::error(exit_code::data).
inline std::vector<std::string> texts_of_line(std::string_view line, const text_rules& rules,
                                              std::string_view where, std::int64_t& replaced) {
  detail::refuse_nul(line, where, exit_code::data);
  detail::text_fields fields(rules.keys, where);
  if (nlohmann::json::sax_parse(line, &fields)) return fields.take(line);
  const detail::python_spelled python = detail::json_of_python(line);
  if (!python.differs) throw fields.fault();
  detail::text_fields again(rules.keys, where);
  if (!nlohmann::json::sax_parse(python.text, &again)) throw again.fault();
  if (python.halves > 0 && rules.invalid == invalid_utf8::refuse)
    throw error(exit_code::data,
                fmt::format("{} has half a surrogate pair at byte {} ({}), which is no text; "
                            "correct it, or let text_rules::invalid replace put U+FFFD there",
                            where, python.first_half + 1, line.substr(python.first_half, 6)));
  replaced += python.halves;
  return again.take(python.text);
}

} // namespace mc
