// Times of a lane's work, by its device's own clock: events on both sides of the work, which are
// read later. So a device that runs behind the host is measured, and not the host.
#pragma once

#include <megacpp/exec/device.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace mc {

/// A list of work that was begun and ended on a lane, in order, with room for a number of items.
/// Its constructor makes all of its memory; the device must outlive it.
template <class What> class timed_list {
public:
  timed_list(device& of, std::size_t room) : began_(room), ended_(room), what_(room) {
    for (auto& e : began_) e = of.make_event();
    for (auto& e : ended_) e = of.make_event();
  }
  /// Returns true if the list has no room: neither begin nor end may be called then.
  bool full() const { return size_ == what_.size(); }
  void clear() { size_ = 0; }
  void begin(lane& on) { on.record(*began_[size_]); }
  void end(lane& on, const What& what) {
    what_[size_] = what;
    on.record(*ended_[size_++]);
  }
  /// Waits for all items, calls f(what, began, ended) for each, in order, with times in
  /// monotonic_nanoseconds, and empties the list.
  template <class F> void take(F f) {
    const std::size_t n = size_;
    size_ = 0;
    for (std::size_t i = 0; i < n; ++i) f(what_[i], began_[i]->reached(), ended_[i]->reached());
  }

private:
  std::vector<std::unique_ptr<event>> began_, ended_;
  std::vector<What> what_;
  std::size_t size_ = 0;
};

} // namespace mc
