// The way in which kernels start bodies on a lane of a device.
//
// A body is a struct of pointers into the device's memory, extents and numbers. Its call operator
// computes one row with a team (vectors/team.hpp). The lane copies the body and may run it after
// for_rows has returned, but before work that is started later. So a body has no pointers into the
// host's memory, and a kernel that has started a body does not look at what the body reads or
// writes.
#pragma once

#include <megacpp/vectors/blocks.hpp>

#include <cstdint>
#include <type_traits>

namespace mc {

/// is_row_body: a device can take a copy of a body with it. A lambda is not an aggregate: its
/// captures have no names, and references among them would point to the host's stack.
template <class Body> inline constexpr bool is_row_body =
    std::is_trivially_copyable_v<Body>&& std::is_aggregate_v<Body>;

/// A device may ask a body before it starts it, where the body has these:
///
///   row_bytes()   bytes of the longest array that a team visits for a row; they decide the number
///                 of threads
///   aligned()     true if every group of elements that the body loads or stores by a team's lanes
///                 begins at a multiple of its own size, or of 16 bytes where it is larger
///   keeps         how many groups of 16 bytes of a row a thread may keep (team.keep): a constant.
///                 Such a body visits its rows by whole groups, of row_bytes() at most
///   threads_at_once  the number of threads for which a multiprocessor should have registers: the
///                 fewer threads, the more registers each has (exec/cuda/launch.cuh)
///
/// rows_aligned answers aligned() for rows of `width` elements of T that follow each other from
/// these addresses on.
template <class T, class... P> bool rows_aligned(std::int64_t width, const P*... at) {
  return width * std::int64_t{sizeof(T)} % 16 == 0 &&
         ((reinterpret_cast<std::uintptr_t>(at) | ...) & 15) == 0;
}

/// Starts body(team, row) for rows 0, 1, ... below `rows`, in any order.
template <class Lane, class Body> void for_rows(Lane& on, std::int64_t rows, Body body) {
  static_assert(is_row_body<Body>,
                "a body is a struct of pointers, extents and numbers with a name, which a lane "
                "can copy: give the lambda's captures a struct and its body to operator()");
  if constexpr (is_row_body<Body>) on.for_rows(rows, body); // the assertion is the only error
}
/// Starts body(team, block) for every block of a range of n elements.
template <class Lane, class Body> void for_blocks(Lane& on, std::int64_t n, Body body) {
  for_rows(on, blocks_of(n), body);
}
/// Starts body(team, 0), for work that is a single row, such as the numbers of a whole step.
template <class Lane, class Body> void for_one(Lane& on, Body body) { for_rows(on, 1, body); }

} // namespace mc
