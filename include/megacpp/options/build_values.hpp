// The values that keys of a build take (options/build_keys.hpp).
#pragma once

#include <megacpp/recipe/layer_set.hpp>

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

namespace mc {

/// Tells whether a text is an integer of at most `most` digits.
inline bool is_number(std::string_view digits, std::size_t most) {
  return !digits.empty() && digits.size() <= most &&
         std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; });
}
/// Tells whether a text is a number of at least 0, such as 32 or 0.05.
inline bool is_decimal(std::string_view value) {
  const std::size_t point = std::min(value.find('.'), value.size());
  return is_number(value.substr(0, point), 9) &&
         (point == value.size() || is_number(value.substr(point + 1), 12));
}
/// Tells whether a text is a name of C++, as a model of a preset has.
inline bool is_model(std::string_view name) {
  const auto fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == ':' ||
           (c >= '0' && c <= '9');
  };
  return !name.empty() && std::all_of(name.begin(), name.end(), fits) && name[0] > '9' &&
         name[0] != ':';
}

/// Tells whether a text is the name of a layer, or the end of one.
inline bool is_layer(std::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.' || c == '-';
  });
}

/// Returns "2-5", or one number of a layer, as C++ has a list of them; "" for another text.
inline std::string layer_numbers(std::string_view value) {
  const std::size_t dash = std::min(value.find('-'), value.size());
  const std::string first(value.substr(0, dash)),
      last(dash < value.size() ? value.substr(dash + 1) : first);
  if (!is_number(first, 3) || !is_number(last, 3)) return "";
  const int begin = std::stoi(first), end = std::stoi(last);
  if (begin > end || end > layer_set::greatest) return "";
  std::string all;
  for (int n = begin; n <= end; ++n) all += (n == begin ? "" : ", ") + std::to_string(n);
  return all;
}

} // namespace mc
