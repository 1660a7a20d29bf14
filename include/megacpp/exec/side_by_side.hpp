// Work on a lane of which pieces do not wait for each other.
#pragma once

#include <exception>

namespace mc {

/// While this lives, products that are started on a lane may run side by side: those behind one
/// call of next() depend on none behind another. Whatever is started on the lane later waits for
/// all. A lane without branches runs them one after another.
template <class Lane> class side_by_side {
public:
  explicit side_by_side(Lane& on) : on_(on) {
    if constexpr (branches) on_.branch_out();
  }
  side_by_side(const side_by_side&) = delete;
  side_by_side& operator=(const side_by_side&) = delete;
  /// Throws what joining throws, unless something else is on its way.
  ~side_by_side() noexcept(false) {
    if constexpr (branches) {
      if (std::uncaught_exceptions() == thrown_) {
        on_.join();
      } else {
        try {
          on_.join();
        } catch (...) { // what is thrown already is told
        }
      }
    }
  }
  void next() {
    if constexpr (branches) on_.next_branch();
  }

private:
  static constexpr bool branches = requires(Lane & l) { l.branch_out(); };
  Lane& on_;
  int thrown_ = std::uncaught_exceptions();
};

} // namespace mc
