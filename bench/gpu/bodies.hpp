// launch() on the CUDA device, for nvcc: bodies_*.cu instantiate it for the list of row bodies
// (kernel/rows/bodies.inc).
#pragma once

#include "device.hpp"

#include <megacpp/exec/cuda/launch.cuh>
#include <megacpp/kernel/rows/adamw.hpp>
#include <megacpp/kernel/rows/attention.hpp>
#include <megacpp/kernel/rows/clip_factor.hpp>
#include <megacpp/kernel/rows/dropout.hpp>
#include <megacpp/kernel/rows/elementwise.hpp>
#include <megacpp/kernel/rows/experts.hpp>
#include <megacpp/kernel/rows/redistribute.hpp>
#include <megacpp/kernel/rows/rope.hpp>
#include <megacpp/kernel/rows/router.hpp>
#include <megacpp/kernel/rows/select.hpp>
#include <megacpp/kernel/rows/swiglu.hpp>
#include <megacpp/num/extent.hpp>

namespace gpu {

template <class Body> void launch(std::int64_t rows, const Body& body) {
  require_launch(mc::launch_blocks<threads_of<Body>>(nullptr, rows, body));
}

} // namespace gpu
