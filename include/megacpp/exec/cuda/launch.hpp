// Units that g++ compiles start their work on a CUDA device by what is declared here. Only nvcc
// sees the definitions: of bodies in exec/cuda/launch.cuh, which nvcc's units instantiate for those
// that there are, of the sort in exec/cuda/sort.cuh, of sums over ranks in kernel/cuda/reduce.hpp,
// and of what bodies are compiled for in exec/cuda/architectures.cuh.
#pragma once

#include <megacpp/num/dtype.hpp>
#include <megacpp/num/reduction.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

struct CUstream_st; // cudaStream_t is a pointer to it

namespace mc {

/// The threads of a team that says nothing of its rows.
inline constexpr int usual_lanes = 128;
/// The threads of a team for a row, and how many of its groups of 16 bytes each can keep in
/// registers (team.keep); 0: none.
struct row_team {
  int lanes, kept;
};
/// The team for an aligned row of so many bytes: a warp for one that its threads visit in a few
/// steps, which then waits for no other warp; as many as a block can have for the longest. A body
/// that keeps rows gets as many threads as can keep the row, half a warp for the shortest; a row
/// that they cannot keep 128 threads visit as often as the body does.
constexpr row_team team_of_row(std::int64_t bytes, int keeps = 0) {
  const std::int64_t groups = bytes / 16;
  if (keeps == 0) return {groups <= 256 ? 32 : groups <= 4096 ? usual_lanes : 1024, 0};
  if (groups <= 16) return {16, 1};
  for (const int lanes : {32, usual_lanes})
    if (groups <= lanes * keeps) return {lanes, keeps};
  return {usual_lanes, 0};
}
/// Whether sums of a body are doubles, which are for tests.
template <class Body> constexpr bool sums_doubles() {
  if constexpr (requires { typename Body::G; }) return std::is_same_v<typename Body::G, double>;
  else return false;
}
template <class Body> inline constexpr bool chooses_lanes = requires(const Body& body) {
  body.row_bytes();
  body.aligned();
  requires(!sums_doubles<Body>());
};
/// The groups of a row that a body would have a thread keep (exec/launch.hpp).
template <class Body> constexpr int groups_to_keep() {
  if constexpr (requires { Body::keeps; }) return Body::keeps;
  else return 0;
}
/// The team for a body (exec/launch.hpp): the usual one, unless its rows are aligned.
template <class Body> row_team team_for(const Body& body) {
  if constexpr (chooses_lanes<Body>)
    if (body.aligned()) return team_of_row(body.row_bytes(), groups_to_keep<Body>());
  return {usual_lanes, 0};
}

/// Starts body(team, row) for every row on a stream. Gives the cudaError_t of a body that cannot be
/// started; what goes wrong in the kernel shows in a later call, as everywhere in CUDA.
template <class Body>
[[nodiscard]] int launch_on_cuda(CUstream_st* on, std::int64_t rows, const Body& body);

/// Asks whether the current device can run the bodies of a program. Returns the cudaError_t:
/// cudaErrorNoKernelImageForDevice where nvcc has compiled them for other devices alone.
[[nodiscard]] int find_bodies_on_cuda();
/// The architectures for which nvcc has compiled the bodies: 900 is compute capability 9.0.
[[nodiscard]] std::span<const int> architectures_of_bodies();

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
