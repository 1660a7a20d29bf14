// The only macros of megacpp: version, and the spelling of host/device attributes.
#pragma once

#define MEGACPP_VERSION_MAJOR 0
#define MEGACPP_VERSION_MINOR 1
#define MEGACPP_VERSION_PATCH 0

#if defined(__CUDACC__)
#define MEGACPP_HD __host__ __device__ __forceinline__
#else
#define MEGACPP_HD inline __attribute__((always_inline))
#endif
