// The reductions that a collective applies to the values of several ranks.
#pragma once

#include <cstdint>

namespace mc {

enum class reduction : std::uint8_t { sum, maximum };

constexpr const char* name_of(reduction r) { return r == reduction::sum ? "sum" : "maximum"; }

/// The most values of one sum or maximum that a device computes at once. A kernel's argument holds
/// their addresses.
inline constexpr int most_reduced = 64;

} // namespace mc
