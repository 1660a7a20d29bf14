// Units that g++ compiles start their work on a CUDA device by what is declared here. Only nvcc
// sees the definitions: of bodies in exec/cuda/launch.cuh, which nvcc's units instantiate for those
// that there are, and of the sort in exec/cuda/sort.cuh.
#pragma once

#include <cstddef>
#include <cstdint>

struct CUstream_st; // cudaStream_t is a pointer to it

namespace mc {

/// Starts body(team, row) for every row on a stream. Gives the cudaError_t of a body that cannot be
/// started; what goes wrong in the kernel shows in a later call, as everywhere in CUDA.
template <class Body>
[[nodiscard]] int launch_on_cuda(CUstream_st* on, std::int64_t rows, const Body& body);

/// Room beside n numbers in which sort_on_cuda works: as many numbers, and tables of the sort.
constexpr std::int64_t sort_bytes_on_cuda(std::int64_t n) {
  return (n * 8 + 255) / 256 * 256 + n + (1 << 20);
}
/// Puts n numbers in order on a stream, by `bits` bits from bit `first` on; those that agree in
/// them stay as they are. Gives the cudaError_t, and how much room is needed; where that is more
/// than there is, nothing is started.
[[nodiscard]] int sort_on_cuda(CUstream_st* on, std::uint64_t* numbers, std::int64_t n, int first,
                               int bits, std::byte* room, std::int64_t* needed);

} // namespace mc
