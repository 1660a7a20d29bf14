// What a CUDA program has from nvcc: its bodies, as emulated blocks, sums over ranks, the sort, and for
// which devices they are compiled.
#include <cuda/emulated_launch.hpp>

#include <megacpp/kernel/cuda/reduce.hpp>
#include <megacpp/kernel/rows/bodies.hpp>

#include <cstring>
#include <span>

#include <sort_by_bits.hpp>

/// The sort leaves nothing of what is in its room.
int mc::sort_on_cuda(cudaStream_t on, std::uint64_t* numbers, std::int64_t n, int first, int bits,
                     std::byte* room, std::int64_t* needed) {
  *needed = sort_bytes_on_cuda(n);
  if (const cudaError_t e = stand_in::entered("sort_on_cuda"); e != cudaSuccess) {
    *needed += 1; // more than there is
    return cudaSuccess;
  }
  stand_in::start(on, "a sort", [=] {
    test::sort_by_bits(numbers, n, first, bits, room);
    std::memset(room, 0xa5, static_cast<std::size_t>(sort_bytes_on_cuda(n)));
  });
  return cudaSuccess;
}

/// They are compiled for compute capability 9.0.
int mc::find_bodies_on_cuda() {
  return stand_in::has().capability[0] == 9 ? cudaSuccess : cudaErrorNoKernelImageForDevice;
}
std::span<const int> mc::architectures_of_bodies() {
  static constexpr int all[] = {900};
  return all;
}

#define MEGACPP_BODY(...) \
  template int mc::launch_on_cuda(cudaStream_t, std::int64_t, const __VA_ARGS__&);
#include <every_body.inc>
