// The program of tests/cli, for CUDA.
#pragma once

#include "../cli/tiny_gpt.hpp"

#include <megacpp/exec/cuda/device.hpp>

struct tiny_gpt_on_cuda : tiny_gpt {
  using device = mc::cuda;
};
