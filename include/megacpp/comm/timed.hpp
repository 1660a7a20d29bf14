// A communicator that times the exchanges of another one, of memory of a device. It knows how long
// the lanes have waited for exchanges. While it records, it notes when each exchange was started,
// waited for and done. Times are measured by the device, and read when somebody asks for them.
//
//   timed_communicator c(ranks, device);
//   c.record(&list);                 records from here on, as long as the list has room
//   c.waited();                      nanoseconds that lanes have waited, recorded or not
#pragma once

#include <megacpp/comm/communicator.hpp>
#include <megacpp/exec/timed_list.hpp>

#include <cstddef>
#include <span>
#include <vector>

namespace mc {

/// An exchange with other ranks, and its times in nanoseconds.
struct timed_exchange {
  collective what = collective::barrier;
  axis_set over{};
  std::int64_t bytes = 0; ///< bytes that this rank sends, or receives in a receive
  int peer = -1, channel = 0;
  source_line line{};
  ticket of{}; ///< ticket of the timed communicator
  std::int64_t started = 0, waited = 0, done = 0;
};

class timed_communicator final : public communicator {
public:
  /// `of` and `on` must outlive this object. `of` moves memory of the device `on`.
  timed_communicator(communicator& of, device& on)
      : communicator(of.ranks(), of.rank(), of.moves(), of.bits()),
        of_(of),
        starts_(on, room),
        waits_(on, room) {
    if (of.moves() != plane::ranks)
      throw error(exit_code::internal, "exchanges of hosts were to be timed: give ranks");
  }

  /// Returns the nanoseconds that lanes have spent in waiting for exchanges and in moving their
  /// values. The call waits until the lanes have ended those exchanges.
  std::int64_t waited() {
    settle();
    return waited_;
  }
  /// Records exchanges from now on behind those in `to`, which does not grow beyond its capacity.
  /// nullptr ends the recording, and then all times are known. No exchange may be in flight.
  void record(std::vector<timed_exchange>* to) {
    settle();
    to_ = to;
  }
  /// Ends the recording without its last times, and waits for nothing, because the run has failed.
  void forget() noexcept {
    starts_.clear(), waits_.clear();
    to_ = nullptr;
  }
  /// Returns the number of exchanges that were not recorded, for lack of room.
  std::int64_t left_out() const { return left_out_; }

  std::unique_ptr<communicator> ranks_for(device& /*on*/) override {
    return nullptr;
  } // only a communicator of hosts makes ranks
  void give_up() noexcept override { of_.give_up(); }
  bool in_one_process() const override { return of_.in_one_process(); }
  const char* way() const override { return of_.way(); }

private:
  ticket begin(const exchange& x, const group& g, lane* on) override {
    if (to_ == nullptr || g.size() == 1) return of_.start(*on, x);
    if (to_->size() == to_->capacity()) {
      ++left_out_;
      return of_.start(*on, x);
    }
    timed_exchange e{x.what, x.over, 0, x.peer, x.channel, x.line};
    const int n = g.size();
    e.bytes = (x.what == collective::receive ? x.count : x.elements_in(n)) * size_of(x.type);
    if (starts_.full()) settle();
    starts_.begin(*on);
    e.of = of_.start(*on, x);
    to_->push_back(e);
    starts_.end(*on, to_->size() - 1);
    return {recorded - static_cast<std::int64_t>(to_->size())};
  }
  void finish(lane& on, ticket t) override {
    if (waits_.full()) settle();
    waits_.begin(on);
    const bool is_recorded = t.number < recorded;
    const std::size_t place =
        is_recorded ? static_cast<std::size_t>(recorded - t.number) - 1 : none;
    of_.wait(on, is_recorded ? (*to_)[place].of : t);
    waits_.end(on, place);
  }
  std::size_t finish_any(std::span<const ticket> any) override { return of_.wait_any(any); }

  void settle() {
    starts_.take([this](std::size_t place, std::int64_t began, std::int64_t) {
      (*to_)[place].started = began;
    });
    waits_.take([this](std::size_t place, std::int64_t began, std::int64_t ended) {
      if (place != none) (*to_)[place].waited = began, (*to_)[place].done = ended;
      waited_ += ended - began;
    });
  }

  static constexpr std::int64_t recorded = -1; ///< tickets below are of recorded exchanges
  static constexpr std::size_t none = ~std::size_t{0}, room = 1024;
  communicator& of_;
  std::vector<timed_exchange>* to_ = nullptr;
  timed_list<std::size_t> starts_, waits_; ///< tagged by index in `to_`, or `none`
  std::int64_t waited_ = 0, left_out_ = 0;
};

} // namespace mc
