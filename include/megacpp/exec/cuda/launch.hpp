// The functions by which units that g++ compiles start work on a CUDA device. Only nvcc compiles
// their definitions: of bodies in exec/cuda/launch.cuh, which units of nvcc instantiate for all
// bodies, of the sort in exec/cuda/sort.cuh, of sums over ranks in kernel/cuda/reduce.hpp, and of
// the list of architectures in exec/cuda/architectures.cuh.
#pragma once

#include <megacpp/num/dtype.hpp>
#include <megacpp/num/reduction.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

struct CUstream_st; // cudaStream_t is a pointer to this type

namespace mc {

/// The number of threads of a team where the body does not say how long its rows are.
inline constexpr int usual_lanes = 128;
/// The number of threads of a team for a row, and how many vectors of 16 bytes of the row each
/// thread can keep in registers (team.keep); 0: none.
struct row_team {
  int lanes, kept;
};
/// Returns the team for an aligned row of so many bytes: a warp for a row that its threads visit in
/// a few steps, since it waits for no other warp; as many threads as a block can have for the
/// longest rows. A body that keeps rows gets as many threads as can keep the row, half a warp for
/// the shortest. For a row that is too long to be kept, it gets 128 threads, which load the row at
/// each visit.
constexpr row_team team_of_row(std::int64_t bytes, int keeps = 0) {
  const std::int64_t vectors = bytes / 16;
  if (keeps == 0) return {vectors <= 256 ? 32 : vectors <= 4096 ? usual_lanes : 1024, 0};
  if (vectors <= 16) return {16, 1};
  for (const int lanes : {32, usual_lanes})
    if (vectors <= lanes * keeps) return {lanes, keeps};
  return {usual_lanes, 0};
}
/// sums_doubles: the sums of a body are doubles, which only tests use.
template <class Body> constexpr bool sums_doubles() {
  if constexpr (requires { typename Body::G; }) return std::is_same_v<typename Body::G, double>;
  else return false;
}
template <class Body> inline constexpr bool chooses_lanes = requires(const Body& body) {
  body.row_bytes();
  body.aligned();
  requires(!sums_doubles<Body>());
};
/// The number of vectors of a row that a body asks each thread to keep (exec/launch.hpp).
template <class Body> constexpr int vectors_to_keep() {
  if constexpr (requires { Body::keeps; }) return Body::keeps;
  else return 0;
}
/// Returns the team for a body (exec/launch.hpp): the usual one, unless its rows are aligned.
template <class Body> row_team team_for(const Body& body) {
  if constexpr (chooses_lanes<Body>)
    if (body.aligned()) return team_of_row(body.row_bytes(), vectors_to_keep<Body>());
  return {usual_lanes, 0};
}

/// Starts body(team, row) for every row on a stream. Returns the cudaError_t of a body that cannot
/// be started; an error within the kernel shows in a later call, as always in CUDA.
template <class Body>
[[nodiscard]] int launch_on_cuda(CUstream_st* on, std::int64_t rows, const Body& body);

/// Asks CUDA if the current device can run the bodies of a program. Returns the cudaError_t:
/// cudaErrorNoKernelImageForDevice where nvcc has compiled them only for other devices.
[[nodiscard]] int find_bodies_on_cuda();
/// Returns the architectures for which nvcc has compiled the bodies: 900 is compute capability 9.0.
[[nodiscard]] std::span<const int> architectures_of_bodies();

/// Returns the bytes of room that sort_on_cuda may use beside n numbers: for a second copy of the
/// numbers, and for the tables of the sort.
constexpr std::int64_t sort_bytes_on_cuda(std::int64_t n) {
  return (n * 8 + 255) / 256 * 256 + n + (1 << 20);
}
/// Sorts n numbers on a stream by the `bits` bits from bit `first` on; numbers that agree in these
/// bits keep their order. Returns the cudaError_t. Where n is above 1, `needed` is set to the bytes
/// of room that the sort needs; where they are more than sort_bytes_on_cuda(n), no sort is started.
[[nodiscard]] int sort_on_cuda(CUstream_st* on, std::uint64_t* numbers, std::int64_t n, int first,
                               int bits, std::byte* room, std::int64_t* needed);

/// Starts lane::reduce of at most most_reduced arrays on a stream. Returns the cudaError_t.
[[nodiscard]] int reduce_on_cuda(CUstream_st* on, reduction by, dtype t,
                                 std::span<const void* const> arrays, void* out, std::int64_t n);

} // namespace mc
