// A communicator that checks: before data moves, the ranks of a group tell each other what they ask
// for, and a difference ends the run with both ranks and both lines of the model. It works over any
// other communicator, by exchanges of that one.
//
//   checked_if(checks, c, [&](communicator& to) { ... });
//
// start waits for nobody, as ever. A collective that was started moves its data once all of its
// group have told what they ask for, as soon as the rank waits for anything; what is sent goes at
// once, and is looked at by who receives it. Exchanges of one group follow each other: the next one
// is told when the one before moves, so that all ranks ask the communicator below for the same in
// the same order, however they wait.
#pragma once

#include <megacpp/comm/wish.hpp>

#include <algorithm>
#include <map>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

namespace mc {

/// What it needs for an exchange it keeps, and uses again for the next one.
class checking final : public communicator {
public:
  explicit checking(communicator& below) : communicator(below.ranks(), below.rank()), to_(below) {}
  ~checking() override {
    if (!started_.empty()) to_.give_up(); // others read what is kept here
  }

  void give_up() noexcept override {
    to_.give_up();
    started_.clear();
  }
  bool in_one_process() const override { return to_.in_one_process(); }
  /// Throws mc::error(exit_code::internal) for an exchange that nobody has waited for.
  void require_idle() const {
    if (!started_.empty()) refuse_left(started_.front()->x);
  }

private:
  /// Exchanges that follow each other: over some axes, or from one rank to another.
  struct stream {
    collective what; ///< send, receive, or none
    int over, peer;  ///< the axes, or the channel and the other rank
    bool operator==(const stream&) const = default;
    bool operator<(const stream& o) const {
      return std::tie(what, over, peer) < std::tie(o.what, o.over, o.peer);
    }
  };
  /// An exchange that was started and not waited for.
  struct asked {
    std::int64_t number = 0; ///< of its ticket
    stream of{};
    exchange x;
    std::vector<std::int64_t> gives, takes;
    std::vector<wish> mine, theirs; ///< one for each other rank
    ticket tells, data;
    enum : std::uint8_t { queued, telling, moving } stage = queued;
  };

  ticket begin(const exchange& x, const group& g) override {
    std::unique_ptr<asked> a;
    if (spare_.empty()) a = std::make_unique<asked>();
    else a = std::move(spare_.back()), spare_.pop_back();
    const bool pair = x.what == collective::send || x.what == collective::receive;
    a->number = ++number_, a->stage = asked::queued;
    a->of = pair ? stream{x.what, x.channel, g[x.peer]} : stream{collective::none, x.over.bits, 0};
    a->x = x;
    a->gives.assign(x.gives.begin(), x.gives.end()), a->x.gives = a->gives;
    a->takes.assign(x.takes.begin(), x.takes.end()), a->x.takes = a->takes;
    const std::int64_t before = counts_[a->of]++;
    a->mine.clear();
    for (int q = 0; q < (pair ? 1 : g.size()); ++q)
      a->mine.push_back(wish_of(a->x, before, rank(), q));
    a->theirs.resize(a->mine.size());
    started_.push_back(std::move(a));
    asked& here = *started_.back();
    if (x.what == collective::send) {
      here.tells = to_.start(telling(here));
      move(here);
    } else if (first_unmoved(here.of) == &here) {
      tell(here);
    }
    return {here.number};
  }

  std::size_t finish(std::span<const ticket> any) override {
    for (;;) {
      waited_.clear(), whose_.clear();
      for (const ticket t : any) {
        asked& a = find(t);
        wait_for(a.stage == asked::queued ? *first_unmoved(a.of) : a);
      }
      for (const auto& a : started_)
        if (a->stage == asked::telling) wait_for(*a);
      asked& a = *whose_[to_.wait_any(waited_)];
      if (a.stage == asked::moving) {
        const ticket done{a.number};
        leave(a);
        return static_cast<std::size_t>(
            std::find_if(any.begin(), any.end(),
                         [&](ticket t) { return t.number == done.number; }) -
            any.begin());
      }
      for (std::size_t i = 0; i < a.theirs.size(); ++i) require_agreement(a.mine[i], a.theirs[i]);
      move(a);
      if (asked* const next = first_unmoved(a.of)) tell(*next);
    }
  }
  void wait_for(asked& a) {
    if (std::find(whose_.begin(), whose_.end(), &a) != whose_.end()) return;
    whose_.push_back(&a);
    waited_.push_back(a.stage == asked::moving ? a.data : a.tells);
  }
  /// Gives others what this rank asks for, and takes what they do.
  exchange telling(asked& a) const {
    const exchange& x = a.x;
    constexpr std::int64_t bytes = sizeof(wish);
    exchange e =
        x.what == collective::send
            ? exchange::send(x.over, dtype::u8, a.mine.data(), bytes, x.peer, x.line, x.channel)
        : x.what == collective::receive ? exchange::receive(x.over, dtype::u8, a.theirs.data(),
                                                            bytes, x.peer, x.line, x.channel)
                                        : exchange::all_to_all(x.over, dtype::u8, a.mine.data(),
                                                               a.theirs.data(), bytes, x.line);
    e.before = x.what;
    return e;
  }
  void tell(asked& a) {
    a.tells = to_.start(telling(a));
    a.stage = asked::telling;
  }
  void move(asked& a) {
    a.data = to_.start(a.x);
    a.stage = asked::moving;
  }
  asked* first_unmoved(const stream& of) const {
    for (const auto& a : started_)
      if (a->of == of && a->stage != asked::moving) return a.get();
    return nullptr;
  }
  asked& find(ticket t) const {
    for (const auto& a : started_)
      if (a->number == t.number) return *a;
    throw error(exit_code::internal, "a ticket was waited for twice: wait for each exchange once");
  }
  void leave(const asked& a) {
    if (a.x.what == collective::send) to_.wait(a.tells); // it was received before its data
    const auto at = std::find_if(started_.begin(), started_.end(),
                                 [&](const auto& s) { return s.get() == &a; });
    spare_.push_back(std::move(*at));
    started_.erase(at);
  }

  communicator& to_;
  std::vector<std::unique_ptr<asked>> started_, spare_; ///< in their order; none of them
  std::map<stream, std::int64_t> counts_;
  std::vector<ticket> waited_; ///< below
  std::vector<asked*> whose_;
  std::int64_t number_ = 0;
};

/// f(communicator), of the ranks that are given: with checks, or as they are.
template <class F> void checked_if(bool checks, communicator& ranks, F f) {
  if (!checks) return f(ranks);
  checking c(ranks);
  f(static_cast<communicator&>(c));
  c.require_idle();
}

} // namespace mc
