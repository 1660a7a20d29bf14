// A lane for exchanges beside the lanes that compute. Backends use it whose exchanges are work of
// the device, as they are where ranks share one device.
//
//   const std::shared_ptr<event> started = beside.mark(computes);   an exchange is started,
//   beside.on().wait(*started);                                     and done beside later work:
//   ...                                                             copies and sums on beside.on()
//   const std::shared_ptr<event> done = beside.mark(beside.on());
//   computes.wait(*done);                                           the lane waits for its end
#pragma once

#include <megacpp/exec/device.hpp>

#include <atomic>
#include <memory>
#include <vector>

namespace mc {

class exchange_lane {
public:
  /// `of` must outlive this object.
  explicit exchange_lane(device& of) : of_(of), lane_(of.make_lane()) {}

  lane& on() const { return *lane_; }
  /// Returns an event that comes when the lane `at` has done all work that it was given before this
  /// call. Lanes may wait for the event as long as somebody holds it; afterwards it is used again.
  std::shared_ptr<event> mark(lane& at) {
    std::shared_ptr<event> e;
    for (const std::shared_ptr<event>& free : events_)
      if (free.use_count() == 1) {
        // The fence sees all accesses of the event's last holder.
        std::atomic_thread_fence(std::memory_order_acquire);
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
