// A vector of N numbers in registers, and the application of a scalar function to all of its lanes.
//
// A vec has one of three representations: a compiler vector where the machine has registers of that
// size, two halves where it has not, an array for N = 1 and everywhere under CUDA.
#pragma once

#include <megacpp/num/dtype.hpp>

#include <cmath>
#include <type_traits>
#if !defined(__CUDACC__) && defined(__x86_64__)
#include <immintrin.h>
#endif

namespace mc {

/// The number of lanes of a vector of A in bodies on a CPU: 64 bytes.
template <class A> inline constexpr int lane_count = 64 / static_cast<int>(sizeof(A));

/// The indices of N lanes: first, first + 1, ..., first + N - 1.
template <int N> struct lanes {
  static constexpr int count = N;
  std::int64_t first;
};
/// Indices of elements that begin at a multiple of their own size, or of 16 bytes where they are
/// larger, in every array that a body loads from or stores to by them.
template <int N> struct aligned_lanes : lanes<N> {};
/// Returns the indices of as many lanes, moved by `first`.
template <class Lanes> MEGACPP_HD Lanes behind(std::int64_t first, Lanes i) {
  i.first += first;
  return i;
}

namespace detail {

#if defined(__CUDACC__)
inline constexpr int register_bytes = 0;
#elif defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__)
inline constexpr int register_bytes = 64;
#elif defined(__AVX2__)
inline constexpr int register_bytes = 32;
#else
inline constexpr int register_bytes = 16;
#endif

/// The number of vector registers.
#if defined(__AVX512F__) || defined(__aarch64__)
inline constexpr int register_count = 32;
#else
inline constexpr int register_count = 16;
#endif

// fused: fma rounds once. Where the machine lacks the instruction, fma is a * b + c for every N:
// the exact fma of libm is a hundred times slower, and no result here needs it.
#if defined(__FMA__) || defined(__CUDA_ARCH__) || defined(__ARM_FEATURE_FMA)
inline constexpr bool fused = true;
#else
inline constexpr bool fused = false;
#endif

enum class representation { array, native, halves };
template <class A, int N> inline constexpr representation representation_of =
    N == 1 || register_bytes == 0                     ? representation::array
    : N* static_cast<int>(sizeof(A)) > register_bytes ? representation::halves
                                                      : representation::native;

#if !defined(__CUDACC__)
// native_of is a struct because g++ 12 takes a dependent vector type for its element type in
// overloads.
template <class A, int N> struct native_of { using type [[gnu::vector_size(N * sizeof(A))]] = A; };
#endif

template <int Bytes> struct int_of;
template <> struct int_of<4> { using type = std::int32_t; };
template <> struct int_of<8> { using type = std::int64_t; };

} // namespace detail

/// The signed integer type of A's size. A comparison of two A returns it, with all bits set where
/// true.
template <class A> using int_like = typename detail::int_of<sizeof(A)>::type;

template <class A, int N, detail::representation = detail::representation_of<A, N>> struct vec;

namespace detail {

// Applies f to every lane of one, two or three vectors. f accepts scalars and compiler vectors.
template <class R, class F, class A, int N> MEGACPP_HD vec<R, N> map(F f, vec<A, N> a) {
  if constexpr (representation_of<A, N> == representation::halves) {
    return vec<R, N>(map<R>(f, a.low), map<R>(f, a.high));
  } else if constexpr (representation_of<A, N> == representation::native) {
    return vec<R, N>(f(a.v));
  } else {
    vec<R, N> r;
    for (int i = 0; i < N; ++i) r.v[i] = f(a.v[i]);
    return r;
  }
}

template <class R, class F, class A, int N>
MEGACPP_HD vec<R, N> map(F f, vec<A, N> a, vec<A, N> b) {
  if constexpr (representation_of<A, N> == representation::halves) {
    return vec<R, N>(map<R>(f, a.low, b.low), map<R>(f, a.high, b.high));
  } else if constexpr (representation_of<A, N> == representation::native) {
    return vec<R, N>(f(a.v, b.v));
  } else {
    vec<R, N> r;
    for (int i = 0; i < N; ++i) r.v[i] = f(a.v[i], b.v[i]);
    return r;
  }
}

template <class R, class F, class B, class A, int N>
MEGACPP_HD vec<R, N> map(F f, vec<B, N> a, vec<A, N> b, vec<A, N> c) {
  if constexpr (representation_of<A, N> == representation::halves) {
    return vec<R, N>(map<R>(f, a.low, b.low, c.low), map<R>(f, a.high, b.high, c.high));
  } else if constexpr (representation_of<A, N> == representation::native) {
    return vec<R, N>(f(a.v, b.v, c.v));
  } else {
    vec<R, N> r;
    for (int i = 0; i < N; ++i) r.v[i] = f(a.v[i], b.v[i], c.v[i]);
    return r;
  }
}

struct plus {
  template <class X> MEGACPP_HD X operator()(X a, X b) const { return a + b; }
};
struct minus {
  template <class X> MEGACPP_HD X operator()(X a, X b) const { return a - b; }
};
struct times {
  template <class X> MEGACPP_HD X operator()(X a, X b) const { return a * b; }
};
struct divided_by {
  template <class X> MEGACPP_HD X operator()(X a, X b) const { return a / b; }
};
struct negated {
  template <class X> MEGACPP_HD X operator()(X a) const { return -a; }
};
struct bit_and {
  template <class X> MEGACPP_HD X operator()(X a, X b) const { return a & b; }
};
struct bit_or {
  template <class X> MEGACPP_HD X operator()(X a, X b) const { return a | b; }
};
struct bit_xor {
  template <class X> MEGACPP_HD X operator()(X a, X b) const { return a ^ b; }
};
template <int K> struct shifted_left {
  template <class X> MEGACPP_HD X operator()(X a) const { return a << K; }
};
template <int K> struct shifted_right {
  template <class X> MEGACPP_HD X operator()(X a) const { return a >> K; }
};
struct is_less {
  template <class X> MEGACPP_HD auto operator()(X a, X b) const {
    if constexpr (std::is_arithmetic_v<X>) return static_cast<int_like<X>>(-(a < b));
    else return a < b;
  }
};
struct is_equal {
  template <class X> MEGACPP_HD auto operator()(X a, X b) const {
    if constexpr (std::is_arithmetic_v<X>) return static_cast<int_like<X>>(-(a == b));
    else return a == b;
  }
};
struct is_different {
  template <class X> MEGACPP_HD auto operator()(X a, X b) const {
    if constexpr (std::is_arithmetic_v<X>) return static_cast<int_like<X>>(-(a != b));
    else return a != b;
  }
};
struct is_at_most {
  template <class X> MEGACPP_HD auto operator()(X a, X b) const {
    if constexpr (std::is_arithmetic_v<X>) return static_cast<int_like<X>>(-(a <= b));
    else return a <= b;
  }
};
struct chosen {
  template <class M, class X> MEGACPP_HD X operator()(M m, X a, X b) const { return m ? a : b; }
};
MEGACPP_HD float fma_of(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
MEGACPP_HD double fma_of(double a, double b, double c) { return __builtin_fma(a, b, c); }
MEGACPP_HD float root_of(float a) { return sqrtf(a); }
MEGACPP_HD double root_of(double a) { return sqrt(a); }
#if !defined(__CUDACC__) && defined(__x86_64__)
MEGACPP_HD __m128 root_of(__m128 a) { return _mm_sqrt_ps(a); }
MEGACPP_HD __m128d root_of(__m128d a) { return _mm_sqrt_pd(a); }
#if defined(__AVX2__)
MEGACPP_HD __m256 root_of(__m256 a) { return _mm256_sqrt_ps(a); }
MEGACPP_HD __m256d root_of(__m256d a) { return _mm256_sqrt_pd(a); }
#endif
#if defined(__AVX512F__)
// These use the masked instructions with all lanes on: g++ 12 warns of an uninitialised operand in
// the plain ones.
MEGACPP_HD __m512 root_of(__m512 a) { return _mm512_maskz_sqrt_ps(0xffff, a); }
MEGACPP_HD __m512d root_of(__m512d a) { return _mm512_maskz_sqrt_pd(0xff, a); }
#endif
#if defined(__FMA__)
MEGACPP_HD __m128 fma_of(__m128 a, __m128 b, __m128 c) { return _mm_fmadd_ps(a, b, c); }
MEGACPP_HD __m128d fma_of(__m128d a, __m128d b, __m128d c) { return _mm_fmadd_pd(a, b, c); }
MEGACPP_HD __m256 fma_of(__m256 a, __m256 b, __m256 c) { return _mm256_fmadd_ps(a, b, c); }
MEGACPP_HD __m256d fma_of(__m256d a, __m256d b, __m256d c) { return _mm256_fmadd_pd(a, b, c); }
#endif
#if defined(__FMA__) && defined(__AVX512F__)
MEGACPP_HD __m512 fma_of(__m512 a, __m512 b, __m512 c) { return _mm512_fmadd_ps(a, b, c); }
MEGACPP_HD __m512d fma_of(__m512d a, __m512d b, __m512d c) { return _mm512_fmadd_pd(a, b, c); }
#endif
#elif !defined(__CUDACC__)
template <class X> MEGACPP_HD X fma_of(X a, X b, X c) {
  for (unsigned i = 0; i < sizeof(X) / sizeof(a[0]); ++i) a[i] = fma_of(a[i], b[i], c[i]);
  return a;
}
template <class X> MEGACPP_HD X root_of(X a) {
  for (unsigned i = 0; i < sizeof(X) / sizeof(a[0]); ++i) a[i] = root_of(a[i]);
  return a;
}
#endif

template <class X> MEGACPP_HD X greater(X a, X b) { return a > b ? a : b; }
template <class X> MEGACPP_HD X smaller(X a, X b) { return a < b ? a : b; }
#if !defined(__CUDACC__) && defined(__AVX512F__)
// vmaxps computes exactly a > b ? a : b, but g++ 12 makes a comparison and a move of that.
MEGACPP_HD __m512 greater(__m512 a, __m512 b) { return _mm512_maskz_max_ps(0xffff, a, b); }
MEGACPP_HD __m512 smaller(__m512 a, __m512 b) { return _mm512_maskz_min_ps(0xffff, a, b); }
#endif

struct greater_of {
  template <class X> MEGACPP_HD X operator()(X a, X b) const { return greater(a, b); }
};
struct smaller_of {
  template <class X> MEGACPP_HD X operator()(X a, X b) const { return smaller(a, b); }
};
struct multiplied_added {
  template <class X> MEGACPP_HD X operator()(X a, X b, X c) const {
    if constexpr (fused) return fma_of(a, b, c);
    else return a * b + c;
  }
};
// The instruction is spelled out because compilers make a full 64-bit product of the masked one.
struct product_of_low {
  template <class X> MEGACPP_HD X operator()(X a, X b) const {
#if !defined(__CUDACC__) && defined(__x86_64__)
    if constexpr (sizeof(X) == 16) {
      return __builtin_bit_cast(
          X, _mm_mul_epu32(__builtin_bit_cast(__m128i, a), __builtin_bit_cast(__m128i, b)));
    }
#if defined(__AVX2__)
    if constexpr (sizeof(X) == 32) {
      return __builtin_bit_cast(
          X, _mm256_mul_epu32(__builtin_bit_cast(__m256i, a), __builtin_bit_cast(__m256i, b)));
    }
#endif
#if defined(__AVX512F__)
    if constexpr (sizeof(X) == 64) {
      return __builtin_bit_cast(X, _mm512_maskz_mul_epu32(0xff, __builtin_bit_cast(__m512i, a),
                                                          __builtin_bit_cast(__m512i, b)));
    }
#endif
#endif
    return (a & 0xffffffffu) * (b & 0xffffffffu);
  }
};
struct square_root {
  template <class X> MEGACPP_HD X operator()(X a) const { return root_of(a); }
};

} // namespace detail
} // namespace mc
