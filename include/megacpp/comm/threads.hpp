// Ranks as threads of one process. Values are not copied on their way: a rank tells where its `in`
// and `out` lie, and each rank takes its elements from the memory of the others. This is memory of
// the host, or of one device which all ranks use. On a device, a lane beside the one that computes
// takes the elements. Ranks then meet to tell each other what they have started, and events order
// the lanes of all ranks, so that no host waits for work of the device.
//
//   thread_ranks ranks(m);
//   ranks.run([&](communicator& hosts) { ... });     once for every rank, each in a thread
//
// Ranks of a group meet: each exchange has a meeting of its own. Once all have come, each takes its
// elements from the memory of the others. In an all-reduce a rank takes the sum of its shard of
// everyone's `in`, and, when all have done so, gathers the other shards from the ranks that added
// them. In a reduce-scatter it takes the sum of its own shard, and in other exchanges it copies the
// elements that are for it. A rank leaves when all have taken their elements, so that its memory is
// its own again. A rank that waits advances all exchanges that it has started, so ranks may wait in
// different orders; a rank with nothing to do sleeps. The thread that started the ranks watches: it
// ends the run with a sentence that names a rank that others wait for too long, or that has ended
// without them.
#pragma once

#include <megacpp/comm/exchange_description.hpp>
#include <megacpp/comm/host_plane.hpp>
#include <megacpp/comm/missing_rank.hpp>
#include <megacpp/exec/rank_order.hpp>
#include <megacpp/io/clock.hpp>
#include <megacpp/threads/own_thread.hpp>
#include <megacpp/threads/processors.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

namespace mc {

/// The ranks of a mesh whose sizes are all known, as threads.
class thread_ranks {
public:
  using seconds = std::chrono::duration<double>;

  /// `patience`: how long the ranks of a group may wait for one of them.
  explicit thread_ranks(const mesh& m, seconds patience = std::chrono::minutes(10))
      : mesh_(m), patience_(patience) {}
  thread_ranks(const thread_ranks&) = delete;
  thread_ranks& operator=(const thread_ranks&) = delete;

  const mesh& ranks() const { return mesh_; }

  /// Calls f(hosts) on every rank. If a rank throws, the exchanges of the others throw
  /// mc::error(exit_code::ranks); the first error is thrown here when all ranks have ended. The
  /// error about a rank that does not come is thrown here, too.
  template <class F> void run(F f) {
    std::vector<own_thread> threads;
    const int n = ranks_of(mesh_);
    spins_ = n <= processors() ? 2000 : 0;
    gone_.assign(static_cast<std::size_t>(n), false);
    waiting_ = std::vector<std::atomic<const meeting*>>(static_cast<std::size_t>(n));
    bells_ = std::vector<bell>(static_cast<std::size_t>(n));
    try {
      threads.reserve(static_cast<std::size_t>(n));
      for (int r = 0; r < n; ++r)
        threads.emplace_back(
            [this, r, &f] {
              try {
                one_rank me(*this, r);
                host_plane hosts(me, mesh_, r, plane::hosts);
                f(static_cast<communicator&>(hosts));
                me.require_idle();
              } catch (...) {
                end(std::current_exception());
              }
              leave_run(r);
            },
            "give fewer ranks, or ");
      watch();
    } catch (...) {
      end(std::current_exception()); // ranks that have started would wait for one that never comes
    }
    threads.clear();
    meetings_.clear(), unused_.clear();
    ended_.store(false);
    if (wrong_ != nullptr) std::rethrow_exception(std::exchange(wrong_, nullptr));
  }

private:
  /// The key of a meeting: the plane; whether the exchange describes another one
  /// (comm/checking.hpp), which is counted apart; the axes and first rank of the group, or the two
  /// ranks of a pair; the number of meetings before it.
  using key = std::tuple<plane, bool, int, int, int, std::int64_t>;

  using time = steady::time_point;
  /// An event of a lane of the device; nullptr for memory of the host.
  using moment = std::shared_ptr<event>;

