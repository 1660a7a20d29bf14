// The threads of a CUDA block that are the team of a row (cuda_team), emulated on one thread of
// the CPU. It shows the values that a row body computes on CUDA, and finds bodies that are right by
// luck alone.
//
// Every thread of the team is a fiber. Between two barriers (sync, sum, sum_two, max) the threads
// run one after the other, in an order that is drawn anew, or apart: then a thread sees the writes
// of others only after the barrier. A body without races gives the same bits in every order.
// Elements, the width of groups and the order of sums are those of cuda_team. If a body says that
// its rows are aligned, loads and stores of whole groups check their addresses.
// its rows are aligned, loads and stores of whole groups look at their addresses.
#pragma once

#include <fiber.hpp>
#include <megacpp/vectors/running_first.hpp>
#include <megacpp/vectors/team.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace test {

/// The order in which the threads of a block take turns.
struct turns {
  enum kind { first_first, last_first, random, apart } of = first_first;
  std::uint64_t seed = 0; // seed of a random order
  std::string name() const {
    if (of == random) return "in random order " + std::to_string(seed);
    return of == first_first ? "first thread first" : of == last_first ? "last first" : "apart";
  }
};

/// An array that a body writes.
struct written {
  std::byte* data;
  std::size_t count, bytes; // number of elements, and bytes of one
  written(std::byte* at, std::size_t n, std::size_t of_one) : data(at), count(n), bytes(of_one) {}
  template <class T> explicit written(std::vector<T>& x)
      : data(reinterpret_cast<std::byte*>(x.data())), count(x.size()), bytes(sizeof(T)) {}
  std::size_t size() const { return count * bytes; }
};

/// A line of a body's source.
struct place {
  const char* file;
  int line;
  static constexpr place here(const char* f = __builtin_FILE(), int l = __builtin_LINE()) {
    return {f, l};
  }
};

/// Number of bytes that bodies have loaded from memory in whole groups.
inline std::int64_t bytes_loaded = 0;

/// The elements of a whole group. If the body says that its rows are aligned, its addresses are
/// checked.
template <int N> struct group_lanes : mc::lanes<N> { bool aligned; };
template <int N, class T> void check_alignment(const T* p, group_lanes<N> i) {
  constexpr std::size_t bytes = N * sizeof(T) < 16 ? N * sizeof(T) : 16;
  if (!i.aligned || reinterpret_cast<std::uintptr_t>(p + i.first) % bytes == 0) return;
  std::fprintf(stderr, "emulated team: an aligned body has a group of %d elements at %p\n", N,
               static_cast<const void*>(p + i.first));
  std::abort();
}
template <class A, class T, int N> mc::vec<A, N> load(const T* p, group_lanes<N> i) {
  check_alignment(p, i);
  bytes_loaded += std::int64_t{N} * std::int64_t{sizeof(T)};
  return mc::load<A>(p, static_cast<const mc::lanes<N>&>(i));
}
template <class T, class A, int N> void store(T* p, group_lanes<N> i, mc::vec<A, N> x) {
  check_alignment(p, i);
  mc::store(p, static_cast<const mc::lanes<N>&>(i), x);
}
template <class T, int N> void copy(T* to, const T* from, group_lanes<N> i) {
  check_alignment(to, i), check_alignment(from, i);
  mc::copy(to, from, static_cast<const mc::lanes<N>&>(i));
}
/// Returns whether a body says that its rows are aligned.
template <class Body> bool says_aligned(const Body& body) {
  if constexpr (requires { body.aligned(); }) return body.aligned();
  else return false;
}
/// Returns the bytes of a row that a team of `threads` threads may keep for a body; 0: none.
template <class Body> std::int64_t bytes_to_keep(const Body& body, int threads) {
  if constexpr (requires { Body::keeps; }) {
    const std::int64_t bytes = body.row_bytes();
    return body.aligned() && bytes <= std::int64_t{16} * threads * Body::keeps ? bytes : 0;
  } else {
    return 0;
  }
}

