// Ranks as processes, which exchange messages of two ranks each. A *wire* moves the messages: MPI
// (comm/mpi.hpp) or TCP (comm/tcp.hpp). All that is more than a message is here, so every wire
// leaves the same bits.
//
//   message_ranks<mpi_wire> ranks;                           joins the other processes
//   ranks.run(m, patience, [&](communicator& hosts) { ... });   runs this process's rank of a mesh
//   ranks.finish();                                          or end(code), which ends all processes
//
// A short all-reduce is one message to each other rank, with all elements. A longer one goes in
// slices of bounded memory: each rank sends the others their shards of a slice, adds its own shard
// in the order of ranks, and sends the sum to everyone. Elements that are only moved go from `in`
// to `out` without a further copy.
//
// A message is known by its plane, by its sender and by its tag. The tag holds the axes of the
// group and the number of exchanges before it over the group; between two ranks it holds the
// channel. A wire delivers messages of one plane, sender and tag in the order in which they are
// sent.
//
// A rank that waits advances all exchanges that it has started, of both planes, and sleeps briefly
// between looks, since there may be more ranks than processors. It asks the rank whose message is
// missing which rank that one waits for, and so on, until a rank does not answer or has ended. The
// error that ends the wait, when patience is over, names that rank.
#pragma once

#include <megacpp/comm/connected_ranks.hpp>
#include <megacpp/comm/host_plane.hpp>
#include <megacpp/comm/rank_questions.hpp>
#include <megacpp/comm/staging_memory.hpp>
#include <megacpp/exec/host_memory.hpp>
#include <megacpp/exec/rank_order.hpp>
#include <megacpp/io/clock.hpp>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <sched.h>

