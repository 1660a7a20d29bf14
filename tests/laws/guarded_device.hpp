// A CPU whose memory opens, as if it lay on a GPU, only where a device computes and copies: in the
// bodies that a kernel starts, in its slots, a product and the device's own functions. What an
// exchange moves is open from its start until it has been waited for. Elsewhere the pages are
// closed: a look at them is SIGSEGV, and the op is named whose kernel it was.
//
// A device that defers keeps bodies, products, fills, writes, mirrors and events in a queue for each
// lane, and does them in order when somebody reads, waits for an event, runs slots or exchanges: of
// several lanes that could go on, one that chance chooses. The stack on which a kernel was called is
// overwritten before.
//
// What is not seen: a body, a product or an exchange that reads memory of the host which is still
// there, a look at the pages of an exchange while it is in flight, and whatever runs in slots.
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

namespace mc_test {

/// While one lives, a look at the memory of a guarded device tells whose it was before the process
/// ends. One at a time.
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

/// What a guarded device has done.
struct device_counts {
  std::map<std::string, std::int64_t> launched; ///< by op
  std::int64_t bodies = 0, products = 0, mirrors = 0, waits = 0;
};

class guarded_device;

/// Comes when its lane has come to it.
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
  bool recorded_ = false, come_ = false, waited_ = false;
  std::int64_t at_ = 0;
};

/// A lane of a guarded device.
class guarded_lane final : public mc::lane, public mc::host_slots {
public:
  explicit guarded_lane(guarded_device& on);
  ~guarded_lane() override;

  int threads() const { return mc::thread_count(); }
  template <class F> void launch(const mc::node& n, F f);
  template <class Body> void for_rows(std::int64_t rows, Body body);
  void run_slots(int slots, function f) const override;
  void fill(std::byte* to, std::uint8_t byte, std::int64_t bytes) override;
  void write(std::byte* to, const void* from_host, std::int64_t bytes) override;
  void mirror(std::byte* to, const std::byte* from, std::int64_t bytes) override;
  void record(mc::event& e) override;
  void wait(mc::event& e) override;

  /// Does what f does with the memory open: now, or when the device settles.
  void later(std::function<void()> f);

private:
  friend class guarded_device;
  /// What is done when nothing has to be waited for, or the event has come.
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
  /// To be said before anything is done.
  void defer() { deferring_ = true; }
  /// From now on the kernel of this op looks at the first byte of the memory, before it starts
  /// anything or when it has started all.
  void look_in(std::string op, bool at_end) { looks_in_ = std::move(op), looks_at_end_ = at_end; }
  /// From now on f(node) is called before each launch, outside of it.
  void before_launches(std::function<void(const mc::node&)> f) { before_ = std::move(f); }
  /// From now on mirrors are not what the device has.
  void break_mirrors() { breaks_mirrors_ = true; }
  const device_counts& counts() const { return counts_; }

  ~guarded_device() override { ::munmap(held_, room); }

  /// What is reserved lies together, so that one call opens and closes it; none of it twice.
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
  /// A copy, as of memory that the host cannot see at all.
  std::byte* open(std::byte* p, std::int64_t bytes) override {
    auto* const seen = new std::byte[static_cast<std::size_t>(bytes)];
    read(seen, p, bytes);
    return seen;
  }
  void close(std::byte* p, std::int64_t bytes, std::byte* seen, bool changed) override {
    if (changed) write(p, seen, bytes);
    delete[] seen;
  }
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
  template <class Type, class F>
  auto table(Type type, std::vector<double> key, std::int64_t count, F fill) {
    return below_.table(type, std::move(key), count, fill);
  }

  /// Of a region.
  std::int32_t most_trips() const { return most_trips_; }
  /// What read() was asked for last: an address that the host must not follow.
  const std::byte* last_read() const { return last_read_; }

private:
  friend class looks_are_told;
  friend class guarded_communicator;
  friend class guarded_event;
  friend class guarded_lane;

