// The team of a row on a CUDA device (vectors/team.hpp). Only nvcc compiles this header; bodies use
// no more of it than the functions of a team.
#pragma once

#include <megacpp/vectors/running_first.hpp>
#include <megacpp/vectors/team.hpp>

#include <cuda_runtime.h>

namespace mc {

/// Lanes of one vector of a row that a thread keeps: the thread's vector number `kept_index`.
template <int N> struct kept_lanes : aligned_lanes<N> { int kept_index; };

/// The vectors of a row that a thread keeps in registers. Loops over them are unrolled, so that
/// each kept_index is a constant. `row` is the row in memory.
template <class T, class Row, int Kept> struct kept_row {
  Row* row;
  uint4 vectors[Kept];
};
template <class A, class T, class Row, int Kept, int N>
__device__ __forceinline__ vec<A, N> load(const kept_row<T, Row, Kept>& from, kept_lanes<N> i) {
  static_assert(N * sizeof(T) == sizeof(uint4), "a row is kept for lanes of its own type");
  T raw[N];
  std::memcpy(raw, &from.vectors[i.kept_index], sizeof raw);
  vec<A, N> x;
  for (int l = 0; l < N; ++l) x.v[l] = convert<A>(raw[l]);
  return x;
}
/// Returns a vector as memory holds it. fp32 is rounded to bf16 in pairs.
template <class T, class A, int N> __device__ __forceinline__ uint4 vector_of(vec<A, N> x) {
  static_assert(N * sizeof(T) == sizeof(uint4), "a vector has 16 bytes");
  uint4 vector;
  if constexpr (std::is_same_v<T, bf16> && std::is_same_v<A, float>) {
    std::uint32_t raw[N / 2];
    detail::bf16_pairs<N>(raw, x);
    std::memcpy(&vector, raw, sizeof vector);
  } else {
    T raw[N];
    for (int l = 0; l < N; ++l) raw[l] = convert<T>(x.v[l]);
    std::memcpy(&vector, raw, sizeof vector);
  }
  return vector;
}
template <class T, class A, int N>
__device__ __forceinline__ void store(T* to, kept_lanes<N> i, vec<A, N> x) {
  if constexpr (N * sizeof(T) == sizeof(uint4))
    *reinterpret_cast<uint4*>(to + i.first) = vector_of<T>(x);
  else store(to, static_cast<const aligned_lanes<N>&>(i), x);
}
template <class T, int Kept, class A, int N>
__device__ __forceinline__ void store(kept_row<T, T, Kept>& to, kept_lanes<N> i, vec<A, N> x) {
  to.vectors[i.kept_index] = vector_of<T>(x);
  *reinterpret_cast<uint4*>(to.row + i.first) = to.vectors[i.kept_index];
}

/// The results of a function for each of a thread's vectors, in registers.
template <class V, int Kept> struct kept_values {
  V values[Kept];
  template <int N> __device__ __forceinline__ V operator()(kept_lanes<N> i) const {
    static_assert(N == V::count, "values are kept for lanes of their own type");
    return values[i.kept_index];
  }
};

/// A team of threads of a CUDA block: all threads of the block, a multiple of 32; or one of its
/// `Teams` warps or halves of warps, each of which has a row of its own. Sums: each thread adds
/// its vectors of elements in order, then the lanes of a thread are added, then the threads of a
/// warp by shuffles, and the warps in order through shared memory. All threads get the result.
/// Aligned: rows are aligned (exec/launch.hpp), and lanes are aligned_lanes, by which loads and
/// stores know it. Kept: the team keeps aligned rows of at most `Kept` vectors of 16 bytes a thread
/// in registers, by unrolled loops; a longer row, or one of not whole vectors, ends the kernel.
template <int Lanes, int Teams = 1, bool Aligned = false, int Kept = 0> struct cuda_team {
  static_assert(Lanes == 16 || (Lanes % 32 == 0 && Lanes <= 1024));
  static_assert((Teams == 1 || Lanes <= 32) && Lanes * Teams % 32 == 0);
  static_assert(Kept == 0 || Aligned);
  static constexpr int threads = Lanes, least_threads = Lanes;
  static constexpr bool multiplies = Lanes == 128; // the four warps have the rows of a tile
  template <class T> static constexpr int width = 16 / static_cast<int>(sizeof(T));
  template <int N> using vector =
      std::conditional_t<(Kept > 0), kept_lanes<N>,
                         std::conditional_t<Aligned, aligned_lanes<N>, lanes<N>>>;

  __device__ __forceinline__ int index() const { return me(); }
  __device__ __forceinline__ constexpr int count() const { return Lanes; }
  __device__ __forceinline__ bool leader() const { return me() == 0; }
  __device__ __forceinline__ void multiply(float (&c)[4], const std::uint32_t (&a)[4],
                                           const std::uint32_t (&b)[2]) const {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
  __device__ __forceinline__ void sync() const {
    if constexpr (Lanes <= 32) __syncwarp(of_team());
    else __syncthreads();
  }
  template <class T> __device__ __forceinline__ void carry(T* to, const T* from) const {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                     static_cast<unsigned>(__cvta_generic_to_shared(to))),
                 "l"(from)
                 : "memory");
  }
  __device__ __forceinline__ void carried() const {
    asm volatile("cp.async.wait_all;" ::: "memory");
  }
  template <class X, int N, int I> __device__ __forceinline__ X* shared() const {
    __shared__ alignas(16) X array[Teams][N];
    return array[Teams == 1 ? 0 : threadIdx.x / Lanes];
  }

