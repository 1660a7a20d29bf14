// A team works on one row: a CPU core with its vector lanes, or the threads of a CUDA block. A row
// body is written once for both, and sees the row only through groups of lanes:
//
//   team.each<T>(n, f)         calls f(lanes<N>{i}) for full groups, f(lanes<1>{i}) for the rest
//   team.each_wide<T>(n, f)    as each, but a core takes eight groups at a time where it can
//   team.each_of<T>(m, n, f)   calls f(o, lanes...) for o in [0, m): n elements for each of m
//   team.sum<T>(n, f)          the sum over all lanes of f(lanes), which returns a vec
//   team.sum_two<T>(n, f)      two sums at once: f returns a two<vec>
//   team.max<T>(n, f)          the greatest lane
//   team.max_and_sum_exp<T>(n, f)  the greatest lane x and the sum of e^(lane - x), in double, as a
//                              maximum_and_sum
//   team.first_greatest<T>(n, f)  the greatest of the marked lanes, and the lowest index of the
//                              lanes that equal it, as a two: f returns a marked. Where no lane is
//                              marked they are -infinity and infinity
//   team.keep<T>(n, row)       gives a row that several of the calls above may load from: `row`
//                              itself, or registers that hold its n elements of T
//   team.keep_stored<T>(n, row)  does so for elements that are first stored, and then loaded
//   team.keep_values<T>(n, f)  gives a function values(lanes) with the results of f(lanes), which
//                              are computed at each call, or once
//   team.sync()                is a barrier: all threads may read what threads stored before it
//   team.shared<X, N, I>()     gives array I of N elements, uninitialised, that the threads share
//   team.threads               the number of threads: 1 for a core
//   team.index(), team.count() the number of the thread, and of all: `least_threads` or more
//   team.leader()              true for the one thread that stores a row's statistics
//   team.carry(to, from)       copies 16 bytes of memory into memory that the threads share; both
//                              begin at multiples of 16
//   team.carried()             waits until all copies of this thread are done; behind a barrier
//                              those of all threads are
//   team.multiply(c, a, b)     where team.multiplies: the threads of a warp add the product of
//                              16 x 16 and 16 x 8 numbers of bf16 to sums c (mma.m16n8k16 of PTX)
//
// N depends on the storage type T: 64 bytes of arithmetic on a core, 16 bytes of storage on CUDA.
// In each_of, m n is below 2^31.
// The order of each sum follows from n alone, never from the number of threads in the program, nor
// from n being a constant or not. In all calls with the same T and n a thread sees the same
// elements, so it may read in one call what it stored in another. A barrier must come before a
// thread reads or overwrites what another thread stores: sums, maxima and sync are barriers, which
// all threads reach or none does; each, each_wide, each_of and the functions that keep a row are
// none. Only lanes of the same T read a kept row, and the row may be as it was when it was kept,
// whatever is stored at `row` meanwhile.
#pragma once

#include <megacpp/vectors/math.hpp>

#include <limits>
#include <type_traits>

namespace mc {

/// Two vectors (or numbers) that are summed together.
template <class X> struct two { X first, second; };

/// Numbers x, summed up as the greatest of them and the sum of e^(x - greatest).
template <class A> struct maximum_and_sum {
  A maximum;
  double sum;
};

/// Numbers and their mask: a number counts where its mask is set.
template <class V, class Mask> struct marked {
  V value;
  Mask mask;
};

namespace detail {
/// The greatest of the numbers that a thread has seen, and the sum of e^(number - greatest).
template <class A> struct running_sum {
  A maximum = -std::numeric_limits<A>::infinity();
  double sum = 0;

  template <class V> MEGACPP_HD void add(V x) {
    const A top = max_across(x), least = -std::numeric_limits<A>::infinity();
    if (top > maximum) sum = below(top), maximum = top;
    // The terms are 0 where all numbers are -infinity; the term of a NaN is a NaN.
    sum += sum_across(to<double>(exp_of_difference(x, maximum > least ? maximum : A(0))));
  }
  /// Returns the sum of e^(number - top), for a top that is no smaller than any number.
  MEGACPP_HD double below(A top) const {
    if (maximum == top) return sum; // also without any number, when the maximum is -infinity
    return sum * static_cast<double>(exp_of_difference(vec<A, 1>(maximum), top).v[0]);
  }
};
} // namespace detail

/// A team of one CPU core. Its sums: two vector accumulators take groups in turn, the rest is added
/// to the lanes of the first accumulator from lane 0 on, then the lanes are added in a pairwise
/// tree.
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

  template <class T, class Extent, class F>
  MEGACPP_HD auto first_greatest(Extent extent, F f) const {
    using A = typename decltype(f(lanes<width<T>>{0}).value)::value_type;
    constexpr A none = -std::numeric_limits<A>::infinity();
    const A greatest = max<T>(extent, [&](auto i) {
      const auto x = f(i);
      return select(x.mask, x.value, decltype(x.value)(none));
    });
    const A index = -max<T>(extent, [&](auto i) {
      const auto x = f(i);
      using V = std::remove_const_t<decltype(x.value)>;
      const V number = counting<A, V::count>(static_cast<A>(i.first));
      return select(x.mask & (x.value == V(greatest)), -number, V(none));
    });
    return two<A>{greatest, index};
  }

  template <class T, class Extent> MEGACPP_HD const T* keep(Extent, const T* row) const {
    return row;
  }
  template <class T, class Extent> MEGACPP_HD T* keep_stored(Extent, T* row) const { return row; }
  template <class T, class Extent, class F> MEGACPP_HD F keep_values(Extent, F f) const {
    return f;
  }

  /// This team visits the elements twice: once for the maximum, once for the sum.
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

} // namespace mc
