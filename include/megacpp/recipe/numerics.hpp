// The policies for the bits of sums over a micro-batch's tokens: gradients of weights, gains and
// biases, and the summed loss. Both policies give the same bits for any number of threads.
//
//   policy            a sum over tokens is taken      its bits depend on
//   fast              over all of them at once        the micro-batch
//   batch_invariant   a sequence at a time, in order  the sequences of a step alone
#pragma once

#include <cstdint>

namespace mc {

enum class numerics : std::uint8_t { fast, batch_invariant };

constexpr const char* name_of(numerics n) {
  return n == numerics::fast ? "fast" : "batch_invariant";
}

} // namespace mc
