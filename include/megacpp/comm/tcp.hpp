// Messages of ranks by TCP, for programs that torchrun, srun or a pod's operator has started and no
// MPI connects. Each two ranks have one connection (comm/tcp_link.hpp).
//
// A rank whose connection ends before it has taken leave is gone: whoever waits for it throws. A
// rank that fails tells the others its exit code, and they end with the same. A thread of each
// process watches for both, since its rank may compute for long: it ends the process where the rank
// does not notice for a second.
#pragma once

#include <megacpp/comm/message_ranks.hpp>
#include <megacpp/comm/tcp_link.hpp>
#include <megacpp/join/peers.hpp>
#include <megacpp/threads/own_thread.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <poll.h>
#include <sys/eventfd.h>

namespace mc {

/// The wire of processes that TCP connects (message_ranks).
class tcp_wire {
public:
  using transfer = tcp_message*;

  /// Joins the other ranks. `at_once`: bytes of the longest message that is not announced;
  /// `identity`: what all ranks must have alike. Throws mc::error.
  tcp_wire(std::int64_t at_once, const process_start& start, const std::string& identity,
           const teller& tell)
      : rank_(start.rank),
        pool_(at_once, static_cast<std::size_t>(start.size)),
        wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    std::vector<peer> peers = join_peers(start, identity, environment(), tell);
    const peer& mine = peers[static_cast<std::size_t>(rank_)];
    cpu_set_t all = mine.processors;
    machine_.ranks = 0;
    links_.reserve(peers.size()), polled_.reserve(peers.size());
    for (std::size_t r = 0; r < peers.size(); ++r) {
      links_.emplace_back(std::move(peers[r].connection), static_cast<int>(r), pool_);
      if (peers[r].machine != mine.machine) continue;
      if (static_cast<int>(r) < rank_) ++machine_.place;
      ++machine_.ranks;
      CPU_OR(&all, &all, &peers[r].processors);
    }
    machine_.processors = processors_of(mine.processors, all);
    if (!wake_) throw error(exit_code::internal, "no event can be made: " + reason_of(errno));
    std::vector<pollfd> polled{{wake_.get(), POLLIN, 0}};
    std::vector<int> ranks{rank_};
    for (int r = 0; r < size(); ++r) {
      if (!of(r).open()) continue;
      polled.push_back({of(r).number(), POLLRDHUP, 0});
      ranks.push_back(r);
    }
    watcher_.emplace([this, polled, ranks] { watch(polled, ranks); }, "");
  }
  tcp_wire(const tcp_wire&) = delete;
  tcp_wire& operator=(const tcp_wire&) = delete;
  ~tcp_wire() { end_watch(); }

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(links_.size()); }
  const machine_of_rank& machine() const { return machine_; }
  int highest_tag() const { return 0x7fffffff; }

  transfer send(plane p, int to, int tag, const std::byte* from, std::int64_t bytes) {
    tcp_message* const m = pool_.take();
    *m = {.peer = to, .from = from, .bytes = bytes};
    of(to).send(m, p, tag);
    return m;
  }
  transfer receive(plane p, int from, int tag, std::byte* to, std::int64_t bytes) {
    tcp_message* const m = pool_.take();
    *m = {.peer = from, .receives = true, .to = to, .bytes = bytes, .of = p, .tag = tag};
    of(from).expect(m);
    return m;
  }
  void hand_over() {
    for (tcp_link& l : links_)
      if (l.open()) l.push();
  }
  moved_messages moved(std::span<transfer> all, std::span<std::int64_t> bytes) {
    advance();
    bool under_way = false;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const tcp_message& m = *all[i];
      if (m.state == tcp_message::done) continue;
      if (m.state == tcp_message::too_long)
        return {moved_messages::failed, i, moved_messages::too_long, ""};
      if (of(m.peer).gone()) return {moved_messages::failed, i, moved_messages::gone, ""};
      under_way = true;
    }
    if (under_way) return {};
    for (std::size_t i = 0; i < all.size(); ++i) {
      bytes[i] = all[i]->came;
      pool_.release(all[i]);
    }
    return {.state = moved_messages::all_here};
  }
  bool is_done(const tcp_message* m) const { return m->state == tcp_message::done; }
  bool are_sent(std::span<const transfer> all) noexcept {
    advance();
    return std::ranges::all_of(all, [&](const tcp_message* m) {
      return m->receives || m->state == tcp_message::done || of(m->peer).gone();
    });
  }
  void give_up() noexcept {
    for (tcp_link& l : links_)
      if (l.open()) l.give_up();
    pool_.forget_numbers();
  }

  void tell(int to, const rank_note& n) {
    if (to == rank_) return void(pool_.notes.emplace_back(rank_, n)); // ranks may wait in a circle
    of(to).tell(n);
    of(to).push();
  }
  bool hear(rank_note& heard, int& from) {
    advance();
    if (pool_.notes.empty()) return false;
    from = pool_.notes.front().first, heard = pool_.notes.front().second;
    pool_.notes.erase(pool_.notes.begin());
    return true;
  }
  /// Moves all that can be moved now. Ends this process where another rank has failed and said so.
  void advance() {
    list_links();
    if (::poll(polled_.data(), polled_.size(), 0) <= 0) return;
    std::size_t i = 0;
    for (tcp_link& l : links_) {
      if (!l.open()) continue;
      if ((polled_[i++].revents & ~POLLOUT) != 0) l.pull();
      if (l.sends()) l.push();
    }
  }
  void rest(std::chrono::microseconds nap) {
    list_links();
    constexpr std::int64_t longest = 10'000; // what comes ends the nap
    const timespec time{0, static_cast<long>(std::min(10 * nap.count(), longest)) * 1000};
    (void)::ppoll(polled_.data(), polled_.size(), &time, nullptr);
  }

  /// Takes leave of all ranks, and waits until all have done so.
  void finish() {
    leaving_ = true;
    for (tcp_link& l : links_) {
      if (!l.open()) continue;
      l.take_leave();
      l.push();
    }
    const deadline until = steady::now() + std::chrono::seconds(10);
    const auto all_left = [&] {
      return std::ranges::all_of(
          links_, [](const tcp_link& l) { return !l.open() || (l.left() && !l.sends()); });
    };
    while (!all_left() && steady::now() < until) {
      advance();
      rest(std::chrono::microseconds(1000));
    }
    end_watch();
    for (tcp_link& l : links_) l.close();
  }
  /// Ends this process, and tells the others to end with the same code.
  [[noreturn]] void end(int code) {
    leaving_ = true;
    give_up();
    for (tcp_link& l : links_)
      if (l.open()) l.fail(code);
    const deadline until = steady::now() + std::chrono::milliseconds(200);
    for (bool all_told = false; !all_told && steady::now() < until;) {
      all_told = true;
      for (tcp_link& l : links_) {
        if (l.open()) l.push();
        all_told &= !l.open() || !l.sends();
      }
      if (!all_told) ::sched_yield();
    }
    std::_Exit(code);
  }

