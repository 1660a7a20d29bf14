// JSON as Python's json module reads and writes it: fields keep their order, and numbers are
// spelled as Python spells them. Chat templates print tools, and calls of tools, in this way.
#pragma once

#include <megacpp/io/error.hpp>
#include <megacpp/io/json_file.hpp>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace mc {

/// A JSON value with everything below it.
struct ordered_json {
  enum class kinds { null, boolean, number, string, list, object };

  kinds kind = kinds::null;
  std::string text;                ///< characters of a string; spelling of a number, true, false
  std::vector<ordered_json> items; ///< items of a list; values of an object, in the order of `keys`
  std::vector<std::string> keys;

  bool is_string() const { return kind == kinds::string; }
  bool is_list() const { return kind == kinds::list; }
  bool is_object() const { return kind == kinds::object; }

  /// Returns a field of an object; nullptr if it is missing or null.
  const ordered_json* find(std::string_view name) const {
    const auto at = std::find(keys.begin(), keys.end(), name);
    if (at == keys.end()) return nullptr;
    const ordered_json& value = items[static_cast<std::size_t>(at - keys.begin())];
    return value.kind == kinds::null ? nullptr : &value;
  }

  /// Returns a value of a kind without further contents, or a string.
  static ordered_json of(kinds kind, std::string text = {}) {
    ordered_json value;
    value.kind = kind;
    value.text = std::move(text);
    return value;
  }
};

/// Returns Python's repr(x) of a finite x: the fewest digits that read back as x, with an exponent
/// below 1e-4 and from 1e16 on, and with ".0" if it would look like an integer.
inline std::string python_number(double x) {
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, x, std::chars_format::scientific);
  std::string_view shown(buffer, static_cast<std::size_t>(end.ptr - buffer));
  const bool negative = shown.front() == '-';
  if (negative) shown.remove_prefix(1);
  const auto e = shown.find('e');
  int exponent = 0;
  const char* const digits_of_exponent = shown.data() + e + (shown[e + 1] == '+' ? 2 : 1);
  std::from_chars(digits_of_exponent, shown.data() + shown.size(), exponent);
  std::string digits(1, shown.front());
  if (e > 2) digits += shown.substr(2, e - 2);

  std::string out = negative ? "-" : "";
  const auto n = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    out += digits.substr(0, 1);
    if (n > 1) out += "." + digits.substr(1);
    return out + fmt::format("e{}{:02}", exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  if (exponent < 0)
    return out + "0." + std::string(static_cast<std::size_t>(-exponent - 1), '0') + digits;
  if (n <= exponent + 1)
    return out + digits + std::string(static_cast<std::size_t>(exponent + 1 - n), '0') + ".0";
  const std::size_t point = static_cast<std::size_t>(exponent) + 1;
  return out + digits.substr(0, point) + "." + digits.substr(point);
}

namespace detail {

/// Builds the value from parser events.
class ordered_json_builder final : public nlohmann::json_sax<nlohmann::json> {
public:
  using kinds = ordered_json::kinds;
  ordered_json_builder(std::string_view place, exit_code code) : place_(place), code_(code) {}

  ordered_json take() { return std::move(root_); }

