// A CPU whose memory behaves as if it lay on a GPU: its pages are open only while the device
// computes and copies, that is, in the bodies that a kernel starts, in its slots, in a product and
// in the device's own functions. At other times the pages are closed: reading them raises SIGSEGV,
// and the op is named whose kernel it was. Exchanges between ranks move the memory by the same
// functions.
//
// A device that defers keeps bodies, products, fills, writes, mirrors and events in a queue for
// each lane. It works on them in order when somebody reads, waits for an event, runs slots or
// exchanges; among several lanes that could go on, chance decides. The stack on which a kernel was
// called is overwritten before.
//
// The device does not notice a body or a product that reads memory of the host which is still
// there, nor the accesses of code in slots.
#pragma once

#include <megacpp/comm/communicator.hpp>
#include <megacpp/exec/cpu.hpp>
#include <megacpp/graph/op.hpp>
#include <megacpp/io/error.hpp>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>
#include <sort_by_bits.hpp>

namespace mc_test {

/// Names the owner of a guarded device's memory when it is read at a wrong time, before the process
/// ends, while the object lives. There is one object at a time.
class looks_are_told {
public:
  looks_are_told() {
    struct sigaction action = {};
    action.sa_sigaction = &on_fault;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    ::sigaction(SIGSEGV, &action, &before());
  }
  looks_are_told(const looks_are_told&) = delete;
  looks_are_told& operator=(const looks_are_told&) = delete;
  ~looks_are_told() { ::sigaction(SIGSEGV, &before(), nullptr); }

private:
  static struct sigaction& before() {
    static struct sigaction one = {};
    return one;
  }
  static void on_fault(int, siginfo_t*, void*);
};

/// Counts of the work of a guarded device.
struct device_counts {
  std::map<std::string, std::int64_t> launched; ///< launches of each op
  std::int64_t bodies = 0, products = 0, slots = 0, copies = 0, mirrors = 0, waits = 0;
  std::int64_t exchanges = 0, exchanged = 0; ///< exchanges that ranks have started, and bytes
                                             ///< handed in
  std::set<std::string> idle;                ///< ops with a launch that started nothing
};

class guarded_device;

/// An event of a guarded device, which comes when its lane reaches it.
class guarded_event final : public mc::event {
public:
  explicit guarded_event(guarded_device& on) : on_(on) {}
  ~guarded_event() override;
  void wait() override;
  std::int64_t reached() override;

private:
  friend class guarded_device;
  friend class guarded_lane;
  guarded_device& on_;
  bool recorded_ = false, come_ = false;
  std::int64_t at_ = 0;
};

/// A lane of a guarded device.
class guarded_lane final : public mc::lane, public mc::host_pool {
public:
  explicit guarded_lane(guarded_device& on);
  ~guarded_lane() override;

  int threads() const { return mc::thread_count(); }
  int slabs() const { return mc::thread_count(); }
  template <class F> void launch(const mc::node& n, F f);
  template <class Body> void for_rows(std::int64_t rows, Body body);
  void for_pieces(int slots, mc::function_of_piece f) const override;
  void sort(std::uint64_t* numbers, std::int64_t n, int first, int bits, std::byte* room);
  void fill(std::byte* to, std::uint8_t byte, std::int64_t bytes) override;
  void write(std::byte* to, const void* from_host, std::int64_t bytes) override;
  void mirror(std::byte* to, const std::byte* from, std::int64_t bytes) override;
  void copy(std::byte* to, const std::byte* from, std::int64_t bytes) override;
  void reduce(mc::reduction by, mc::dtype t, std::span<const void* const> parts, void* out,
              std::int64_t n) override;
  void record(mc::event& e) override;
  void wait(mc::event& e) override;
  void finish() override;

  /// Calls f with the memory open, now or when the device settles.
  void later(std::function<void()> f);

private:
  friend class guarded_device;
  /// Work of a lane. It is done when no event has to be waited for, or when the event has come.
  struct started {
    std::function<void()> what;
    const guarded_event* behind = nullptr;
  };
  guarded_device& on_;
  std::deque<started> queue_;
};

class guarded_device final : public mc::in_host_memory<mc::device> {
public:
  using lane_type = guarded_lane;

