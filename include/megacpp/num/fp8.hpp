// Weights in blocks of FP8, as models are published in it (quant_method fp8, weight_block_size
// [128, 128]): a matrix [out, in] of F8_E4M3 and, for every block of 128 rows and 128 columns,
// weight_scale_inv, the number that its elements are multiplied by.
#pragma once

#include <megacpp/num/dtype.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

namespace mc {

/// A float of eight bits (F8_E4M3 in files, float8_e4m3fn in PyTorch): a sign, 4 bits of exponent
/// with bias 7 and 3 of mantissa. The largest number is 448; there are no infinities, and all bits
/// but the sign set are a NaN. Conversion from float rounds to nearest, ties to even, and takes
/// what is larger than 448 to 448, infinities, too.
struct e4m3 {
  std::uint8_t bits = 0;

  e4m3() = default;
  MEGACPP_HD constexpr explicit e4m3(float x) : bits(round(x)) {}
  MEGACPP_HD constexpr explicit operator float() const {
    const std::uint32_t magnitude = bits & 0x7fu, sign = (bits & 0x80u) << 24;
    // 120 = 127 - 7, the difference of the exponents' biases. A subnormal number is m * 2^-9.
    const std::uint32_t normal = (magnitude << 20) + (120u << 23);
    const auto subnormal =
        std::bit_cast<std::uint32_t>(static_cast<float>(static_cast<int>(magnitude)) * 0x1p-9f);
    const std::uint32_t number = magnitude < 8u ? subnormal : normal;
    return std::bit_cast<float>(sign | (magnitude == 0x7fu ? 0x7fc00000u : number));
  }
  MEGACPP_HD static constexpr std::uint8_t round(float x) {
    const auto u = std::bit_cast<std::uint32_t>(x);
    const std::uint32_t magnitude = u & 0x7fffffffu, sign = (u >> 24) & 0x80u;
    std::uint32_t code = 0x7e;                // 448
    if (magnitude > 0x7f800000u) code = 0x7f; // a NaN
    else if (magnitude < (121u << 23)) {      // below 2^-6: the sum is rounded to multiples of 2^-9
      const float sum = std::bit_cast<float>(magnitude) + 0x1p14f;
      code = std::bit_cast<std::uint32_t>(sum) & 0xfu;
    } else if (magnitude < (135u << 23) + (6u << 20)) // below 448
      code = ((magnitude + 0x7ffffu + ((magnitude >> 20) & 1u)) >> 20) - (120u << 3);
    return static_cast<std::uint8_t>(sign | code);
  }
};

namespace detail {
/// The floats of all codes: a look-up takes less time than the arithmetic of a conversion.
inline constexpr std::array<float, 256> e4m3_values = [] {
  std::array<float, 256> values{};
  for (std::size_t code = 0; code < values.size(); ++code)
    values[code] = static_cast<float>(std::bit_cast<e4m3>(static_cast<std::uint8_t>(code)));
  return values;
}();
} // namespace detail

inline constexpr std::int64_t fp8_block = 128;

/// Returns the blocks along a dim of so many rows or columns.
constexpr std::int64_t fp8_blocks(std::int64_t length) {
  return (length + fp8_block - 1) / fp8_block;
}

/// Sets out to elements first, first + 1, ... of a row, whose codes and whose blocks' scales
/// (float or bf16) begin at these places: the product in float, rounded to T.
template <class T, class Scale> constexpr void fp8_dequantise(const e4m3* row, const Scale* scales,
                                                              std::int64_t first,
                                                              std::span<T> out) {
  std::size_t done = 0;
  while (done < out.size()) {
    const std::int64_t at = first + static_cast<std::int64_t>(done);
    const auto left = static_cast<std::size_t>(fp8_block - at % fp8_block);
    const std::size_t count = std::min(left, out.size() - done);
    const float scale = convert<float>(scales[at / fp8_block]);
    const e4m3* const from = row + at;
    T* const to = out.data() + done;
    std::array<float, fp8_block> values{};
    for (std::size_t i = 0; i < count; ++i) values[i] = detail::e4m3_values[from[i].bits];
    if (count == values.size()) { // a constant, for which compilers vectorise
      for (std::size_t i = 0; i < values.size(); ++i) to[i] = convert<T>(values[i] * scale);
    } else {
      for (std::size_t i = 0; i < count; ++i) to[i] = convert<T>(values[i] * scale);
    }
    done += count;
  }
}

/// The first pass raises the largest magnitudes of the blocks that a row goes through, which the
/// caller has set to zero before their first row. Weights must be finite.
template <class T> constexpr void fp8_absmax(std::span<const T> row, std::span<float> absmax) {
  constexpr auto whole = static_cast<std::size_t>(fp8_block);
  for (std::size_t at = 0; at < row.size(); at += whole) {
    auto most = std::bit_cast<std::uint32_t>(absmax[at / whole]);
    for (const T& x : row.subspan(at, std::min(whole, row.size() - at)))
      most = std::max(most, std::bit_cast<std::uint32_t>(convert<float>(x)) & 0x7fffffffu);
    absmax[at / whole] = std::bit_cast<float>(most);
  }
}

/// Returns weight_scale_inv of a block, absmax / 448, as it is stored. That of a block of zeros,
/// and of one whose scale would be zero, is 1.
template <class Scale> constexpr Scale fp8_scale(float absmax) {
  const auto scale = convert<Scale>(absmax / 448.0f);
  return convert<float>(scale) == 0 ? convert<Scale>(1.0f) : scale;
}

/// The second pass sets the codes of a row, x / scale with the scale as it is stored.
template <class T, class Scale>
constexpr void fp8_quantise(std::span<const T> row, const Scale* scales, e4m3* codes) {
  constexpr auto whole = static_cast<std::size_t>(fp8_block);
  for (std::size_t i = 0; i < row.size(); ++i)
    codes[i] = e4m3(convert<float>(row[i]) / convert<float>(scales[i / whole]));
}

} // namespace mc
