// A sort as libraries of GPUs do it, for devices of tests: it compares only the bits that it is
// told, and needs memory beside the numbers.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace test {

/// Sorts n numbers by `bits` bits from bit `first` on; numbers with equal bits keep their order.
/// `room` has space for n numbers.
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