/// The groups of a kept row that a thread holds. If the row is not kept, it has only the row's
/// address.
template <class T, class Row> struct kept_row {
  Row* row;
  std::int64_t step; // elements between two groups of one thread
  bool holds;
  std::vector<T> groups;
  template <int N> T* at(std::int64_t first) {
    const auto k = static_cast<std::size_t>(first / step * N);
    if (groups.size() < k + N)
      groups.resize(k + N, mc::convert<T>(std::numeric_limits<float>::quiet_NaN()));
    return groups.data() + k;
  }
};
template <class A, class T, class Row, int N>
mc::vec<A, N> load(const kept_row<T, Row>& from, group_lanes<N> i) {
  static_assert(N * sizeof(T) == 16, "a row is kept for lanes of its own type");
  if (!from.holds) return load<A>(static_cast<const T*>(from.row), i);
  return mc::load<A>(const_cast<kept_row<T, Row>&>(from).template at<N>(i.first), mc::lanes<N>{0});
}
template <class A, class T, class Row>
mc::vec<A, 1> load(const kept_row<T, Row>& from, mc::lanes<1> i) {
  return mc::load<A>(static_cast<const T*>(from.row), i);
}
template <class T, class A, int N>
void store(kept_row<T, T>& to, group_lanes<N> i, mc::vec<A, N> x) {
  static_assert(N * sizeof(T) == 16, "a row is kept for lanes of its own type");
  store(to.row, i, x);
  if (to.holds) mc::store(to.template at<N>(i.first), mc::lanes<N>{0}, x);
}
template <class T, class A> void store(kept_row<T, T>& to, mc::lanes<1> i, mc::vec<A, 1> x) {
  mc::store(to.row, i, x);
}

class emulated_team;

/// The threads of one team: 16, or a multiple of 32 up to 1,024.
class emulated_block {
public:
  static constexpr int most = 1024;
  explicit emulated_block(int threads)
      : threads_(threads),
        fibers_(new fiber[static_cast<unsigned>(threads)]),
        at_(static_cast<unsigned>(threads)),
        deposits_(at_.size()),
        order_(at_.size()) {}

  int threads() const { return threads_; }
  int current() const { return current_; }
  bool aligned = false;  ///< result of aligned() of the next body
  std::int64_t held = 0; ///< bytes of each row that threads keep for the next body

  /// The lines of bodies with a sync() that threads have reached, and the line that they pass by
  /// without waiting.
  static inline std::set<int> barriers;
  static inline int passed_by = 0;

  /// Runs f(team) on all threads. Returns a sentence about the first fault, or nothing. Faults are
  /// threads that wait at different barriers or for one that has ended, and elements of `arrays`
  /// that two threads change between the same two barriers (found if the threads run apart).
  std::string run(const std::function<void(const emulated_team&)>& f, turns order,
                  const std::vector<written>& arrays = {});

  /// Returns an array that the threads share. `key` tells it from other arrays.
  std::byte* shared(const void* key, std::size_t count, std::size_t bytes) {
    std::unique_ptr<shared_array>& a = shared_[key];
    if (a == nullptr) {
      a = std::make_unique<shared_array>(count, bytes);
      a->clear();
    }
    return a->data.data();
  }

  /// A barrier. A thread waits there on its fiber until all threads come.
  struct barrier {
    const char* name = nullptr; // null: the thread has ended
    std::int64_t extent = 0;
    place where{};
    void (*finish)(emulated_block&) = nullptr;
  };
  void wait(const barrier& b) {
    at_[index(current_)] = b;
    fibers_[index(current_)].pause();
  }

  /// Reduces a value over all threads as cuda_team does: the threads of a warp by exclusive or of
  /// their numbers, then the warps in order.
  template <class A, class Op>
  A over_block(A of_thread, const char* name, std::int64_t extent, place where) {
    std::memcpy(&deposits_[index(current_)], &of_thread, sizeof of_thread);
    wait({name, extent, where, [](emulated_block& b) { b.combine<A, Op>(); }});
    A all;
    std::memcpy(&all, &result_, sizeof all);
    return all;
  }

  /// The values that the threads of a warp give the tensor cores, and get from them.
  struct fragments {
    float c[4];
    std::uint32_t a[4], b[2];
  };
  void multiply(fragments& mine, place where) {
    if (fragments_.empty()) fragments_.resize(at_.size());
    fragments_[index(current_)] = mine;
    wait({"multiply", -1, where, [](emulated_block& b) { b.multiply_all(); }});
    mine = fragments_[index(current_)];
  }

