// The device on which products are measured, and the measurement of their times.
#pragma once

#include "arrays.hpp"

#include <megacpp/product/cuda/cublaslt.hpp>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

namespace gpu {

// Returns a device that multiplies.
inline mc::cuda& device() {
  static mc::cuda one(0, mc::thread_count(), [](mc::cuda& on) {
    return mc::cuda_libraries{std::make_unique<mc::cublaslt_products>(on), nullptr};
  });
  return one;
}

// Fills memory with random numbers in [-most, most), which repeat after 2^18 of them: equal numbers
// would take less power.
inline void fill(mc::cuda& on, std::byte* to, std::int64_t bytes, mc::dtype type, double most = 1) {
  mc::with_float_type(type, [&](auto of) {
    using T = decltype(of);
    std::vector<T> x(1 << 18);
    for (std::size_t i = 0; i < x.size(); ++i)
      x[i] = mc::convert<T>(most * (static_cast<double>(mixed(41, i) >> 11) * 0x1p-52 - 1));
    const auto piece = static_cast<std::int64_t>(x.size() * sizeof(T));
    for (std::int64_t at = 0; at < bytes; at += piece)
      on.write(to + at, x.data(), std::min(piece, bytes - at));
  });
}

// Returns the milliseconds of a call.
template <class F> double measured(mc::lane& lane, F run) {
  auto& stream = static_cast<mc::cuda_lane&>(lane);
  mc::cuda_moment begin, end;
  run(), run();
  constexpr int calls = 10;
  begin.record(stream.stream());
  for (int i = 0; i < calls; ++i) run();
  end.record(stream.stream());
  lane.finish();
  return static_cast<double>(end.since(begin)) * 1e-6 / calls;
}
inline std::int64_t padded(std::int64_t elements, mc::dtype t) {
  return (elements * mc::size_of(t) + 255) / 256 * 256;
}

} // namespace gpu