namespace mc {

/// The sizes, in bytes, by which exchanges are cut into messages. Tests use others than these.
struct message_sizes {
  std::int64_t message = std::int64_t{1} << 30;  ///< longest message; MPI counts bytes in int
  std::int64_t staging = std::int64_t{16} << 20; ///< memory for one slice of a sum
  std::int64_t shard = std::int64_t{512} << 10;  ///< longest shard of a slice; it stays in caches
                                                 ///< until it is added
  std::int64_t at_once = 2048;                   ///< longest all-reduce in which every rank adds
                                                 ///< everything
};

/// The state of messages that a wire was asked to move.
struct moved_messages {
  enum : std::uint8_t { under_way, all_here, failed } state = under_way;
  std::size_t failure = 0; ///< the message that failed, by its number among them
  enum : std::uint8_t { too_long, gone, other } why = other;
  std::string sentence{}; ///< the wire's own, for another failure
};

/// The ranks of processes that a wire connects. A process has one such object, which the thread
/// that makes it uses alone.
///
/// Wire has
///   using transfer = ...                                a message that is being sent or received
///   int rank() const, size() const; machine_of_rank machine() const
///   int highest_tag() const                            a tag is from 0 to this number
///   transfer send(plane, int to, int tag, const std::byte*, std::int64_t bytes)
///   transfer receive(plane, int from, int tag, std::byte*, std::int64_t bytes)
///   void hand_over()                    the messages of an exchange are all there: they may go
///   moved_messages moved(std::span<transfer>, std::span<std::int64_t> bytes)
///                                       tells whether all are done, and the bytes that were
///                                       received; they are void when all are done
///   bool is_done(transfer)               of one that is not void
///   bool are_sent(std::span<transfer>) noexcept
///                                       whether all that is sent has gone, of a run that has
///                                       failed; nothing need be received any more
///   void give_up() noexcept             touches the memory of no message any more
///   void tell(int rank, const rank_note&), bool hear(rank_note&, int& from)
///                                       notes, beside the messages; one may be dropped
///   void advance()                      moves what can be moved now
///   void rest(std::chrono::microseconds)   sleeps so long, or until something comes
///   void finish(); [[noreturn]] void end(int code)   as connected_ranks
template <class Wire> class message_ranks final : public connected_ranks {
public:
  template <class... Joining>
  explicit message_ranks(const message_sizes& sizes, Joining&&... joining)
      : wire_(std::forward<Joining>(joining)...),
        questions_(wire_),
        sizes_(sizes),
        spins_(wire_.machine().ranks <= wire_.machine().processors ? 1000 : 0) {}

  int rank() const override { return wire_.rank(); }
  int size() const override { return wire_.size(); }
  machine_of_rank machine() const override { return wire_.machine(); }

  void run(const mesh& m, seconds patience, const std::function<void(communicator&)>& f) override {
    if (ranks_of(m) != size())
      throw error(exit_code::mismatch, "there are " + std::to_string(size()) +
                                           " processes for a mesh of " +
                                           std::to_string(ranks_of(m)) + " ranks");
    one_rank me(*this, patience);
    host_plane hosts(me, m, rank(), plane::hosts);
    f(static_cast<communicator&>(hosts));
    me.require_idle();
    me.leave(hosts);
  }
  void finish() override { wire_.finish(); }
  void wait_to_be_ended(seconds time) override {
    wire_.give_up(); // the memory of what was started may be gone
    const auto until = steady::now() + std::chrono::duration_cast<steady::duration>(time);
    while (steady::now() < until) {
      wire_.advance();
      wire_.rest(std::chrono::milliseconds(1));
    }
  }
  [[noreturn]] void end(int code) override { wire_.end(code); }

private:
  /// The engine of this rank knows which exchanges the rank has started on both planes, and how far
  /// they are.
  class one_rank {
  public:
    static constexpr bool in_one_process = false, has_lanes = false;

    one_rank(message_ranks& of, seconds patience)
        : of_(of),
          patience_(patience),
          looks_every_(std::clamp<seconds>(patience / 8, std::chrono::milliseconds(1),
                                           std::chrono::seconds(1))) {}
    one_rank(const one_rank&) = delete;
    one_rank& operator=(const one_rank&) = delete;

    void require_idle() const {
      if (!started_.empty()) refuse_left(started_[0]->x);
    }
    /// Waits until all other ranks have come here, too. This rank starts no further
    /// exchange.
    void leave(communicator& hosts) {
      left_ = true;
      hosts.run(exchange::barrier(everyone));
    }

  private:
    friend class host_plane<one_rank>;
    using time = steady::time_point;

    /// The message that ranks send each other at the start of an all-reduce. In a short all-reduce
    /// `count` elements follow.
    struct head {
      static constexpr std::int64_t all_reduces =
          0x6d6567612b2b; ///< marks the head of an all-reduce
      std::int64_t is = all_reduces;
      std::int64_t count = 0;
      std::int16_t type = 0, by = 0;
      std::int32_t line = 0;
    };
    /// A message whose sending or receiving was started.
    struct message {
      int peer;           ///< the other rank, by its number in the run
      std::int64_t bytes; ///< expected bytes; -1 for a message that is sent
      bool up_to = false; ///< a shorter message may come, too
    };
    /// An exchange that was started and not waited for.
    struct record {
      std::int64_t number = 0;
      plane of_plane{};
      exchange x;
      group g{mesh::one_rank(), axis_set{}, 0};
      std::int64_t of_group = 0; ///< number of exchanges before it over its group
      int tag = 0;
      enum : std::uint8_t { moves, heads, shards, sums, done } progress = moves;
      std::vector<typename Wire::transfer> pending;
      std::vector<message> messages;
      arena memory;
      std::vector<int> holders;        ///< ranks with elements to add, by number in the group
      std::int64_t begin = 0, end = 0; ///< elements of the current slice
      seconds waited{};                ///< time awake while the next message was missing
      std::exception_ptr wrong;        ///< error for which the exchange failed
    };

    ticket begin(plane moves, const exchange& x, const group& g) {
      record& r = open(moves, x, g);
      switch (x.what) {
      case collective::all_reduce: start_all_reduce(r); break;
      case collective::reduce_scatter:
        r.holders.resize(static_cast<std::size_t>(g.size()));
        for (int q = 0; q < g.size(); ++q) r.holders[static_cast<std::size_t>(q)] = q;
        start_slice(r, 0);
        break;
      default: start_moves(r, x);
      }
      of_.wire_.hand_over();
      return {r.number};
    }

    /// An error leaves none of this rank's exchanges under way, since their memory may go with it.
    std::size_t finish(std::span<const ticket> any) {
      (void)find(any[0]); // a ticket that is none ends nothing
      try {
        return finish_one(any);
      } catch (...) {
        give_up();
        throw;
      }
    }
    std::size_t finish_one(std::span<const ticket> any) {
      record& first = find(any[0]);
      waited_for_ = &first;
      first.waited = {};
      rested_ = steady::now();
      looks_at_ = rested_ + std::chrono::duration_cast<time::duration>(looks_every_);
      of_.questions_.forget();
      for (int idle = 0;;) {
        bool moved = false;
        for (auto& s : started_) moved |= go_on(*s);
        for (std::size_t i = 0; i < any.size(); ++i)
          if (record& r = find(any[i]); r.progress == record::done) {
            waited_for_ = nullptr;
            if (r.wrong != nullptr) std::rethrow_exception(r.wrong);
            close(r);
            return i;
          }
        if (moved) idle = 0;
        else rest(first, idle++);
      }
    }
    record& find(ticket t) const {
      for (const auto& r : started_)
        if (r->number == t.number) return *r;
      refuse_ticket();
    }
    void close(record& r) {
      of_.memory_.give_back(std::exchange(r.memory, {}));
      const auto at = std::find_if(started_.begin(), started_.end(),
                                   [&](const auto& s) { return s.get() == &r; });
      unused_.push_back(std::move(*at));
      started_.erase(at);
    }

    /// Gives up all exchanges. The messages that this rank has sent may still be under way, and get
    /// a little time for it.
    void give_up() noexcept {
      const time until = steady::now() + std::chrono::milliseconds(100);
      for (auto& r : started_) {
        while (!of_.wire_.are_sent(r->pending) && steady::now() < until) ::sched_yield();
        r->pending.clear(), r->messages.clear();
      }
      of_.wire_.give_up();
      waited_for_ = nullptr;
    }

    record& open(plane moves, const exchange& x, const group& g) {
      if (unused_.empty()) unused_.push_back(std::make_unique<record>());
      started_.push_back(std::move(unused_.back()));
      unused_.pop_back();
      record& r = *started_.back();
      r.number = ++number_, r.of_plane = moves, r.wrong = nullptr;
      r.x = x, r.x.gives = r.x.takes = {};
      r.g = g;
      r.progress = record::moves;
      r.pending.clear(), r.messages.clear(), r.holders.clear();
      const bool sends = x.what == collective::send, pair = sends || x.what == collective::receive;
      const int bits =
          static_cast<int>(std::bit_width(static_cast<unsigned>(of_.wire_.highest_tag()))) - 1 -
          axes;
      if (pair) {
        r.of_group = met_[{moves, -1 - 2 * x.channel - (sends ? 0 : 1), g[x.peer]}]++;
        r.tag = x.channel << axes; // an empty group sends nothing
      } else {
        r.of_group = met_[{moves, x.over.bits, 0}]++;
        r.tag =
            static_cast<int>((r.of_group & ((std::int64_t{1} << bits) - 1)) << axes) | x.over.bits;
      }
      return r;
    }

    void send(record& r, int to, const void* from, std::int64_t bytes) {
      const auto* at = static_cast<const std::byte*>(from);
      std::int64_t left = bytes;
      do {
        const std::int64_t n = std::min(left, of_.sizes_.message);
        r.messages.push_back({r.g[to], -1});
        r.pending.push_back(of_.wire_.send(r.of_plane, r.g[to], r.tag, at, n));
        at += n, left -= n;
      } while (left > 0);
    }
    /// Starts receiving `bytes` bytes, in several messages if they are many. `up_to`: one message
    /// of at most so many bytes.
    void receive(record& r, int from, void* to, std::int64_t bytes, bool up_to = false) {
      auto* at = static_cast<std::byte*>(to);
      std::int64_t left = bytes;
      do {
        const std::int64_t n = up_to ? left : std::min(left, of_.sizes_.message);
        r.messages.push_back({r.g[from], n, up_to});
        r.pending.push_back(of_.wire_.receive(r.of_plane, r.g[from], r.tag, at, n));
        at += n, left -= n;
      } while (left > 0);
    }
    static void copy(void* to, const void* from, std::int64_t bytes) {
      if (bytes > 0 && to != from) std::memcpy(to, from, static_cast<std::size_t>(bytes));
    }

    /// Starts an exchange that adds nothing. Where there are no elements there is no message,
    /// except in a barrier.
    void start_moves(record& r, const exchange& x) {
      const int n = r.g.size(), me = r.g.rank();
      const std::int64_t size = size_of(x.type), bytes = x.count * size;
      const auto* in = static_cast<const std::byte*>(x.in);
      auto* out = static_cast<std::byte*>(x.out);
      const auto counts = [&](std::span<const std::int64_t> of, int q) {
        return x.by_counts() ? of[static_cast<std::size_t>(q)] * size : bytes;
      };
      const auto each_other = [&](auto f) {
        for (int k = 1; k < n; ++k) f((me + k) % n);
      };
      switch (x.what) {
      case collective::all_gather:
        if (bytes == 0) return;
        each_other([&](int q) { receive(r, q, out + q * bytes, bytes); });
        each_other([&](int q) { send(r, q, in, bytes); });
        return copy(out + me * bytes, in, bytes);
      case collective::all_to_all: {
        for (int q = 0; q < n; out += counts(x.takes, q++))
          if (q != me && counts(x.takes, q) > 0) receive(r, q, out, counts(x.takes, q));
        out = static_cast<std::byte*>(x.out);
        for (int q = 0; q < me; ++q) out += counts(x.takes, q);
        for (int q = 0; q < n; in += counts(x.gives, q++)) {
          if (q == me) copy(out, in, std::min(counts(x.gives, me), counts(x.takes, me)));
          else if (counts(x.gives, q) > 0) send(r, q, in, counts(x.gives, q));
        }
        return;
      }
      case collective::broadcast:
        if (bytes == 0) return;
        if (me != x.peer) return receive(r, x.peer, out, bytes);
        each_other([&](int q) { send(r, q, in, bytes); });
        return copy(out, in, bytes);
      case collective::send:
        if (bytes > 0) send(r, x.peer, in, bytes);
        return;
      case collective::receive:
        if (bytes > 0) receive(r, x.peer, out, bytes);
        return;
      default: // a barrier
        each_other([&](int q) { receive(r, q, nullptr, 0); });
        each_other([&](int q) { send(r, q, nullptr, 0); });
      }
    }

    bool short_sum(const record& r) const {
      return r.x.count * size_of(r.x.type) <= of_.sizes_.at_once;
    }
    /// Returns where the head of rank q lies in the record's memory. This rank's own head is the
    /// last.
    std::byte* head_of(const record& r, int q) const {
      const std::int64_t each = std::int64_t{sizeof(head)} + of_.sizes_.at_once;
      return r.memory.data() + each * (q == r.g.rank() ? r.g.size() - 1 : q - (q > r.g.rank()));
    }
    void start_all_reduce(record& r) {
      const exchange& x = r.x;
      const int n = r.g.size(), me = r.g.rank();
      const std::int64_t bytes = short_sum(r) ? x.count * size_of(x.type) : 0;
      r.progress = record::heads;
      r.memory =
          of_.memory_.take(n * (static_cast<std::int64_t>(sizeof(head)) + of_.sizes_.at_once));
      const head mine{head::all_reduces, x.count, static_cast<std::int16_t>(x.type),
                      static_cast<std::int16_t>(x.by), x.line.number};
      std::memcpy(head_of(r, me), &mine, sizeof mine);
      copy(head_of(r, me) + sizeof mine, x.in, bytes);
      for (int k = 1; k < n; ++k)
        receive(r, (me + k) % n, head_of(r, (me + k) % n),
                static_cast<std::int64_t>(sizeof mine) + of_.sizes_.at_once, true);
      for (int k = 1; k < n; ++k)
        send(r, (me + k) % n, head_of(r, me), static_cast<std::int64_t>(sizeof mine) + bytes);
    }
    /// Reads the heads of all ranks, which have arrived, and goes on with the all-reduce.
    void read_heads(record& r) {
      const exchange& x = r.x;
      for (int q = 0; q < r.g.size(); ++q) {
        head theirs;
        std::memcpy(&theirs, head_of(r, q), sizeof theirs);
        if (theirs.is != head::all_reduces) refuse_other(r, r.g[q], "what no all-reduce is");
        if (theirs.count > 0) r.holders.push_back(q);
        if (theirs.type != static_cast<std::int16_t>(x.type) ||
            theirs.by != static_cast<std::int16_t>(x.by) ||
            (theirs.count != x.count && theirs.count != 0 && x.count != 0))
          refuse_other(
              r, r.g[q],
              (static_cast<reduction>(theirs.by) != x.by
                   ? std::string("the ") + name_of(static_cast<reduction>(theirs.by)) + " of "
                   : std::string()) +
                  std::to_string(theirs.count) + " " + name_of(static_cast<dtype>(theirs.type)) +
                  (theirs.line > 0 ? " at line " + std::to_string(theirs.line) : std::string()));
      }
      if (x.count == 0) r.progress = record::done;
      else if (short_sum(r)) {
        addends_.clear();
        for (int q : r.holders) addends_.push_back(head_of(r, q) + sizeof(head));
        reduce_in_rank_order(x.by, x.type, addends_, x.out, x.count);
        r.progress = record::done;
      } else if (r.holders.size() == 1) {
        copy(x.out, x.in, x.count * size_of(x.type));
        r.progress = record::done;
      } else {
        of_.memory_.give_back(std::exchange(r.memory, {}));
        start_slice(r, 0);
      }
    }

    /// Returns the first element of holder i's shard of a slice of an all-reduce. Shards are whole
    /// cache lines, except the last.
    static std::int64_t shard_begin(const record& r, std::int64_t i) {
      const std::int64_t n = r.end - r.begin, all = std::ssize(r.holders);
      return r.begin + (i == all ? n : n * i / all / 64 * 64);
    }
    /// Returns the number of this rank among the holders.
    static std::int64_t place(const record& r) {
      return std::find(r.holders.begin(), r.holders.end(), r.g.rank()) - r.holders.begin();
    }
    /// Returns the elements of `in` that holder i adds up in this slice: the first one, and their
    /// number.
    static std::pair<std::int64_t, std::int64_t> summed_by(const record& r, std::int64_t i) {
      if (r.x.what == collective::reduce_scatter) return {i * r.x.count + r.begin, r.end - r.begin};
      return {shard_begin(r, i), shard_begin(r, i + 1) - shard_begin(r, i)};
    }
    /// Starts the slice from element `begin` on: every rank receives its shards from the
    /// others.
    void start_slice(record& r, std::int64_t begin) {
      const exchange& x = r.x;
      const std::int64_t size = size_of(x.type), all = std::ssize(r.holders), me = place(r);
      const bool reduces = x.what == collective::all_reduce;
      const std::int64_t most = std::max<std::int64_t>(
          64, std::min(of_.sizes_.shard, of_.sizes_.staging / all) / size * (reduces ? all : 1));
      r.progress = record::shards, r.begin = begin, r.end = std::min(x.count, begin + most);
      const auto [first, count] = summed_by(r, me);
      if (r.memory.data() == nullptr) {
        const std::int64_t longest = reduces ? most / all + 128 : std::min(most, x.count);
        r.memory = of_.memory_.take((all - 1) * longest * size);
      }
      std::byte* to = r.memory.data();
      for (std::int64_t i = 0; i < all && count > 0; ++i)
        if (i != me) {
          receive(r, r.holders[static_cast<std::size_t>(i)], to, count * size);
          to += count * size;
        }
      for (std::int64_t k = 1; k < all; ++k) {
        const std::int64_t i = (me + k) % all;
        const auto [theirs, n] = summed_by(r, i);
        if (n > 0)
          send(r, r.holders[static_cast<std::size_t>(i)],
               static_cast<const std::byte*>(x.in) + theirs * size, n * size);
      }
    }
    /// Adds the shards of a slice, which have all arrived, and sends everyone the sum.
    void sum_slice(record& r) {
      const exchange& x = r.x;
      const std::int64_t size = size_of(x.type), all = std::ssize(r.holders), me = place(r);
      const auto [first, count] = summed_by(r, me);
      const bool reduces = x.what == collective::all_reduce;
      std::byte* const out = static_cast<std::byte*>(x.out) + (reduces ? first : r.begin) * size;
      addends_.clear();
      const std::byte* from = r.memory.data();
      for (std::int64_t i = 0; i < all; ++i) {
        if (i == me) {
          addends_.push_back(static_cast<const std::byte*>(x.in) + first * size);
        } else {
          addends_.push_back(from);
          from += count * size;
        }
      }
      if (count > 0) reduce_in_rank_order(x.by, x.type, addends_, out, count);
      if (!reduces) return end_slice(r);
      r.progress = record::sums;
      for (std::int64_t i = 0; i < all; ++i)
        if (const auto [theirs, n] = summed_by(r, i); i != me && n > 0)
          receive(r, r.holders[static_cast<std::size_t>(i)],
                  static_cast<std::byte*>(x.out) + theirs * size, n * size);
      for (std::int64_t k = 1; k < all && count > 0; ++k)
        send(r, r.holders[static_cast<std::size_t>((me + k) % all)], out, count * size);
    }
    void end_slice(record& r) {
      if (r.end == r.x.count) r.progress = record::done;
      else start_slice(r, r.end);
    }

    /// Advances an exchange as far as possible now. An error is kept for the rank's wait.
    bool go_on(record& r) {
      if (r.progress == record::done) return false;
      try {
        if (!all_here(r)) return false;
        switch (r.progress) {
        case record::heads: read_heads(r); break;
        case record::shards: sum_slice(r); break;
        case record::sums: end_slice(r); break;
        default: r.progress = record::done;
        }
        of_.wire_.hand_over();
      } catch (const error&) {
        r.wrong = std::current_exception();
        r.progress = record::done;
      }
      r.waited = {};
      return true;
    }
    /// Returns whether all messages of an exchange have been received and sent. Throws
    /// mc::error(exit_code::internal) for a message of another length, and
    /// mc::error(exit_code::ranks) for a rank that is gone.
    bool all_here(record& r) {
      if (r.pending.empty()) return true;
      bytes_.resize(std::max(bytes_.size(), r.pending.size()));
      const moved_messages moved =
          of_.wire_.moved(r.pending, std::span(bytes_).first(r.pending.size()));
      if (moved.state == moved_messages::failed) refuse_failed(r, moved);
      if (moved.state == moved_messages::under_way) return false;
      r.pending.clear(); // they are void
      for (std::size_t i = 0; i < r.messages.size(); ++i) {
        const message& m = r.messages[i];
        if (m.bytes < 0) continue;
        if (m.up_to ? bytes_[i] < static_cast<std::int64_t>(sizeof(head)) : bytes_[i] != m.bytes)
          refuse_other(r, m.peer,
                       std::to_string(bytes_[i]) + " bytes, not " + std::to_string(m.bytes));
      }
      r.messages.clear();
      return true;
    }
    [[noreturn]] void refuse_failed(const record& r, const moved_messages& moved) const {
      const message& m = r.messages[moved.failure];
      if (moved.why == moved_messages::too_long)
        refuse_other(r, m.peer, "more than " + std::to_string(m.bytes) + " bytes");
      if (moved.why == moved_messages::gone)
        throw missing_rank(m.peer, true, text_of(r.x, r.of_group), of_.rank(), 0);
      throw error(exit_code::ranks, moved.sentence);
    }
    [[noreturn]] void refuse_other(const record& r, int other, const std::string& what) const {
      std::string here;
      if (r.x.line.number > 0) here = std::string(" at ") + text_of(r.x.line).c_str();
      throw error(exit_code::internal,
                  "ranks ask for different exchanges: rank " + std::to_string(of_.rank()) +
                      " for " + name_of(r.x.what) + " of " + std::to_string(r.x.count) + " " +
                      name_of(r.x.type) + " over " + name_of(r.x.over) + here + ", where rank " +
                      std::to_string(other) + " gives " + what +
                      ": let all ranks of a group ask for the same");
    }

    /// Passes the time between two looks at messages. It answers other ranks' questions, and asks
    /// questions itself after a long wait.
    void rest(record& r, int idle) {
      constexpr int yields = 16;
      if (idle < of_.spins_) {
        if (idle % 8 == 7) ::sched_yield(); // the system's own threads may have the messages
        return;
      }
      of_.questions_.hear([this] { return now_waits(); });
      if (idle < of_.spins_ + yields) {
        ::sched_yield();
        return;
      }
      const int naps = std::min(idle - of_.spins_ - yields, 5);
      const time now = steady::now();
      // The time during which this process itself was stopped is not counted.
      r.waited += std::min<seconds>(now - std::exchange(rested_, now), 2 * looks_every_);
      if (now >= looks_at_) {
        looks_at_ = now + std::chrono::duration_cast<time::duration>(looks_every_);
        if (r.waited >= looks_every_)
          of_.questions_.look(now_waits(), r.waited, patience_, looks_every_);
        else of_.questions_.forget();
      }
      of_.wire_.rest(std::chrono::microseconds(20 << naps));
    }

    rank_wait now_waits() const {
      if (waited_for_ == nullptr) return {};
      return {lacking(*waited_for_), text_of(waited_for_->x, waited_for_->of_group), left_};
    }
    /// Returns the rank whose message is missing in an exchange, or that has not taken one; -1:
    /// none.
    int lacking(const record& r) const {
      for (const bool sent : {false, true})
        for (std::size_t i = 0; i < r.pending.size(); ++i)
          if ((r.messages[i].bytes < 0) == sent && !of_.wire_.is_done(r.pending[i]))
            return r.messages[i].peer;
      return -1;
    }

    message_ranks& of_;
    seconds patience_, looks_every_;
    std::map<std::tuple<plane, int, int>, std::int64_t> met_;
    std::vector<std::unique_ptr<record>> started_, unused_; ///< in the order of their starts; for
                                                            ///< reuse
    std::vector<std::int64_t> bytes_;                       ///< of the messages of one exchange
    std::vector<const void*> addends_;
    std::int64_t number_ = 0;
    record* waited_for_ = nullptr;
    bool left_ = false;
    time rested_{}, looks_at_{};
  };

  Wire wire_;
  rank_questions<Wire> questions_;
  message_sizes sizes_;
  int spins_; ///< times that a rank looks for messages before it sleeps
  staging_memory memory_{host_memory::of_process()};
};

} // namespace mc