  /// The meeting of one exchange: what each rank of the group has asked for, and how far it is.
  struct meeting {
    struct guest {
      exchange x;
      int rank = -1; ///< number of the rank in the run; -1 before it has come
      std::vector<std::int64_t> gives, takes;
      /// The moments when the guest's memory may be read, when it has taken its elements, and when
      /// it has gathered the shards of the others.
      moment ready{}, taken{}, gathered{};
    };
    std::vector<guest> guests;
    std::atomic<int> came{0}, taken{0}, gathered{0};
    std::atomic<bool> differs{false}; ///< guests ask for different exchanges: see `wrong`
    std::exception_ptr wrong{};
    int left = 0;
    seconds since{}; ///< value of awake_ when the first guest came
    key at{};

    int size() const { return static_cast<int>(guests.size()); }
    bool all(const std::atomic<int>& n) const {
      return n.load(std::memory_order_acquire) == size();
    }
    /// Lets a lane go on behind this moment of all guests.
    void before(lane& on, moment guest::*until) const {
      for (const guest& g : guests) on.wait(*(g.*until));
    }
  };
  using meetings = std::map<key, std::unique_ptr<meeting>>;

  /// Copies and adds in memory that all ranks see. The host does so, or a lane beside those that
  /// compute on that device. The host knows only what was started on the lane; events tell
  /// other lanes when it is done.
  struct mover {
    exchange_lane* beside = nullptr;

    void copy(void* to, const void* from, std::int64_t bytes) const {
      if (bytes <= 0 || to == from) return;
      if (beside == nullptr) std::memcpy(to, from, static_cast<std::size_t>(bytes));
      else
        beside->on().copy(static_cast<std::byte*>(to), static_cast<const std::byte*>(from), bytes);
    }
    void reduce(reduction by, dtype t, std::span<const void* const> addends, void* out,
                std::int64_t n) const {
      if (beside == nullptr) reduce_in_rank_order(by, t, addends, out, n);
      else beside->on().reduce(by, t, addends, out, n);
    }
    /// Lets the lane beside go on behind this moment of all guests.
    void follow(const meeting& m, moment meeting::guest::*until) const {
      if (beside != nullptr) m.before(beside->on(), until);
    }
    /// Returns the moment when all work that was given to the lane is done.
    moment mark() const { return beside == nullptr ? nullptr : beside->mark(beside->on()); }
  };

  /// The engine of a rank knows which exchanges the rank has started on both planes, and how far
  /// they are.
  class one_rank {
  public:
    static constexpr bool in_one_process = true, has_lanes = true;

    one_rank(thread_ranks& of, int rank) : of_(of), rank_(rank) {}
    one_rank(const one_rank&) = delete;
    one_rank& operator=(const one_rank&) = delete;

    void require_idle() const {
      if (!started_.empty()) refuse_left(started_[0].mine().x);
    }

  private:
    friend class host_plane<one_rank>;
    /// An exchange that this rank has started and not left.
    struct record {
      std::int64_t number;
      key at;
      meeting* m;
      int place;
      mover by;
      enum : std::uint8_t { waits, has_taken, has_gathered } progress = waits;
      std::exception_ptr wrong{}; ///< error that another rank asks for something else

      meeting::guest& mine() const { return m->guests[static_cast<std::size_t>(place)]; }
      bool reduces() const { return mine().x.what == collective::all_reduce; }
      bool done() const {
        if (wrong != nullptr) return true;
        // No rank reads from a receiver.
        if (mine().x.what == collective::receive) return progress == has_taken;
        return reduces() ? progress == has_gathered && m->all(m->gathered)
                         : progress == has_taken && m->all(m->taken);
      }
      /// Lets a lane go on behind the exchange.
      void before(lane& on) const {
        if (mine().x.what == collective::receive) on.wait(*mine().taken);
        else m->before(on, reduces() ? &meeting::guest::gathered : &meeting::guest::taken);
      }
    };

