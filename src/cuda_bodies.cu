// The row bodies of programs for CUDA. nvcc, which reads no graph, compiles them, and they are the same
// for all runs. MEGACPP_ELEMENT or MEGACPP_SUM names a type, and the unit has the bodies of such
// elements or sums; without either it has the bodies that have no type, the sort, and what tells for
// which devices all of them are compiled.
#include <megacpp/exec/cuda/launch.cuh>
#if !defined(MEGACPP_ELEMENT) && !defined(MEGACPP_SUM)
#include <megacpp/exec/cuda/architectures.cuh>
#include <megacpp/exec/cuda/sort.cuh>
#include <megacpp/kernel/cuda/reduce.hpp>
#endif
#include <megacpp/kernel/rows/bodies.hpp>

#define MEGACPP_BODY(...) \
  template int mc::launch_on_cuda(CUstream_st*, std::int64_t, const __VA_ARGS__&);
#define MEGACPP_SMALL_BODY(...) MEGACPP_BODY(__VA_ARGS__)
#define MEGACPP_SHAPED_BODY(...) MEGACPP_BODY(__VA_ARGS__)
#include <megacpp/kernel/rows/bodies.inc>
