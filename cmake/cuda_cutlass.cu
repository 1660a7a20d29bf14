// CUTLASS's kernels of grouped products, for GPUs of compute capability 9.0. nvcc takes long for them, and
// much memory, so that they are a unit of their own.
#include <megacpp/product/cuda/cutlass_grouped.cuh>
