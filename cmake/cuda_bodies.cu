// The row bodies of programs for CUDA, which are the same for all runs: those of elements, or of sums,
// of a type, or those of none; with these the sort. For nvcc, which reads no graph.
#include <megacpp/exec/cuda/launch.cuh>
#if !defined(MEGACPP_ELEMENT) && !defined(MEGACPP_SUM)
#include <megacpp/exec/cuda/sort.cuh>
#endif
#include <megacpp/kernel/rows/bodies.hpp>

#define MEGACPP_BODY(...) \
  template int mc::launch_on_cuda(CUstream_st*, std::int64_t, const __VA_ARGS__&);
#define MEGACPP_SMALL_BODY(...) MEGACPP_BODY(__VA_ARGS__)
#define MEGACPP_SHAPED_BODY(...) MEGACPP_BODY(__VA_ARGS__)
#include <megacpp/kernel/rows/bodies.inc>
