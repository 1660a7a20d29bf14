// All cores of this process, by OpenMP; one core when it is off. What runs on which thread decides
// nothing about results: bodies write disjoint elements, and reductions stay inside one body.
#pragma once

#include <megacpp/exec/team.hpp>

#if defined(_OPENMP)
#include <omp.h>
#endif

namespace mc {

/// Threads that parallel_for uses.
inline int thread_count() {
#if defined(_OPENMP)
  return omp_get_max_threads();
#else
  return 1;
#endif
}

/// f(i) for i in [0, n), in contiguous pieces of equal size. Returns when all are done; f must not
/// throw. One piece runs on the caller's thread without waking others.
template <class F> void parallel_for(std::int64_t n, F f) {
#if defined(_OPENMP)
  if (n > 1) {
#pragma omp parallel for schedule(static)
    for (std::int64_t i = 0; i < n; ++i) f(i);
    return;
  }
#endif
  for (std::int64_t i = 0; i < n; ++i) f(i);
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

/// body(core_team{}, block) for every block of a range of n elements.
template <class Body> void for_blocks(std::int64_t n, Body body) {
  for_rows((n + flat_block - 1) / flat_block, body);
}

} // namespace mc
