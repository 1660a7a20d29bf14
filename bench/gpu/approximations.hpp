// How far exp, and what is made of it, may lie on a GPU from the same on a CPU (exec/math.hpp), in units
// in the last place of fp32: tests/unit/gpu_math.cpp shows that no approximation which the PTX ISA allows
// lies further.
#pragma once

namespace gpu {

inline constexpr double ulps_of_exp = 5;
/// Of the value of an activation at up to `most_activated` on either side of 0; and of its slope, in those
/// of 1 where that is smaller.
inline constexpr float most_activated = 9;
inline constexpr double ulps_of_activation = 12, ulps_of_slope = 4;

} // namespace gpu