    ticket begin(plane moves, const exchange& x, const group& g) {
      return begin(moves, x, g, mover{}, nullptr);
    }
    ticket begin(plane moves, const exchange& x, const group& g, exchange_lane& beside,
                 moment ready) {
      return begin(moves, x, g, mover{&beside}, std::move(ready));
    }
    ticket begin(plane moves, const exchange& x, const group& g, mover by, moment ready) {
      const bool tells = x.before != collective::none;
      key k{moves, tells, x.over.bits, g[0], -1, 0};
      int place = g.rank(), size = g.size();
      const int pair = -1 - x.channel;
      if (x.what == collective::send)
        k = {moves, tells, pair, rank_, g[x.peer], 0}, place = 0, size = 2;
      if (x.what == collective::receive)
        k = {moves, tells, pair, g[x.peer], rank_, 0}, place = 1, size = 2;
      std::get<5>(k) = met_[k]++;
      meeting& m = of_.come(k, x, rank_, place, size, std::move(ready));
      started_.push_back({++number_, k, &m, place, by});
      return {number_};
    }

    std::size_t finish(std::span<const ticket> any) { return finish(any, nullptr); }
    std::size_t finish(std::span<const ticket> any, lane& on) { return finish(any, &on); }
    std::size_t finish(std::span<const ticket> any, lane* on) {
      for (;;) {
        const bell& mine = of_.bells_[static_cast<std::size_t>(rank_)];
        const std::uint32_t seen = mine.rings.load(std::memory_order_acquire);
        bool moved = false;
        for (record& r : started_) moved |= go_on(r);
        for (std::size_t i = 0; i < any.size(); ++i) {
          const auto it = find(any[i]);
          if (!it->done()) continue;
          if (it->wrong != nullptr) { // until then other ranks may read this rank's memory
            end_for_all();
            std::rethrow_exception(it->wrong);
          }
          if (on != nullptr) it->before(*on);
          of_.leave(it->at);
          started_.erase(it);
          return i;
        }
        if (of_.ended_.load()) {
          of_.until_untouched();
          for (const record& r : started_) // an error with a reason goes before "see another one"
            if (r.wrong != nullptr) std::rethrow_exception(r.wrong);
          refuse_exchange(find(any[0])->mine().x, "another rank has ended: see what it says",
                          exit_code::ranks);
        }
        if (moved) continue;
        auto& waiting = of_.waiting_[static_cast<std::size_t>(rank_)];
        waiting.store(find(any[0])->m);
        of_.sleep(mine, seen);
        waiting.store(nullptr);
      }
    }
    std::vector<record>::iterator find(ticket t) {
      const auto it = std::find_if(started_.begin(), started_.end(),
                                   [&](const record& r) { return r.number == t.number; });
      if (it == started_.end()) refuse_ticket();
      return it;
    }

    void give_up() noexcept {
      end_for_all();
      started_.clear();
    }
    void end_for_all() noexcept {
      of_.ended_.store(true);
      of_.wake_all();
      of_.until_untouched();
    }

    /// Advances an exchange as far as possible now, and returns whether it advanced. Once the run
    /// has ended it does nothing, because the memory of other ranks may be gone.
    bool go_on(record& r) {
      const struct guard {
        std::atomic<int>& n;
        explicit guard(std::atomic<int>& touching) : n(touching) { ++n; }
        ~guard() { --n; }
      } touching(of_.touching_);
      meeting& m = *r.m;
      if (of_.ended_.load() || r.wrong != nullptr) return false;
      if (m.differs.load(std::memory_order_acquire)) { // other ranks copy and add nothing
        r.wrong = m.wrong;
        return true;
      }
      if (r.progress == record::waits && m.all(m.came)) {
        try {
          require_agreement(r);
        } catch (const error&) {
          r.wrong = std::current_exception();
          of_.tell(m, r.wrong);
          return true;
        }
        r.by.follow(m, &meeting::guest::ready);
        take(r);
        r.mine().taken = r.by.mark();
        r.progress = record::has_taken;
        of_.count(m, m.taken);
        return true;
      }
      if (r.progress == record::has_taken && r.reduces() && m.all(m.taken)) {
        r.by.follow(m, &meeting::guest::taken);
        gather(r);
        r.mine().gathered = r.by.mark();
        r.progress = record::has_gathered;
        of_.count(m, m.gathered);
        return true;
      }
      return false;
    }

