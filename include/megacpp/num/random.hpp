// Counter-based random numbers: a value is a pure function of (key, counter), so a mask or an
// initial weight does not depend on the layout, the number of threads or the order of evaluation.
#pragma once

#include <megacpp/config/config.hpp>

#include <cstddef>
#include <cstdint>

namespace mc {

/// The result of one call of the generator. It is no std::array, whose header is as long as those
/// of five row bodies.
struct philox_numbers {
  std::uint32_t bits[4];
  MEGACPP_HD constexpr std::uint32_t operator[](std::size_t i) const { return bits[i]; }
  friend constexpr bool operator==(const philox_numbers&, const philox_numbers&) = default;
};

/// Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC11).
/// Returns four 32-bit numbers for a 64-bit key and a 128-bit counter.
MEGACPP_HD constexpr philox_numbers philox(std::uint64_t key, std::uint64_t low,
                                           std::uint64_t high = 0) {
  auto k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  std::uint32_t c0 = static_cast<std::uint32_t>(low), c1 = static_cast<std::uint32_t>(low >> 32);
  std::uint32_t c2 = static_cast<std::uint32_t>(high), c3 = static_cast<std::uint32_t>(high >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * c0, p1 = std::uint64_t{0xCD9E8D57u} * c2;
    c0 = static_cast<std::uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<std::uint32_t>(p1);
    c2 = static_cast<std::uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<std::uint32_t>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

/// Returns a 64-bit key for a seed and the number of a stream. Distinct streams never share
/// counters.
MEGACPP_HD constexpr std::uint64_t random_key(std::uint64_t seed, std::uint64_t stream) {
  const auto w = philox(seed, stream, 0x6d65676163707021u);
  return (std::uint64_t{w[1]} << 32) | w[0];
}

/// Returns a number that is uniform in [0, 1), with 24 random bits.
MEGACPP_HD constexpr float uniform(std::uint32_t bits) {
  return static_cast<float>(bits >> 8) * 0x1p-24f;
}

/// Returns a number in [0, n) for n <= 2^32, by multiplication (bias below 2^-32 n).
MEGACPP_HD constexpr std::uint64_t below(std::uint64_t n, std::uint32_t bits) {
  return (n * bits) >> 32;
}

} // namespace mc
