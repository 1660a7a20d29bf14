// A team works on one row: a CPU core with its vector lanes, or the threads of a CUDA block. A row
// body is written once over this interface and sees the row only through groups of lanes:
//
//   team.each<T>(n, f)         f(lanes<N>{i}) for full groups, f(lanes<1>{i}) for the rest
//   team.each_wide<T>(n, f)    as each, but a core takes eight groups at a time where it can
//   team.each_of<T>(m, n, f)   f(o, lanes...) for o in [0, m): n elements in each of m parts
//   team.sum<T>(n, f)          the sum over all lanes of f(lanes), which returns a vec
//   team.sum_two<T>(n, f)      two sums at once: f returns a two<vec>
//   team.max<T>(n, f)          the greatest lane
//   team.max_and_sum_exp<T>(n, f)  the greatest lane x and the sum of e^(lane - x), in double, as a
//                              maximum_and_sum
//   team.sync()                what threads stored before it, all may read after it
//   team.shared<X, N, I>()     array I of N elements that the threads share; it begins with nothing
//   team.threads               1 for a core
//   team.index(), team.count() which thread it is, and of how many: `least_threads` or more
//   team.leader()              true for one thread: who stores a row's statistics
//   team.carry(to, from)       sends 16 bytes of memory into memory that the threads share; both
//                              begin at multiples of 16
//   team.carried()             waits until all that this thread has sent is there; behind a barrier
//                              it is there for all threads
//   team.multiply(c, a, b)     where team.multiplies: the threads of a warp add the product of
//                              16 x 16 and 16 x 8 numbers of bf16 to sums (mma.m16n8k16 of PTX)
//
// N depends on the storage type T: 64 bytes of arithmetic on a core, 16 bytes of storage on CUDA.
// In each_of, m n is below 2^31.
// Orders are fixed by n alone, never by the number of threads in the program or by whether n is a
// constant. In all calls with the same T and n a thread sees the same elements, so it may read in
// one what it stored in another. What another thread stores, or stores into, lies behind a barrier:
// sum, sum_two, max and sync are barriers, which all threads reach together or none does; each,
// each_wide and each_of are not.
#pragma once

#include <megacpp/exec/math.hpp>

#include <limits>
#include <type_traits>

namespace mc {

/// A pair of vectors (or numbers) that is summed together.
template <class X> struct two { X first, second; };

/// Numbers x as their greatest and the sum of e^(x - greatest).
template <class A> struct maximum_and_sum {
  A maximum;
  double sum;
};

namespace detail {
/// The greatest of the numbers that a thread has seen, and the sum of e^(number - greatest).
template <class A> struct running_sum {
  A maximum = -std::numeric_limits<A>::infinity();
  double sum = 0;

  template <class V> MEGACPP_HD void add(V x) {
    const A top = max_across(x), least = -std::numeric_limits<A>::infinity();
    if (top > maximum) sum = below(top), maximum = top;
    // Where all numbers are -infinity the terms are 0; the term of a NaN is a NaN.
    sum += sum_across(to<double>(exp_of_difference(x, maximum > least ? maximum : A(0))));
  }
  /// The sum of e^(number - top), for a top that is no smaller than any of them.
  MEGACPP_HD double below(A top) const {
    if (maximum == top) return sum; // of no numbers, too, whose maximum is -infinity
    return sum * static_cast<double>(exp_of_difference(vec<A, 1>(maximum), top).v[0]);
  }
};
} // namespace detail

/// One CPU core. Sums: two vector accumulators take groups in turn, the rest is added to the lanes
/// of the first from lane 0 on, then a pairwise tree over the lanes.
struct core_team {
  static constexpr int threads = 1, least_threads = 1;
  static constexpr bool multiplies = false;
  template <class T> static constexpr int width = lane_count<accumulator_t<T>>;

  MEGACPP_HD constexpr int index() const { return 0; }
  MEGACPP_HD constexpr int count() const { return 1; }
  MEGACPP_HD constexpr bool leader() const { return true; }
  MEGACPP_HD constexpr void sync() const {}
  template <class T> void carry(T* to, const T* from) const { std::memcpy(to, from, 16); }
  MEGACPP_HD constexpr void carried() const {}
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

