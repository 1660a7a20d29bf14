// Loops over all threads of the host. Results do not depend on the thread that an index runs on:
// bodies write disjoint elements, and each reduction stays inside one body.
#pragma once

#include <megacpp/threads/workers.hpp>
#include <megacpp/vectors/team.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace mc {

/// Functions of a piece, and of a range of items begin ... end-1.
using function_of_piece = function_ref<int>;
using function_of_range = function_ref<std::int64_t, std::int64_t>;

/// The threads of the host that work for the calling thread. It is a template without a use of its
/// parameter, and its functions are not inline, so that a unit does not compile them where another
/// unit has them (src/kernels.hpp).
template <class = void> struct host_threads {
  static int count();
  static void set_count(int n);
  static void for_pieces(int pieces, function_of_piece f);
  static void for_ranges(std::int64_t n, function_of_range f);
  static void sort(std::uint64_t* numbers, std::int64_t n);
};

/// Returns the number of threads that the calling thread computes with: by default, as many as
/// there are processors that the process may use. Workers stay behind when a process forks: the
/// child reports its parent's number, but computes on one thread until it sets a number itself.
inline int thread_count() { return host_threads<>::count(); }
/// Sets the number of threads. Throws mc::error: exit_code::usage below one, exit_code::memory
/// where so many cannot be started. A call within a parallel loop does nothing: the loop keeps the
/// threads that it began with.
inline void set_thread_count(int n) { host_threads<>::set_count(n); }

/// Returns how many threads, up to `most`, a product of so many multiplications is worth: waking a
/// thread takes about as long as 2^13 multiplications of a product with one row.
inline int threads_for(std::int64_t multiplications, int most) {
  return static_cast<int>(std::clamp<std::int64_t>(multiplications >> 13, 1, most));
}

/// The range of items, of n, that belong to piece `piece` of `pieces`.
struct piece_range {
  std::int64_t begin, end;
  piece_range(std::int64_t n, int piece, int pieces)
      : begin(n * piece / pieces), end(n * (piece + 1) / pieces) {}
};

/// Calls f(piece) for pieces 0, 1, ... below `pieces`, each once and on one thread. f must not
/// throw.
inline void parallel_pieces(int pieces, function_of_piece f) {
  host_threads<>::for_pieces(pieces, f);
}

/// Calls f(i) for i in [0, n), in contiguous pieces of equal size, and returns when all calls have.
/// f must not throw. A single piece runs on the calling thread and wakes no others.
template <class F> void parallel_for(std::int64_t n, F f) {
  host_threads<>::for_ranges(n, [&f](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) f(i);
  });
}

template <class T> int host_threads<T>::count() { return workers::mine().threads(); }
template <class T> void host_threads<T>::set_count(int n) { workers::mine().resize(n); }
template <class T> void host_threads<T>::for_pieces(int pieces, function_of_piece f) {
  workers::mine().for_pieces(pieces, f);
}
template <class T> void host_threads<T>::for_ranges(std::int64_t n, function_of_range f) {
  constexpr int pieces_of_a_thread = 2; // two pieces a thread, so that a faster thread can do more
  const int threads = n > 1 ? count() : 1;
  const auto pieces =
      static_cast<int>(threads == 1 ? 1 : std::min<std::int64_t>(n, threads * pieces_of_a_thread));
  for_pieces(pieces, [n, pieces, &f](int piece) {
    const piece_range mine(n, piece, pieces);
    f(mine.begin, mine.end);
  });
}

/// One thread sorts: the sums over tokens that need the order take longer than the sort.
template <class T> void host_threads<T>::sort(std::uint64_t* numbers, std::int64_t n) {
  for_pieces(1, [numbers, n](int) { std::sort(numbers, numbers + n); });
}

/// The host's threads, seen by kernels that exist only for devices of the host.
class host_pool {
public:
  host_pool() = default;
  host_pool(const host_pool&) = delete;
  host_pool& operator=(const host_pool&) = delete;
  /// Calls f(piece) for pieces 0, 1, ... below `pieces`, each once and on one thread. f must not
  /// throw.
  virtual void for_pieces(int pieces, function_of_piece f) const = 0;

protected:
  ~host_pool() = default;
};

/// The calling thread and its workers, as bodies are started on them.
class cores : public host_pool {
public:
  int threads() const { return thread_count(); }
  int slabs() const { return thread_count(); }
  template <class Body> void for_rows(std::int64_t rows, Body body) const;
  void for_pieces(int pieces, function_of_piece f) const override { parallel_pieces(pieces, f); }
  void sort(std::uint64_t* numbers, std::int64_t n, int /*first*/, int /*bits*/,
            std::byte* /*room*/) const {
    host_threads<>::sort(numbers, n);
  }
};
/// for_rows is not inline either, for the same reason as the functions of host_threads.
template <class Body> void cores::for_rows(std::int64_t rows, Body body) const {
  parallel_for(rows, [body](std::int64_t row) { body(core_team{}, row); });
}

} // namespace mc