    /// Returns the first element of a rank's shard of n elements. Shards are whole cache lines,
    /// except the last.
    static std::int64_t shard_begin(std::int64_t n, int rank, int ranks) {
      return rank == ranks ? n : n * rank / ranks / 64 * 64;
    }
    void take(const record& r) {
      const meeting& m = *r.m;
      const exchange& x = r.mine().x;
      const int n = m.size(), me = r.place;
      const std::int64_t size = size_of(x.type), bytes = x.count * size;
      auto* out = static_cast<std::byte*>(x.out);
      const auto in = [&](int q, std::int64_t first) {
        return static_cast<const std::byte*>(m.guests[static_cast<std::size_t>(q)].x.in) +
               first * size;
      };
      const auto sum = [&](std::int64_t first, std::byte* to, std::int64_t count) {
        if (count == 0) return;
        addends_.clear();
        for (int q = 0; q < n; ++q)
          if (m.guests[static_cast<std::size_t>(q)].x.count > 0) addends_.push_back(in(q, first));
        r.by.reduce(x.by, x.type, addends_, to, count);
      };
      switch (x.what) {
      case collective::all_reduce: {
        if (x.count == 0) return;
        const auto [mine, all] = among_holders(m, me);
        const std::int64_t first = shard_begin(x.count, mine, all);
        return sum(first, out + first * size, shard_begin(x.count, mine + 1, all) - first);
      }
      case collective::reduce_scatter: return sum(me * x.count, out, x.count);
      case collective::all_gather:
        for (int q = 0; q < n; ++q) r.by.copy(out + q * bytes, in(q, 0), bytes);
        return;
      case collective::all_to_all:
        for (int q = 0; q < n; ++q) {
          const std::vector<std::int64_t>& gives = m.guests[static_cast<std::size_t>(q)].gives;
          std::int64_t first = me * x.count, count = x.count;
          if (!gives.empty()) {
            first = 0, count = gives[static_cast<std::size_t>(me)];
            for (int k = 0; k < me; ++k) first += gives[static_cast<std::size_t>(k)];
          }
          r.by.copy(out, in(q, first), count * size);
          out += count * size;
        }
        return;
      case collective::broadcast: return r.by.copy(out, in(x.peer, 0), bytes);
      case collective::receive: return r.by.copy(out, in(0, 0), bytes);
      default: return; // sends and barriers copy nothing here
      }
    }
    /// Returns the number of ranks before `place` that have elements to add, and the number of all
    /// that have.
    static std::pair<int, int> among_holders(const meeting& m, int place) {
      int before = 0, all = 0;
      for (int q = 0; q < m.size(); ++q) {
        const bool holds = m.guests[static_cast<std::size_t>(q)].x.count > 0;
        before += holds && q < place, all += holds;
      }
      return {before, all};
    }
    /// Copies the shards that other ranks have added.
    static void gather(const record& r) {
      const exchange& x = r.mine().x;
      const std::int64_t size = size_of(x.type);
      for (int q = 0; q < r.m->size() && x.count > 0; ++q) {
        const auto [theirs, all] = among_holders(*r.m, q);
        if (q == r.place || r.m->guests[static_cast<std::size_t>(q)].x.count == 0) continue;
        const std::int64_t first = shard_begin(x.count, theirs, all),
                           count = shard_begin(x.count, theirs + 1, all) - first;
        r.by.copy(static_cast<std::byte*>(x.out) + first * size,
                  static_cast<const std::byte*>(r.m->guests[static_cast<std::size_t>(q)].x.out) +
                      first * size,
                  count * size);
      }
    }

    /// Throws mc::error(exit_code::internal) if another rank asks for something else. This rank has
    /// not read the other's memory yet.
    static void require_agreement(const record& r) {
      const meeting::guest& mine = r.mine();
      const plane moves = std::get<0>(r.at);
      const std::int64_t number = std::get<5>(r.at);
      for (int q = 0; q < r.m->size(); ++q) {
        if (q == r.place) continue;
        const meeting::guest& o = r.m->guests[static_cast<std::size_t>(q)];
        mc::require_agreement(description_of(mine.x, moves, number, mine.rank, q),
                              description_of(o.x, moves, number, o.rank, r.place));
      }
    }

    thread_ranks& of_;
    int rank_;
    std::map<key, std::int64_t> met_; ///< meetings of this rank so far, by keys without a number
    std::vector<record> started_;     ///< exchanges in the order of their starts
    std::vector<const void*> addends_;
    std::int64_t number_ = 0;
  };

