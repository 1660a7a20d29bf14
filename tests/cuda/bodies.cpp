// What a CUDA program has from nvcc: its bodies, as emulated blocks, and the sort.
#include <cuda/emulated_launch.hpp>

#include <megacpp/kernel/rows/adamw.hpp>
#include <megacpp/kernel/rows/attention.hpp>
#include <megacpp/kernel/rows/clip_factor.hpp>
#include <megacpp/kernel/rows/columns.hpp>
#include <megacpp/kernel/rows/cross_entropy.hpp>
#include <megacpp/kernel/rows/dropout.hpp>
#include <megacpp/kernel/rows/elementwise.hpp>
#include <megacpp/kernel/rows/embedding.hpp>
#include <megacpp/kernel/rows/experts.hpp>
#include <megacpp/kernel/rows/layer_norm.hpp>
#include <megacpp/kernel/rows/redistribute.hpp>
#include <megacpp/kernel/rows/rms_norm.hpp>
#include <megacpp/kernel/rows/rope.hpp>
#include <megacpp/kernel/rows/router.hpp>
#include <megacpp/kernel/rows/select.hpp>
#include <megacpp/kernel/rows/sum_squares.hpp>
#include <megacpp/kernel/rows/swiglu.hpp>

#include <algorithm>
#include <cstring>

/// Sorts by the bits that it is told alone, in the room beside the numbers, which CUB uses, too.
int mc::sort_on_cuda(cudaStream_t on, std::uint64_t* numbers, std::int64_t n, int first, int bits,
                     std::byte* room, std::int64_t* needed) {
  *needed = sort_bytes_on_cuda(n);
  if (const cudaError_t e = stand_in::entered("sort_on_cuda"); e != cudaSuccess) {
    *needed += 1; // it is told
    return cudaSuccess;
  }
  stand_in::start(on, "a sort", [=] {
    auto* const sorted = reinterpret_cast<std::uint64_t*>(room);
    const auto key = [=](std::uint64_t x) { return x >> first << (64 - bits); };
    std::copy(numbers, numbers + n, sorted);
    std::stable_sort(sorted, sorted + n,
                     [&](std::uint64_t a, std::uint64_t b) { return key(a) < key(b); });
    std::copy(sorted, sorted + n, numbers);
    std::memset(room, 0xa5, static_cast<std::size_t>(sort_bytes_on_cuda(n)));
  });
  return cudaSuccess;
}

#define MEGACPP_BODY(...) \
  template int mc::launch_on_cuda(cudaStream_t, std::int64_t, const __VA_ARGS__&);
#include <every_body.inc>
