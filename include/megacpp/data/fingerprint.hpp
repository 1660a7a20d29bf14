// Tokens of a text that are read before the first step: all are in the vocabulary, and a hash tells
// them from others.
#pragma once

#include <megacpp/data/split.hpp>
#include <megacpp/data/token_source.hpp>
#include <megacpp/io/checksum.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace mc {

namespace detail {

/// The number of tokens of a split of the data that are read before the first step.
inline constexpr std::int64_t checked_at_start = std::int64_t{1} << 28;

/// Reads the tokens of a range once, so that ids outside the vocabulary are refused before the
/// first step. Of a long range it reads the begin, so that a start takes seconds; a step that meets
/// such an id further on refuses it. Throws mc::error.
inline void check_tokens(const token_source& source, token_range range) {
  std::vector<std::int32_t> block(1 << 16);
  const std::int64_t end = range.begin + std::min(range.size(), checked_at_start);
  for (std::int64_t at = range.begin; at < end; at += std::ssize(block)) {
    const std::int64_t n = std::min<std::int64_t>(std::ssize(block), end - at);
    source.copy(at, std::span(block).first(static_cast<std::size_t>(n)));
  }
}

} // namespace detail

/// Returns a hash that tells the tokens of a range from others: XXH64 of the ids in at most 1024
/// blocks of 4096, which are spread evenly. A range of up to 4 Mi tokens is read whole.
inline std::uint64_t fingerprint(const token_source& source, token_range range) {
  constexpr std::int64_t block = 4096, most = 1024;
  std::vector<std::int32_t> ids(block);
  xxh64 hash;
  const std::int64_t blocks = (range.size() + block - 1) / block, n = std::min(blocks, most);
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t at = range.begin + (n == blocks ? i : i * (blocks / n)) * block;
    const auto ids_here =
        std::span(ids).first(static_cast<std::size_t>(std::min(block, range.end - at)));
    source.copy(at, ids_here);
    hash.add(std::as_bytes(ids_here));
  }
  return hash.value();
}

} // namespace mc
