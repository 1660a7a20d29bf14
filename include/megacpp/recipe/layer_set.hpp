// Sets of a model's layers.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace mc {

/// A set of layer numbers below 256, as a constant.
struct layer_set {
  static constexpr int greatest = 255;
  std::uint64_t bits[4]{};

  constexpr layer_set() = default;
  constexpr layer_set(std::initializer_list<int> layers) {
    for (int l : layers) insert(l);
  }
  constexpr void insert(int l) {
    bits[static_cast<unsigned>(l) / 64] |= std::uint64_t{1} << l % 64;
  }
  constexpr bool holds(int l) const {
    return l >= 0 && l < 256 && (bits[static_cast<unsigned>(l) / 64] >> l % 64 & 1) != 0;
  }
  constexpr bool empty() const { return last() < 0; }
  /// Returns the greatest number in the set, or -1.
  constexpr int last() const {
    int l = 255;
    while (l >= 0 && !holds(l)) --l;
    return l;
  }
};

} // namespace mc
