// Texts of JSON lines: each a string, or an object with strings of some names.
#pragma once

#include <megacpp/io/json_file.hpp>
#include <megacpp/io/utf8.hpp>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mc {

namespace detail {

/// Takes the fields of the outermost object that have these names, or the outermost string.
class text_fields final : public nlohmann::json_sax<nlohmann::json> {
public:
  text_fields(std::span<const std::string> names, std::string_view where)
      : names_(names), where_(where), texts_(names.size()), found_(names.size()) {}

  std::vector<std::string> take() {
    for (std::size_t i = 0; i < names_.size(); ++i)
      if (!found_[i])
        throw error(
            exit_code::data,
            fmt::format("{} has no text \"{}\"; name the field by --json-keys", where_, names_[i]));
    return std::move(texts_);
  }

  bool null() override { return other(); }
  bool boolean(bool) override { return other(); }
  bool number_integer(number_integer_t) override { return other(); }
  bool number_unsigned(number_unsigned_t) override { return other(); }
  bool number_float(number_float_t, const string_t&) override { return other(); }
  bool binary(binary_t&) override { return other(); }
  bool string(string_t& v) override {
    if (depth_ == 0) {
      if (names_.size() != 1) return other();
      keep(0, v);
    } else if (depth_ == 1 && key_ < names_.size()) {
      keep(key_, v);
    }
    return true;
  }
  bool start_object(std::size_t) override {
    if (depth_ == 1 && key_ < names_.size()) return other();
    return deeper();
  }
  bool start_array(std::size_t) override {
    if (depth_ == 0 || (depth_ == 1 && key_ < names_.size())) return other();
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
    throw json_fault(where_, exit_code::data, byte, problem);
  }

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
  bool other() const {
    if (depth_ > 1 || (depth_ == 1 && key_ >= names_.size())) return true;
    throw error(
        exit_code::data,
        depth_ == 0
            ? fmt::format("{} is no {}; give one a line", where_,
                          names_.size() == 1 ? "text in quotes nor an object with one" : "object")
            : fmt::format("{}: the field \"{}\" is not a text; name another by "
                          "--json-keys",
                          where_, names_[key_]));
  }

  std::span<const std::string> names_;
  std::string_view where_;
  std::vector<std::string> texts_;
  std::vector<bool> found_;
  std::size_t key_ = 0;
  int depth_ = 0;
};

} // namespace detail

/// What becomes of bytes that are not UTF-8.
enum class invalid_utf8 : std::uint8_t { refuse, replace };

/// `text`, or with U+FFFD for each byte that is not UTF-8, which `replaced` counts; `where` names
/// it. Throws mc::error(exit_code::data).
inline std::string_view as_utf8(std::string_view text, std::string_view where, invalid_utf8 policy,
                                std::string& copy, std::int64_t& replaced) {
  const std::size_t at = first_not_utf8(text);
  if (at == text.size()) return text;
  if (policy == invalid_utf8::refuse)
    throw error(
        exit_code::data,
        fmt::format("{} is not UTF-8 at byte {} (0x{:02x}); convert it, or let --invalid-utf8 "
                    "replace put U+FFFD there",
                    where, at + 1, static_cast<unsigned char>(text[at])));
  copy = as_utf8(text, &replaced);
  return copy;
}

/// The texts of one line, one for each name; a line that is a string itself has one. Throws
/// mc::error(exit_code::data).
inline std::vector<std::string> texts_of_line(std::string_view line,
                                              std::span<const std::string> names,
                                              std::string_view where) {
  detail::refuse_nul(line, where, exit_code::data);
  detail::text_fields fields(names, where);
  nlohmann::json::sax_parse(line, &fields);
  return fields.take();
}

} // namespace mc
