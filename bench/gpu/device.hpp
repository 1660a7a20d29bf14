// The device on which row bodies are checked: the CUDA device (cuda_device.cpp,
// src/cuda_bodies.cu), or blocks that are emulated on the CPU (tests/gpu/emulated_gpu.cpp). A
// program links one of them.
#pragma once

#include <megacpp/exec/cuda/launch.hpp>
#include <megacpp/exec/device.hpp>

#include <cstdint>
#include <functional>

namespace gpu {

mc::memory_space& memory();

/// Throws mc::error unless the launch returned 0, cudaSuccess.
void require_launch(int status);

/// Starts the body for every row, as programs do.
template <class Body> void launch(std::int64_t rows, const Body& body) {
  require_launch(mc::launch_on_cuda(nullptr, rows, body));
}

/// Returns whether the device approximates exp and functions made of it; otherwise they have a
/// CPU's bits.
bool approximates();

/// Waits for all work that was started. Throws mc::error if some of it failed.
void finish();

/// Returns the bytes of the cache that all memory traffic passes.
std::int64_t cache_bytes();

/// Returns the milliseconds of one call: the median of some calls, after one that does not count.
/// call(i) starts work on copy i of its data; copies take turns.
double milliseconds(const std::function<void(int)>& call, int copies);

/// Returns the number of copies of so many bytes of data that together are four times the size of
/// the cache.
inline int copies_beyond_cache(std::int64_t bytes) {
  return static_cast<int>((4 * cache_bytes() + bytes - 1) / bytes);
}

} // namespace gpu
