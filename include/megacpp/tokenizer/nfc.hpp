// Unicode's normal form C composes letters and accents (Unicode Standard Annex 15). utf8proc makes
// it.
#pragma once

#include <megacpp/io/error.hpp>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include <fmt/format.h>
#include <utf8proc.h>

namespace mc {

/// Returns whether all characters of a text are below U+0300, where nothing composes. Such a text,
/// as most are, is in normal form C.
inline bool is_below_marks(std::string_view utf8) {
  return std::ranges::all_of(utf8, [](char c) { return static_cast<unsigned char>(c) < 0xcc; });
}

/// Returns the normal form C of a text in UTF-8.
inline std::string nfc(std::string_view utf8) {
  utf8proc_uint8_t* made = nullptr;
  const utf8proc_ssize_t n =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(utf8.data()),
                   static_cast<utf8proc_ssize_t>(utf8.size()), &made,
                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owned(made, &std::free);
  if (n == UTF8PROC_ERROR_NOMEM) throw std::bad_alloc();
  if (n < 0)
    throw error(exit_code::internal,
                fmt::format("a text has no normal form: {}", utf8proc_errmsg(n)));
  return {reinterpret_cast<const char*>(made), static_cast<std::size_t>(n)};
}

} // namespace mc
