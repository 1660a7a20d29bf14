// Explicit vectors: arithmetic on N numbers, and operations that move lanes. The source fixes the
// order of evaluation, so bits do not depend on how an optimiser treats a loop.
#pragma once

#include <megacpp/vectors/lanes.hpp>

#include <cstring>
#include <utility>

namespace mc {
namespace detail {

// The operators are friends rather than templates, so that a scalar operand stands for N equal
// lanes.
template <class V> struct vec_arithmetic {
  friend MEGACPP_HD V operator+(V a, V b) { return map<typename V::value_type>(plus{}, a, b); }
  friend MEGACPP_HD V operator-(V a, V b) { return map<typename V::value_type>(minus{}, a, b); }
  friend MEGACPP_HD V operator*(V a, V b) { return map<typename V::value_type>(times{}, a, b); }
  friend MEGACPP_HD V operator/(V a, V b) {
    return map<typename V::value_type>(divided_by{}, a, b);
  }
  friend MEGACPP_HD V operator&(V a, V b) { return map<typename V::value_type>(bit_and{}, a, b); }
  friend MEGACPP_HD V operator|(V a, V b) { return map<typename V::value_type>(bit_or{}, a, b); }
  friend MEGACPP_HD V operator^(V a, V b) { return map<typename V::value_type>(bit_xor{}, a, b); }
  friend MEGACPP_HD V operator-(V a) { return map<typename V::value_type>(negated{}, a); }
  /// a * b + c, rounded once where the machine has the instruction (detail::fused).
  friend MEGACPP_HD V fma(V a, V b, V c) {
    return map<typename V::value_type>(multiplied_added{}, a, b, c);
  }
  /// The greater of a and b; b where either is NaN.
  friend MEGACPP_HD V max(V a, V b) { return map<typename V::value_type>(greater_of{}, a, b); }
  /// The smaller of a and b; b where either is NaN.
  friend MEGACPP_HD V min(V a, V b) { return map<typename V::value_type>(smaller_of{}, a, b); }
  friend MEGACPP_HD auto operator<(V a, V b) {
    return map<int_like<typename V::value_type>>(is_less{}, a, b);
  }
  friend MEGACPP_HD auto operator>(V a, V b) { return b < a; }
  friend MEGACPP_HD auto operator<=(V a, V b) {
    return map<int_like<typename V::value_type>>(is_at_most{}, a, b);
  }
  friend MEGACPP_HD auto operator>=(V a, V b) { return b <= a; }
  friend MEGACPP_HD auto operator==(V a, V b) {
    return map<int_like<typename V::value_type>>(is_equal{}, a, b);
  }
  friend MEGACPP_HD auto operator!=(V a, V b) {
    return map<int_like<typename V::value_type>>(is_different{}, a, b);
  }
};

} // namespace detail

/// N lanes of float, double, std::int32_t, std::uint32_t or a 64-bit integer. A default-constructed
/// vec is uninitialised; a scalar converts to N equal lanes.
template <class A, int N> struct vec<A, N, detail::representation::array>
    : detail::vec_arithmetic<vec<A, N>> {
  using value_type = A;
  static constexpr int count = N;
  A v[N];
  vec() = default;
  MEGACPP_HD vec(A x) {
    for (int i = 0; i < N; ++i) v[i] = x;
  }
};

#if !defined(__CUDACC__)
template <class A, int N> struct vec<A, N, detail::representation::native>
    : detail::vec_arithmetic<vec<A, N>> {
  using value_type = A;
  static constexpr int count = N;
  using type = typename detail::native_of<A, N>::type;
  type v;
  vec() = default;
  MEGACPP_HD explicit vec(type x) : v(x) {}
  // The constructor takes x - 0 and not 0 + x, which loses the sign of -0.
  MEGACPP_HD vec(A x) : v(x - type{}) {}
};

template <class A, int N> struct vec<A, N, detail::representation::halves>
    : detail::vec_arithmetic<vec<A, N>> {
  using value_type = A;
  static constexpr int count = N;
  vec<A, N / 2> low, high;
  vec() = default;
  MEGACPP_HD explicit vec(vec<A, N / 2> l, vec<A, N / 2> h) : low(l), high(h) {}
  MEGACPP_HD vec(A x) : low(x), high(x) {}
};
#endif

/// The number of lanes of A that a CPU register holds, and a vec of as many.
template <class A>
inline constexpr int register_lanes = detail::register_bytes / static_cast<int>(sizeof(A));
template <class A> using register_of = vec<A, register_lanes<A>>;

/// Returns the lanes first, first + 1, ..., first + N - 1.
template <class A, int N> MEGACPP_HD vec<A, N> counting(A first) {
  if constexpr (detail::representation_of<A, N> == detail::representation::halves) {
    return vec<A, N>(counting<A, N / 2>(first), counting<A, N / 2>(first + A(N / 2)));
  } else {
    vec<A, N> r;
    for (int i = 0; i < N; ++i) r.v[i] = first + static_cast<A>(i);
    return r;
  }
}

/// Returns a where the mask is true, b elsewhere.
template <class A, int N> MEGACPP_HD vec<A, N> select(vec<int_like<A>, N> mask, vec<A, N> a,
                                                      std::type_identity_t<vec<A, N>> b) {
  return detail::map<A>(detail::chosen{}, mask, a, b);
}

template <class A, int N> MEGACPP_HD vec<A, N> sqrt(vec<A, N> a) {
  return detail::map<A>(detail::square_root{}, a);
}

template <int K, class I, int N> MEGACPP_HD vec<I, N> shift_left(vec<I, N> a) {
  return detail::map<I>(detail::shifted_left<K>{}, a);
}
/// Shifts right: arithmetically for signed, logically for unsigned integers.
template <int K, class I, int N> MEGACPP_HD vec<I, N> shift_right(vec<I, N> a) {
  return detail::map<I>(detail::shifted_right<K>{}, a);
}

/// Reinterprets the bits of a vector as lanes of another type of the same size.
template <class R, class A, int N> MEGACPP_HD vec<R, N> as(vec<A, N> a) {
  static_assert(sizeof(R) == sizeof(A));
  return __builtin_bit_cast(vec<R, N>, a);
}

/// Returns the 64-bit products of the lower halves of 64-bit lanes.
template <int N>
MEGACPP_HD vec<std::uint64_t, N> low_product(vec<std::uint64_t, N> a, vec<std::uint64_t, N> b) {
  return detail::map<std::uint64_t>(detail::product_of_low{}, a, b);
}

template <class A, int N> MEGACPP_HD vec<A, N> abs(vec<A, N> a) {
  using I = int_like<A>;
  constexpr I all_but_sign = sizeof(A) == 4 ? I(0x7fffffff) : I(0x7fffffffffffffffLL);
  return as<A>(as<I>(a) & vec<I, N>(all_but_sign));
}

// Halves and lanes ------------------------------------------------------------------------------

namespace detail {

template <int From, class A, int N, int... I>
MEGACPP_HD vec<A, N / 2> half(vec<A, N> a, std::integer_sequence<int, I...>) {
  static_assert(N % 2 == 0);
  vec<A, N / 2> r;
  if constexpr (representation_of<A, N> == representation::halves) {
    r = From == 0 ? a.low : a.high;
#if !defined(__CUDACC__)
  } else if constexpr (N > 2) {
    r.v = __builtin_shufflevector(a.v, a.v, (From + I)...);
#endif
  } else {
    for (int i = 0; i < N / 2; ++i) r.v[i] = a.v[From + i];
  }
  return r;
}

} // namespace detail

template <class A, int N> MEGACPP_HD vec<A, N / 2> lower(vec<A, N> a) {
  return detail::half<0>(a, std::make_integer_sequence<int, N / 2>{});
}
template <class A, int N> MEGACPP_HD vec<A, N / 2> upper(vec<A, N> a) {
  return detail::half<N / 2>(a, std::make_integer_sequence<int, N / 2>{});
}

template <class A, int N> MEGACPP_HD vec<A, 2 * N> join(vec<A, N> l, vec<A, N> h) {
  if constexpr (detail::representation_of<A, 2 * N> == detail::representation::halves) {
    return vec<A, 2 * N>(l, h);
  } else {
    vec<A, 2 * N> r;
    std::memcpy(&r, &l, sizeof l);
    std::memcpy(reinterpret_cast<char*>(&r) + sizeof l, &h, sizeof h);
    return r;
  }
}

/// Calls f(std::integral_constant<int, i>) for i in [0, N), unrolled.
template <int N, class F> MEGACPP_HD void unroll(F&& f) {
  [&]<int... I>(std::integer_sequence<int, I...>) __attribute__((always_inline)) {
    (f(std::integral_constant<int, I>{}), ...);
  }
  (std::make_integer_sequence<int, N>{});
}

#if !defined(__CUDACC__)
namespace detail {
// Exchanges lanes in one stage of the transposition below: the lanes of a whose index has bit S,
// for the lanes of b whose index has not.
template <int S, class A, int N, int... L>
MEGACPP_HD void exchange(vec<A, N>& a, vec<A, N>& b, std::integer_sequence<int, L...>) {
  const auto x = a.v, y = b.v;
  a.v = __builtin_shufflevector(x, y, ((L & S) == 0 ? L : L - S + N)...);
  b.v = __builtin_shufflevector(x, y, ((L & S) == 0 ? L + S : L + N)...);
}
} // namespace detail

/// Transposes a square of N x N elements: v[0..N), each a register, are its rows.
template <class A, int N> MEGACPP_HD void transpose(vec<A, N> (&v)[N]) {
  static_assert(detail::representation_of<A, N> == detail::representation::native &&
                (N & (N - 1)) == 0);
  unroll<5>([&](auto stage) __attribute__((always_inline)) {
    constexpr int s = 1 << stage;
    if constexpr (s < N)
      unroll<N>([&](auto row) __attribute__((always_inline)) {
        constexpr int r = row;
        if constexpr ((r & s) == 0)
          detail::exchange<s>(v[r], v[r + s], std::make_integer_sequence<int, N>{});
      });
  });
}
#endif

namespace detail {

// Returns lanes From ... From + N - 1 of a0, b0, a1, b1, ... of compiler vectors.
template <int From, class A, int N, int... I>
MEGACPP_HD vec<A, N> alternating(vec<A, N> a, vec<A, N> b, std::integer_sequence<int, I...>) {
  vec<A, N> r;
#if !defined(__CUDACC__)
  r.v = __builtin_shufflevector(a.v, b.v, ((From + I) / 2 + (From + I) % 2 * N)...);
#endif
  return r;
}

} // namespace detail

/// Returns the lanes a0, b0, a1, b1, ...
template <class A, int N> MEGACPP_HD vec<A, 2 * N> interleave(vec<A, N> a, vec<A, N> b) {
  if constexpr (detail::representation_of<A, N> == detail::representation::halves) {
    return join(interleave(a.low, b.low), interleave(a.high, b.high));
  } else if constexpr (detail::representation_of<A, N> == detail::representation::native) {
    constexpr auto all = std::make_integer_sequence<int, N>{};
    return join(detail::alternating<0>(a, b, all), detail::alternating<N>(a, b, all));
  } else {
    A both[2 * N];
    for (int i = 0; i < N; ++i) both[2 * i] = a.v[i], both[2 * i + 1] = b.v[i];
    vec<A, 2 * N> r;
    std::memcpy(&r, both, sizeof r);
    return r;
  }
}

/// Applies f to every lane as a scalar, for functions without a vector version.
template <class F, class A, int N> MEGACPP_HD vec<A, N> lane_wise(F f, vec<A, N> a) {
  A x[N];
  std::memcpy(x, &a, sizeof x);
  for (int i = 0; i < N; ++i) x[i] = f(x[i]);
  std::memcpy(&a, x, sizeof x);
  return a;
}

/// Combines all lanes by op in a pairwise tree: lane i with lane i + N/2, and so on.
template <class Op, class A, int N> MEGACPP_HD A across(Op op, vec<A, N> a) {
  if constexpr (N == 1) return a.v[0];
  else return across(op, detail::map<A>(op, lower(a), upper(a)));
}
template <class A, int N> MEGACPP_HD A sum_across(vec<A, N> a) { return across(detail::plus{}, a); }
template <class A, int N> MEGACPP_HD A max_across(vec<A, N> a) {
  return across(detail::greater_of{}, a);
}

#if !defined(__CUDACC__)
namespace detail {
// Converts a compiler vector to another with as many lanes. g++ 12 converts floats to doubles by
// halves of a register.
template <class Into, class X> MEGACPP_HD Into converted(X x) {
#if defined(__AVX512F__)
  if constexpr (std::is_same_v<Into, typename native_of<double, 8>::type> &&
                std::is_same_v<X, typename native_of<float, 8>::type>)
    return _mm512_maskz_cvtps_pd(0xff, x);
#endif
#if defined(__AVX__)
  if constexpr (std::is_same_v<Into, typename native_of<double, 4>::type> &&
                std::is_same_v<X, typename native_of<float, 4>::type>)
    return _mm256_cvtps_pd(x);
#endif
  return __builtin_convertvector(x, Into);
}
} // namespace detail
#endif

/// Converts every lane to another arithmetic type, rounding to nearest.
template <class B, class A, int N> MEGACPP_HD vec<B, N> to(vec<A, N> a) {
  constexpr auto from = detail::representation_of<A, N>, into = detail::representation_of<B, N>;
  if constexpr (std::is_same_v<A, B>) {
    return a;
  } else if constexpr (from == detail::representation::array) {
    vec<B, N> r;
    for (int i = 0; i < N; ++i) r.v[i] = static_cast<B>(a.v[i]);
    return r;
#if !defined(__CUDACC__)
  } else if constexpr (from == detail::representation::native &&
                       into == detail::representation::native) {
    return vec<B, N>(detail::converted<typename vec<B, N>::type>(a.v));
#endif
  } else {
    return join(to<B>(lower(a)), to<B>(upper(a)));
  }
}

} // namespace mc
