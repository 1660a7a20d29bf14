// megacpp_gpu --tune over the stand-in. said_machine.hpp: what the machine has.
#include <cuda/said_machine.hpp>

#include "../../bench/gpu/tune.hpp"

#include <cstdio>
#include <optional>

int main(int argc, char** argv) {
  if (!test::begin_said_machine()) return 99;
  try {
    const std::optional<gpu::tuning> asked = gpu::tuning_of(argc, argv);
    return asked ? gpu::tune(*asked, {{"device", "stand-in"}}) : 98;
  } catch (const mc::error& e) {
    std::fprintf(stderr, "megacpp_gpu: %s\n", e.what());
    return static_cast<int>(e.code());
  }
}
