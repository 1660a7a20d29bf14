// Numbers as people read them, in fixed storage: formatting a progress line allocates no memory.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace mc {

/// A short text of at most Capacity characters. Further characters are cut off.
template <std::size_t Capacity> class bounded_text {
public:
  template <class... Args>
  bounded_text& append(fmt::format_string<Args...> format, Args&&... args) {
    const std::size_t room = Capacity - size_;
    const auto result =
        fmt::format_to_n(data_.data() + size_, room, format, std::forward<Args>(args)...);
    size_ += result.size < room ? result.size : room;
    return *this;
  }
  std::string_view view() const { return {data_.data(), size_}; }
  void shorten(std::size_t size) { size_ = size < size_ ? size : size_; }
  operator std::string_view() const { return view(); }

private:
  std::array<char, Capacity> data_{};
  std::size_t size_ = 0;
};

using short_text = bounded_text<48>;

/// Returns a duration as text: "0.4 s", "59 s", "3m 05s", "2h 07m", "3d 04h"; "?" if it is unknown.
inline short_text duration_text(double seconds) {
  short_text text;
  if (!(seconds >= 0) || seconds > 1e12) return text.append("?");
  if (seconds < 9.95) return text.append("{:.1f} s", seconds);
  const auto s = static_cast<std::int64_t>(std::nearbyint(seconds));
  if (s < 60) return text.append("{} s", s);
  if (s < 3600) return text.append("{}m {:02}s", s / 60, s % 60);
  if (s < 86400) return text.append("{}h {:02}m", s / 3600, s / 60 % 60);
  return text.append("{}d {:02}h", s / 86400, s / 3600 % 24);
}

namespace detail {
/// Returns three significant digits of x < 1000: "1.23", "12.3", "123".
inline short_text three_digits(double x) {
  return short_text().append("{:.{}f}", x, x < 9.995 ? 2 : x < 99.95 ? 1 : 0);
}
} // namespace detail

/// Returns a number of bytes as text: "512 B", "1.50 KiB", "42.0 MiB", "139 GiB".
inline short_text bytes_text(std::uint64_t bytes) {
  constexpr std::array<std::string_view, 6> units{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return short_text().append("{} B", bytes);
  double x = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  while (x >= 999.5 && unit + 1 < units.size()) x /= 1024, ++unit;
  return short_text().append("{} {}", detail::three_digits(x).view(), units[unit]);
}

/// Returns a count of tokens, parameters or operations as text, with at most three significant
/// digits: "950", "12.3k", "124M", "1.56B", "1.01T".
inline short_text count_text(double x) {
  constexpr std::array<std::string_view, 5> units{"", "k", "M", "B", "T"};
  if (!std::isfinite(x)) return short_text().append("{}", x);
  std::size_t unit = 0;
  const double size = std::fabs(x);
  double scaled = size;
  while (scaled >= 999.5 && unit + 1 < units.size()) scaled /= 1000, ++unit;
  const char* const sign = x < 0 ? "-" : "";
  if (unit == 0 && size == std::floor(size)) return short_text().append("{}{:.0f}", sign, size);
  return short_text().append("{}{}{}", sign, detail::three_digits(scaled).view(), units[unit]);
}

/// Returns a time in seconds since 1970 as `2026-01-31T09:05:00Z`.
inline std::string utc_text(std::int64_t seconds) {
  const auto t = static_cast<std::time_t>(seconds);
  std::tm utc{};
  ::gmtime_r(&t, &utc);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z", utc.tm_year + 1900, utc.tm_mon + 1,
                     utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec);
}
/// Returns such a time with milliseconds: `2026-01-31T09:05:00.123Z`.
inline std::string utc_text_with_milliseconds(double seconds) {
  const auto ms = static_cast<std::int64_t>(std::llround(seconds * 1e3));
  std::string text = utc_text(ms / 1000);
  return text.replace(text.size() - 1, 1, fmt::format(".{:03}Z", ms % 1000));
}

} // namespace mc
