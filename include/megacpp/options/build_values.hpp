// The values that keys of a build take (options/build_keys.hpp).
#pragma once

#include <algorithm>
#include <cstddef>
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

} // namespace mc