  /// Notes a fault if a body visits more bytes of a row than the block keeps, or no whole groups.
  void require_held(std::int64_t bytes) {
    if ((bytes > held || bytes % 16 != 0) && fault_.empty())
      fault_ = std::to_string(bytes) + " bytes are visited of rows that are kept, of " +
               std::to_string(held);
  }

  /// Starts copying 16 bytes, which arrive when the thread waits for them, and not before.
  void send(void* to, const void* from) {
    for (const void* p : {static_cast<const void*>(to), from})
      if (reinterpret_cast<std::uintptr_t>(p) % 16 != 0)
        fault_ = "a group of 16 bytes is not aligned";
    sent_.push_back({current_, to, from});
  }
  void receive() {
    for (const sent_bytes& s : sent_)
      if (s.thread == current_) std::memcpy(s.to, s.from, 16);
    std::erase_if(sent_, [this](const sent_bytes& s) { return s.thread == current_; });
  }

private:
  struct sent_bytes {
    int thread;
    void* to;
    const void* from;
  };
  int threads_, current_ = 0;
  std::vector<fragments> fragments_;
  std::vector<sent_bytes> sent_;
  std::unique_ptr<fiber[]> fibers_;
  std::vector<barrier> at_; // barrier where each thread stands
  std::vector<std::uint64_t> deposits_;
  std::vector<int> order_;
  std::uint64_t result_ = 0, state_ = 0;
  std::string fault_;
  struct shared_array {
    std::size_t bytes; // bytes of an element
    std::vector<std::byte> data;
    shared_array(std::size_t count, std::size_t of_one) : bytes(of_one), data(count * of_one) {}
    void clear() { std::fill(data.begin(), data.end(), std::byte{0xff}); } // NaNs of any type
  };
  std::map<const void*, std::unique_ptr<shared_array>> shared_;

  static std::size_t index(int thread) { return static_cast<std::size_t>(thread); }

