// The times of a step's nodes and tasks, taken by a device's own clock: events around them, which
// are read when the step is over. So a device that runs behind the host is measured, not the host.
#pragma once

#include <megacpp/exec/device.hpp>
#include <megacpp/plan/step.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace mc {

/// Told, when a step is over, of each node how many nanoseconds it took, and of each task when it
/// began and ended (monotonic_nanoseconds). A long step may tell of its beginning before.
class step_clock {
public:
  virtual ~step_clock() = default;
  virtual void node(const graph& /*g*/, int /*index*/, std::int64_t /*nanoseconds*/) {}
  virtual void task(const mc::task& /*done*/, std::int64_t /*began*/, std::int64_t /*ended*/) {}
};

/// Takes times on the lanes of a device, which must outlive it, and tells them to a clock. Nodes do
/// not overlap, nor do tasks. All its memory is made with it.
class step_times {
public:
  explicit step_times(device& on) : nodes_(on), tasks_(on) {}

  /// From now on it tells `to`, of times that are taken from now on.
  void tell_to(step_clock& to) { to_ = &to, forget(); }
  /// Drops what it has not told: a step has failed in the middle.
  void forget() { nodes_.clear(), tasks_.clear(); }

  void node_begins(lane& on) {
    if (nodes_.full()) tell_nodes();
    nodes_.begin(on);
  }
  void node_ends(lane& on, const graph& g, int index) { nodes_.end(on, {&g, index}); }
  void task_begins(lane& on) {
    if (tasks_.full()) tell_tasks();
    tasks_.begin(on);
  }
  void task_ends(lane& on, const task& done) { tasks_.end(on, done); }

  /// Waits for all that has been taken, and tells it.
  void tell() { tell_nodes(), tell_tasks(); }

private:
  struct timed_node {
    const graph* g = nullptr;
    int index = 0;
  };
  template <class What> class pairs {
  public:
    explicit pairs(device& of) : began_(room), ended_(room), what_(room) {
      for (auto& e : began_) e = of.make_event();
      for (auto& e : ended_) e = of.make_event();
    }
    bool full() const { return size_ == room; }
    void clear() { size_ = 0; }
    void begin(lane& on) { on.record(*began_[size_]); }
    void end(lane& on, const What& what) {
      what_[size_] = what;
      on.record(*ended_[size_++]);
    }
    /// f(what, began, ended) for each, in order; then there are none.
    template <class F> void take(F f) {
      for (std::size_t i = 0; i < size_; ++i)
        f(what_[i], began_[i]->reached(), ended_[i]->reached());
      size_ = 0;
    }

  private:
    static constexpr std::size_t room = 4096;
    std::vector<std::unique_ptr<event>> began_, ended_;
    std::vector<What> what_;
    std::size_t size_ = 0;
  };
  void tell_nodes() {
    nodes_.take([this](const timed_node& n, std::int64_t began, std::int64_t ended) {
      to_->node(*n.g, n.index, ended - began);
    });
  }
  void tell_tasks() {
    tasks_.take([this](const task& t, std::int64_t began, std::int64_t ended) {
      to_->task(t, began, ended);
    });
  }

  step_clock* to_ = nullptr;
  pairs<timed_node> nodes_;
  pairs<task> tasks_;
};

} // namespace mc