  explicit guarded_device(mc::product_type products, int threads = 0,
                          mc::product_rows rows = mc::product_rows::together)
      : below_(products, threads, rows) {}
  /// Defers all work from now on. It is called before any work.
  void defer() { deferring_ = true; }
  /// Makes the kernel of this op read the first byte of the memory, before it starts anything or
  /// when it has started all.
  void look_in(std::string op, bool at_end) { looks_in_ = std::move(op), looks_at_end_ = at_end; }
  /// Calls f(node) before each launch from now on, outside of it.
  void before_launches(std::function<void(const mc::node&)> f) { before_ = std::move(f); }
  /// Makes mirrors differ from the device's values from now on.
  void break_mirrors() { breaks_mirrors_ = true; }
  const device_counts& counts() const { return counts_; }

  ~guarded_device() override { ::munmap(held_, room); }

  /// Reserves memory side by side, so that one call opens and closes it, and never twice.
  std::byte* reserve(std::int64_t bytes, const char* what, const char* remedy) override {
    std::byte* const p = held_ + size_;
    size_ += (bytes + page - 1) / page * page;
    if (size_ > room)
      throw mc::error(mc::exit_code::memory,
                      std::string("no room is left for ") + what + ": use " + remedy);
    return p;
  }
  void release(std::byte* /*p*/, std::int64_t /*bytes*/) override { settle(); }
  void fill(std::byte* to, std::uint8_t byte, std::int64_t bytes) override {
    lane_.fill(to, byte, bytes);
  }
  void write(std::byte* to, const void* from_host, std::int64_t bytes) override {
    lane_.write(to, from_host, bytes);
  }
  void read(void* to_host, const std::byte* from, std::int64_t bytes) const override {
    settle();
    const opening o(*this);
    in_host_memory::read(to_host, from, bytes);
    last_read_ = from;
  }
  /// Returns a copy, as for memory that the host cannot see at all.
  std::byte* open(std::byte* p, std::int64_t bytes) override {
    auto* const seen = new std::byte[static_cast<std::size_t>(bytes)];
    read(seen, p, bytes);
    return seen;
  }
  void close(std::byte* p, std::int64_t bytes, std::byte* seen, bool changed) override {
    if (changed) write(p, seen, bytes);
    delete[] seen;
  }
  bool host_sees() const override { return false; }
  int threads() const override { return below_.threads(); }
  mc::product_source& products() override { return products_; }
  mc::memory_space& mirrored() override { return below_.mirrored(); }
  mc::lane& main_lane() override { return lane_; }
  std::unique_ptr<mc::lane> make_lane() override { return std::make_unique<guarded_lane>(*this); }
  std::unique_ptr<mc::event> make_event() override {
    return std::make_unique<guarded_event>(*this);
  }
  std::int64_t table_bytes() const override { return below_.table_bytes(); }
  static constexpr std::int64_t most_workspace(const mc::product_shape& s, int threads) {
    return mc::cpu::most_workspace(s, threads);
  }
  static constexpr std::int64_t sort_bytes(std::int64_t n) {
    return n * std::int64_t{sizeof(std::uint64_t)};
  }
  template <class Type, class F>
  auto table(Type type, std::vector<double> key, std::int64_t count, F fill) {
    return below_.table(type, std::move(key), count, fill);
  }

  /// Returns the largest number of trips of a region.
  std::int32_t most_trips() const { return most_trips_; }
  /// Returns the address that read() was last called with, which the host must not follow.
  const std::byte* last_read() const { return last_read_; }

private:
  friend class looks_are_told;
  friend class ranks_of_device;
  friend class hosts_beside_device;
  friend class guarded_event;
  friend class guarded_lane;

