// A CPU whose memory opens, as if it lay on a GPU, only where a device computes and copies: within
// the regions of a kernel, a product, an exchange, and the device's own functions. Between them its
// pages are closed, and a look at them is SIGSEGV; the looks of kernels themselves are noted by op.
#pragma once

#include <megacpp/comm/communicator.hpp>
#include <megacpp/exec/cpu.hpp>
#include <megacpp/graph/op.hpp>
#include <megacpp/io/error.hpp>

#include <algorithm>
#include <array>
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
#include <utility>

#include <sys/mman.h>

namespace mc_test {

/// The ops of the kernels that devices have launched since it was made, and those whose kernels have
/// looked at a device's memory on the host. One at a time.
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
  template <class... Arguments> explicit guarded_device(Arguments... a)
      : mc::cpu(a...), products_(*this) {
    for (std::atomic<guarded_device*>& place : living_) {
      guarded_device* none = nullptr;
      if (place.compare_exchange_strong(none, this)) return;
    }
    std::abort(); // more devices than there are places
  }
  ~guarded_device() override {
    for (std::atomic<guarded_device*>& place : living_) {
      guarded_device* self = this;
      place.compare_exchange_strong(self, nullptr);
    }
    ::munmap(held_, room);
  }

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
    if (launching_ != nullptr) throw std::logic_error("a launch within a launch");
    ++launches_;
    launching_ = this;
    mc::workers::mine().watch([](bool begins) {
      if (begins) launching_->open_all();
      else launching_->close_all();
    });
    f();
    mc::workers::mine().watch(nullptr);
    launching_ = nullptr;
    looks::note(n.op->name, looked_);
    const std::scoped_lock lock(mutex_);
    if (std::exchange(looked_, false) && opened_ == 0) protect_all(PROT_NONE);
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

  /// Memory is open while somebody has opened it and not closed it; several threads may copy at once.
  void open_all() const {
    const std::scoped_lock lock(mutex_);
    if (opened_++ == 0) protect_all(PROT_READ | PROT_WRITE);
  }
  void close_all() const {
    const std::scoped_lock lock(mutex_);
    if (--opened_ == 0 && !looked_) protect_all(PROT_NONE);
  }

private:
  friend class looks;
  struct opening {
    const guarded_device& of;
    explicit opening(const guarded_device& d) : of(d) { of.open_all(); }
    opening(const opening&) = delete;
    opening& operator=(const opening&) = delete;
    ~opening() { of.close_all(); }
  };
  void protect_all(int how) const {
    if (::mprotect(held_, static_cast<std::size_t>(size_), how) != 0) std::abort();
  }

  /// A product opens the memory while it computes.
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
  inline static std::array<std::atomic<guarded_device*>, 64> living_{};
  inline static thread_local const guarded_device* launching_ = nullptr; ///< on this thread
  std::byte* const held_ = static_cast<std::byte*>(
      ::mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  std::int64_t size_ = 0;
  opened_products products_;
  mutable std::mutex mutex_;
  mutable int opened_ = 0;
  mutable bool looked_ = false; ///< the kernel that is launched
  mutable std::int64_t launches_ = 0;
  mutable std::int32_t most_trips_ = 0;
  mutable std::atomic<const std::byte*> last_read_ = nullptr;
};

/// Opens the memory of the device of the faulting thread's launch; any other fault is the end.
inline void looks::on_fault(int, siginfo_t* fault, void*) {
  const guarded_device* const on = guarded_device::launching_;
  const auto* const at = static_cast<const std::byte*>(fault->si_addr);
  if (on == nullptr || at < on->held_ || at >= on->held_ + on->size_) {
    ::signal(SIGSEGV, SIG_DFL);
    return;
  }
  on->looked_ = true;
  on->protect_all(PROT_READ | PROT_WRITE);
}

/// One rank of others whose devices are guarded: an exchange opens this rank's memory from where it
/// is started to where it has been waited for.
class guarded_communicator final : public mc::communicator {
public:
  guarded_communicator(mc::communicator& below, const guarded_device& on)
      : communicator(below.ranks(), below.rank()), below_(below), on_(on) {}
  bool in_one_process() const override { return below_.in_one_process(); }
  void give_up() noexcept override { below_.give_up(); }

private:
  mc::ticket begin(const mc::exchange& x, const mc::group& /*over*/) override {
    on_.open_all();
    return below_.start(x);
  }
  std::size_t finish(std::span<const mc::ticket> any) override {
    const std::size_t i = below_.wait_any(any);
    on_.close_all();
    return i;
  }

  mc::communicator& below_;
  const guarded_device& on_;
};

} // namespace mc_test
