// A communicator that checks: the ranks of a group tell each other what they ask for, and a
// difference ends the run with both ranks and both lines of the model, before a rank goes on with
// what it got. It works over any other communicator; what ranks tell each other goes over hosts.
//
//   checked_if(checks, hosts, [&](communicator& hosts) { ... });     and its ranks
//
// start tells what is asked for and starts the exchange, and waits for nobody; wait compares what
// the others have told. All ranks of a group ask both planes for exchanges in one order.
#pragma once

#include <megacpp/comm/wish.hpp>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

namespace mc {

/// What it needs for an exchange it keeps, and uses again for the next one.
class checking final : public communicator {
public:
  /// `hosts` must outlive this.
  explicit checking(communicator& hosts) : checking(hosts, hosts) {}
  ~checking() override {
    if (started_.empty()) return;
    if (asks_ != nullptr) asks_->left_ = started_.front()->x;
    to_.give_up(); // others read what is kept here
  }

  std::unique_ptr<communicator> make_ranks(device& on) override {
    auto ranks = to_.make_ranks(on);
    std::unique_ptr<checking> checks(new checking(*ranks, hosts_));
    checks->owned_ = std::move(ranks), checks->asks_ = this;
    return checks;
  }
  void give_up() noexcept override {
    to_.give_up();
    started_.clear();
  }
  bool in_one_process() const override { return to_.in_one_process(); }
  /// Throws mc::error(exit_code::internal) for an exchange, of hosts or of ranks that are gone,
  /// that nobody has waited for.
  void require_idle() const {
    if (left_) refuse_left(*left_);
    if (!started_.empty()) refuse_left(started_.front()->x);
  }

private:
  checking(communicator& below, communicator& hosts)
      : communicator(below.ranks(), below.rank(), below.moves(), below.bits()),
        hosts_(hosts),
        to_(below) {}

  /// Exchanges that follow each other: over some axes, or from one rank to another.
  struct stream {
    collective what; ///< send, receive, or none
    int over, peer;  ///< the axes, or the channel and the other rank
    bool operator<(const stream& o) const {
      return std::tie(what, over, peer) < std::tie(o.what, o.over, o.peer);
    }
  };
  /// An exchange that was started and not waited for.
  struct asked {
    std::int64_t number = 0; ///< of its ticket
    exchange x;
    std::vector<wish> mine, theirs; ///< one for each rank of the group, or for the other of two
    ticket tells, data;
    bool agreed = false; ///< the others have told the same
  };

  ticket begin(const exchange& x, const group& g, lane* on) override {
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
      a->mine.push_back(wish_of(x, moves(), before, rank(), q));
    a->x.gives = a->x.takes = {};
    a->theirs.resize(a->mine.size());
    started_.push_back(std::move(a));
    asked& here = *started_.back();
    here.tells = hosts_.start(telling(here));
    here.data = on != nullptr ? to_.start(*on, x) : to_.start(x);
    return {here.number};
  }
  void finish(lane& on, ticket t) override {
    asked& a = find(t);
    hosts_.wait(a.tells);
    require_agreement(a);
    to_.wait(on, a.data);
    leave(a);
  }
  std::size_t finish_any(std::span<const ticket> any) override {
    for (;;) {
      waited_.clear();
      for (const ticket t : any) {
        const asked& a = find(t);
        waited_.push_back(a.agreed ? a.data : a.tells);
      }
      const std::size_t over = hosts_.wait_any(waited_);
      asked& a = find(any[over]);
      if (a.agreed) {
        leave(a);
        return over;
      }
      require_agreement(a);
    }
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
  /// All have told. What is sent, the rank looks at that receives it.
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
  std::unique_ptr<communicator> owned_; ///< of ranks: whom it checks
  communicator& to_;
  checking* asks_ = nullptr;     ///< of ranks: by which it was made
  std::optional<exchange> left_; ///< of ranks that are gone: what nobody has waited for
  std::vector<std::unique_ptr<asked>> started_, spare_; ///< in their order; none of them
  std::map<stream, std::int64_t> counts_;
  std::vector<ticket> waited_; ///< below
  std::int64_t number_ = 0;
};

/// f(hosts): with checks, or as it is.
template <class F> void checked_if(bool checks, communicator& hosts, F f) {
  if (!checks) return f(hosts);
  checking c(hosts);
  f(static_cast<communicator&>(c));
  c.require_idle();
}

} // namespace mc