  /// Keeps all memory open while it lives. Several threads may copy at once.
  struct opening {
    const guarded_device& of;
    explicit opening(const guarded_device& d) : of(d) { of.count_opening(1); }
    opening(const opening&) = delete;
    opening& operator=(const opening&) = delete;
    ~opening() { of.count_opening(-1); }
  };
  void count_opening(int more) const {
    const std::scoped_lock lock(mutex_);
    opened_ += more;
    if (opened_ == std::max(more, 0)) protect(); // the first opening, or the last
  }

  /// Does all work that was started.
  void settle() const {
    while (true) {
      std::function<void()> one;
      {
        const std::scoped_lock lock(queue_mutex_);
        std::vector<guarded_lane*> ready;
        bool any = false;
        for (guarded_lane* const l : lanes_) {
          if (l->queue_.empty()) continue;
          any = true;
          const guarded_event* const behind = l->queue_.front().behind;
          if (behind == nullptr || behind->come_) ready.push_back(l);
        }
        if (!any) return;
        if (ready.empty()) throw std::logic_error("lanes wait for events that do not come");
        guarded_lane& next = *ready[chance_() % ready.size()];
        one = std::move(next.queue_.front().what);
        next.queue_.pop_front();
      }
      const opening o(*this);
      if (one) one();
    }
  }
  [[gnu::noinline]] static void overwrite_stack() {
    volatile std::byte there[1 << 15];
    for (volatile std::byte& b : there) b = std::byte{0x5a};
  }
  [[gnu::noinline]] void look() const { looked_ = *static_cast<volatile std::byte*>(held_); }

  /// The launch that this thread is in.
  struct launching {
    launching(const guarded_device& on, const mc::op_info& op) {
      if (launched_ != nullptr) throw std::logic_error("a launch within a launch");
      if (const std::scoped_lock lock(on.mutex_); on.opened_ > 0)
        throw std::logic_error("a launch while the memory is open");
      ++on.counts_.launched[op.name];
      launched_ = &op;
    }
    launching(const launching&) = delete;
    launching& operator=(const launching&) = delete;
    ~launching() { launched_ = nullptr; }
  };

  /// Returns how often work was started on the device.
  std::int64_t started() const {
    const device_counts& c = counts_;
    return c.bodies + c.products + c.slots + c.copies + c.exchanges;
  }
  bool holds(const void* p) const {
    const auto* const at = static_cast<const std::byte*>(p);
    return at >= held_ && at < held_ + size_;
  }
  /// Opens or closes all pages, as the state demands. The caller holds the mutex.
  void protect() const {
    const int how = opened_ > 0 ? PROT_READ | PROT_WRITE : PROT_NONE;
    if (size_ > 0 && ::mprotect(held_, static_cast<std::size_t>(size_), how) != 0) std::abort();
  }

  /// A product that opens the memory while it computes. The rows of parts are on the host, as for a
  /// GPU's library.
  class opened_product final : public mc::prepared_product {
  public:
    opened_product(const guarded_device& on, const mc::prepared_product& of) : on_(on), of_(of) {
      shape_ = of.shape();
    }
    void execute(const mc::product_call& c) const override {
      ++on_.counts_.products;
      static_cast<guarded_lane&>(c.on).later([this, c] { of_.execute(c); });
    }
    void execute_segments(const mc::product_call& c,
                          std::span<const std::int32_t> rows) const override {
      ++on_.counts_.products;
      static_cast<guarded_lane&>(c.on).later(
          [this, c, kept = std::vector<std::int32_t>(rows.begin(), rows.end())] {
            of_.execute_segments(c, kept);
          });
    }

