// These functions find the first number of an array that is infinite or not a number (NaN).
#pragma once

#include <megacpp/checkpoint/storage_type.hpp>
#include <megacpp/threads/parallel.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <optional>
#include <span>

namespace mc {

namespace detail {

/// Returns the first element that is infinite or NaN: one whose exponent has all bits set. Elements
/// are read as integers of their size; `exponent` is the mask of the exponent's bits.
template <class Word>
std::optional<std::int64_t> first_with_exponent(std::span<const std::byte> bytes, Word exponent) {
  constexpr std::size_t block = 1024;
  std::array<Word, block> words;
  const std::size_t n = bytes.size() / sizeof(Word);
  for (std::size_t at = 0; at < n; at += block) {
    const std::size_t here = std::min(block, n - at);
    if (here < block) words.fill(0);
    std::memcpy(words.data(), bytes.data() + at * sizeof(Word), here * sizeof(Word));
    Word found = 0;
    for (std::size_t i = 0; i < block; ++i)
      found |= static_cast<Word>((words[i] & exponent) == exponent);
    if (found == 0) continue;
    const auto first = std::find_if(words.begin(), words.end(),
                                    [=](Word w) { return (w & exponent) == exponent; });
    return static_cast<std::int64_t>(at) + (first - words.begin());
  }
  return std::nullopt;
}

} // namespace detail

/// Returns the index of the first element that is infinite or NaN, or nothing. `bytes` may have any
/// alignment. Types other than F64, F32, BF16 and F16 are taken to have no such elements.
inline std::optional<std::int64_t> first_nonfinite(std::span<const std::byte> bytes,
                                                   storage_type type) {
  switch (type) {
  case storage_type::f64:
    return detail::first_with_exponent<std::uint64_t>(bytes, 0x7ff0000000000000u);
  case storage_type::f32: return detail::first_with_exponent<std::uint32_t>(bytes, 0x7f800000u);
  case storage_type::bf16: return detail::first_with_exponent<std::uint16_t>(bytes, 0x7f80u);
  case storage_type::f16: return detail::first_with_exponent<std::uint16_t>(bytes, 0x7c00u);
  default: return std::nullopt;
  }
}

/// Returns what first_nonfinite returns; all threads search.
inline std::optional<std::int64_t> first_nonfinite_in_parallel(std::span<const std::byte> bytes,
                                                               storage_type type) {
  // One thread searches 1 MiB at a time, which is a multiple of every element's size.
  constexpr std::size_t piece = std::size_t{1} << 20;
  const auto n = static_cast<std::int64_t>((bytes.size() + piece - 1) / piece);
  std::atomic<std::int64_t> wrong{n};
  const auto in_piece = [&](std::int64_t i) {
    const std::size_t at = static_cast<std::size_t>(i) * piece;
    return first_nonfinite(bytes.subspan(at, std::min(piece, bytes.size() - at)), type);
  };
  parallel_for(n, [&](std::int64_t i) {
    std::int64_t first = wrong;
    if (i >= first || !in_piece(i)) return;
    while (i < first && !wrong.compare_exchange_weak(first, i)) {
    }
  });
  if (wrong == n) return std::nullopt;
  const std::int64_t elements = static_cast<std::int64_t>(piece) * 8 / bits_of(type);
  return wrong * elements + in_piece(wrong).value_or(0);
}

} // namespace mc