  std::uint64_t draw() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return state_ >> 33;
  }
  void take_order(turns by) {
    std::iota(order_.begin(), order_.end(), 0);
    if (by.of == turns::last_first) std::iota(order_.rbegin(), order_.rend(), 0);
    if (by.of != turns::random) return;
    for (std::size_t i = order_.size() - 1; i > 0; --i)
      std::swap(order_[i], order_[draw() % (i + 1)]);
  }

  template <class A, class Op> void combine() {
    A all{};
    const int lanes = std::min(threads_, 32);
    for (int warp = 0; warp < threads_ / lanes; ++warp) {
      A a[32]{}, b[32]{};
      for (int i = 0; i < lanes; ++i)
        std::memcpy(&a[i], &deposits_[index(lanes * warp + i)], sizeof(A));
      for (int d = lanes / 2; d > 0; d /= 2) {
        for (int i = 0; i < lanes; ++i) b[i] = Op()(a[i], a[i ^ d]);
        std::memcpy(a, b, sizeof a);
      }
      all = warp == 0 ? a[0] : Op()(all, a[0]);
    }
    std::memcpy(&result_, &all, sizeof all);
  }

  // Multiplies as mma.m16n8k16 of bf16, whose fragments the PTX ISA defines so: with g = lane / 4
  // and t = lane % 4, a0, a1, a4, a5 are of row g, the others of row g + 8; a0 to a3 of columns 2t
  // and 2t + 1, the others 8 further; b0 and b1 of rows 2t and 2t + 1, the others 8 further, and of
  // column g; c0 and c1 of row g, the others of row g + 8, and of columns 2t and 2t + 1.
  void multiply_all() {
    const auto number = [](std::uint32_t two, int which) {
      mc::bf16 x;
      x.bits = static_cast<std::uint16_t>(which == 0 ? two : two >> 16);
      return static_cast<float>(x);
    };
    for (std::size_t warp = 0; warp < fragments_.size(); warp += 32) {
      float a[16][16], b[16][8];
      for (int lane = 0; lane < 32; ++lane) {
        const fragments& f = fragments_[warp + index(lane)];
        const int g = lane / 4, t = lane % 4;
        for (int i = 0; i < 8; ++i) {
          const bool lower = i == 0 || i == 1 || i == 4 || i == 5;
          a[lower ? g : g + 8][2 * t + i % 2 + (i < 4 ? 0 : 8)] = number(f.a[i / 2], i % 2);
        }
        for (int i = 0; i < 4; ++i)
          b[2 * t + i % 2 + (i < 2 ? 0 : 8)][g] = number(f.b[i / 2], i % 2);
      }
      for (int lane = 0; lane < 32; ++lane)
        for (int i = 0; i < 4; ++i)
          for (int k = 0; k < 16; ++k)
            fragments_[warp + index(lane)].c[i] +=
                a[lane / 4 + (i < 2 ? 0 : 8)][k] * b[k][lane % 4 * 2 + i % 2];
    }
  }

  static std::string told(const barrier& b) {
    if (!b.name) return "has ended";
    const std::string file(b.where.file);
    return std::string("waits in ") + b.name +
           (b.extent < 0 ? "" : " of " + std::to_string(b.extent)) + " at " +
           file.substr(file.rfind('/') + 1) + ":" + std::to_string(b.where.line);
  }
  static bool same(const barrier& a, const barrier& b) {
    return a.finish == b.finish && a.extent == b.extent && a.where.line == b.where.line &&
           (!a.name ||
            (std::strcmp(a.name, b.name) == 0 && std::strcmp(a.where.file, b.where.file) == 0));
  }

  // The arrays between two barriers if the threads run apart.
  class memory {
  public:
    explicit memory(const std::vector<written>& arrays) : arrays_(arrays) {
      for (const written& w : arrays_) {
        before_.insert(before_.end(), w.data, w.data + w.size());
        writers_.emplace_back(w.count, -1);
      }
      after_ = before_;
    }
    /// Undoes a thread's writes, and keeps them for the end of the interval.
    void collect(int thread, std::string& fault) {
      std::size_t at = 0;
      for (std::size_t k = 0; k < arrays_.size(); at += arrays_[k++].size()) {
        const written& w = arrays_[k];
        if (w.size() == 0 || std::memcmp(w.data, &before_[at], w.size()) == 0) continue;
        for (std::size_t i = 0; i < w.count; ++i) {
          const std::size_t from = i * w.bytes;
          if (std::memcmp(w.data + from, &before_[at + from], w.bytes) == 0) continue;
          int& writer = writers_[k][i];
          if (writer >= 0 && fault.empty()) {
            fault = "threads " + std::to_string(writer) + " and " + std::to_string(thread) +
                    " both write element " + std::to_string(i) + " of array " + std::to_string(k);
          }
          writer = thread;
          std::memcpy(&after_[at + from], w.data + from, w.bytes);
          std::memcpy(w.data + from, &before_[at + from], w.bytes);
        }
      }
    }
    void publish() {
      std::size_t at = 0;
      for (const written& w : arrays_) {
        if (w.size() > 0) std::memcpy(w.data, &after_[at], w.size());
        at += w.size();
      }
    }

  private:
    const std::vector<written>& arrays_;
    std::vector<std::byte> before_, after_;
    std::vector<std::vector<int>> writers_;
  };
};

/// The team as a thread of an emulated block sees it.
class emulated_team {
public:
  /// The largest number of threads: bodies only compare it with 1. A block has its own number when
  /// it runs.
  static constexpr int threads = emulated_block::most, least_threads = 16;
  static constexpr bool multiplies = false;
  template <class T> static constexpr int width = 16 / static_cast<int>(sizeof(T));

  explicit emulated_team(emulated_block& block) : block_(&block) {}

  int index() const { return block_->current(); }
  int count() const { return block_->threads(); }
  bool leader() const { return index() == 0; }

  template <class X, int N, int I> X* shared() const {
    static char key;
    return reinterpret_cast<X*>(block_->shared(&key, N, sizeof(X)));
  }

  void sync(place where = place::here()) const {
    emulated_block::barriers.insert(where.line);
    if (where.line == emulated_block::passed_by) return;
    block_->wait({"sync", -1, where, [](emulated_block&) {}});
  }

  template <class T> void carry(T* to, const T* from) const { block_->send(to, from); }
  void carried() const { block_->receive(); }

  template <class T, class Extent, class F> void each(Extent extent, F f) const {
    constexpr int N = width<T>;
    const std::int64_t n = extent, full = n / N * N, me = block_->current();
    if (block_->held > 0) block_->require_held(n * std::int64_t{sizeof(T)});
    for (std::int64_t i = me * N; i < full; i += block_->threads() * N) f(group<N>(i));
    for (std::int64_t i = full + me; i < n; i += block_->threads()) f(mc::lanes<1>{i});
  }

