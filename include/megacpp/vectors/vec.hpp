// Explicit vectors in memory: loads and stores that convert from and to storage types. Numbers are
// rounded to bf16 with the same bits everywhere, except for a NaN, which has other bits on a GPU.
#pragma once

#include <megacpp/vectors/arithmetic.hpp>

#include <cstring>

namespace mc {

namespace detail {

/// Returns the bits of bf16(x) in the lower half of each lane: nearest even, quiet NaN
/// (mc::bf16::round).
template <int N> MEGACPP_HD vec<std::uint32_t, N> bf16_bits(vec<float, N> x) {
  using U = vec<std::uint32_t, N>;
  using I = vec<std::int32_t, N>;
  const U u = as<std::uint32_t>(x), high = shift_right<16>(u);
  const U rounded = shift_right<16>(u + U(0x7fffu) + (high & U(1u)));
  const I quiet = as<std::int32_t>(high | U(0x40u));
  return as<std::uint32_t>(select(x == x, as<std::int32_t>(rounded), quiet));
}

#if !defined(__CUDACC__)
// These convert between N 16-bit and N 32-bit unsigned integers. g++ 12 makes four instructions of
// the one that widens, and of the one of AVX-512 that narrows.
template <class Into, class X> MEGACPP_HD Into widened(X x) {
#if defined(__AVX512F__)
  if constexpr (sizeof(X) == 32) {
    return __builtin_bit_cast(Into,
                              _mm512_maskz_cvtepu16_epi32(0xffff, __builtin_bit_cast(__m256i, x)));
  }
#endif
#if defined(__AVX2__)
  if constexpr (sizeof(X) == 16)
    return __builtin_bit_cast(Into, _mm256_cvtepu16_epi32(__builtin_bit_cast(__m128i, x)));
#endif
  return __builtin_convertvector(x, Into);
}
template <class Into, class X> MEGACPP_HD Into narrowed(X x) {
#if defined(__AVX512F__)
  if constexpr (sizeof(X) == 64) {
    return __builtin_bit_cast(Into,
                              _mm512_maskz_cvtepi32_epi16(0xffff, __builtin_bit_cast(__m512i, x)));
  }
#endif
  return __builtin_convertvector(x, Into);
}
#endif

#if !defined(__CUDACC__)
template <int N> MEGACPP_HD auto bf16_words(vec<float, N> x) {
  using half = typename native_of<std::uint16_t, N>::type;
#if defined(__AVX512BF16__)
  if constexpr (N == 16) {
    // The instruction rounds as mc::bf16 does, except for denormal numbers, which it makes zero.
    // Vectors with a lane without an exponent, a zero included, take the other way.
    const __m512i u = __builtin_bit_cast(__m512i, x.v);
    if (_mm512_testn_epi32_mask(u, _mm512_set1_epi32(0x7f800000)) == 0) [[likely]] {
      return __builtin_bit_cast(half, _mm512_cvtneps_pbh(x.v));
    }
  }
#endif
  return narrowed<half>(bf16_bits(x).v);
}
#endif

#if defined(__CUDACC__)
/// Rounds pairs of numbers to bf16, the first of each in the lower half, by one instruction a pair.
/// The bits are those of mc::bf16, except that every NaN becomes 0x7fff.
template <int N>
__device__ __forceinline__ void bf16_pairs(std::uint32_t (&to)[N / 2], vec<float, N> x) {
  for (int i = 0; i < N / 2; ++i)
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(to[i]) : "f"(x.v[2 * i + 1]), "f"(x.v[2 * i]));
}
#endif

#if defined(__CUDA_ARCH__)
// The widest unsigned type that cuts so many bytes evenly.
template <std::size_t Bytes> using access =
    std::conditional_t<Bytes % 16 == 0, uint4,
                       std::conditional_t<Bytes % 8 == 0, uint2, std::uint32_t>>;
#endif

// copy_in and copy_out move N elements of T between memory and registers, on CUDA up to 16 bytes at
// once where the address allows it, or is known (Aligned) to.
template <bool Aligned, int N, class T> MEGACPP_HD void copy_in(T (&to)[N], const T* from) {
#if defined(__CUDA_ARCH__)
  if constexpr (N * sizeof(T) % 4 == 0) {
    using piece = access<N * sizeof(T)>;
    const auto by_pieces = [&] {
      for (std::size_t i = 0; i < N * sizeof(T) / sizeof(piece); ++i) {
        const piece p = reinterpret_cast<const piece*>(from)[i];
        std::memcpy(reinterpret_cast<char*>(to) + sizeof(piece) * i, &p, sizeof p);
      }
    };
    if constexpr (Aligned) return by_pieces();
    else if (reinterpret_cast<std::uintptr_t>(from) % sizeof(piece) == 0) return by_pieces();
  }
  if constexpr (!Aligned || N * sizeof(T) % 4 != 0)
#endif
    for (int i = 0; i < N; ++i) to[i] = from[i];
}

template <bool Aligned, int N, class T> MEGACPP_HD void copy_out(T* to, const T (&from)[N]) {
#if defined(__CUDA_ARCH__)
  if constexpr (N * sizeof(T) % 4 == 0) {
    using piece = access<N * sizeof(T)>;
    const auto by_pieces = [&] {
      for (std::size_t i = 0; i < N * sizeof(T) / sizeof(piece); ++i) {
        piece p;
        std::memcpy(&p, reinterpret_cast<const char*>(from) + sizeof(piece) * i, sizeof p);
        reinterpret_cast<piece*>(to)[i] = p;
      }
    };
    if constexpr (Aligned) return by_pieces();
    else if (reinterpret_cast<std::uintptr_t>(to) % sizeof(piece) == 0) return by_pieces();
  }
  if constexpr (!Aligned || N * sizeof(T) % 4 != 0)
#endif
    for (int i = 0; i < N; ++i) to[i] = from[i];
}

template <class A, int N, bool Aligned = false, class T> MEGACPP_HD vec<A, N> read(const T* p) {
  constexpr representation f = representation_of<A, N>;
  if constexpr (f == representation::halves) {
    return vec<A, N>(read<A, N / 2>(p), read<A, N / 2>(p + N / 2));
  } else if constexpr (f == representation::array) {
    T raw[N];
    copy_in<Aligned>(raw, p);
    vec<A, N> r;
    for (int i = 0; i < N; ++i) r.v[i] = convert<A>(raw[i]);
    return r;
#if !defined(__CUDACC__)
  } else if constexpr (std::is_same_v<T, A>) {
    typename native_of<A, N>::type raw; // g++ 12 copies into a vec by way of the stack
    std::memcpy(&raw, p, sizeof raw);
    return vec<A, N>(raw);
  } else if constexpr (std::is_same_v<T, bf16> && std::is_same_v<A, float>) {
    using half = typename native_of<std::uint16_t, N>::type;
    half raw;
    std::memcpy(&raw, p, sizeof raw);
    using U = vec<std::uint32_t, N>;
    return as<float>(shift_left<16>(U(widened<typename U::type>(raw))));
  } else if constexpr (std::is_same_v<T, bf16>) {
    return to<A>(read<float, N>(p));
  } else {
    return to<A>(read<T, N>(p));
#endif
  }
}

template <bool Aligned = false, class T, class A, int N> MEGACPP_HD void write(T* p, vec<A, N> x) {
  constexpr representation f = representation_of<A, N>;
  if constexpr (f == representation::halves) {
    write(p, x.low);
    write(p + N / 2, x.high);
  } else if constexpr (f == representation::array) {
    T raw[N];
    for (int i = 0; i < N; ++i) raw[i] = convert<T>(x.v[i]);
    copy_out<Aligned>(p, raw);
#if !defined(__CUDACC__)
  } else if constexpr (std::is_same_v<T, A>) {
    std::memcpy(static_cast<void*>(p), &x.v, sizeof x.v);
  } else if constexpr (std::is_same_v<T, bf16> && std::is_same_v<A, float>) {
    const auto raw = bf16_words(x);
    std::memcpy(static_cast<void*>(p), &raw, sizeof raw);
  } else if constexpr (std::is_same_v<T, bf16>) {
    write(p, to<float>(x));
  } else {
    write(p, to<T>(x));
#endif
  }
}

} // namespace detail

