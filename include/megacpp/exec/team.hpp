// A team works on one row: a CPU core with its vector lanes, or the threads of a CUDA block. A row
// body is written once over this interface and sees the row only through groups of lanes:
//
//   team.each<T>(n, f)         f(lanes<N>{i}) for full groups, f(lanes<1>{i}) for the rest
//   team.each_wide<T>(n, f)    as each, but a core takes eight groups at a time where it can
//   team.each_of<T>(m, n, f)   f(o, lanes...) for o in [0, m): n elements in each of m parts
//   team.sum<T>(n, f)          the sum over all lanes of f(lanes), which returns a vec
//   team.sum_two<T>(n, f)      two sums at once: f returns a two<vec>
//   team.max<T>(n, f)          the greatest lane
//   team.sync()                what threads stored before it, all may read after it
//   team.shared<X, N, I>()     array I of N elements that the threads share; it begins with nothing
//   team.threads               1 for a core
//   team.leader()              true for one thread: who stores a row's statistics
//
// N depends on the storage type T: 64 bytes of arithmetic on a core, 16 bytes of storage on CUDA.
// Orders are fixed by n alone, never by the number of threads in the program or by whether n is a
// constant. In all calls with the same T and n a thread sees the same elements, so it may read in
// one what it stored in another. What another thread stores, or stores into, lies behind a barrier:
// sum, sum_two, max and sync are barriers, which all threads reach together or none does; each,
// each_wide and each_of are not.
#pragma once

#include <megacpp/exec/vec.hpp>

#include <limits>

namespace mc {

/// A pair of vectors (or numbers) that is summed together.
template <class X> struct two { X first, second; };

/// One CPU core. Sums: two vector accumulators take groups in turn, the rest is added to the lanes
/// of the first from lane 0 on, then a pairwise tree over the lanes.
struct core_team {
  static constexpr int threads = 1;
  template <class T> static constexpr int width = lane_count<accumulator_t<T>>;

  MEGACPP_HD constexpr bool leader() const { return true; }
  MEGACPP_HD constexpr void sync() const {}
  template <class X, int N, int I> X* shared() const {
    alignas(64) static thread_local X array[N];
    return array;
  }

  template <class T, class Extent, class F> MEGACPP_HD void each(Extent extent, F f) const {
    constexpr int N = width<T>;
    const std::int64_t n = extent, full = n / N * N;
    for (std::int64_t i = 0; i < full; i += N) f(lanes<N>{i});
    for (std::int64_t i = full; i < n; ++i) f(lanes<1>{i});
  }

  template <class T, class Extent, class F> MEGACPP_HD void each_wide(Extent extent, F f) const {
    constexpr int N = width<T>, wide = 8 * N;
    const std::int64_t n = extent, full = n / N * N, eights = n / wide * wide;
    for (std::int64_t i = 0; i < eights; i += wide) f(lanes<wide>{i});
    for (std::int64_t i = eights; i < full; i += N) f(lanes<N>{i});
    for (std::int64_t i = full; i < n; ++i) f(lanes<1>{i});
  }

  template <class T, class Outer, class Extent, class F>
  MEGACPP_HD void each_of(Outer outer, Extent extent, F f) const {
    const std::int64_t m = outer;
    for (std::int64_t o = 0; o < m; ++o) each<T>(extent, [&](auto i) { f(o, i); });
  }

  template <class T, class Extent, class F> MEGACPP_HD auto sum(Extent extent, F f) const {
    using V = decltype(f(lanes<width<T>>{0}));
    return sum_across(fold<T>(extent, V(0), f, detail::plus{}));
  }

  template <class T, class Extent, class F> MEGACPP_HD auto sum_two(Extent extent, F f) const {
    constexpr int N = width<T>;
    using V = decltype(f(lanes<N>{0}).first);
    using A = typename V::value_type;
    const std::int64_t n = extent, full = n / N * N, pairs = n / (2 * N) * (2 * N);
    V a0(0), a1(0), b0(0), b1(0);
    for (std::int64_t i = 0; i < pairs; i += 2 * N) {
      const auto x = f(lanes<N>{i}), y = f(lanes<N>{i + N});
      a0 = a0 + x.first, b0 = b0 + x.second;
      a1 = a1 + y.first, b1 = b1 + y.second;
    }
    if (pairs < full) {
      const auto x = f(lanes<N>{pairs});
      a0 = a0 + x.first, b0 = b0 + x.second;
    }
    if (full < n) {
      A a[N] = {}, b[N] = {};
      for (std::int64_t i = full; i < n; ++i) {
        const auto x = f(lanes<1>{i});
        a[i - full] = x.first.v[0], b[i - full] = x.second.v[0];
      }
      a0 = a0 + load<A>(a, lanes<N>{0});
      b0 = b0 + load<A>(b, lanes<N>{0});
    }
    return two<A>{sum_across(a0 + a1), sum_across(b0 + b1)};
  }