  bool null() override { return add(kinds::null, "null"); }
  bool boolean(bool v) override { return add(kinds::boolean, v ? "true" : "false"); }
  bool number_integer(number_integer_t v) override {
    return add(kinds::number, std::to_string(v)); // "-0" is 0 in Python, too
  }
  bool number_unsigned(number_unsigned_t v) override {
    return add(kinds::number, std::to_string(v));
  }
  /// Adds a number. Integers beyond 64 bits come here as well; Python keeps all their digits.
  bool number_float(number_float_t v, const string_t& spelling) override {
    const bool whole = spelling.find_first_of(".eE") == std::string::npos;
    return add(kinds::number, whole ? spelling : python_number(v));
  }
  bool string(string_t& v) override { return add(kinds::string, std::move(v)); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(kinds::object); }
  bool start_array(std::size_t) override { return open(kinds::list); }
  bool end_object() override {
    refuse_twins(open_.back()->keys);
    return open_.pop_back(), true;
  }
  bool end_array() override { return open_.pop_back(), true; }
  bool key(string_t& name) override {
    open_.back()->keys.push_back(std::move(name));
    return true;
  }
  bool parse_error(std::size_t byte, const std::string&,
                   const nlohmann::detail::exception& problem) override {
    throw json_fault(place_, code_, byte, problem);
  }

private:
  void refuse_twins(const std::vector<std::string>& keys) const {
    std::vector<std::string_view> sorted(keys.begin(), keys.end());
    std::sort(sorted.begin(), sorted.end());
    const auto twin = std::adjacent_find(sorted.begin(), sorted.end());
    if (twin != sorted.end())
      throw error(code_, fmt::format("{}: the key \"{}\" appears twice in one object; remove one",
                                     place_, printable(*twin)));
  }
  ordered_json* place(kinds kind, std::string text) {
    ordered_json value = ordered_json::of(kind, std::move(text));
    if (open_.empty()) return &(root_ = std::move(value));
    return &open_.back()->items.emplace_back(std::move(value));
  }
  bool add(kinds kind, std::string text) { return place(kind, std::move(text)), true; }
  bool open(kinds kind) {
    if (static_cast<int>(open_.size()) >= json_depth_limit)
      throw error(code_, fmt::format("{} is nested deeper than {} levels; this is not a value that "
                                     "megacpp reads",
                                     place_, json_depth_limit));
    // An open container does not move, since only the innermost one grows.
    open_.push_back(place(kind, {}));
    return true;
  }

  std::string_view place_;
  exit_code code_;
  ordered_json root_;
  std::vector<ordered_json*> open_;
};

/// Appends Python's json.dumps(text, ensure_ascii=False).
inline void write_python_string(std::string_view text, std::string& out) {
  out += '"';
  for (const char c : text) {
    switch (c) {
    case '"': out += "\\\""; break;
    case '\\': out += "\\\\"; break;
    case '\n': out += "\\n"; break;
    case '\r': out += "\\r"; break;
    case '\t': out += "\\t"; break;
    case '\f': out += "\\f"; break;
    case '\b': out += "\\b"; break;
    default:
      if (static_cast<unsigned char>(c) < 0x20)
        out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
      else out += c;
    }
  }
  out += '"';
}

inline void write_python_json(const ordered_json& value, int indent, int depth, std::string& out) {
  if (value.is_string()) return write_python_string(value.text, out);
  if (!value.is_list() && !value.is_object()) {
    out += value.text;
    return;
  }
  out += value.is_list() ? '[' : '{';
  const auto begin_line = [&](int levels) {
    out += '\n';
    out.append(static_cast<std::size_t>(levels) * static_cast<std::size_t>(indent), ' ');
  };
  for (std::size_t i = 0; i < value.items.size(); ++i) {
    if (i > 0) out += indent > 0 ? "," : ", ";
    if (indent > 0) begin_line(depth + 1);
    if (value.is_object()) {
      write_python_string(value.keys[i], out);
      out += ": ";
    }
    write_python_json(value.items[i], indent, depth + 1, out);
  }
  if (indent > 0 && !value.items.empty()) begin_line(depth);
  out += value.is_list() ? ']' : '}';
}

} // namespace detail

/// Parses one JSON text under the limits of parse_json. `place`: the name of the text for messages.
/// Throws mc::error(code) with the byte (from 1) or the key.
inline ordered_json parse_ordered_json(std::string_view text, std::string_view place,
                                       exit_code code) {
  if (text.size() > json_size_limit)
    throw error(code, fmt::format("{} has {} bytes, more than the {} allowed for a JSON text",
                                  place, text.size(), json_size_limit));
  detail::refuse_nul(text, place, code);
  detail::ordered_json_builder builder(place, code);
  nlohmann::json::sax_parse(text, &builder);
  return builder.take();
}

/// Returns Python's json.dumps(value, ensure_ascii=False), with indent=... if it is not 0.
inline std::string python_json(const ordered_json& value, int indent = 0) {
  std::string out;
  detail::write_python_json(value, indent, 0, out);
  return out;
}

} // namespace mc
