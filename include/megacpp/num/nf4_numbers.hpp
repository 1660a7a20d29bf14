// The numbers of NF4 (num/nf4.hpp), apart from the library's headers, for bodies that GPUs run.
#pragma once

#include <cstdint>

namespace mc {

/// Elements of a block, and blocks of a nested block.
inline constexpr std::int64_t nf4_block = 64, nf4_nested_block = 256;

/// The values are quantiles of a normal distribution, with an exact zero.
struct nf4_table {
  float of[16];
};
inline constexpr nf4_table nf4_numbers{
    {-1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f,
     -0.28444138169288635f, -0.18477343022823334f, -0.09105003625154495f, 0.0f,
     0.07958029955625534f, 0.16093020141124725f, 0.24611230194568634f, 0.33791524171829224f,
     0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.0f}};

} // namespace mc