  template <class T, class Extent, class F>
  __device__ __forceinline__ void each(Extent extent, F f) const {
    constexpr int N = width<T>;
    const std::int64_t n = extent, full = n / N * N;
    if constexpr (Kept > 0) {
      each_kept<N>(n, f);
    } else {
      for (std::int64_t i = me() * N; i < full; i += Lanes * N) f(lanes_at<N>(i));
      for (std::int64_t i = full + me(); i < n; i += Lanes) f(lanes<1>{i});
    }
  }

  template <class T, class Extent, class F>
  __device__ __forceinline__ void each_wide(Extent extent, F f) const {
    each<T>(extent, f);
  }

  template <class T, class Outer, class Extent, class F>
  __device__ __forceinline__ void each_of(Outer outer, Extent extent, F f) const {
    constexpr int N = width<T>;
    const auto m = static_cast<unsigned>(std::int64_t{outer}),
               n = static_cast<unsigned>(std::int64_t{extent}), vectors = n / N, rest = n % N;
    const unsigned of = vectors > 0 ? vectors : 1, by = rest > 0 ? rest : 1, first = me();
    for (unsigned k = first; k < m * vectors; k += Lanes)
      f(std::int64_t{k / of}, lanes_at<N>(std::int64_t{k % of} * N));
    for (unsigned k = first; k < m * rest; k += Lanes)
      f(std::int64_t{k / by}, lanes<1>{std::int64_t{vectors} * N + k % by});
  }

  template <class T, class Extent, class F>
  __device__ __forceinline__ auto sum(Extent extent, F f) const {
    using V = decltype(f(vector<width<T>>{}));
    return over_team(fold<T>(extent, V(0), f, detail::plus{}), detail::plus{});
  }

  template <class T, class Extent, class F>
  __device__ __forceinline__ auto sum_two(Extent extent, F f) const {
    using V = decltype(f(vector<width<T>>{}).first);
    using A = typename V::value_type;
    V a(0), b(0);
    each<T>(extent, [&](auto i) {
      const auto x = f(i);
      if constexpr (decltype(i)::count == 1) {
        a.v[0] = a.v[0] + x.first.v[0], b.v[0] = b.v[0] + x.second.v[0];
      } else {
        a = a + x.first, b = b + x.second;
      }
    });
    const A first = over_team(a, detail::plus{});
    return two<A>{first, over_team(b, detail::plus{})};
  }

  template <class T, class Extent, class F>
  __device__ __forceinline__ auto max(Extent extent, F f) const {
    using V = decltype(f(vector<width<T>>{}));
    using A = typename V::value_type;
    const V least(-std::numeric_limits<A>::infinity());
    return over_team(fold<T>(extent, least, f, detail::greater_of{}), detail::greater_of{});
  }

  /// Threads of a warp compare integers that have the order of the numbers (redux.sync).
  template <class T, class Extent, class F>
  __device__ __forceinline__ auto first_greatest(Extent extent, F f) const {
    using A = typename decltype(f(vector<width<T>>{}).value)::value_type;
    detail::running_first<A> mine;
    each<T>(extent, [&](auto i) {
      const auto x = f(i);
      for (int l = 0; l < decltype(i)::count; ++l)
        mine.add(x.value.v[l], x.mask.v[l] != 0, i.first + l);
    });
    if constexpr (Lanes <= 32 && sizeof(A) == 4) {
      const std::uint32_t bits = mine.bits(), top = __reduce_max_sync(of_team(), bits);
      const std::uint32_t at = __reduce_min_sync(of_team(), bits == top ? mine.index : mine.none);
      __syncwarp(of_team()); // the barrier also orders stores
      return detail::running_first<A>::from_bits(top, at);
    } else {
      const A top = over_team(vec<A, 1>(mine.greatest), detail::greater_of{});
      return two<A>{top, over_team(vec<A, 1>(mine.index_of(top)), detail::smaller_of{})};
    }
  }

