// Products and elementwise steps on tiles that stay in cache: one processor's vector registers, an
// explicit order of every sum, no libraries. Attention is built of these.
#pragma once

#include <megacpp/config/config.hpp>
#include <megacpp/num/dtype.hpp>

#if defined(__AVX__)
#include <immintrin.h>
#endif

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

namespace mc::tile {

// The width and number of the vector registers this unit is compiled for.
#if defined(__AVX512F__)
inline constexpr int register_bytes = 64, register_count = 32;
#elif defined(__AVX__)
inline constexpr int register_bytes = 32, register_count = 16;
#elif defined(__aarch64__)
inline constexpr int register_bytes = 16, register_count = 32;
#else
inline constexpr int register_bytes = 16, register_count = 16;
#endif

template <class G> inline constexpr int lanes = register_bytes / static_cast<int>(sizeof(G));

namespace detail {
template <class G> struct register_of {
  using type __attribute__((vector_size(register_bytes))) = G;
};
template <class G> using integer_of =
    std::conditional_t<sizeof(G) == 8, std::int64_t, std::int32_t>;
} // namespace detail

/// One register of G: float or double.
template <class G> using vector = typename detail::register_of<G>::type;
/// The integer as wide as G, and one register of them; comparisons of vector<G> give these.
template <class G> using integer = detail::integer_of<G>;
template <class G> using mask = typename detail::register_of<integer<G>>::type;
/// A register's bits, for arithmetic modulo 2^n.
template <class G> using bits =
    typename detail::register_of<std::make_unsigned_t<integer<G>>>::type;

/// Calls f(std::integral_constant<int, i>) for i in [0, N), unrolled.
template <int N, class F> MEGACPP_HD void unroll(F&& f) {
  [&]<int... I>(std::integer_sequence<int, I...>) __attribute__((always_inline)) {
    (f(std::integral_constant<int, I>{}), ...);
  }
  (std::make_integer_sequence<int, N>{});
}

template <class G> MEGACPP_HD vector<G> broadcast(G x) {
  return x - vector<G>{}; // x - 0 is x, the sign of zero included; g++ 12 makes it one broadcast
}

/// a * b + c, rounded once where the processor can.
template <class G> MEGACPP_HD vector<G> fma(vector<G> a, vector<G> b, vector<G> c) {
#if defined(__AVX512F__)
  if constexpr (sizeof(G) == 4) return (vector<G>)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
  else return (vector<G>)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#elif defined(__AVX__) && defined(__FMA__)
  if constexpr (sizeof(G) == 4) return (vector<G>)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
  else return (vector<G>)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#elif defined(__aarch64__)
  vector<G> r = {};
  for (int l = 0; l < lanes<G>; ++l) r[l] = std::fma(a[l], b[l], c[l]);
  return r;
#else
  return a * b + c;
#endif
}

template <class G> MEGACPP_HD vector<G> max(vector<G> a, vector<G> b) { return a > b ? a : b; }

template <class G> MEGACPP_HD vector<G> load(const G* p) {
  vector<G> v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
template <class G> MEGACPP_HD vector<G> load(const bf16* p) {
  using half __attribute__((vector_size(lanes<G> * 2))) = std::uint16_t;
  half h;
  std::memcpy(&h, p, sizeof h);
  return (vector<G>)(__builtin_convertvector(h, bits<G>) << 16);
}
template <class G> MEGACPP_HD mask<G> load_integer(const integer<G>* p) {
  mask<G> v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
template <class G> MEGACPP_HD void store(G* p, vector<G> v) { std::memcpy(p, &v, sizeof v); }
/// Rounds to nearest, ties to even; NaN stays NaN (as bf16::round).
template <class G> MEGACPP_HD void store(bf16* p, vector<G> v) {
  using half __attribute__((vector_size(lanes<G> * 2))) = std::uint16_t;
  const bits<G> u = (bits<G>)v;
  const bits<G> rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
  const bits<G> quiet = (u >> 16) | 0x40;
  const half h = __builtin_convertvector(v == v ? rounded : quiet, half);
  std::memcpy(static_cast<void*>(p), &h, sizeof h);
}

/// The first n of a register's lanes, the others zero; 0 <= n <= lanes.
template <class G, class T> MEGACPP_HD vector<G> load_first(const T* p, std::int64_t n) {
  if (n >= lanes<G>) return load<G>(p);
  G x[lanes<G>] = {};
  for (std::int64_t l = 0; l < n; ++l) x[l] = convert<G>(p[l]);
  return load<G>(x);
}
template <class G, class T> MEGACPP_HD void store_first(T* p, vector<G> v, std::int64_t n) {
  if (n >= lanes<G>) return store<G>(p, v);
  G x[lanes<G>];
  store<G>(x, v);
  for (std::int64_t l = 0; l < n; ++l) p[l] = convert<T>(x[l]);
}

/// 2^x. float: x = n + r with |r| <= 1/2; 2^r by the polynomial of least relative error among those
/// of degree 6 with constant term 1 (Remez; 2.6e-9), n into the exponent; 0 below 2^-126. Within
/// 1 ulp for x <= 0, 1.3 where fma rounds twice; x must be below 128. double: std::exp2.
template <class G> MEGACPP_HD vector<G> exp2(vector<G> x) {
  if constexpr (sizeof(G) == 8) {
    vector<G> r = {};
    for (int l = 0; l < lanes<G>; ++l) r[l] = std::exp2(x[l]);
    return r;
  } else {
    const vector<G> low = broadcast<G>(-126.0f);
    const vector<G> y = x < low ? low : x;             // a NaN passes
    const vector<G> magic = broadcast<G>(12582912.0f); // 1.5 * 2^23: the sum's last bits are n
    const vector<G> t = y + magic;
    const vector<G> r = y - (t - magic);
    vector<G> p = broadcast<G>(1.559467767e-4f);
    p = fma<G>(p, r, broadcast<G>(1.340664391e-3f));
    p = fma<G>(p, r, broadcast<G>(9.617692975e-3f));
    p = fma<G>(p, r, broadcast<G>(5.550310551e-2f));
    p = fma<G>(p, r, broadcast<G>(2.402265278e-1f));
    p = fma<G>(p, r, broadcast<G>(6.931472150e-1f));
    p = fma<G>(p, r, broadcast<G>(1.0f));
    const vector<G> e = (vector<G>)((bits<G>)p + ((bits<G>)t << 23));
    return x < low ? vector<G>{} : e;
  }
}

namespace detail {
// One stage of the transposition below: lane l of the two results.
template <class G, int S, int... L>
MEGACPP_HD void exchange(vector<G>& a, vector<G>& b, std::integer_sequence<int, L...>) {
  const vector<G> x = a, y = b;
  a = __builtin_shufflevector(x, y, ((L & S) == 0 ? L : L - S + lanes<G>)...);
  b = __builtin_shufflevector(x, y, ((L & S) == 0 ? L + S : L + lanes<G>)...);
}
} // namespace detail

/// Transposes the square of lanes x lanes elements held by v[0..lanes).
template <class G> MEGACPP_HD void transpose(vector<G> (&v)[lanes<G>]) {
  constexpr int n = lanes<G>;
  unroll<5>([&](auto stage) __attribute__((always_inline)) {
    constexpr int s = 1 << stage;
    if constexpr (s < n)
      unroll<n>([&](auto row) __attribute__((always_inline)) {
        constexpr int r = row;
        if constexpr ((r & s) == 0)
          detail::exchange<G, s>(v[r], v[r + s], std::make_integer_sequence<int, n>{});
      });
  });
}

/// c[m][n] = sum over k of a(m, k) b[k][n], k ascending, one chain of fma per element.
/// a(m, k) = a[m * a_row + k * a_depth]; b (depth, columns) and c (rows, columns) in rows of b_row
/// and c_row elements, columns a multiple of lanes<G>.
template <class G> struct operands {
  const G* a;
  std::int64_t a_stride; // of the index that is not contiguous
  const G* b;
  std::int64_t b_row;
  G* c;
  std::int64_t c_row;
};

/// Which index of a has stride one.
enum class contiguous { depth, row };
/// What the sum starts from: zero, or c.
enum class start { zero, c };

// Rows of c per block for N registers of columns: enough chains to hide the latency of fma, few
// enough for c, one row of b and one element of a to stay in registers.
constexpr int block_columns = register_count >= 32 ? 4 : 2;
constexpr int block_rows(int columns) {
  if (register_count < 32) return columns == 2 ? 4 : 8;
  return columns == 4 ? 4 : columns == 3 ? 4 : columns == 2 ? 8 : 16;
}

namespace detail {
template <class G, int M, int N, contiguous A>
MEGACPP_HD void block(const operands<G>& p, std::int64_t m, std::int64_t n, std::int64_t depth,
                      start from) {
  constexpr int w = lanes<G>;
  vector<G> sum[M][N];
  G* const c = p.c + m * p.c_row + n;
  if (from == start::zero)
    unroll<M * N>([&](auto i) __attribute__((always_inline)) { sum[i / N][i % N] = vector<G>{}; });
  else
    unroll<M * N>([&](auto i) __attribute__((always_inline)) {
      sum[i / N][i % N] = load<G>(c + (i / N) * p.c_row + (i % N) * w);
    });
  const G* a = p.a + (A == contiguous::depth ? m * p.a_stride : m);
  const G* b = p.b + n;
  for (std::int64_t k = 0; k < depth; ++k, b += p.b_row) {
    vector<G> row[N];
    unroll<N>([&](auto j) __attribute__((always_inline)) { row[j] = load<G>(b + j * w); });
    unroll<M>([&](auto i) __attribute__((always_inline)) {
      const vector<G> x = broadcast<G>(A == contiguous::depth ? a[i * p.a_stride] : a[i]);
      unroll<N>([&](auto j)
                    __attribute__((always_inline)) { sum[i][j] = fma<G>(x, row[j], sum[i][j]); });
    });
    a += A == contiguous::depth ? 1 : p.a_stride;
  }
  unroll<M * N>([&](auto i) __attribute__((always_inline)) {
    store<G>(c + (i / N) * p.c_row + (i % N) * w, sum[i / N][i % N]);
  });
}

template <class G, int N, contiguous A>
[[gnu::noinline]] void panel(const operands<G>& p, std::int64_t rows, std::int64_t n,
                             std::int64_t depth, start from) {
  constexpr int m = block_rows(N);
  std::int64_t r = 0;
  for (; r + m <= rows; r += m) block<G, m, N, A>(p, r, n, depth, from);
  if constexpr (m >= 8)
    for (; r + m / 4 <= rows; r += m / 4) block<G, m / 4, N, A>(p, r, n, depth, from);
  for (; r < rows; ++r) block<G, 1, N, A>(p, r, n, depth, from);
}
} // namespace detail

/// The product above for all rows and columns.
template <contiguous A, class G> void multiply(const operands<G>& p, std::int64_t rows,
                                               std::int64_t columns, std::int64_t depth,
                                               start from) {
  constexpr int w = lanes<G>;
  for (std::int64_t n = 0; n < columns;) {
    // Panels of nearly equal width: five registers are 3 + 2, not 4 + 1.
    const std::int64_t left = (columns - n) / w;
    const std::int64_t panels = (left + block_columns - 1) / block_columns;
    const std::int64_t width = (left + panels - 1) / panels;
    if constexpr (block_columns == 4) {
      if (width == 4) detail::panel<G, 4, A>(p, rows, n, depth, from);
      if (width == 3) detail::panel<G, 3, A>(p, rows, n, depth, from);
    }
    if (width == 2) detail::panel<G, 2, A>(p, rows, n, depth, from);
    if (width == 1) detail::panel<G, 1, A>(p, rows, n, depth, from);
    n += width * w;
  }
}

} // namespace mc::tile
