// launch() on the CUDA device, for nvcc: bodies_*.cu instantiate it for the list of row bodies
// (kernel/rows/bodies.inc).
#pragma once

#include "device.hpp"

#include <megacpp/exec/cuda/launch.cuh>
#include <megacpp/kernel/rows/bodies.hpp>

namespace gpu {

template <class Body> void launch(std::int64_t rows, const Body& body) {
  require_launch(mc::launch_blocks<threads_of<Body>>(nullptr, rows, body));
}

} // namespace gpu
