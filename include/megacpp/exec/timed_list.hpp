// Times of what a lane does, by its device's own clock: events on both sides, which are read later.
// So a device that runs behind the host is measured, not the host.
#pragma once

#include <megacpp/exec/device.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace mc {

/// What was begun and ended on a lane, in order, of so many at a time. All its memory is made with
/// it; the device must outlive it.
template <class What> class timed_list {
public:
  timed_list(device& of, std::size_t room) : began_(room), ended_(room), what_(room) {
    for (auto& e : began_) e = of.make_event();
    for (auto& e : ended_) e = of.make_event();
  }
  /// Whether there is no room: then neither begin nor end may be called.
  bool full() const { return size_ == what_.size(); }
  void clear() { size_ = 0; }
  void begin(lane& on) { on.record(*began_[size_]); }
  void end(lane& on, const What& what) {
    what_[size_] = what;
    on.record(*ended_[size_++]);
  }
  /// Waits for all of them. f(what, began, ended) for each, in order, in monotonic_nanoseconds;
  /// then there are none.
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