  meeting& come(const key& k, const exchange& x, int rank, int place, int size, moment ready) {
    meeting* m = nullptr;
    {
      const std::scoped_lock hold(lock_);
      auto at = meetings_.find(k);
      if (at == meetings_.end()) at = open(k, size);
      m = at->second.get();
      m->at = k;
      meeting::guest& g = m->guests[static_cast<std::size_t>(place)];
      g.x = x, g.rank = rank, g.ready = std::move(ready);
      g.gives.assign(x.gives.begin(), x.gives.end()), g.x.gives = g.gives;
      g.takes.assign(x.takes.begin(), x.takes.end()), g.x.takes = g.takes;
    }
    count(*m, m->came);
    return *m;
  }
  /// Tells all guests of a meeting that they ask for different exchanges. The first guest that
  /// finds it gives the error for all.
  void tell(meeting& m, const std::exception_ptr& wrong) {
    {
      const std::scoped_lock hold(lock_);
      if (m.wrong == nullptr) m.wrong = wrong;
    }
    m.differs.store(true, std::memory_order_release);
    wake_all();
  }
  /// Returns a meeting that no rank has come to yet; it reuses one that was left, if there is one.
  meetings::iterator open(const key& k, int size) {
    if (unused_.empty()) {
      const auto at = meetings_.emplace(k, std::make_unique<meeting>()).first;
      at->second->guests.resize(static_cast<std::size_t>(size));
      at->second->since = awake_;
      return at;
    }
    auto node = unused_.extract(unused_.begin());
    meeting& m = *node.mapped();
    m.guests.resize(static_cast<std::size_t>(size));
    for (meeting::guest& g : m.guests) g.rank = -1;
    m.came = 0, m.taken = 0, m.gathered = 0, m.left = 0;
    m.since = awake_;
    node.key() = k;
    return meetings_.insert(std::move(node)).position;
  }
  void leave(const key& k) {
    const std::scoped_lock hold(lock_);
    const auto at = meetings_.find(k);
    meeting& m = *at->second;
    if (++m.left < m.size()) return;
    for (meeting::guest& g : m.guests) g.ready = g.taken = g.gathered = nullptr;
    unused_.insert(meetings_.extract(at));
  }
  /// A bell wakes a rank that sleeps. It counts its rings, by which the rank sees that there is
  /// something new.
  struct alignas(64) bell {
    std::atomic<std::uint32_t> rings{0};
    void ring() {
      rings.fetch_add(1, std::memory_order_acq_rel);
      rings.notify_one();
    }
  };
  /// Counts one more rank at a point of a meeting. The last rank that gets there wakes the others.
  void count(const meeting& m, std::atomic<int>& so_far) {
    if (so_far.fetch_add(1, std::memory_order_acq_rel) + 1 != m.size()) return;
    for (const meeting::guest& g : m.guests) bells_[static_cast<std::size_t>(g.rank)].ring();
  }
  void wake_all() {
    for (bell& b : bells_) b.ring();
  }
  /// Waits for the next ring. It yields before it sleeps: where ranks are more than processors, the
  /// rank that is waited for then runs sooner.
  void sleep(const bell& mine, std::uint32_t seen) const {
    constexpr int yields = 100;
    for (int i = 0; i < spins_; ++i)
      if (mine.rings.load(std::memory_order_acquire) != seen) return;
    for (int i = 0; i < yields; ++i) {
      if (mine.rings.load(std::memory_order_acquire) != seen) return;
      std::this_thread::yield();
    }
    mine.rings.wait(seen, std::memory_order_acquire);
  }
  /// Watches the ranks until all have ended: ends the run if a rank does not come to a meeting.
  void watch() {
    const auto looks_every =
        std::clamp<seconds>(patience_ / 8, std::chrono::milliseconds(1), std::chrono::seconds(1));
    std::unique_lock hold(lock_);
    while (std::count(gone_.begin(), gone_.end(), false) > 0) {
      const time before = steady::now();
      left_run_.wait_for(hold, looks_every);
      // The time during which this process itself was stopped is not counted.
      awake_ += std::min<seconds>(steady::now() - before, 2 * looks_every);
      if (wrong_ != nullptr) continue;
      for (const auto& [k, m] : meetings_)
        if (const std::optional<error> who = missing(*m)) {
          wrong_ = std::make_exception_ptr(*who);
          ended_.store(true);
          wake_all();
          break;
        }
    }
  }
  /// A gap in a meeting: a rank that has not come, and a guest that waits for it.
  struct lack {
    const meeting* m = nullptr;
    int rank = -1, waits = -1;

