// The kernels of the program that are no row bodies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace gpu {

/// Returns whether the device has code in this program.
bool kernels_run_here();
/// Returns the architecture that the kernels are compiled for, such as 9.0a.
std::string kernel_architecture();

/// Starts a copy of `bytes`, a multiple of 16, by 16 bytes a thread.
void start_copy(std::byte* to, const std::byte* from, std::int64_t bytes);

} // namespace gpu
