// The row bodies of programs for CUDA, which are the same for all runs: those of elements, or of sums,
// of a type, or those of none; with these the sort. For nvcc, which reads no graph.
#include <megacpp/exec/cuda/launch.cuh>
#if !defined(MEGACPP_ELEMENT) && !defined(MEGACPP_SUM)
#include <megacpp/exec/cuda/sort.cuh>
#endif
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
#include <megacpp/num/extent.hpp>

#define MEGACPP_BODY(...) \
  template int mc::launch_on_cuda(CUstream_st*, std::int64_t, const __VA_ARGS__&);
#define MEGACPP_SMALL_BODY(...) MEGACPP_BODY(__VA_ARGS__)
#define MEGACPP_SHAPED_BODY(...) MEGACPP_BODY(__VA_ARGS__)
#include <megacpp/kernel/rows/bodies.inc>