    std::string text() const {
      for (const meeting::guest& g : m->guests)
        if (g.rank == waits) return text_of(g.x, std::get<5>(m->at));
      return "";
    }
  };
  /// Returns the gap in a meeting; its `rank` is -1 if all ranks have come, or none. The caller
  /// holds lock_.
  lack lacking(const meeting& m) const {
    lack l{&m};
    int absent = -1;
    for (const meeting::guest& g : m.guests) {
      if (g.rank >= 0) l.waits = g.rank;
      else if (absent < 0) absent = static_cast<int>(&g - m.guests.data());
    }
    if (absent < 0 || l.waits < 0) return l;
    const auto [moves, tells, over, first, second, number] = m.at;
    l.rank = over >= 0 ? group(mesh_, axis_set::of_bits(over), l.waits)[absent]
                       : (absent == 0 ? first : second);
    return l;
  }
  /// Returns the error about a meeting that will not take place; nothing while it may. The error
  /// names a rank that waits for no other: from a rank that waits in another meeting, the search
  /// goes on to the rank that is missing there. The caller holds lock_.
  std::optional<error> missing(const meeting& m) const {
    lack l = lacking(m);
    if (l.rank < 0) return std::nullopt;
    const seconds waited = awake_ - m.since;
    const auto gone = [&] { return gone_[static_cast<std::size_t>(l.rank)]; };
    if (!gone() && waited < patience_) return std::nullopt;
    for (int seen = 0; !gone(); ++seen) {
      const meeting* const elsewhere = waiting_[static_cast<std::size_t>(l.rank)].load();
      if (elsewhere == nullptr) break;
      lack next = lacking(*elsewhere);
      if (next.rank < 0) return std::nullopt; // the ranks of that meeting are about to go on
      next.waits = l.rank;
      if (seen > ranks_of(mesh_))
        return crossed_ranks(l.waits, l.rank, l.text(), next.rank, next.text());
      l = next;
    }
    return missing_rank(l.rank, gone(), l.text(), l.waits,
                        static_cast<std::int64_t>(waited.count()));
  }
  void leave_run(int rank) {
    {
      const std::scoped_lock hold(lock_);
      gone_[static_cast<std::size_t>(rank)] = true;
    }
    left_run_.notify_all();
  }
  /// Ends the run with a rank's error. An error of another kind replaces one that only says that
  /// another rank has ended.
  void end(std::exception_ptr e) {
    {
      const std::scoped_lock hold(lock_);
      if (wrong_ == nullptr || (is_of_ranks(wrong_) && !is_of_ranks(e))) wrong_ = std::move(e);
    }
    ended_.store(true);
    wake_all();
  }
  static bool is_of_ranks(const std::exception_ptr& e) {
    try {
      std::rethrow_exception(e);
    } catch (const error& known) {
      return known.code() == exit_code::ranks;
    } catch (...) {
      return false;
    }
  }
  /// Waits until no rank touches memory of another one. Once the run has ended, no rank begins to.
  void until_untouched() const noexcept {
    while (touching_.load() != 0) std::this_thread::yield();
  }

  mesh mesh_;
  seconds patience_;
  std::mutex lock_;                                  ///< protects meetings, gone_ and wrong_
  std::condition_variable left_run_;                 ///< rings when a rank ends
  std::vector<bool> gone_;                           ///< for each rank: it has ended
  seconds awake_{0};                                 ///< time that watch() has seen pass
  std::vector<std::atomic<const meeting*>> waiting_; ///< for each rank: the meeting it waits in
  meetings meetings_, unused_;
  std::exception_ptr wrong_;
  std::atomic<bool> ended_{false};
  std::atomic<int> touching_{0}; ///< number of ranks that copy or add now
  std::vector<bell> bells_;      ///< one bell for each rank
  int spins_ = 0;
};

} // namespace mc