  /// All memory is open while there is one; several threads may copy at once.
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
    if (opened_ == std::max(more, 0)) protect(); // the first, or the last
  }

  /// Does all that has been started.
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

  /// The launch of this thread.
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

  /// Pages of an exchange in flight.
  struct pages {
    std::byte *first, *end;
  };
  /// Those of n bytes from p on; none where p is not the device's.
  pages pages_of(const void* p, std::int64_t n) const {
    const auto* const begin = static_cast<const std::byte*>(p);
    if (n <= 0 || !holds(begin)) return {held_, held_};
    const std::int64_t from = (begin - held_) / page * page,
                       to = (begin - held_ + n + page - 1) / page * page;
    return {held_ + from, held_ + to};
  }
  bool holds(const void* p) const {
    const auto* const at = static_cast<const std::byte*>(p);
    return at >= held_ && at < held_ + size_;
  }
  void begin_moving(const pages& p) const {
    if (p.first == p.end) return;
    const std::scoped_lock lock(mutex_);
    moving_.push_back(p);
    protect();
  }
  void end_moving(const pages& p) const {
    if (p.first == p.end) return;
    const std::scoped_lock lock(mutex_);
    const auto at = std::find_if(moving_.begin(), moving_.end(), [&](const pages& q) {
      return q.first == p.first && q.end == p.end;
    });
    if (at != moving_.end()) moving_.erase(at);
    protect();
  }

  /// Opens and closes pages as the state asks. The mutex is held. What moves stays open throughout,
  /// since other ranks may be copying it.
  void protect() const {
    constexpr int open = PROT_READ | PROT_WRITE;
    std::byte* const end = held_ + size_;
    if (opened_ > 0) return set(held_, end, open);
    std::sort(moving_.begin(), moving_.end(),
              [](const pages& a, const pages& b) { return a.first < b.first; });
    std::byte* closed = held_; // from here on
    for (const pages& p : moving_) {
      if (closed < p.first) set(closed, p.first, PROT_NONE);
      set(p.first, p.end, open);
      closed = std::max(closed, p.end);
    }
    set(closed, end, PROT_NONE);
  }
  static void set(std::byte* first, std::byte* end, int how) {
    if (first < end && ::mprotect(first, static_cast<std::size_t>(end - first), how) != 0)
      std::abort();
  }

  /// A product opens the memory while it computes. The rows of parts are of the host, as a library
  /// of a GPU wants them.
  class opened_product final : public mc::prepared_product {
  public:
    opened_product(const guarded_device& on, const mc::prepared_product& of) : on_(on), of_(of) {
      shape_ = of.shape();
    }
    void execute(const mc::product_call& c) const override {
      ++on_.counts_.products;
      static_cast<guarded_lane&>(c.on).later([this, c] { of_.execute(c); });
    }
    void execute_parts(const mc::product_call& c,
                       std::span<const std::int32_t> rows) const override {
      ++on_.counts_.products;
      static_cast<guarded_lane&>(c.on).later(
          [this, c, kept = std::vector<std::int32_t>(rows.begin(), rows.end())] {
            of_.execute_parts(c, kept);
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
    void lend(std::byte* memory, std::int64_t bytes) override { of().lend(memory, bytes); }
    std::int64_t take_back() override { return of().take_back(); }
    const mc::product_checks& checks() const override { return of().checks(); }
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
  mutable std::vector<pages> moving_;
  bool deferring_ = false, breaks_mirrors_ = false, looks_at_end_ = false;
  std::string looks_in_;
  mutable std::byte looked_{};
  std::function<void(const mc::node&)> before_;
  mutable std::mutex queue_mutex_; ///< of the queues of all lanes
  mutable std::minstd_rand chance_;
  std::vector<guarded_lane*> lanes_;
  mc::cpu below_; ///< computes products, and makes tables
  guarded_lane lane_{*this};
  mutable device_counts counts_;
  std::map<const mc::node*, std::int32_t> trips_; ///< of the nodes of the region that runs
  std::int32_t most_trips_ = 0;
  mutable std::atomic<const std::byte*> last_read_ = nullptr;
};

inline guarded_event::~guarded_event() { on_.settle(); }
inline void guarded_event::wait() {
  on_.settle();
  if (recorded_ && !waited_) ++on_.counts_.waits;
  waited_ = true;
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
    f();
    if (looks && on_.looks_at_end_) on_.look();
  }
  if (on_.deferring_) guarded_device::overwrite_stack();
}
template <class Body> void guarded_lane::for_rows(std::int64_t rows, Body body) {
  ++on_.counts_.bodies;
  later([rows, body] { mc::cores{}.for_rows(rows, body); });
}
inline void guarded_lane::run_slots(int slots, function f) const {
  on_.settle();
  const guarded_device::opening o(on_);
  mc::on_slots(slots, f);
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
inline void guarded_lane::record(mc::event& e) {
  auto& here = static_cast<guarded_event&>(e);
  here.recorded_ = true, here.come_ = here.waited_ = false;
  later([&here] { here.come_ = true, here.at_ = mc::monotonic_nanoseconds(); });
}
inline void guarded_lane::wait(mc::event& e) {
  const auto& there = static_cast<guarded_event&>(e);
  if (!on_.deferring_ || !there.recorded_) return;
  const std::scoped_lock lock(on_.queue_mutex_);
  queue_.push_back({{}, &there});
}

inline void looks_are_told::on_fault(int, siginfo_t*, void*) {
  ::sigaction(SIGSEGV, &before(), nullptr); // the instruction faults again
  const mc::op_info* const op = guarded_device::launched_;
  const char* const words[] = {"the kernel of ", op != nullptr ? op->name : "nothing",
                               " looks at the memory of a device on the host\n"};
  for (const char* const w : words)
    if (::write(STDERR_FILENO, w, std::strlen(w)) < 0) return;
}

/// One rank whose device is guarded.
class guarded_communicator final : public mc::communicator {
public:
  guarded_communicator(mc::communicator& below, const guarded_device& on)
      : communicator(below.ranks(), below.rank()), below_(below), on_(on) {}
  bool in_one_process() const override { return below_.in_one_process(); }
  void give_up() noexcept override {
    below_.give_up();
    while (!in_flight_.empty()) close(in_flight_.size() - 1);
  }

private:
  struct moved {
    mc::ticket of;
    guarded_device::pages in, out;
  };
  mc::ticket begin(const mc::exchange& x, const mc::group& over) override {
    const std::int64_t size = size_of(x.type);
    on_.settle();
    in_flight_.push_back({{},
                          on_.pages_of(x.in, x.elements_in(over.size()) * size),
                          on_.pages_of(x.out, x.elements_out(over.size()) * size)});
    on_.begin_moving(in_flight_.back().in), on_.begin_moving(in_flight_.back().out);
    try {
      return in_flight_.back().of = below_.start(x);
    } catch (...) {
      close(in_flight_.size() - 1);
      throw;
    }
  }
  std::size_t finish(std::span<const mc::ticket> any) override {
    const std::size_t i = below_.wait_any(any);
    for (std::size_t k = 0; k < in_flight_.size(); ++k)
      if (in_flight_[k].of.number == any[i].number) {
        close(k);
        break;
      }
    return i;
  }
  void close(std::size_t k) {
    on_.end_moving(in_flight_[k].in), on_.end_moving(in_flight_[k].out);
    in_flight_.erase(in_flight_.begin() + static_cast<std::ptrdiff_t>(k));
  }

  mc::communicator& below_;
  const guarded_device& on_;
  std::vector<moved> in_flight_;
};

} // namespace mc_test