  template <class T, class Extent, class F> MEGACPP_HD auto max(Extent extent, F f) const {
    using V = decltype(f(lanes<width<T>>{0}));
    using A = typename V::value_type;
    const V least(-std::numeric_limits<A>::infinity());
    return max_across(fold<T>(extent, least, f, detail::greater_of{}));
  }

private:
  template <class T, class Extent, class V, class F, class Op>
  MEGACPP_HD static V fold(Extent extent, V start, F f, Op op) {
    constexpr int N = width<T>;
    using A = typename V::value_type;
    const std::int64_t n = extent, full = n / N * N, pairs = n / (2 * N) * (2 * N);
    V a = start, b = start;
    for (std::int64_t i = 0; i < pairs; i += 2 * N) {
      a = detail::map<A>(op, a, f(lanes<N>{i}));
      b = detail::map<A>(op, b, f(lanes<N>{i + N}));
    }
    if (pairs < full) a = detail::map<A>(op, a, f(lanes<N>{pairs}));
    if (full < n) {
      A rest[N];
      store(rest, lanes<N>{0}, start);
      for (std::int64_t i = full; i < n; ++i) rest[i - full] = f(lanes<1>{i}).v[0];
      a = detail::map<A>(op, a, load<A>(rest, lanes<N>{0}));
    }
    return detail::map<A>(op, a, b);
  }
};

#if defined(__CUDACC__)
/// The threads of a CUDA block (a multiple of 32). Sums: each thread adds its groups in order, then
/// the lanes of a thread, the threads of a warp by shuffles, and the warps in order through shared
/// memory. All threads get the result.
template <int Threads> struct block_team {
  static_assert(Threads % 32 == 0 && Threads <= 1024);
  static constexpr int threads = Threads;
  template <class T> static constexpr int width = 16 / static_cast<int>(sizeof(T));

  __device__ __forceinline__ bool leader() const { return threadIdx.x == 0; }
  __device__ __forceinline__ void sync() const { __syncthreads(); }
  template <class X, int N, int I> __device__ __forceinline__ X* shared() const {
    __shared__ alignas(16) X array[N];
    return array;
  }

  template <class T, class Extent, class F>
  __device__ __forceinline__ void each(Extent extent, F f) const {
    constexpr int N = width<T>;
    const std::int64_t n = extent, full = n / N * N, me = threadIdx.x;
    for (std::int64_t i = me * N; i < full; i += Threads * N) f(lanes<N>{i});
    if (full + me < n) f(lanes<1>{full + me});
  }

  template <class T, class Extent, class F>
  __device__ __forceinline__ void each_wide(Extent extent, F f) const {
    each<T>(extent, f);
  }

  template <class T, class Outer, class Extent, class F>
  __device__ __forceinline__ void each_of(Outer outer, Extent extent, F f) const {
    constexpr int N = width<T>;
    const std::int64_t m = outer, n = extent, groups = n / N, rest = n % N;
    const std::int64_t of = groups > 0 ? groups : 1;
    for (std::int64_t k = threadIdx.x; k < m * groups; k += Threads) {
      f(k / of, lanes<N>{k % of * N});
    }
    const std::int64_t by = rest > 0 ? rest : 1;
    for (std::int64_t k = threadIdx.x; k < m * rest; k += Threads) {
      f(k / by, lanes<1>{groups * N + k % by});
    }
  }

  template <class T, class Extent, class F>
  __device__ __forceinline__ auto sum(Extent extent, F f) const {
    using V = decltype(f(lanes<width<T>>{0}));
    return over_block(fold<T>(extent, V(0), f, detail::plus{}), detail::plus{});
  }

  template <class T, class Extent, class F>
  __device__ __forceinline__ auto sum_two(Extent extent, F f) const {
    using V = decltype(f(lanes<width<T>>{0}).first);
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
    const A first = over_block(a, detail::plus{});
    return two<A>{first, over_block(b, detail::plus{})};
  }

  template <class T, class Extent, class F>
  __device__ __forceinline__ auto max(Extent extent, F f) const {
    using V = decltype(f(lanes<width<T>>{0}));
    using A = typename V::value_type;
    const V least(-std::numeric_limits<A>::infinity());
    return over_block(fold<T>(extent, least, f, detail::greater_of{}), detail::greater_of{});
  }

private:
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
  __device__ __forceinline__ typename V::value_type over_block(V lanes_of_thread, Op op) const {
    using A = typename V::value_type;
    constexpr int warps = Threads / 32;
    __shared__ A of_warp[warps];
    A a = across(op, lanes_of_thread);
    for (int d = 16; d > 0; d /= 2) a = op(a, __shfl_xor_sync(0xffffffffu, a, d));
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = a;
    __syncthreads();
    a = of_warp[0];
    for (int w = 1; w < warps; ++w) a = op(a, of_warp[w]);
    __syncthreads(); // before the next call writes of_warp
    return a;
  }
};
#endif

} // namespace mc
