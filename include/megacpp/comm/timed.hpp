// A communicator that times the exchanges of another one: how long this rank waits for them, and,
// while they are recorded, when each was started, waited for and done.
//
//   timed_communicator c(ranks);
//   c.record(&list);                 what happens from here on, as long as the list has room
//   c.waited();                      nanoseconds that it has waited, recorded or not
#pragma once

#include <megacpp/comm/communicator.hpp>
#include <megacpp/io/clock.hpp>

#include <cstddef>
#include <span>
#include <vector>

namespace mc {

/// An exchange with others, and when it was, in nanoseconds.
struct timed_exchange {
  collective what = collective::barrier;
  axis_set over{};
  std::int64_t bytes = 0; ///< that this rank hands in; of a receive, that it gets
  int peer = -1, channel = 0;
  source_line line{};
  ticket of{}; ///< of the communicator that is timed
  std::int64_t started = 0, waited = 0, done = 0;
};

class timed_communicator final : public communicator {
public:
  /// `of` must outlive this.
  explicit timed_communicator(communicator& of) : communicator(of.ranks(), of.rank()), of_(of) {}

  /// Time that this rank has spent in waiting for exchanges, and in moving what they move.
  std::int64_t waited() const { return waited_; }
  /// Records exchanges from now on, behind those in `to`, which does not grow beyond its capacity;
  /// of nullptr, none. None may be in flight.
  void record(std::vector<timed_exchange>* to) { to_ = to; }
  /// Exchanges for which there was no room.
  std::int64_t left_out() const { return left_out_; }

  void give_up() noexcept override { of_.give_up(); }
  bool in_one_process() const override { return of_.in_one_process(); }

private:
  ticket begin(const exchange& x, const group& g) override {
    if (to_ == nullptr || g.size() == 1) return of_.start(x);
    if (to_->size() == to_->capacity()) {
      ++left_out_;
      return of_.start(x);
    }
    timed_exchange e{x.what, x.over, 0, x.peer, x.channel, x.line};
    const int n = g.size();
    e.bytes = (x.what == collective::receive ? x.count : x.elements_in(n)) * size_of(x.type);
    e.started = monotonic_nanoseconds();
    e.of = of_.start(x);
    to_->push_back(e);
    return {recorded - static_cast<std::int64_t>(to_->size())};
  }
  std::size_t finish(std::span<const ticket> any) override {
    const std::int64_t begin = monotonic_nanoseconds();
    below_.clear();
    for (const ticket t : any) below_.push_back(t.number < recorded ? record_of(t).of : t);
    const std::size_t i = of_.wait_any(below_);
    const std::int64_t end = monotonic_nanoseconds();
    if (any[i].number < recorded) record_of(any[i]).waited = begin, record_of(any[i]).done = end;
    waited_ += end - begin;
    return i;
  }
  timed_exchange& record_of(ticket t) const {
    return (*to_)[static_cast<std::size_t>(recorded - t.number) - 1];
  }

  static constexpr std::int64_t recorded = -1; ///< tickets below are of exchanges that are recorded
  communicator& of_;
  std::vector<timed_exchange>* to_ = nullptr;
  std::vector<ticket> below_; ///< that are waited for
  std::int64_t waited_ = 0, left_out_ = 0;
};

} // namespace mc