  template <class T, class Extent, class F> void each_wide(Extent extent, F f) const {
    each<T>(extent, f);
  }

  template <class T, class Outer, class Extent, class F>
  void each_of(Outer outer, Extent extent, F f) const {
    constexpr int N = width<T>;
    const std::int64_t m = outer, n = extent, groups = n / N, rest = n % N;
    for (std::int64_t k = block_->current(); k < m * groups; k += block_->threads())
      f(k / groups, group<N>(k % groups * N));
    for (std::int64_t k = block_->current(); k < m * rest; k += block_->threads())
      f(k / rest, mc::lanes<1>{groups * N + k % rest});
  }

  template <class T, class Extent, class F>
  auto sum(Extent extent, F f, place where = place::here()) const {
    using V = decltype(f(group<width<T>>(0)));
    return over_block<mc::detail::plus>(fold<T, mc::detail::plus>(extent, V(0), f), "sum", extent,
                                        where);
  }

  template <class T, class Extent, class F>
  auto sum_two(Extent extent, F f, place where = place::here()) const {
    using V = decltype(f(group<width<T>>(0)).first);
    using A = typename V::value_type;
    V a(0), b(0);
    each<T>(extent, [&](auto i) {
      const auto x = f(i);
      a = added<mc::detail::plus>(a, x.first);
      b = added<mc::detail::plus>(b, x.second);
    });
    const A first = over_block<mc::detail::plus>(a, "sum_two", extent, where);
    return mc::two<A>{first, over_block<mc::detail::plus>(b, "sum_two", extent, where)};
  }

  template <class T, class Extent, class F>
  auto max(Extent extent, F f, place where = place::here()) const {
    using V = decltype(f(group<width<T>>(0)));
    const V least(-std::numeric_limits<typename V::value_type>::infinity());
    return over_block<mc::detail::greater_of>(fold<T, mc::detail::greater_of>(extent, least, f),
                                              "max", extent, where);
  }

  // Uses ordered_bits for float, as a warp does; other types go as over several warps.
  template <class T, class Extent, class F>
  auto first_greatest(Extent extent, F f, place where = place::here()) const {
    using V = decltype(f(group<width<T>>(0)).value);
    using A = typename V::value_type;
    mc::detail::running_first<A> mine;
    each<T>(extent, [&](auto i) {
      constexpr int N = decltype(i)::count;
      const auto x = f(i);
      A value[N];
      mc::int_like<A> mask[N];
      mc::store(value, mc::lanes<N>{0}, x.value), mc::store(mask, mc::lanes<N>{0}, x.mask);
      for (int l = 0; l < N; ++l) mine.add(value[l], mask[l] != 0, i.first + l);
    });
    const auto all = [&]<class Op>(auto x, Op) {
      return block_->over_block<decltype(x), Op>(x, "first_greatest", extent, where);
    };
    using mc::detail::greater_of, mc::detail::smaller_of;
    if constexpr (sizeof(A) == 4) {
      const std::uint32_t bits = mine.bits(), top = all(bits, greater_of());
      return mine.from_bits(top, all(bits == top ? mine.index : mine.none, smaller_of()));
    } else {
      const A top = all(mine.greatest, greater_of());
      return mc::two<A>{top, all(mine.index_of(top), smaller_of())};
    }
  }

  template <class T, class Extent> auto keep(Extent extent, const T* row) const {
    kept_row<T, const T> kept{row, step<T>(), block_->held > 0, {}};
    if (kept.holds)
      each<T>(extent, [&](auto i) {
        constexpr int N = decltype(i)::count;
        if constexpr (N > 1) {
          check_alignment(row, i);
          bytes_loaded += 16;
          std::memcpy(kept.template at<N>(i.first), row + i.first, 16);
        }
      });
    return kept;
  }
  template <class T, class Extent> auto keep_stored(Extent, T* row) const {
    return kept_row<T, T>{row, step<T>(), block_->held > 0, {}};
  }
  template <class T, class Extent, class F> auto keep_values(Extent extent, F f) const {
    using V = decltype(f(group<width<T>>(0)));
    std::vector<V> kept;
    if (block_->held > 0)
      each<T>(extent, [&](auto i) {
        if constexpr (decltype(i)::count > 1) kept.push_back(f(i));
      });
    return [f, kept, step = step<T>()](auto i) {
      if constexpr (decltype(i)::count > 1)
        if (!kept.empty()) return kept[static_cast<std::size_t>(i.first / step)];
      return f(i);
    };
  }

