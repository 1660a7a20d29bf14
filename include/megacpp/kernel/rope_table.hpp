// Sines and cosines of rotary positions (kernel/rows/rope.hpp), which the host makes before a run.
#pragma once

#include <megacpp/threads/parallel.hpp>

#include <cmath>
#include <cstdint>
#include <span>

namespace mc {

/// Fills cos and sin, both (count, w.size()): row t is for position positions[t], or t where
/// positions is null.
template <class G> void build_rope_table(std::int64_t count, std::span<const double> w,
                                         const std::int32_t* positions, G* cos, G* sin) {
  const auto half = static_cast<std::int64_t>(w.size());
  parallel_for(count, [=](std::int64_t t) {
    const double p =
        positions == nullptr ? static_cast<double>(t) : static_cast<double>(positions[t]);
    for (std::int64_t i = 0; i < half; ++i) {
      const double angle = p * w[static_cast<std::size_t>(i)];
      cos[t * half + i] = static_cast<G>(std::cos(angle));
      sin[t * half + i] = static_cast<G>(std::sin(angle));
    }
  });
}

} // namespace mc
