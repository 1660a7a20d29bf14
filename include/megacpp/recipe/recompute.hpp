// The policies for values that the backward pass reads: the forward pass saves them, or they are
// computed again. pass/recompute.hpp says which values each policy computes again.
#pragma once

#include <cstdint>

namespace mc {

enum class recompute : std::uint8_t { none, selective, full };

constexpr const char* name_of(recompute r) {
  return r == recompute::none ? "none" : r == recompute::selective ? "selective" : "full";
}

} // namespace mc