  /// By two visits.
  template <class T, class Extent, class F>
  MEGACPP_HD auto max_and_sum_exp(Extent extent, F f) const {
    const auto top = max<T>(extent, f);
    return maximum_and_sum<std::remove_const_t<decltype(top)>>{
        top, sum<T>(extent, [&](auto i) { return to<double>(exp_of_difference(f(i), top)); })};
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
/// Threads of a CUDA block: all of them, which are a multiple of 32, or one of the `Groups` warps
/// of a block, each with a row of its own. Sums: each thread adds its groups of elements in order,
/// then the lanes of a thread, the threads of a warp by shuffles, and the warps in order through
/// shared memory. All threads get the result. Where rows are aligned (exec/launch.hpp),
/// aligned_lanes tell loads and stores so.
template <int Lanes, int Groups = 1, bool Aligned = false> struct group_team {
  static_assert(Lanes % 32 == 0 && Lanes <= 1024 && (Groups == 1 || Lanes == 32));
  static constexpr int threads = Lanes, least_threads = Lanes;
  static constexpr bool multiplies = Lanes == 128; // four warps have the rows of a tile
  template <class T> static constexpr int width = 16 / static_cast<int>(sizeof(T));
  template <int N> using group = std::conditional_t<Aligned, aligned_lanes<N>, lanes<N>>;

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
    if constexpr (Lanes == 32) __syncwarp();
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
    __shared__ alignas(16) X array[Groups][N];
    return array[Groups == 1 ? 0 : threadIdx.x / Lanes];
  }

  template <class T, class Extent, class F>
  __device__ __forceinline__ void each(Extent extent, F f) const {
    constexpr int N = width<T>;
    const std::int64_t n = extent, full = n / N * N;
    for (std::int64_t i = me() * N; i < full; i += Lanes * N) f(group_at<N>(i));
    for (std::int64_t i = full + me(); i < n; i += Lanes) f(lanes<1>{i});
  }

  template <class T, class Extent, class F>
  __device__ __forceinline__ void each_wide(Extent extent, F f) const {
    each<T>(extent, f);
  }

  template <class T, class Outer, class Extent, class F>
  __device__ __forceinline__ void each_of(Outer outer, Extent extent, F f) const {
    constexpr int N = width<T>;
    const auto m = static_cast<unsigned>(std::int64_t{outer}),
               n = static_cast<unsigned>(std::int64_t{extent}), groups = n / N, rest = n % N;
    const unsigned of = groups > 0 ? groups : 1, by = rest > 0 ? rest : 1, first = me();
    for (unsigned k = first; k < m * groups; k += Lanes)
      f(std::int64_t{k / of}, group_at<N>(std::int64_t{k % of} * N));
    for (unsigned k = first; k < m * rest; k += Lanes)
      f(std::int64_t{k / by}, lanes<1>{std::int64_t{groups} * N + k % by});
  }

  template <class T, class Extent, class F>
  __device__ __forceinline__ auto sum(Extent extent, F f) const {
    using V = decltype(f(group<width<T>>{}));
    return over_group(fold<T>(extent, V(0), f, detail::plus{}), detail::plus{});
  }

  template <class T, class Extent, class F>
  __device__ __forceinline__ auto sum_two(Extent extent, F f) const {
    using V = decltype(f(group<width<T>>{}).first);
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
    const A first = over_group(a, detail::plus{});
    return two<A>{first, over_group(b, detail::plus{})};
  }

  template <class T, class Extent, class F>
  __device__ __forceinline__ auto max(Extent extent, F f) const {
    using V = decltype(f(group<width<T>>{}));
    using A = typename V::value_type;
    const V least(-std::numeric_limits<A>::infinity());
    return over_group(fold<T>(extent, least, f, detail::greater_of{}), detail::greater_of{});
  }

  /// By one visit: each thread has the greatest of what it has seen (Milakov and Gimelshein 2018).
  template <class T, class Extent, class F>
  __device__ __forceinline__ auto max_and_sum_exp(Extent extent, F f) const {
    using A = typename decltype(f(group<width<T>>{}))::value_type;
    detail::running_sum<A> mine;
    each<T>(extent, [&](auto i) { mine.add(f(i)); });
    const A top = over_group(vec<A, 1>(mine.maximum), detail::greater_of{});
    const double all = over_group(vec<double, 1>(mine.below(top)), detail::plus{});
    return maximum_and_sum<A>{top, all};
  }

private:
  static __device__ __forceinline__ int me() {
    return static_cast<int>(Groups == 1 ? threadIdx.x : threadIdx.x % Lanes);
  }
  template <int N> static __device__ __forceinline__ group<N> group_at(std::int64_t first) {
    group<N> i;
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
  __device__ __forceinline__ typename V::value_type over_group(V lanes_of_thread, Op op) const {
    using A = typename V::value_type;
    constexpr int warps = Lanes / 32;
    A a = across(op, lanes_of_thread);
    for (int d = 16; d > 0; d /= 2) a = op(a, __shfl_xor_sync(0xffffffffu, a, d));
    if constexpr (warps == 1) {
      __syncwarp(); // orders what is stored, too
      return a;
    } else {
      __shared__ A of_warp[warps];
      if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = a;
      __syncthreads();
      a = of_warp[0];
      for (int w = 1; w < warps; ++w) a = op(a, of_warp[w]);
      __syncthreads(); // before the next call writes of_warp
      return a;
    }
  }
};
#endif

} // namespace mc
