// The macros of megacpp that stay defined are these: the version, the spelling of host/device
// attributes and of loops whose variables stay in registers, whether messages print texts, whether
// memory is checked for errors, whether a program is built for debugging, and settings that
// libraries read when they are included.
#pragma once

#define MEGACPP_VERSION_MAJOR 0
#define MEGACPP_VERSION_MINOR 1
#define MEGACPP_VERSION_PATCH 0

#if defined(__CUDACC__)
#define MEGACPP_HD __host__ __device__ __forceinline__
#else
#define MEGACPP_HD inline __attribute__((always_inline))
#endif
#if defined(__CUDA_ARCH__) // nvcc's pass for the GPU; g++, which nvcc calls, too, warns of it
#define MEGACPP_UNROLL _Pragma("unroll")
#else
#define MEGACPP_UNROLL
#endif

// MEGACPP_PRINTS_TEXT says whether the compiler prints a template argument that holds characters as
// text. clang 14 and 16 print one of this length as numbers and cut it short, nvcc 13 prints
// characters.
#if defined(__CUDACC__) || defined(__clang__)
#define MEGACPP_PRINTS_TEXT 0
#else
#define MEGACPP_PRINTS_TEXT 1
#endif

// MEGACPP_CHECKS_MEMORY says whether the program is instrumented by AddressSanitizer, and slow for
// that reason.
#define MEGACPP_CHECKS_MEMORY 0
#if defined(__SANITIZE_ADDRESS__)
#undef MEGACPP_CHECKS_MEMORY
#define MEGACPP_CHECKS_MEMORY 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#undef MEGACPP_CHECKS_MEMORY
#define MEGACPP_CHECKS_MEMORY 1
#endif
#endif

// MEGACPP_DEBUGGED says whether assertions hold, as in debug builds.
#if defined(NDEBUG)
#define MEGACPP_DEBUGGED false
#else
#define MEGACPP_DEBUGGED true
#endif

// Texts are UTF-8, so the PCRE2 of bytes is used.
#if !defined(PCRE2_CODE_UNIT_WIDTH)
#define PCRE2_CODE_UNIT_WIDTH 8
#endif
