// Units that g++ compiles start their work on a CUDA device by what is declared here. Only nvcc
// sees the definitions: of bodies in exec/cuda/launch.cuh, which nvcc's units instantiate for those
// that there are, of the sort in exec/cuda/sort.cuh, and of sums over ranks in
// kernel/cuda/reduce.hpp.
#pragma once

#include <megacpp/num/dtype.hpp>
#include <megacpp/num/reduction.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

struct CUstream_st; // cudaStream_t is a pointer to it

namespace mc {

/// Starts body(team, row) for every row on a stream. Gives the cudaError_t of a body that cannot be
/// started; what goes wrong in the kernel shows in a later call, as everywhere in CUDA.
template <class Body>
[[nodiscard]] int launch_on_cuda(CUstream_st* on, std::int64_t rows, const Body& body);

/// The bytes of room that sort_on_cuda may use beside n numbers: for a second copy of the numbers,
/// and for the tables of the sort.
constexpr std::int64_t sort_bytes_on_cuda(std::int64_t n) {
  return (n * 8 + 255) / 256 * 256 + n + (1 << 20);
}
/// Sorts n numbers on a stream by the `bits` bits from bit `first` on; numbers that agree in these
/// bits keep their order. Returns the cudaError_t. Where n is above 1, `needed` is set to the bytes
/// of room that the sort needs; where they are more than sort_bytes_on_cuda(n), no sort is started.
[[nodiscard]] int sort_on_cuda(CUstream_st* on, std::uint64_t* numbers, std::int64_t n, int first,
                               int bits, std::byte* room, std::int64_t* needed);

/// Starts lane::reduce of at most most_reduced parts on a stream. Returns the cudaError_t.
[[nodiscard]] int reduce_on_cuda(CUstream_st* on, reduction by, dtype t,
                                 std::span<const void* const> parts, void* out, std::int64_t n);

} // namespace mc