/// Loads p[i.first ...] as A; widening is exact.
template <class A, class T, int N> MEGACPP_HD vec<A, N> load(const T* p, lanes<N> i) {
  return detail::read<A, N>(p + i.first);
}

/// Stores x to p[i.first ...], rounded to nearest even.
template <class T, class A, int N> MEGACPP_HD void store(T* p, lanes<N> i, vec<A, N> x) {
  detail::write(p + i.first, x);
}

/// Copies from[i.first ...] to to[i.first ...], bit for bit.
template <class T, int N> MEGACPP_HD void copy(T* to, const T* from, lanes<N> i) {
  T raw[N];
  detail::copy_in<false>(raw, from + i.first);
  detail::copy_out<false>(to + i.first, raw);
}

// These overloads take addresses that are multiples of 16 bytes, or of the bytes of all lanes where
// these are fewer.
template <class A, class T, int N> MEGACPP_HD vec<A, N> load(const T* p, aligned_lanes<N> i) {
  return detail::read<A, N, true>(p + i.first);
}
template <class T, class A, int N> MEGACPP_HD void store(T* p, aligned_lanes<N> i, vec<A, N> x) {
  detail::write<true>(p + i.first, x);
}
template <class T, int N> MEGACPP_HD void copy(T* to, const T* from, aligned_lanes<N> i) {
  T raw[N];
  detail::copy_in<true>(raw, from + i.first);
  detail::copy_out<true>(to + i.first, raw);
}

