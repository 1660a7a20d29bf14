// Products on a lane that do not wait for each other, for sources of products whose lanes have
// branches: branch_out(), next_branch() and join().
#pragma once

#include <megacpp/exec/ending.hpp>

namespace mc {

/// An object that lets products run side by side while it lives; the lane takes only products then.
/// Products between two calls of next() are done in order, and depend on none of another call's.
/// Work that is started on the lane later waits for all of them.
template <class Lane> class side_by_side {
public:
  explicit side_by_side(Lane& on) : on_(on) { on_.branch_out(); }
  side_by_side(const side_by_side&) = delete;
  side_by_side& operator=(const side_by_side&) = delete;
  /// Throws what joining throws, unless another exception is on its way.
  ~side_by_side() noexcept(false) {
    ending_.call([this] { on_.join(); });
  }
  void next() { on_.next_branch(); }

private:
  Lane& on_;
  ending ending_;
};

/// An object that has a lane do everything in order while it lives, also within a side_by_side: the
/// branches end before, and begin again behind the work that is started meanwhile.
template <class Lane> class back_in_order {
public:
  explicit back_in_order(Lane& on) : on_(on), branched_(on.branched()) {
    if (branched_) on_.join();
  }
  back_in_order(const back_in_order&) = delete;
  back_in_order& operator=(const back_in_order&) = delete;
  /// Throws what branching out throws, unless another exception is on its way.
  ~back_in_order() noexcept(false) {
    if (branched_) ending_.call([this] { on_.branch_out(), on_.next_branch(); });
  }

private:
  Lane& on_;
  bool branched_;
  ending ending_;
};

} // namespace mc
