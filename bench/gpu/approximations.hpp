// How far exp, and what is made of it, may lie on a GPU from the same on a CPU (vectors/math.hpp), in units
// in the last place of fp32: tests/unit/gpu_math.cpp shows that no approximation which the PTX ISA allows
// lies further.
#pragma once

namespace gpu {

inline constexpr double ulps_of_exp = 5;
/// An activation of a number between -most_activated and most_activated may be off by so many ulps of its
/// value. A slope may be off by so many ulps of its value or, where it is smaller than 1, of 1.
inline constexpr float most_activated = 9;
inline constexpr double ulps_of_activation = 12, ulps_of_slope = 4;

} // namespace gpu
