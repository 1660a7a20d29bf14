// The distance, in units in the last place of fp32, that exp and functions made of it may have on a
// GPU from the same on a CPU (vectors/math.hpp). tests/unit/gpu_math.cpp shows that no
// approximation which the PTX ISA allows lies further away.
#pragma once

namespace gpu {

inline constexpr double ulps_of_exp = 5;
/// Ulps of its value by which an activation of a number between -most_activated and most_activated
/// may be off. A slope may be off by so many ulps of its value or, if it is smaller than 1, of 1.
inline constexpr float most_activated = 9;
inline constexpr double ulps_of_activation = 12, ulps_of_slope = 4;

} // namespace gpu
