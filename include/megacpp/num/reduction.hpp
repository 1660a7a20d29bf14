// A reduction says what a collective makes of what several ranks hand in.
#pragma once

#include <cstdint>

namespace mc {

enum class reduction : std::uint8_t { sum, maximum };

constexpr const char* name_of(reduction r) { return r == reduction::sum ? "sum" : "maximum"; }

/// The parts of one sum or maximum at most, where a device takes it: what a kernel is given holds
/// their addresses.
inline constexpr int most_reduced = 64;

} // namespace mc
