// What row bodies are checked on: the CUDA device (cuda_device.cpp, src/cuda_bodies.cu), or blocks
// that are emulated on the CPU (tests/gpu/emulated_gpu.cpp). A program links one of them.
#pragma once

#include <megacpp/exec/cuda/launch.hpp>
#include <megacpp/exec/device.hpp>

#include <cstdint>
#include <functional>

namespace gpu {

mc::memory_space& memory();

/// Throws mc::error unless a launch gave 0, cudaSuccess.
void require_launch(int status);

/// Starts the body for every row, as programs do it.
template <class Body> void launch(std::int64_t rows, const Body& body) {
  require_launch(mc::launch_on_cuda(nullptr, rows, body));
}

/// Whether exp, and what is made of it, is the device's own approximation; else it has a CPU's bits.
bool approximates();

/// Waits for what was started. Throws mc::error if something of it went wrong.
void finish();

/// Bytes of the cache that all memory traffic passes.
std::int64_t cache_bytes();

/// Milliseconds of one call: the median of some, after one that does not count. call(i) starts work
/// on copy i of its data; copies take turns.
double milliseconds(const std::function<void(int)>& call, int copies);

/// Copies of so many bytes of data that together are more than the cache holds, four times over.
inline int copies_beyond_cache(std::int64_t bytes) {
  return static_cast<int>((4 * cache_bytes() + bytes - 1) / bytes);
}

} // namespace gpu