  private:
    const guarded_device& on_;
    const mc::prepared_product& of_;
  };
  class opened_products final : public mc::product_source {
  public:
    explicit opened_products(guarded_device& on) : on_(on) {}
    const mc::prepared_product& prepare(const mc::product_shape& s) override {
      const mc::prepared_product& found = of().prepare(s);
      std::unique_ptr<opened_product>& p = products_[&found];
      if (p == nullptr) p = std::make_unique<opened_product>(on_, found);
      return *p;
    }
    // The CPU's products are checked in memory that is open.
    void lend(std::byte*, std::int64_t) override {}
    std::int64_t take_back() override { return 0; }
    const mc::product_checks& checks() const override { return of().checks(); }
    std::vector<mc::product_shape> shapes() const override { return of().shapes(); }
    std::int64_t workspace_bytes() const override { return of().workspace_bytes(); }
    mc::product_type type() override { return of().type(); }
    std::string describe(mc::dtype storage) override { return of().describe(storage); }

  private:
    mc::product_source& of() const { return on_.below_.products(); }
    guarded_device& on_;
    std::map<const mc::prepared_product*, std::unique_ptr<opened_product>> products_;
  };

  static constexpr std::int64_t page = 4096, room = std::int64_t{1} << 30;
  /// The op whose kernel this thread has launched.
  inline static thread_local const mc::op_info* launched_ = nullptr;
  std::byte* const held_ = static_cast<std::byte*>(
      ::mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  std::int64_t size_ = 0;
  opened_products products_{*this};
  mutable std::mutex mutex_;
  mutable int opened_ = 0;
  bool deferring_ = false, breaks_mirrors_ = false, looks_at_end_ = false;
  std::string looks_in_;
  mutable std::byte looked_{};
  std::function<void(const mc::node&)> before_;
  mutable std::mutex queue_mutex_; ///< protects the queues of all lanes
  mutable std::minstd_rand chance_;
  std::vector<guarded_lane*> lanes_;
  mc::cpu below_; ///< computes products, and makes tables
  guarded_lane lane_{*this};
  mutable device_counts counts_;
  std::map<const mc::node*, std::int32_t> trips_; ///< trips of the nodes of the region that runs
  std::int32_t most_trips_ = 0;
  mutable std::atomic<const std::byte*> last_read_ = nullptr;
};

inline guarded_event::~guarded_event() { on_.settle(); }
inline void guarded_event::wait() {
  on_.settle();
  if (recorded_) ++on_.counts_.waits;
}
inline std::int64_t guarded_event::reached() {
  on_.settle();
  return at_;
}

inline guarded_lane::guarded_lane(guarded_device& on) : lane(on), on_(on) {
  const std::scoped_lock lock(on_.queue_mutex_);
  on_.lanes_.push_back(this);
}
inline guarded_lane::~guarded_lane() {
  on_.settle();
  const std::scoped_lock lock(on_.queue_mutex_);
  std::erase(on_.lanes_, this);
}
inline void guarded_lane::later(std::function<void()> f) {
  if (on_.deferring_) {
    const std::scoped_lock lock(on_.queue_mutex_);
    queue_.push_back({std::move(f)});
  } else {
    const guarded_device::opening o(on_);
    f();
  }
}
template <class F> void guarded_lane::launch(const mc::node& n, F f) {
  if (n.region < 0) on_.trips_.clear();
  else on_.most_trips_ = std::max(on_.most_trips_, ++on_.trips_[&n]);
  if (on_.before_) on_.before_(n);
  {
    const guarded_device::launching here(on_, *n.op);
    const bool looks = n.op->name == on_.looks_in_;
    if (looks && !on_.looks_at_end_) on_.look();
    const std::int64_t before = on_.started();
    f();
    if (on_.started() == before) on_.counts_.idle.insert(n.op->name);
    if (looks && on_.looks_at_end_) on_.look();
  }
  if (on_.deferring_) guarded_device::overwrite_stack();
}
template <class Body> void guarded_lane::for_rows(std::int64_t rows, Body body) {
  ++on_.counts_.bodies;
  later([rows, body] { mc::cores{}.for_rows(rows, body); });
}
inline void guarded_lane::for_pieces(int slots, mc::function_of_piece f) const {
  ++on_.counts_.slots;
  on_.settle();
  const guarded_device::opening o(on_);
  mc::parallel_pieces(slots, f);
}
inline void guarded_lane::sort(std::uint64_t* numbers, std::int64_t n, int first, int bits,
                               std::byte* room) {
  ++on_.counts_.bodies;
  later([=] { test::sort_by_bits(numbers, n, first, bits, room); });
}
inline void guarded_lane::fill(std::byte* to, std::uint8_t byte, std::int64_t bytes) {
  later([to, byte, bytes] { mc::host_memory::of_process().fill(to, byte, bytes); });
}
inline void guarded_lane::write(std::byte* to, const void* from_host, std::int64_t bytes) {
  const auto* const from = static_cast<const std::byte*>(from_host);
  later([to, kept = std::vector<std::byte>(from, from + bytes)] {
    mc::host_memory::of_process().write(to, kept.data(), std::ssize(kept));
  });
}
inline void guarded_lane::mirror(std::byte* to, const std::byte* from, std::int64_t bytes) {
  ++on_.counts_.mirrors;
  on_.last_read_ = from;
  later([this, to, from, bytes] {
    mc::host_memory::of_process().read(to, from, bytes);
    if (on_.breaks_mirrors_) ++reinterpret_cast<std::int32_t*>(to)[0];
  });
}
inline void guarded_lane::copy(std::byte* to, const std::byte* from, std::int64_t bytes) {
  ++on_.counts_.copies;
  later([to, from, bytes] { mc::host_memory::of_process().read(to, from, bytes); });
}
inline void guarded_lane::reduce(mc::reduction by, mc::dtype t, std::span<const void* const> parts,
                                 void* out, std::int64_t n) {
  later([by, t, kept = std::vector<const void*>(parts.begin(), parts.end()), out, n] {
    mc::reduce_in_rank_order(by, t, kept, out, n);
  });
}
inline void guarded_lane::finish() { on_.settle(); }
inline void guarded_lane::record(mc::event& e) {
  auto& here = static_cast<guarded_event&>(e);
  here.recorded_ = true, here.come_ = false;
  later([&here] { here.come_ = true, here.at_ = mc::monotonic_nanoseconds(); });
}
inline void guarded_lane::wait(mc::event& e) {
  const auto& there = static_cast<guarded_event&>(e);
  if (!on_.deferring_ || !there.recorded_) return;
  const std::scoped_lock lock(on_.queue_mutex_);
  queue_.push_back({{}, &there});
}

inline void looks_are_told::on_fault(int, siginfo_t*, void*) {
  ::sigaction(SIGSEGV, &before(), nullptr); // restores the handler: the instruction faults again
  const mc::op_info* const op = guarded_device::launched_;
  const char* const words[] = {"the kernel of ", op != nullptr ? op->name : "nothing",
                               " looks at the memory of a device on the host\n"};
  for (const char* const w : words)
    if (::write(STDERR_FILENO, w, std::strlen(w)) < 0) return;
}

/// A communicator of hosts that refuses memory of the guarded device.
class hosts_beside_device final : public mc::communicator {
public:
  hosts_beside_device(mc::communicator& below, const guarded_device& on)
      : communicator(below.ranks(), below.rank(), mc::plane::hosts, below.bits()),
        below_(below),
        on_(on) {}
  std::unique_ptr<communicator> ranks_for(mc::device& on) override { return below_.make_ranks(on); }
  bool in_one_process() const override { return below_.in_one_process(); }
  void give_up() noexcept override { below_.give_up(); }

private:
  mc::ticket begin(const mc::exchange& x, const mc::group&, mc::lane*) override {
    if (on_.holds(x.in) || on_.holds(x.out))
      throw std::logic_error("memory of a device goes over hosts");
    return below_.start(x);
  }
  void finish(mc::lane&, mc::ticket) override {}
  std::size_t finish_any(std::span<const mc::ticket> any) override { return below_.wait_any(any); }

