// A sort as libraries of GPUs do it, for devices of tests: by the bits that it is told alone, and in
// room beside the numbers.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace test {

/// Puts n numbers in order by `bits` bits from bit `first` on; those that agree in them stay as they
/// are. The room holds as many numbers.
inline void sort_by_bits(std::uint64_t* numbers, std::int64_t n, int first, int bits,
                         std::byte* room) {
  auto* const sorted = reinterpret_cast<std::uint64_t*>(room);
  const auto key = [=](std::uint64_t x) { return x >> first << (64 - bits); };
  std::copy(numbers, numbers + n, sorted);
  std::stable_sort(sorted, sorted + n,
                   [&](std::uint64_t a, std::uint64_t b) { return key(a) < key(b); });
  std::copy(sorted, sorted + n, numbers);
}

} // namespace test