  template <class T, class Extent, class F>
  auto max_and_sum_exp(Extent extent, F f, place where = place::here()) const {
    using A = typename decltype(f(group<width<T>>(0)))::value_type;
    mc::detail::running_sum<A> mine;
    each<T>(extent, [&](auto i) { mine.add(f(i)); });
    const A top = over_block<mc::detail::greater_of>(mc::vec<A, 1>(mine.maximum), "max_and_sum_exp",
                                                     extent, where);
    return mc::maximum_and_sum<A>{
        top, over_block<mc::detail::plus>(mc::vec<double, 1>(mine.below(top)), "max_and_sum_exp",
                                          extent, where)};
  }

protected:
  emulated_block* block_;

private:
  template <int N> group_lanes<N> group(std::int64_t first) const {
    return {{first}, block_->aligned};
  }
  template <class T> std::int64_t step() const { return std::int64_t{width<T>} * count(); }

  // Elements that fill no whole group go to the first lane.
  template <class Op, class A, int N, int M>
  static mc::vec<A, N> added(mc::vec<A, N> a, mc::vec<A, M> x) {
    if constexpr (N == M) {
      return mc::detail::map<A>(Op(), a, x);
    } else {
      A of_lane[N];
      mc::store(of_lane, mc::lanes<N>{0}, a);
      of_lane[0] = Op()(of_lane[0], x.v[0]);
      return mc::load<A>(of_lane, mc::lanes<N>{0});
    }
  }
  template <class T, class Op, class Extent, class V, class F>
  V fold(Extent extent, V a, F f) const {
    each<T>(extent, [&](auto i) { a = added<Op>(a, f(i)); });
    return a;
  }
  template <class Op, class A, int N> A over_block(mc::vec<A, N> lanes_of_thread, const char* name,
                                                   std::int64_t extent, place where) const {
    return block_->over_block<A, Op>(mc::across(Op(), lanes_of_thread), name, extent, where);
  }
};

/// A thread of a team of 128, with tensor cores.
class emulated_tensor_team : public emulated_team {
public:
  static constexpr bool multiplies = true;
  using emulated_team::emulated_team;
  explicit emulated_tensor_team(const emulated_team& of) : emulated_team(of) {}
  void multiply(float (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2],
                place where = place::here()) const {
    emulated_block::fragments f{{c[0], c[1], c[2], c[3]}, {a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
    block_->multiply(f, where);
    for (int i = 0; i < 4; ++i) c[i] = f.c[i];
  }
};

inline std::string emulated_block::run(const std::function<void(const emulated_team&)>& f,
                                       turns order, const std::vector<written>& arrays) {
  state_ = order.seed;
  fault_.clear(), sent_.clear();
  std::vector<written> all = arrays; // and shared arrays of earlier runs
  for (const auto& [key, a] : shared_) {
    a->clear();
    all.emplace_back(a->data.data(), a->data.size() / a->bytes, a->bytes);
  }
  for (int t = 0; t < threads_; ++t) {
    fibers_[index(t)].start([this, t, &f] {
      try {
        f(emulated_team(*this));
      } catch (const std::exception& e) {
        if (fault_.empty()) fault_ = "thread " + std::to_string(t) + " threw: " + e.what();
      }
      at_[index(t)] = {};
    });
  }
  for (;;) {
    take_order(order);
    std::unique_ptr<memory> own;
    if (order.of == turns::apart) own = std::make_unique<memory>(all);
    for (int t : order_) {
      current_ = t;
      fibers_[index(t)].resume();
      if (own) own->collect(t, fault_);
    }
    if (own) own->publish();
    for (int t = 1; t < threads_ && fault_.empty(); ++t) {
      if (!same(at_[index(t)], at_[0])) {
        fault_ = "thread " + std::to_string(t) + " " + told(at_[index(t)]) + ", thread 0 " +
                 told(at_[0]);
      }
    }
    if (!fault_.empty() || !at_[0].name) return fault_;
    at_[0].finish(*this);
  }
}

} // namespace test
