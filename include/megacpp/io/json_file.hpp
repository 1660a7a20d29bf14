// Strict JSON: a value of a file is either understood or refused, with its place named. Values to
// be written keep the order in which their fields were set.
#pragma once

#include <megacpp/io/error.hpp>
#include <megacpp/io/mapped_file.hpp>
#include <megacpp/io/utf8.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace mc {

inline constexpr std::size_t json_size_limit = 16u << 20; // bytes of a file at most
inline constexpr int json_depth_limit = 64;

/// Returns a foreign text for a message: at most 80 characters, without any that a terminal would
/// obey.
inline std::string printable(std::string_view text) {
  std::string shown;
  for (const char c : text.substr(0, 80)) shown += c >= ' ' && c <= '~' ? c : '?';
  return text.size() > 80 ? shown + "..." : shown;
}

namespace detail {

/// Returns the error for a parser's exception: the byte, and the reason within the parser's text.
inline error json_fault(std::string_view path, exit_code code, std::size_t byte,
                        const nlohmann::detail::exception& problem) {
  std::string_view text = problem.what();
  for (const std::string_view before : {": ", " - "})
    if (const auto at = text.find(before); at != std::string_view::npos)
      text.remove_prefix(at + before.size());
  text = text.substr(0, text.find("; last read"));
  return error(
      code, fmt::format("{} is not valid JSON at byte {}: {}; correct the file or write it again",
                        path, byte, printable(text)));
}

/// Throws if a text has a NUL byte, since the library would stop reading there.
inline void refuse_nul(std::string_view text, std::string_view path, exit_code code) {
  const auto at = text.find('\0');
  if (at != std::string_view::npos)
    throw error(code,
                fmt::format("{} is not valid JSON at byte {}: it contains a NUL byte; correct the "
                            "file or write it again",
                            path, at + 1));
}

/// Builds a document from parser events, and checks depth and keys on the way.
class json_builder final : public nlohmann::json_sax<nlohmann::json> {
public:
  using json = nlohmann::json;
  json_builder(std::string_view path, exit_code code) : path_(path), code_(code) {}

  json take() { return std::move(root_); }

  bool null() override { return add(nullptr); }
  bool boolean(bool v) override { return add(v); }
  bool number_integer(number_integer_t v) override { return add(v); }
  bool number_unsigned(number_unsigned_t v) override { return add(v); }
  bool number_float(number_float_t v, const string_t&) override { return add(v); }
  bool string(string_t& v) override { return add(std::move(v)); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(json::object()); }
  bool start_array(std::size_t) override { return open(json::array()); }
  bool end_object() override { return open_.pop_back(), true; }
  bool end_array() override { return open_.pop_back(), true; }
  bool key(string_t& name) override {
    if (open_.back()->contains(name))
      throw error(code_, fmt::format("{}: the key \"{}\" appears twice in one object; remove one",
                                     path_, printable(name)));
    key_ = std::move(name);
    return true;
  }
  bool parse_error(std::size_t byte, const std::string&,
                   const nlohmann::detail::exception& problem) override {
    throw json_fault(path_, code_, byte, problem);
  }

private:
  template <class Value> json* place(Value&& v) {
    if (open_.empty()) return &(root_ = json(std::forward<Value>(v)));
    json& parent = *open_.back();
    if (parent.is_array()) return &parent.emplace_back(std::forward<Value>(v));
    return &(parent[key_] = json(std::forward<Value>(v)));
  }
  template <class Value> bool add(Value&& v) { return place(std::forward<Value>(v)), true; }
  bool open(json&& container) {
    if (static_cast<int>(open_.size()) >= json_depth_limit)
      throw error(code_,
                  fmt::format("{} is nested deeper than {} levels; this is not a file that megacpp "
                              "reads",
                              path_, json_depth_limit));
    // An open container does not move, since only the innermost one grows.
    open_.push_back(place(std::move(container)));
    return true;
  }

