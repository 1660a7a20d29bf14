// numpy_random draws as numpy.random.RandomState does, on which the order of Megatron's samples
// depends.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <utility>

namespace mc {

/// numpy_random is RandomState(seed) of numpy: the generator MT19937, seeded with 32 bits, which is
/// std::mt19937, and numpy's ways of drawing from it (numpy/random/src/distributions,
/// random_interval; numpy/random/mtrand.pyx, shuffle).
class numpy_random {
public:
  explicit numpy_random(std::uint32_t seed) : generator_(seed) {}

  /// Draws a number, uniform in [0, max]. It draws as many bits as max has, and draws again while
  /// they are above max.
  std::uint64_t interval(std::uint64_t max) {
    if (max == 0) return 0;
    const std::uint64_t mask = ~std::uint64_t{0} >> std::countl_zero(max);
    std::uint64_t drawn = 0;
    do drawn = (max > 0xffffffff ? two_draws() : generator_()) & mask;
    while (drawn > max);
    return drawn;
  }

  /// Shuffles items by the method of Fisher and Yates, from the end. Places are drawn some swaps
  /// ahead, and memory there is fetched meanwhile, since items of large arrays are in no cache.
  template <class T> void shuffle(std::span<T> items) {
    std::array<std::size_t, 64> places;
    for (std::size_t left = items.size(); left > 1;) {
      const std::size_t n = std::min(places.size(), left - 1);
      for (std::size_t k = 0; k < n; ++k) {
        places[k] = interval(left - 1 - k);
        __builtin_prefetch(items.data() + places[k], 1);
      }
      for (std::size_t k = 0; k < n; ++k) std::swap(items[left - 1 - k], items[places[k]]);
      left -= n;
    }
  }

private:
  std::uint64_t two_draws() {
    const std::uint64_t high = generator_();
    return high << 32 | generator_();
  }

  std::mt19937 generator_;
};

} // namespace mc
