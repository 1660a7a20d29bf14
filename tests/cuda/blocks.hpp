// How tests run bodies on the stand-in: by blocks of so many threads, in an order that seeds draw.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace test {

/// The threads of every block, the seed of their turns, and that of the order of streams;
/// MEGACPP_TEST_BLOCKS="THREADS SEED" sets others.
struct block_settings {
  int threads = 32;
  std::uint64_t seed = 1, streams = 1;
};
inline block_settings& blocks() {
  static block_settings all = [] {
    block_settings s;
    if (const char* const given = std::getenv("MEGACPP_TEST_BLOCKS"); given != nullptr) {
      unsigned long long seed = 0;
      if (std::sscanf(given, "%d %llu", &s.threads, &seed) != 2) std::abort();
      s.seed = s.streams = seed;
    }
    return s;
  }();
  return all;
}

} // namespace test
