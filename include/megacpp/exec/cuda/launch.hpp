// How units that g++ compiles start bodies on a CUDA device: this is declared for them, and defined
// for nvcc alone (exec/cuda/launch.cuh), whose units instantiate it for the bodies that there are.
#pragma once

#include <cstdint>

struct CUstream_st; // cudaStream_t is a pointer to it

namespace mc {

/// Starts body(team, row) for every row on a stream. Gives the cudaError_t of a body that cannot be
/// started; what goes wrong in the kernel shows in a later call, as everywhere in CUDA.
template <class Body>
[[nodiscard]] int launch_on_cuda(CUstream_st* on, std::int64_t rows, const Body& body);

} // namespace mc