  std::string_view path_;
  exit_code code_;
  json root_;
  std::vector<json*> open_;
  std::string key_;
};

} // namespace detail

/// Parses one JSON text of at most `most` bytes, with at most 64 levels, no duplicate keys, and
/// only blanks after the value. `path`: the name of the text for messages. Throws mc::error(code)
/// with the byte (from 1) or the key.
inline nlohmann::json parse_json(std::string_view text, std::string_view path,
                                 exit_code code = exit_code::model,
                                 std::size_t most = json_size_limit) {
  if (text.size() > most)
    throw error(code, fmt::format("{} has {} bytes, more than the {} allowed for a JSON file", path,
                                  text.size(), most));
  detail::refuse_nul(text, path, code);
  detail::json_builder builder(path, code);
  nlohmann::json::sax_parse(text, &builder);
  return builder.take();
}

/// A value inside a JSON file that knows the file and the fields that lead to it, for messages such
/// as `config.json: field "rope_scaling.factor" is a string, but a number is needed`. Values of one
/// file share its document.
class json_value {
public:
  json_value(nlohmann::json document, std::string file, exit_code code)
      : root_(std::make_shared<const document_type>(
            document_type{std::move(document), std::move(file), code})),
        value_(&root_->json) {}

  const nlohmann::json& raw() const { return *value_; }
  const std::string& file() const { return root_->file; }
  /// The names of the fields that lead to this value; "" for the document itself.
  const std::string& path() const { return path_; }

  /// Returns whether this is an object in which the field has a value other than null.
  bool has(std::string_view name) const { return find(name) != nullptr; }

  /// Returns a field as T: bool, an integer, float, double, std::string, json_value (any object),
  /// or a std::vector of those. Throws mc::error if it is missing, of another type or out of range.
  template <class T> T field(std::string_view name) const {
    require_object();
    const nlohmann::json* const v = find(name);
    if (!v) throw fault(fmt::format("has no field \"{}\"", below(name)));
    return json_value(*this, v, below(name)).template as<T>();
  }
  /// Returns a field whose value must lie within [low, high].
  template <class T> T field(std::string_view name, T low, T high) const {
    const T v = field<T>(name);
    if (!(v >= low && v <= high))
      throw fault(
          fmt::format("field \"{}\" is {}, but must be from {} to {}", below(name), v, low, high));
    return v;
  }

  /// Returns this value as T, as field() does.
  template <class T> T as() const {
    if constexpr (std::is_same_v<T, json_value>) {
      if (!value_->is_object()) throw wrong_type("an object");
      return *this;
    } else if constexpr (std::is_same_v<T, bool>) {
      if (!value_->is_boolean()) throw wrong_type("true or false");
      return value_->template get<bool>();
    } else if constexpr (std::is_integral_v<T>) {
      return integer<T>();
    } else if constexpr (std::is_floating_point_v<T>) {
      if (!value_->is_number()) throw wrong_type("a number");
      return static_cast<T>(value_->template get<double>());
    } else if constexpr (std::is_same_v<T, std::string>) {
      if (!value_->is_string()) throw wrong_type("a string");
      return value_->template get<std::string>();
    } else {
      if (!value_->is_array()) throw wrong_type("a list");
      T list;
      for (std::size_t i = 0; i < value_->size(); ++i)
        list.push_back(json_value(*this, &(*value_)[i], fmt::format("{}[{}]", path_, i))
                           .template as<typename T::value_type>());
      return list;
    }
  }

  /// Returns an error about this file, to be thrown: "FILE: `sentence`".
  error fault(std::string_view sentence) const {
    return error(root_->code, fmt::format("{}: {}", root_->file, sentence));
  }

private:
  struct document_type {
    nlohmann::json json;
    std::string file;
    exit_code code;
  };

  json_value(const json_value& parent, const nlohmann::json* value, std::string path)
      : root_(parent.root_), value_(value), path_(std::move(path)) {}