/// Loads a vec V from the elements at p, and stores one there.
template <class V, class T> MEGACPP_HD V load(const T* p) {
  return load<typename V::value_type>(p, lanes<V::count>{0});
}
template <class T, class A, int N> MEGACPP_HD void store(T* p, vec<A, N> x) {
  store(p, lanes<N>{0}, x);
}
/// Loads the first n lanes and zeros the others; the elements behind n are not touched. 0 <= n <=
/// V::count.
template <class V, class T> MEGACPP_HD V load_first(const T* p, std::int64_t n) {
  using A = typename V::value_type;
  if (n >= V::count) return load<V>(p);
  A x[V::count] = {};
  for (std::int64_t l = 0; l < n; ++l) x[l] = convert<A>(p[l]);
  return load<V>(x);
}
template <class T, class A, int N> MEGACPP_HD void store_first(T* p, vec<A, N> v, std::int64_t n) {
  if (n >= N) return store(p, v);
  A x[N];
  store(x, v);
  for (std::int64_t l = 0; l < n; ++l) p[l] = convert<T>(x[l]);
}

/// Returns x as a store of T and a load would return it.
template <class T, class A, int N> MEGACPP_HD vec<A, N> round_to(vec<A, N> x) {
  if constexpr (std::is_same_v<T, A>) {
    return x;
#if defined(__CUDA_ARCH__)
  } else if constexpr (std::is_same_v<T, bf16> && std::is_same_v<A, float> && N % 2 == 0) {
    std::uint32_t raw[N / 2];
    detail::bf16_pairs<N>(raw, x);
    for (int i = 0; i < N; ++i)
      x.v[i] = __uint_as_float(i % 2 == 0 ? raw[i / 2] << 16 : raw[i / 2] & 0xffff0000u);
    return x;
#endif
  } else if constexpr (detail::representation_of<A, N> == detail::representation::array) {
    for (int i = 0; i < N; ++i) x.v[i] = convert<A>(convert<T>(x.v[i]));
    return x;
#if !defined(__CUDACC__)
  } else if constexpr (detail::representation_of<A, N> == detail::representation::halves) {
    return vec<A, N>(round_to<T>(x.low), round_to<T>(x.high));
  } else if constexpr (std::is_same_v<T, bf16> && std::is_same_v<A, float>) {
    using U = vec<std::uint32_t, N>;
    return as<float>(shift_left<16>(U(detail::widened<typename U::type>(detail::bf16_words(x)))));
  } else if constexpr (std::is_same_v<T, bf16>) {
    return to<A>(round_to<T>(to<float>(x)));
  } else {
    return to<A>(to<T>(x));
#endif
  }
}

} // namespace mc
