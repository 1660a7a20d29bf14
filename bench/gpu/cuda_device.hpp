// The CUDA device of the program: its facts, its memory, its clock.
#pragma once

#include "device.hpp"
#include "report.hpp"

namespace gpu {

/// Opens the first device. Throws mc::error(exit_code::machine) if there is no driver, no device,
/// or a device of another architecture than the kernels are compiled for.
void open_device();

/// Returns the name, architecture, memory and clocks of the device, and the versions of the driver
/// and CUDA's runtime.
figures device_facts();

/// Throws mc::error if the device does no more work, as after a kernel that left its memory.
void require_device();

} // namespace gpu
