// The dynamic map: 256 values of [-1, 1], spaced finely near zero (Dettmers: "8-Bit Approximations
// for Parallelism in Deep Learning", ICLR 2016). NF4 stores the scales of its blocks by their
// places in it.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace mc {

namespace detail {
/// Returns number i of n + 1 that are evenly spaced from 0.1 to 1, as torch.linspace has them on
/// processors with fused multiply-adds: the second half is counted from the end, and a product and
/// its sum are rounded once. They are exact in double.
constexpr float tenth_to_one(int i, int n) {
  const double step = (1.0f - 0.1f) / static_cast<float>(n);
  return static_cast<float>(i < (n + 1) / 2 ? double{0.1f} + step * i : 1.0 - step * (n - i));
}

/// A decade from 10^e down to 10^(e-1) has 2^(e+6) values, the middles of equal intervals.
constexpr std::array<float, 256> made_dynamic_map() {
  constexpr float decades[] = {1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f, 1e-1f, 1.0f};
  std::array<float, 256> map{};
  std::size_t above = 128;
  int intervals = 1;
  for (const float decade : decades) {
    for (int i = 0; i < intervals; ++i) {
      const float x =
          decade * ((tenth_to_one(i, intervals) + tenth_to_one(i + 1, intervals)) / 2.0f);
      map[above] = x;
      map[254 - above] = -x;
      ++above;
    }
    intervals *= 2;
  }
  map[255] = 1.0f;
  return map;
}
} // namespace detail

/// The signed map in ascending order, with the bits of bitsandbytes' nested_quant_map. A file that
/// was written on a processor without fused multiply-adds has 42 values one unit in the last place
/// off, so whoever reads files takes the map that they hold.
inline constexpr std::array<float, 256> dynamic_map = detail::made_dynamic_map();

/// Midpoint i lies between values i and i + 1.
inline constexpr std::array<float, 255> dynamic_midpoints = [] {
  std::array<float, 255> m{};
  for (std::size_t i = 0; i < m.size(); ++i) m[i] = 0.5f * (dynamic_map[i] + dynamic_map[i + 1]);
  return m;
}();

/// Returns the code of the value nearest to x, and of two that are equally near the even code, as
/// the binary search in bitsandbytes' kernels for GPUs ends. A NaN has code 0.
constexpr std::uint8_t nearest_dynamic_code(float x) {
  const auto at = std::lower_bound(dynamic_midpoints.begin(), dynamic_midpoints.end(), x);
  const auto code = static_cast<unsigned>(at - dynamic_midpoints.begin());
  const bool tie = at != dynamic_midpoints.end() && *at == x;
  return static_cast<std::uint8_t>(tie && code % 2 != 0 ? code + 1 : code);
}

/// Returns the code that bitsandbytes 0.50 takes on CPUs. It looks x up in a table of 65,536 evenly
/// spaced numbers of [-1, 1]: the code is that of the number nearest to x, and the lower one at a
/// tie. A NaN has code 0.
constexpr std::uint8_t dynamic_code_on_grid(float x) {
  const float inside = x > -1.0f ? std::min(x, 1.0f) : -1.0f;
  // NOLINTNEXTLINE(bugprone-incorrect-roundings): as bitsandbytes rounds
  const auto place = static_cast<std::int32_t>((inside + 1.0f) * 0.5f * 65535.0f + 0.5f);
  const float number = -1.0f + 2.0f * static_cast<float>(place) / 65535.0f;
  const auto at = std::lower_bound(dynamic_midpoints.begin(), dynamic_midpoints.end(), number);
  return static_cast<std::uint8_t>(at - dynamic_midpoints.begin());
}

} // namespace mc
