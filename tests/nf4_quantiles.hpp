// What the codes of NF4 stand for, as a table from elsewhere that the library's own is compared with.
#pragma once

namespace test {

/// The quantiles of a normal distribution, -1, 0 and 1 among them, as bitsandbytes prints them
/// (create_normal_map).
inline constexpr double nf4_quantiles[16]{-1.0,
                                          -0.6961928009986877,
                                          -0.5250730514526367,
                                          -0.39491748809814453,
                                          -0.28444138169288635,
                                          -0.18477343022823334,
                                          -0.09105003625154495,
                                          0.0,
                                          0.07958029955625534,
                                          0.16093020141124725,
                                          0.24611230194568634,
                                          0.33791524171829224,
                                          0.44070982933044434,
                                          0.5626170039176941,
                                          0.7229568362236023,
                                          1.0};

} // namespace test
