// The CUDA device of the program: its facts, its memory, its clock.
#pragma once

#include "device.hpp"
#include "report.hpp"

namespace gpu {

/// Takes the first device. Throws mc::error(exit_code::machine) where there is no driver, or no
/// device, or where it is none of the architecture that the kernels are compiled for.
void open_device();

/// Name, architecture, memory and clocks of the device; versions of driver and CUDA's runtime.
figures device_facts();

/// Throws mc::error if the device does nothing more, as after a kernel that left its memory.
void require_device();

} // namespace gpu
