// What row bodies are checked on: the CUDA device (cuda_device.cpp, bodies_*.cu), or blocks that are
// emulated on the CPU (tests/gpu/emulated_gpu.cpp). A program links one of them.
#pragma once

#include <megacpp/exec/device.hpp>
#include <megacpp/kernel/rows/columns.hpp>
#include <megacpp/kernel/rows/cross_entropy.hpp>
#include <megacpp/kernel/rows/embedding.hpp>
#include <megacpp/kernel/rows/layer_norm.hpp>
#include <megacpp/kernel/rows/sum_squares.hpp>

#include <cstdint>
#include <functional>

namespace gpu {

/// Threads of the block that works on a row.
template <class Body> inline constexpr int threads_of = 128;
template <class G> inline constexpr int threads_of<mc::rows::logits_row<G>> = 1024;
template <class T> inline constexpr int threads_of<mc::rows::logits_grad_row<T>> = 1024;
template <class T> inline constexpr int threads_of<mc::rows::loss_row<T>> = 1024;
template <class T> inline constexpr int threads_of<mc::rows::sum_squares_block<T>> = 512;
// Slabs are narrow, so that there are more of them than one.
template <class T> inline constexpr int threads_of<mc::rows::bias_gradient_slab<T>> = 32;
template <class T> inline constexpr int threads_of<mc::rows::rms_norm_gain_slab<T>> = 32;
template <class T> inline constexpr int threads_of<mc::rows::layer_norm_gain_slab<T>> = 32;
template <class T> inline constexpr int threads_of<mc::rows::embedding_gradient_slab<T>> = 32;

mc::memory_space& memory();

/// Starts the body for every row. Defined for the list of row bodies.
template <class Body> void launch(std::int64_t rows, const Body& body);

/// Throws mc::error unless a launch gave 0, cudaSuccess.
void require_launch(int status);

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
