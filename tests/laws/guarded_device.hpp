// A CPU whose memory opens, as if it lay on a GPU, only where a device computes and copies: within
// the regions of a kernel, a product and the device's own functions. What an exchange moves is open
// from its start until it has been waited for. Elsewhere the pages are closed, and a look at them is
// SIGSEGV; the looks of kernels are noted by op. What is not seen: a region that reads memory of the
// host, and a look at the pages of an exchange while it is in flight.
#pragma once

#include <megacpp/comm/communicator.hpp>
#include <megacpp/exec/cpu.hpp>
#include <megacpp/graph/op.hpp>
#include <megacpp/io/error.hpp>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include <sys/mman.h>

namespace mc_test {

/// While one lives, the ops of the kernels that guarded devices launch are noted, and those whose
/// kernels look at a device's memory on the host. One at a time.
class looks {
public:
  looks() {
    struct sigaction action = {};
    action.sa_sigaction = &on_fault;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    ::sigaction(SIGSEGV, &action, &before_);
    one_ = this;
  }
  looks(const looks&) = delete;
  looks& operator=(const looks&) = delete;
  ~looks() {
    one_ = nullptr;
    ::sigaction(SIGSEGV, &before_, nullptr);
  }

  const std::set<std::string>& launched() const { return launched_; }
  const std::set<std::string>& looked() const { return looked_; }

private:
  friend class guarded_device;
  static void on_fault(int, siginfo_t* fault, void*);
  static void note(const char* op, bool looked) {
    if (one_ == nullptr) return;
    const std::scoped_lock lock(one_->mutex_);
    one_->launched_.insert(op);
    if (looked) one_->looked_.insert(op);
  }

  inline static looks* one_ = nullptr;
  struct sigaction before_ = {};
  std::mutex mutex_;
  std::set<std::string> launched_, looked_;
};

class guarded_device final : public mc::cpu {
public:
  using mc::cpu::cpu;
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
  void release(std::byte* /*p*/, std::int64_t /*bytes*/) override {}
  void fill(std::byte* to, std::uint8_t byte, std::int64_t bytes) override {
    const opening o(*this);
    mc::cpu::fill(to, byte, bytes);
  }
  void write(std::byte* to, const void* from_host, std::int64_t bytes) override {
    const opening o(*this);
    mc::cpu::write(to, from_host, bytes);
  }
  void read(void* to_host, const std::byte* from, std::int64_t bytes) const override {
    const opening o(*this);
    mc::cpu::read(to_host, from, bytes);
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
  mc::product_source& products() override { return products_; }

  /// A kernel that looks finds the memory open to its end, and is noted.
  template <class F> void launch(const mc::node& n, F f) const {
    const launching here(*this, *n.op);
    f();
  }
  template <class F> void repeat(const std::int32_t* trips, F body) const {
    std::int32_t n = 0;
    read(&n, reinterpret_cast<const std::byte*>(trips), sizeof n);
    most_trips_ = std::max(most_trips_, n);
    for (int trip = 0; trip < n; ++trip) body(trip, n > 1);
  }

  std::int64_t launches() const { return launches_; }
  std::int32_t most_trips() const { return most_trips_; }
  /// What read() was asked for last: an address that the host must not follow.
  const std::byte* last_read() const { return last_read_; }

private:
  friend class looks;
  friend class guarded_communicator;

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

  /// The launch of this thread.
  struct launching {
    const guarded_device& on;
    const mc::op_info& op;
    launching(const guarded_device& d, const mc::op_info& o) : on(d), op(o) {
      if (launched_on_ != nullptr) throw std::logic_error("a launch within a launch");
      if (const std::scoped_lock lock(on.mutex_); on.opened_ > 0)
        throw std::logic_error("a launch while the memory is open");
      ++on.launches_;
      launched_on_ = &on;
      mc::workers::mine().watch([](bool begins) { launched_on_->count_opening(begins ? 1 : -1); });
    }
    launching(const launching&) = delete;
    launching& operator=(const launching&) = delete;
    ~launching() {
      mc::workers::mine().watch(nullptr);
      launched_on_ = nullptr;
      const bool looked = on.looked_.exchange(false);
      looks::note(op.name, looked);
      if (!looked) return;
      const std::scoped_lock lock(on.mutex_);
      on.protect();
    }
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
    if (opened_ > 0 || looked_) return set(held_, end, open);
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

  /// A product opens the memory while it computes. Rows that it reads there are a look of the kernel
  /// that asks for it: a library of a GPU takes them from the host.
  class opened_product final : public mc::prepared_product {
  public:
    opened_product(const guarded_device& on, const mc::prepared_product& of) : on_(on), of_(of) {
      shape_ = of.shape();
    }
    void execute(const void* a, const void* b, const void* bias, void* out,
                 std::int64_t rows) const override {
      const opening o(on_);
      of_.execute(a, b, bias, out, rows);
    }
    void execute_parts(const void* a, const void* b, void* out, const std::int32_t* rows,
                       std::int64_t parts) const override {
      const opening o(on_);
      if (on_.holds(rows)) on_.looked_ = true;
      of_.execute_parts(a, b, out, rows, parts);
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
    std::size_t workspace_bytes() const override { return of().workspace_bytes(); }
    mc::product_type type() override { return of().type(); }
    std::string describe(mc::dtype storage) override { return of().describe(storage); }

  private:
    mc::product_source& of() const { return on_.mc::cpu::products(); }
    guarded_device& on_;
    std::map<const mc::prepared_product*, std::unique_ptr<opened_product>> products_;
  };

  static constexpr std::int64_t page = 4096, room = std::int64_t{1} << 30;
  /// The device on which this thread has launched a kernel.
  inline static thread_local const guarded_device* launched_on_ = nullptr;
  std::byte* const held_ = static_cast<std::byte*>(
      ::mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  std::int64_t size_ = 0;
  opened_products products_{*this};
  mutable std::mutex mutex_;
  mutable int opened_ = 0;
  mutable std::vector<pages> moving_;
  mutable std::atomic<bool> looked_ = false; ///< whether the launched kernel has looked
  mutable std::int64_t launches_ = 0;
  mutable std::int32_t most_trips_ = 0;
  mutable std::atomic<const std::byte*> last_read_ = nullptr;
};

/// Opens the memory of the device on which the faulting thread has launched a kernel. Any other
/// fault is for the handler of before.
inline void looks::on_fault(int, siginfo_t* fault, void*) {
  const guarded_device* const on = guarded_device::launched_on_;
  if (on == nullptr || !on->holds(fault->si_addr)) {
    ::sigaction(SIGSEGV, &one_->before_, nullptr);
    return;
  }
  on->looked_ = true;
  guarded_device::set(on->held_, on->held_ + on->size_, PROT_READ | PROT_WRITE);
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