  mc::communicator& below_;
  const guarded_device& on_;
};

/// Ranks that exchange memory of guarded devices by the device's own functions. A rank's input is
/// read as late as possible, when it waits for an exchange of ranks, and its output is written when
/// it waits for that exchange. Until then `out` holds no useful values.
class ranks_of_device final : public mc::communicator {
public:
  /// `hosts`: a plain communicator of this rank.
  ranks_of_device(mc::communicator& hosts, guarded_device& on)
      : communicator(hosts.ranks(), hosts.rank(), mc::plane::ranks, hosts.bits()),
        below_(hosts.make_ranks(staging_)),
        on_(on) {}
  std::unique_ptr<communicator> ranks_for(mc::device&) override { return nullptr; }
  bool in_one_process() const override { return below_->in_one_process(); }
  void give_up() noexcept override { below_->give_up(); }

private:
  struct record {
    std::int64_t number = 0;
    mc::exchange x;
    std::vector<std::int64_t> gives, takes;
    std::vector<std::byte> in, out;
    std::unique_ptr<mc::event> reached; ///< comes when the lane has reached the start
    mc::ticket of;                      ///< ticket of the communicator below
    bool started = false;
  };

  mc::ticket begin(const mc::exchange& x, const mc::group& g, mc::lane* on) override {
    const std::int64_t in = x.elements_in(g.size()) * size_of(x.type),
                       out = x.elements_out(g.size()) * size_of(x.type);
    const bool gives = x.in != nullptr && in > 0;
    if ((gives && !on_.holds(x.in)) || (out > 0 && !on_.holds(x.out)))
      throw std::logic_error("memory that is not the device's goes over ranks");
    ++on_.counts_.exchanges;
    record& r = started_.emplace_back();
    r.number = ++number_, r.x = x;
    r.gives.assign(x.gives.begin(), x.gives.end()), r.takes.assign(x.takes.begin(), x.takes.end());
    r.in.resize(static_cast<std::size_t>(gives ? in : 0));
    r.out.resize(static_cast<std::size_t>(out));
    if (events_.empty()) events_.push_back(on_.make_event());
    r.reached = std::move(events_.back()), events_.pop_back();
    on->record(*r.reached);
    const auto* const first = static_cast<const std::byte*>(x.in);
    auto* const to = static_cast<std::byte*>(x.out);
    if (out > 0 && (!gives || to + out <= first || first + in <= to)) on->fill(to, 0xa5, out);
    return {r.number};
  }
  void finish(mc::lane& on, mc::ticket t) override {
    for (record& r : started_)
      if (!r.started) start(r);
    const auto at = std::find_if(started_.begin(), started_.end(),
                                 [&](const record& r) { return r.number == t.number; });
    if (at == started_.end()) mc::refuse_ticket();
    below_->wait(staging_.main_lane(), at->of);
    if (!at->out.empty())
      on.write(static_cast<std::byte*>(at->x.out), at->out.data(), std::ssize(at->out));
    events_.push_back(std::move(at->reached)); // reused: an event's end would wait for the device
    started_.erase(at);
  }
  std::size_t finish_any(std::span<const mc::ticket>) override { return 0; }
  void start(record& r) {
    r.reached->wait();
    if (!r.in.empty())
      on_.read(r.in.data(), static_cast<const std::byte*>(r.x.in), std::ssize(r.in));
    on_.counts_.exchanged += std::ssize(r.in);
    r.started = true;
    mc::exchange x = r.x;
    x.in = r.in.empty() ? nullptr : r.in.data(), x.out = r.out.empty() ? nullptr : r.out.data();
    x.gives = r.gives, x.takes = r.takes;
    r.of = below_->start(staging_.main_lane(), x);
  }

  mc::cpu staging_{std::unique_ptr<mc::product_source>(), 1};
  std::unique_ptr<mc::communicator> below_;
  guarded_device& on_;
  std::list<record> started_;                      ///< exchanges in the order of their starts
  std::vector<std::unique_ptr<mc::event>> events_; ///< events of exchanges that are over
  std::int64_t number_ = 0;
};

} // namespace mc_test