  std::string below(std::string_view name) const {
    return path_.empty() ? std::string(name) : fmt::format("{}.{}", path_, name);
  }
  void require_object() const {
    if (!value_->is_object()) throw wrong_type("an object");
  }
  const nlohmann::json* find(std::string_view name) const {
    if (!value_->is_object()) return nullptr;
    const auto at = value_->find(name);
    return at == value_->end() || at->is_null() ? nullptr : &*at;
  }
  error wrong_type(std::string_view needed) const {
    const std::string shown =
        value_->is_structured() ? std::string() : ' ' + printable(value_->dump());
    const std::string where = path_.empty() ? "the file" : fmt::format("field \"{}\"", path_);
    return fault(fmt::format("{} is {}{}, but {} is needed", where, kind(), shown, needed));
  }
  std::string_view kind() const {
    if (value_->is_object()) return "an object";
    if (value_->is_array()) return "a list";
    if (value_->is_string()) return "the string";
    if (value_->is_number()) return "the number";
    return "the value";
  }
  template <class T> T integer() const {
    if (!value_->is_number_integer()) throw wrong_type("a whole number");
    const bool large = value_->is_number_unsigned() &&
                       value_->template get<std::uint64_t>() >
                           static_cast<std::uint64_t>(std::numeric_limits<T>::max());
    const bool small =
        !value_->is_number_unsigned() &&
        (std::is_unsigned_v<T> || value_->template get<std::int64_t>() <
                                      static_cast<std::int64_t>(std::numeric_limits<T>::min()));
    if (large || small)
      throw fault(fmt::format("field \"{}\" is {}, which is out of range: it must be from {} to {}",
                              path_, value_->dump(), std::numeric_limits<T>::min(),
                              std::numeric_limits<T>::max()));
    return value_->template get<T>();
  }

  std::shared_ptr<const document_type> root_;
  const nlohmann::json* value_;
  std::string path_;
};

/// Returns value.field<T>(name), as a free function.
template <class T> T field(const json_value& value, std::string_view name) {
  return value.field<T>(name);
}

/// A JSON value to be written. Its fields keep the order in which they were set.
using json_output = nlohmann::ordered_json;

/// Returns x as JSON: whole numbers without a point, other finite numbers with the fewest digits
/// that read back as x, and "nan", "inf" or "-inf", for which JSON has no number.
inline json_output json_number(double x) {
  if (std::isnan(x)) return "nan";
  if (std::isinf(x)) return x > 0 ? "inf" : "-inf";
  if (x == std::trunc(x) && std::abs(x) < 0x1p53) return static_cast<std::int64_t>(x);
  return x;
}
/// Returns one line of JSON with a line end. Bytes that are not UTF-8 become U+FFFD.
inline std::string json_line(const json_output& value) {
  return value.dump(-1, ' ', false, json_output::error_handler_t::replace) + "\n";
}

/// Reads a JSON file whose outermost value must be an object.
inline json_value read_json(const mapped_file& file, std::size_t most = json_size_limit) {
  // A wrong size is refused before the first page is read.
  if (file.size() > most)
    throw error(file.code(),
                fmt::format("{} has {} bytes, more than the {} allowed for a JSON file",
                            file.path(), file.size(), most));
  json_value value(parse_json(file.text(), file.path(), file.code(), most), file.path(),
                   file.code());
  (void)value.as<json_value>();
  return value;
}
inline json_value read_json(const std::string& path, exit_code code = exit_code::model) {
  return read_json(mapped_file(path, code));
}

/// Returns a value as people write it: a whole number has no point.
inline std::string shown(const nlohmann::json& value) {
  if (value.is_number_float())
    if (const auto x = value.get<double>(); x == std::trunc(x) && std::abs(x) < 1e15)
      return fmt::format("{:.0f}", x);
  return printable(value.dump());
}

} // namespace mc
