// A communicator that checks: the ranks of a group tell each other which exchange they ask for.
// Where they differ, the run ends with a sentence that names both ranks and both lines of the
// model, before a rank uses what it received. The checker works over any other communicator; its
// own messages go over hosts.
//
//   checked_if(checks, hosts, [&](communicator& hosts) { ... });     and the ranks made by hosts
//
// start() sends this rank's description of the exchange, starts the exchange, and waits for no
// rank. wait() compares the descriptions of the other ranks. The ranks of a group start their
// exchanges of both planes in one common order.
#pragma once

#include <megacpp/comm/exchange_description.hpp>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

namespace mc {

/// A checker keeps the memory that an exchange needs, and uses it again for later ones.
class checking final : public communicator {
public:
  /// `hosts` must outlive this object.
  explicit checking(communicator& hosts) : checking(hosts, hosts) {}
  ~checking() override {
    if (started_.empty()) return;
    if (made_by_ != nullptr) made_by_->left_ = started_.front()->x;
    give_up(); // other ranks read memory that this object owns
  }

  std::unique_ptr<communicator> ranks_for(device& on) override {
    auto ranks = to_.make_ranks(on);
    std::unique_ptr<checking> checks(new checking(*ranks, hosts_));
    checks->owned_ = std::move(ranks), checks->made_by_ = this;
    return checks;
  }
  void give_up() noexcept override {
    to_.give_up();
    if (&hosts_ != &to_) hosts_.give_up();
    started_.clear();
  }
  bool in_one_process() const override { return to_.in_one_process(); }
  const char* way() const override { return to_.way(); }
  /// Throws mc::error(exit_code::internal) if an exchange, of hosts or of ranks made by them, was
  /// started and not waited for.
  void require_idle() const {
    require_none_left();
    if (!started_.empty()) refuse_left(started_.front()->x);
  }

private:
  void require_none_left() const {
    if (left_) refuse_left(*left_);
  }
  checking(communicator& below, communicator& hosts)
      : communicator(below.ranks(), below.rank(), below.moves(), below.bits()),
        hosts_(hosts),
        to_(below) {}

  /// Exchanges that are counted together: all over the same axes, or all from one rank to another.
  struct stream {
    collective what; ///< kind of exchange: send, receive, or none for a group's
    int over, peer;  ///< the axes, or the channel and the other rank of a pair
    bool operator<(const stream& o) const {
      return std::tie(what, over, peer) < std::tie(o.what, o.over, o.peer);
    }
  };
  /// An exchange that was started and not waited for.
  struct asked {
    std::int64_t number = 0; ///< number of the ticket that begin() returned
    exchange x;
    /// The descriptions of this rank and of the others: one for each rank of the group, or one for
    /// the other rank of a pair.
    std::vector<exchange_description> mine, theirs;
    ticket tells, data;
    bool agreed = false; ///< descriptions of the other ranks match
  };

  ticket begin(const exchange& x, const group& g, lane* on) override {
    require_none_left();
    std::unique_ptr<asked> a;
    if (spare_.empty()) a = std::make_unique<asked>();
    else a = std::move(spare_.back()), spare_.pop_back();
    const bool pair = x.what == collective::send || x.what == collective::receive;
    const stream of =
        pair ? stream{x.what, x.channel, g[x.peer]} : stream{collective::none, x.over.bits, 0};
    const std::int64_t before = counts_[of]++;
    a->number = ++number_, a->agreed = false;
    a->x = x;
    a->mine.clear();
    for (int q = 0; q < (pair ? 1 : g.size()); ++q)
      a->mine.push_back(description_of(x, moves(), before, rank(), q));
    a->x.gives = a->x.takes = {};
    a->theirs.resize(a->mine.size());
    started_.push_back(std::move(a));
    asked& here = *started_.back();
    or_give_up([&] {
      here.tells = hosts_.start(telling(here));
      here.data = on != nullptr ? to_.start(*on, x) : to_.start(x);
    });
    return {here.number};
  }
  void finish(lane& on, ticket t) override {
    asked& a = find(t);
    or_give_up([&] {
      hosts_.wait(a.tells);
      require_agreement(a);
      to_.wait(on, a.data);
    });
    leave(a);
  }
  std::size_t finish_any(std::span<const ticket> any) override {
    require_none_left();
    for (;;) {
      waited_.clear();
      for (const ticket t : any) {
        const asked& a = find(t);
        waited_.push_back(a.agreed ? a.data : a.tells);
      }
      std::size_t over = 0;
      bool whole = false;
      or_give_up([&] {
        over = hosts_.wait_any(waited_);
        asked& a = find(any[over]);
        whole = a.agreed;
        if (!whole) require_agreement(a);
      });
      if (!whole) continue;
      leave(find(any[over]));
      return over;
    }
  }
  /// Calls f(). If f throws, the run is given up while the memory of all exchanges in flight is
  /// still there.
  template <class F> void or_give_up(F f) {
    try {
      f();
    } catch (...) {
      give_up();
      throw;
    }
  }
  /// Returns the exchange that sends this rank's descriptions to the others and receives theirs.
  exchange telling(asked& a) const {
    const exchange& x = a.x;
    constexpr std::int64_t bytes = sizeof(exchange_description);
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
  /// Compares the descriptions of an exchange, which are all here. For a send, the receiving rank
  /// compares alone.
  static void require_agreement(asked& a) {
    if (a.x.what != collective::send)
      for (std::size_t i = 0; i < a.theirs.size(); ++i)
        mc::require_agreement(a.mine[i], a.theirs[i]);
    a.agreed = true;
  }
  asked& find(ticket t) const {
    for (const auto& a : started_)
      if (a->number == t.number) return *a;
    refuse_ticket();
  }
  void leave(const asked& a) {
    const auto at = std::find_if(started_.begin(), started_.end(),
                                 [&](const auto& s) { return s.get() == &a; });
    spare_.push_back(std::move(*at));
    started_.erase(at);
  }

  communicator& hosts_;
  std::unique_ptr<communicator> owned_; ///< the communicator to check, if this checks ranks
  communicator& to_;
  checking* made_by_ = nullptr;  ///< checker of hosts that made this one of ranks
  std::optional<exchange> left_; ///< exchange that a checker of ranks left without a wait
  std::vector<std::unique_ptr<asked>> started_, spare_; ///< exchanges in flight, in the order of
                                                        ///< their starts; free records
  std::map<stream, std::int64_t> counts_;
  std::vector<ticket> waited_; ///< tickets of one finish_any
  std::int64_t number_ = 0;
};

/// Calls f with a checker over `hosts`, or with `hosts` itself.
template <class F> void checked_if(bool checks, communicator& hosts, F f) {
  if (!checks) return f(hosts);
  checking c(hosts);
  f(static_cast<communicator&>(c));
  c.require_idle();
}

} // namespace mc
