// UTF-8: the test for well-formed text (Unicode 15, table 3-7), and a replacement for other bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <utf8proc.h>

namespace mc {

/// Returns a text without the byte-order mark that editors on Windows put before it.
constexpr std::string_view without_mark(std::string_view text) {
  constexpr std::string_view mark = "\xef\xbb\xbf";
  return text.starts_with(mark) ? text.substr(mark.size()) : text;
}

/// Returns the number of bytes of the code point that begins at byte i; 0 if none begins there.
inline std::size_t code_point_at(std::string_view text, std::size_t i) {
  if (static_cast<unsigned char>(text[i]) < 0x80) return 1;
  utf8proc_int32_t code_point = 0;
  const utf8proc_ssize_t n =
      utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data() + i),
                       static_cast<utf8proc_ssize_t>(text.size() - i), &code_point);
  return n > 0 ? static_cast<std::size_t>(n) : 0;
}

/// Returns the index of the first byte that is not part of UTF-8; the size of the text if all are.
inline std::size_t first_not_utf8(std::string_view text) {
  std::size_t i = 0;
  while (i < text.size()) {
    const std::size_t n = code_point_at(text, i);
    if (n == 0) return i;
    i += n;
  }
  return i;
}

/// Returns the number of bytes at the end of a text that begin an incomplete code point.
constexpr std::size_t unfinished_utf8(std::string_view text) {
  for (std::size_t back = 1; back <= 3 && back <= text.size(); ++back) {
    const auto c = static_cast<unsigned char>(text[text.size() - back]);
    if ((c & 0xc0u) == 0x80u) continue;
    const std::size_t n = c < 0xc2 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : c < 0xf5 ? 4 : 1;
    if (n <= back) return 0;
    if (back == 1) return 1;
    const auto d = static_cast<unsigned char>(text[text.size() - back + 1]);
    const bool other = (c == 0xe0 && d < 0xa0) || (c == 0xed && d >= 0xa0) ||
                       (c == 0xf0 && d < 0x90) || (c == 0xf4 && d >= 0x90);
    return other ? 0 : back;
  }
  return 0;
}

/// Returns `text` with U+FFFD for every byte that is not part of UTF-8, as JSON needs it;
/// `replaced` counts them.
inline std::string as_utf8(std::string_view text, std::int64_t* replaced = nullptr) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::size_t good = first_not_utf8(text);
    out += text.substr(0, good);
    if (good == text.size()) break;
    out += "\xef\xbf\xbd";
    if (replaced != nullptr) ++*replaced;
    text.remove_prefix(good + 1);
  }
  return out;
}

} // namespace mc
