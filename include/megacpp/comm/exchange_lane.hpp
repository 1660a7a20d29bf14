// A lane beside those that compute, on which exchanges are done: for a backend whose exchanges are
// work of the device, as those of ranks that share one.
//
//   const std::shared_ptr<event> started = beside.mark(computes);   an exchange is started
//   beside.on().wait(*started);                                     and done beside what follows:
//   ...                                                             copies and sums on beside.on()
//   const std::shared_ptr<event> done = beside.mark(beside.on());
//   computes.wait(*done);                                           until the lane waits for it
#pragma once

#include <megacpp/exec/device.hpp>

#include <atomic>
#include <memory>
#include <vector>

namespace mc {

class exchange_lane {
public:
  /// `of` must outlive this.
  explicit exchange_lane(device& of) : of_(of), lane_(of.make_lane()) {}

  lane& on() const { return *lane_; }
  /// An event that comes when `at` has done all that it was given before this call. Whoever holds
  /// it may have lanes wait for it; it is used again when nobody does.
  std::shared_ptr<event> mark(lane& at) {
    std::shared_ptr<event> e;
    for (const std::shared_ptr<event>& free : events_)
      if (free.use_count() == 1) {
        std::atomic_thread_fence(std::memory_order_acquire); // behind what its last holder did
        e = free;
        break;
      }
    if (e == nullptr) e = events_.emplace_back(of_.make_event());
    at.record(*e);
    return e;
  }

private:
  device& of_;
  std::unique_ptr<lane> lane_;
  std::vector<std::shared_ptr<event>> events_;
};

} // namespace mc