  template <class T, class Extent>
  __device__ __forceinline__ auto keep(Extent extent, const T* row) const {
    if constexpr (Kept == 0) {
      return row;
    } else {
      kept_row<T, const T, Kept> kept;
      kept.row = row;
      each<T>(extent, [&](auto i) {
        kept.vectors[i.kept_index] = *reinterpret_cast<const uint4*>(row + i.first);
      });
      return kept;
    }
  }
  template <class T, class Extent>
  __device__ __forceinline__ auto keep_stored(Extent, T* row) const {
    if constexpr (Kept == 0) {
      return row;
    } else {
      kept_row<T, T, Kept> kept;
      kept.row = row;
      return kept;
    }
  }
  template <class T, class Extent, class F>
  __device__ __forceinline__ auto keep_values(Extent extent, F f) const {
    if constexpr (Kept == 0) {
      return f;
    } else {
      kept_values<decltype(f(vector<width<T>>{})), Kept> kept;
      each<T>(extent, [&](auto i) { kept.values[i.kept_index] = f(i); });
      return kept;
    }
  }

  /// Visits a row once: each thread keeps the greatest number that it has seen (Milakov and
  /// Gimelshein 2018).
  template <class T, class Extent, class F>
  __device__ __forceinline__ auto max_and_sum_exp(Extent extent, F f) const {
    using A = typename decltype(f(vector<width<T>>{}))::value_type;
    detail::running_sum<A> mine;
    each<T>(extent, [&](auto i) { mine.add(f(i)); });
    const A top = over_team(vec<A, 1>(mine.maximum), detail::greater_of{});
    const double all = over_team(vec<double, 1>(mine.below(top)), detail::plus{});
    return maximum_and_sum<A>{top, all};
  }

private:
  static __device__ __forceinline__ int me() {
    return static_cast<int>(Teams == 1 ? threadIdx.x : threadIdx.x % Lanes);
  }
  /// Returns the mask of the threads of a warp that are in the team.
  static __device__ __forceinline__ unsigned of_team() {
    if constexpr (Lanes == 16) return 0xffffu << (threadIdx.x & 16);
    else return 0xffffffffu;
  }
  template <int N, class F>
  static __device__ __forceinline__ void each_kept(std::int64_t n, const F& f) {
    if (n % N != 0 || n > Kept * Lanes * N) __trap();
    const int end = static_cast<int>(n);
    MEGACPP_UNROLL
    for (int k = 0; k < Kept; ++k) {
      const int first = (me() + k * Lanes) * N;
      if (first >= end) break;
      kept_lanes<N> i;
      i.first = first, i.kept_index = k;
      f(i);
    }
  }
  template <int N> static __device__ __forceinline__ vector<N> lanes_at(std::int64_t first) {
    vector<N> i;
    i.first = first;
    return i;
  }

  template <class T, class Extent, class V, class F, class Op>
  __device__ __forceinline__ V fold(Extent extent, V a, F f, Op op) const {
    using A = typename V::value_type;
    each<T>(extent, [&](auto i) {
      if constexpr (decltype(i)::count == 1) a.v[0] = op(a.v[0], f(i).v[0]);
      else a = detail::map<A>(op, a, f(i));
    });
    return a;
  }

  template <class V, class Op>
  __device__ __forceinline__ typename V::value_type over_team(V lanes_of_thread, Op op) const {
    using A = typename V::value_type;
    constexpr int warps = Lanes / 32, of_warp = Lanes < 32 ? Lanes : 32;
    A a = across(op, lanes_of_thread);
    for (int d = of_warp / 2; d > 0; d /= 2) a = op(a, __shfl_xor_sync(of_team(), a, d));
    if constexpr (warps <= 1) {
      __syncwarp(of_team()); // the barrier also orders stores
      return a;
    } else {
      __shared__ A of_warps[warps];
      if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = a;
      __syncthreads();
      a = of_warps[0];
      for (int w = 1; w < warps; ++w) a = op(a, of_warps[w]);
      __syncthreads(); // the next call writes of_warps only behind this barrier
      return a;
    }
  }
};

} // namespace mc
