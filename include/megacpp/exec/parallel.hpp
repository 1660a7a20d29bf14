// Loops over all threads. What runs on which thread decides nothing about results: bodies write
// disjoint elements, and reductions stay inside one body.
#pragma once

#include <megacpp/exec/team.hpp>
#include <megacpp/exec/workers.hpp>

#include <algorithm>
#include <cstdint>

namespace mc {

/// Threads that the calling thread computes with; by default as many as it may run on.
/// The workers stay behind when a process forks: a child has the number of its parent, but computes
/// alone until it sets one itself.
inline int thread_count() { return workers::mine().threads(); }
/// Throws mc::error: exit_code::usage below one, exit_code::memory where so many cannot be started.
/// Within a region it does nothing: that has the threads that it began with.
inline void set_thread_count(int n) { workers::mine().resize(n); }

/// As many threads, up to `most`, as so many multiplications are worth: waking one takes about as
/// long as 2^13 of them, in the products of one token.
inline int threads_for(std::int64_t multiplications, int most) {
  return static_cast<int>(std::clamp<std::int64_t>(multiplications >> 13, 1, most));
}

/// A share of n items for one of `slots`.
struct share {
  std::int64_t begin, end;
  share(std::int64_t n, int slot, int slots)
      : begin(n * slot / slots), end(n * (slot + 1) / slots) {}
};

/// f(slot) for slots 0, 1, ... below `slots`, each once and on one thread; f must not throw.
template <class F> void on_slots(int slots, const F& f) { workers::mine().run(slots, f); }

/// f(i) for i in [0, n), in contiguous pieces of equal size. Returns when all are done; f must not
/// throw. One piece runs on the caller's thread without waking others.
template <class F> void parallel_for(std::int64_t n, F f) {
  constexpr int pieces_of_a_thread = 2; // so that the faster thread does more
  const int threads = n > 1 ? thread_count() : 1;
  const auto pieces =
      static_cast<int>(threads == 1 ? 1 : std::min<std::int64_t>(n, threads * pieces_of_a_thread));
  on_slots(pieces, [n, pieces, &f](int piece) {
    const share mine(n, piece, pieces);
    for (std::int64_t i = mine.begin; i < mine.end; ++i) f(i);
  });
}

/// body(core_team{}, row) for every row.
template <class Body> void for_rows(std::int64_t rows, Body body) {
  parallel_for(rows, [body](std::int64_t row) { body(core_team{}, row); });
}

/// Elements of a flat range that one call of a flat body covers. Fixed, so that what is summed per
/// block does not depend on the number of threads.
inline constexpr std::int64_t flat_block = 4096;

/// f(lanes) for the elements of one block of a range of n; lanes count from the range's start.
template <class T, class Team, class F>
MEGACPP_HD void each_in_block(const Team& team, std::int64_t block, std::int64_t n, F f) {
  const std::int64_t first = block * flat_block, left = n - first;
  team.template each<T>(left < flat_block ? left : flat_block,
                        [&](auto i) { f(lanes<decltype(i)::count>{first + i.first}); });
}

/// The same, and the sum of what f returns of each element.
template <class T, class Team, class F>
MEGACPP_HD auto sum_in_block(const Team& team, std::int64_t block, std::int64_t n, F f) {
  const std::int64_t first = block * flat_block, left = n - first;
  return team.template sum<T>(left < flat_block ? left : flat_block, [&](auto i) {
    return f(lanes<decltype(i)::count>{first + i.first});
  });
}

/// Blocks of a range of n elements.
constexpr std::int64_t blocks_of(std::int64_t n) { return (n + flat_block - 1) / flat_block; }

/// body(core_team{}, block) for every block of a range of n elements.
template <class Body> void for_blocks(std::int64_t n, Body body) { for_rows(blocks_of(n), body); }

} // namespace mc