private:
  tcp_link& of(int rank) { return links_[static_cast<std::size_t>(rank)]; }

  /// Lists what poll is to look for.
  void list_links() {
    polled_.clear();
    for (const tcp_link& l : links_)
      if (l.open())
        polled_.push_back({l.number(), static_cast<short>(POLLIN | (l.sends() ? POLLOUT : 0)), 0});
  }

  /// Watches for connections that end, until this rank takes leave. `polled` has these connections
  /// behind the descriptor that ends the watch, and `ranks` their ranks.
  void watch(std::vector<pollfd> polled, const std::vector<int>& ranks) {
    for (;;) {
      if (::poll(polled.data(), polled.size(), -1) < 0 && errno == EINTR) continue;
      if (polled[0].revents != 0) return;
      // The rank itself may be about to say it, or to end well.
      pollfd ends{wake_.get(), POLLIN, 0};
      if (::poll(&ends, 1, 1000) > 0) return;
      if (leaving_) continue;
      const auto gone = std::find_if(polled.begin() + 1, polled.end(),
                                     [](const pollfd& p) { return p.revents != 0; });
      if (gone == polled.end()) continue;
      for (std::size_t i = 1; i < polled.size(); ++i) // another one may have told why
        if (const int code = code_told_by(polled[i].fd); code != 0) std::_Exit(code);
      std::fprintf(stderr,
                   "rank %d: rank %d has ended while this one computed: see what that rank says\n",
                   rank_, ranks[static_cast<std::size_t>(gone - polled.begin())]);
      std::_Exit(static_cast<int>(exit_code::ranks));
    }
  }
  void end_watch() {
    const std::uint64_t one = 1;
    (void)!::write(wake_.get(), &one, sizeof one);
    watcher_.reset();
  }

  int rank_;
  machine_of_rank machine_;
  tcp_pool pool_;
  std::vector<tcp_link> links_; ///< by rank; that of this rank has no connection
  std::vector<pollfd> polled_;
  std::atomic<bool> leaving_{false};
  descriptor wake_; ///< ends the thread that watches
  std::optional<own_thread> watcher_;
};

using tcp_ranks = message_ranks<tcp_wire>;

} // namespace mc
