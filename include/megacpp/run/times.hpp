// The times of a step's nodes and tasks, which the device's own clock measures and the host reads
// when the step is over.
#pragma once

#include <megacpp/exec/timed_list.hpp>
#include <megacpp/plan/step.hpp>

#include <cstddef>
#include <cstdint>

namespace mc {

/// A step_clock is told the times of a step when it is over: for each node the nanoseconds that it
/// took, for each task when it began and ended (monotonic_nanoseconds). A long step may tell the
/// times of its beginning earlier.
class step_clock {
public:
  virtual ~step_clock() = default;
  virtual void node(const graph& /*g*/, int /*index*/, std::int64_t /*nanoseconds*/) {}
  virtual void task(const mc::task& /*done*/, std::int64_t /*began*/, std::int64_t /*ended*/) {}
};

/// Measures times on the lanes of a device, which must outlive it, and tells them to a clock. Nodes
/// do not overlap, nor do tasks. The constructor makes all its memory.
class step_times {
public:
  explicit step_times(device& on) : nodes_(on, room), tasks_(on, room) {}

  /// Tells `to` the times that are measured from now on.
  void tell_to(step_clock& to) { to_ = &to, forget(); }
  /// Drops the times that were not told, because a step has failed in the middle.
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

  /// Waits for all times that were measured, and tells them.
  void tell() { tell_nodes(), tell_tasks(); }

private:
  struct timed_node {
    const graph* g = nullptr;
    int index = 0;
  };
  static constexpr std::size_t room = 4096;
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
  timed_list<timed_node> nodes_;
  timed_list<task> tasks_;
};

} // namespace mc
