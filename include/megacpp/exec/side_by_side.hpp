// Work on a lane of which pieces do not wait for each other.
#pragma once

#include <megacpp/exec/ending.hpp>

namespace mc {

namespace detail {
template <class Lane>
concept has_branches = requires(Lane& l) {
  l.branch_out();
};
} // namespace detail

/// While this lives, a lane takes products alone, which may run side by side: those behind one call
/// of next() depend on none behind another. Whatever is started on the lane later waits for all. A
/// lane without branches runs them one after another.
template <class Lane> class side_by_side {
public:
  explicit side_by_side(Lane& on) : on_(on) {
    if constexpr (detail::has_branches<Lane>) on_.branch_out();
  }
  side_by_side(const side_by_side&) = delete;
  side_by_side& operator=(const side_by_side&) = delete;
  /// Throws what joining throws, unless something else is on its way.
  ~side_by_side() noexcept(false) {
    if constexpr (detail::has_branches<Lane>) ending_.run([this] { on_.join(); });
  }
  void next() {
    if constexpr (detail::has_branches<Lane>) on_.next_branch();
  }

private:
  Lane& on_;
  ending ending_;
};

/// While this lives, a lane does everything in order, also within a side_by_side: its branches have
/// come to their end before, and begin again behind what is started on it meanwhile.
template <class Lane> class back_in_order {
public:
  explicit back_in_order(Lane& on) : on_(on), branched_(on.branched()) {
    if (branched_) on_.join();
  }
  back_in_order(const back_in_order&) = delete;
  back_in_order& operator=(const back_in_order&) = delete;
  /// Throws what branching out throws, unless something else is on its way.
  ~back_in_order() noexcept(false) {
    if (branched_) ending_.run([this] { on_.branch_out(), on_.next_branch(); });
  }

private:
  Lane& on_;
  bool branched_;
  ending ending_;
};

} // namespace mc
