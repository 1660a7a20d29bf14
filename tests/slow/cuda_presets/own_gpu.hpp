#pragma once

// [run]
#include "own_run.hpp"

#include <megacpp/exec/cuda/device.hpp>

struct own_gpu : own_run {
  using device = mc::cuda;
};
// [/run]
