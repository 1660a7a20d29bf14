// NF4 (Dettmers, Pagnoni, Holtzman, Zettlemoyer: "QLoRA", NeurIPS 2023): weights of four bits. A
// matrix is flat here, row after row in the order [out, in], and 64 elements that follow each other
// are a block, the last one what is left. A weight is one of 16 values times the absmax of its
// block, the largest magnitude there. nf4_scales.hpp has how absmax itself is stored.
//
// The numbers are those of bitsandbytes on CPUs, to the bit, where the compiler contracts no
// product and sum to a fused multiply-add (-ffp-contract=off, which megacpp's targets have).
#pragma once

#include <megacpp/num/dtype.hpp>
#include <megacpp/num/nf4_numbers.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

namespace mc {

inline constexpr std::array<float, 16> nf4_values = std::to_array(nf4_numbers.of);

/// Midpoint i lies between values i and i + 1.
inline constexpr std::array<float, 15> nf4_midpoints = [] {
  std::array<float, 15> m{};
  for (std::size_t i = 0; i < m.size(); ++i) m[i] = (nf4_values[i] + nf4_values[i + 1]) / 2.0f;
  return m;
}();

constexpr std::int64_t nf4_blocks(std::int64_t elements) {
  return (elements + nf4_block - 1) / nf4_block;
}
/// Returns the bytes of the codes of so many elements.
constexpr std::int64_t nf4_bytes(std::int64_t elements) { return (elements + 1) / 2; }

namespace detail {
// bitsandbytes divides by no less than this.
inline constexpr float nf4_least_absmax = 1e-38f;

/// A byte's two values, the one of its high bits first.
inline constexpr auto nf4_pairs = [] {
  std::array<std::array<float, 2>, 256> pairs{};
  for (std::size_t byte = 0; byte < pairs.size(); ++byte)
    pairs[byte] = {nf4_values[byte >> 4], nf4_values[byte & 15u]};
  return pairs;
}();

/// Returns the codes of 64 weights that are divided by their absmax: how many midpoints lie below
/// each. Compilers vectorise the inner loop.
constexpr std::array<std::int32_t, nf4_block> nf4_codes(const std::array<float, nf4_block>& x) {
  std::array<std::int32_t, nf4_block> codes{};
  for (const float m : nf4_midpoints)
    for (std::size_t i = 0; i < x.size(); ++i) codes[i] += x[i] > m ? 1 : 0;
  return codes;
}
} // namespace detail

/// The first pass over a matrix sets the absmax of each block of elements, which begin at a block
/// of the matrix and end at a later one, or at the end of the matrix. Weights must be finite. The
/// absmax of a block with another one is infinite or a NaN, by which the caller finds and refuses
/// it. A last block that is not whole has an absmax of at least 1e-38.
template <class T> constexpr void nf4_absmax(std::span<const T> elements, std::span<float> absmax) {
  constexpr auto whole = static_cast<std::size_t>(nf4_block);
  for (std::size_t at = 0; at < elements.size(); at += whole) {
    const auto block = elements.subspan(at, std::min(whole, elements.size() - at));
    std::uint32_t most = 0; // Bits of magnitudes are in the order of magnitudes.
    for (const T& x : block)
      most = std::max(most, std::bit_cast<std::uint32_t>(convert<float>(x)) & 0x7fffffffu);
    const auto found = std::bit_cast<float>(most);
    const bool less = block.size() < whole && found < detail::nf4_least_absmax;
    absmax[at / whole] = less ? detail::nf4_least_absmax : found;
  }
}

/// The second pass sets the codes of elements, whose absmax the first pass has set; of two elements
/// the first has the high four bits of a byte. The low bits of a last byte with one element are the
/// code of zero. A whole block is multiplied by the reciprocal of absmax, a shorter one divided.
template <class T> constexpr void nf4_quantise(std::span<const T> elements,
                                               std::span<const float> absmax,
                                               std::span<std::uint8_t> codes) {
  constexpr auto whole = static_cast<std::size_t>(nf4_block);
  for (std::size_t at = 0; at < elements.size(); at += whole) {
    const std::size_t count = std::min(whole, elements.size() - at);
    const float divisor = std::max(absmax[at / whole], detail::nf4_least_absmax);
    std::array<float, whole> x{};
    if (count == whole) {
      const float reciprocal = 1.0f / divisor;
      for (std::size_t i = 0; i < whole; ++i) x[i] = convert<float>(elements[at + i]) * reciprocal;
    } else {
      for (std::size_t i = 0; i < count; ++i) x[i] = convert<float>(elements[at + i]) / divisor;
    }
    const auto code = detail::nf4_codes(x);
    for (std::size_t i = 0; i < count; i += 2)
      codes[(at + i) / 2] = static_cast<std::uint8_t>(code[i] << 4 | code[i + 1]);
  }
}

/// Sets out to elements first, first + 1, ... of a matrix with these codes, where absmax(i) is that
/// of block i: the product in float, rounded to T.
template <class T, class Absmax> constexpr void nf4_dequantise(const std::uint8_t* codes,
                                                               Absmax absmax, std::int64_t first,
                                                               std::span<T> out) {
  constexpr auto whole = static_cast<std::size_t>(nf4_block);
  std::size_t done = 0;
  while (done < out.size()) {
    const std::int64_t at = first + static_cast<std::int64_t>(done);
    const auto within = static_cast<std::size_t>(at % nf4_block);
    const std::size_t count = std::min(whole - within, out.size() - done);
    const float scale = absmax(at / nf4_block);
    const std::uint8_t* bytes = codes + at / 2;
    T* const to = out.data() + done;
    if (count == whole) {
      std::array<float, whole> values{};
      for (std::size_t i = 0; i < whole / 2; ++i) {
        const std::array<float, 2>& pair = detail::nf4_pairs[bytes[i]];
        values[2 * i] = pair[0];
        values[2 * i + 1] = pair[1];
      }
      for (std::size_t i = 0; i < whole; ++i) to[i] = convert<T>(values[i] * scale);
    } else {
      const std::size_t odd = within % 2;
      for (std::size_t i = 0; i < count; ++i)
        to[i] = convert<T>(detail::nf4_pairs[bytes[(odd + i) / 2]][(odd + i) % 2] * scale);
    }
    done += count;
  }
}

} // namespace mc
