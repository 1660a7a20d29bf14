// Row bodies on a CUDA device: threads of a block are the team of a row. Only nvcc compiles this
// header; its units instantiate launch_on_cuda for all bodies (kernel/rows/bodies.inc).
#pragma once

#include <megacpp/exec/cuda/cuda_team.cuh>
#include <megacpp/exec/cuda/launch.hpp>

#include <cuda_runtime.h>

namespace mc {

/// The least number of blocks for which a multiprocessor must have room at once: those of 384
/// threads, which leaves 168 registers for each thread, or of as many as the body says. Without
/// such a bound ptxas 13.0 spills rather than use 48 for a thread.
template <int Threads, class Body> constexpr int least_blocks() {
  int threads = 384;
  if constexpr (requires { Body::threads_at_once; }) threads = Body::threads_at_once;
  return Threads < threads ? threads / Threads : 1;
}

/// The kernel of a body. Each of the `Teams` teams of a block takes one row after another. The
/// grid has as many blocks as the rows need, up to the most that a grid can have.
template <int Lanes, int Teams, bool Aligned, int Kept, class Body>
__global__ void __launch_bounds__(Lanes* Teams, (least_blocks<Lanes * Teams, Body>()))
    rows_kernel(std::int64_t rows, const __grid_constant__ Body body) {
  const std::int64_t team = Teams == 1 ? 0 : threadIdx.x / Lanes;
  for (std::int64_t row = std::int64_t{blockIdx.x} * Teams + team; row < rows;
       row += std::int64_t{gridDim.x} * Teams)
    body(cuda_team<Lanes, Teams, Aligned, Kept>{}, row);
}

/// Starts body(team, row) for every row on a stream, with teams of so many threads. A team goes
/// from row to row without a barrier: a body must not write what it reads for another row.
template <int Lanes, int Teams, bool Aligned, int Kept, class Body>
int launch_teams(CUstream_st* on, std::int64_t rows, const Body& body) {
  constexpr std::int64_t most = 2147483647; // the most blocks of a grid
  const std::int64_t needed = (rows + Teams - 1) / Teams;
  const auto blocks = static_cast<unsigned>(needed < most ? needed : most);
  rows_kernel<Lanes, Teams, Aligned, Kept><<<blocks, Lanes * Teams, 0, on>>>(rows, body);
  return cudaGetLastError();
}

template <class Body> int launch_on_cuda(CUstream_st* on, std::int64_t rows, const Body& body) {
  if (rows <= 0) return cudaSuccess;
  constexpr int keeps = vectors_to_keep<Body>();
  if constexpr (chooses_lanes<Body> && keeps > 0) {
    const auto [lanes, kept] = team_for(body);
    if (lanes == 16) return launch_teams<16, 8, true, 1>(on, rows, body);
    if (lanes == 32) return launch_teams<32, 4, true, keeps>(on, rows, body);
    if (kept > 0) return launch_teams<usual_lanes, 1, true, keeps>(on, rows, body);
  } else if constexpr (chooses_lanes<Body>) {
    switch (team_for(body).lanes) {
    case 32: return launch_teams<32, 4, true, 0>(on, rows, body);
    case 1024: return launch_teams<1024, 1, true, 0>(on, rows, body);
    default: break;
    }
  }
  if constexpr (requires { body.aligned(); })
    if (body.aligned()) return launch_teams<usual_lanes, 1, true, 0>(on, rows, body);
  return launch_teams<usual_lanes, 1, false, 0>(on, rows, body);
}

} // namespace mc
