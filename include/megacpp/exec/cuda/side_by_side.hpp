// Work on a lane of which pieces do not wait for each other, for sources of products whose lanes
// have branches: branch_out(), next_branch() and join().
#pragma once

#include <megacpp/exec/ending.hpp>

namespace mc {

/// While this lives, a lane takes products alone, which may run side by side: those behind one call
/// of next() are done in order, and depend on none behind another. Whatever is started on the lane
/// later waits for all.
template <class Lane> class side_by_side {
public:
  explicit side_by_side(Lane& on) : on_(on) { on_.branch_out(); }
  side_by_side(const side_by_side&) = delete;
  side_by_side& operator=(const side_by_side&) = delete;
  /// Throws what joining throws, unless something else is on its way.
  ~side_by_side() noexcept(false) {
    ending_.run([this] { on_.join(); });
  }
  void next() { on_.next_branch(); }

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
