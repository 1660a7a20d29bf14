// A CPU whose memory nobody can touch but its kernels, during a launch, and the device's own
// functions, as if it lay on a GPU: between them its pages are closed, and a look at them is
// SIGSEGV.
#pragma once

#include <megacpp/exec/cpu.hpp>
#include <megacpp/io/error.hpp>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <stdexcept>
#include <string>

#include <sys/mman.h>

namespace mc_test {

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

  template <class F> void launch(F f) const {
    const opening o(*this);
    if (opened_ > 1) throw std::logic_error("a launch while the memory is open");
    ++launches_;
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
  /// Memory is open while there is one; several threads may copy at once.
  struct opening {
    const guarded_device& of;
    explicit opening(const guarded_device& d) : of(d) {
      const std::scoped_lock lock(of.mutex_);
      if (of.opened_++ == 0) of.protect_all(PROT_READ | PROT_WRITE);
    }
    ~opening() {
      const std::scoped_lock lock(of.mutex_);
      if (--of.opened_ == 0) of.protect_all(PROT_NONE);
    }
  };
  void protect_all(int how) const {
    if (::mprotect(held_, static_cast<std::size_t>(size_), how) != 0) std::abort();
  }

  static constexpr std::int64_t page = 4096, room = std::int64_t{1} << 30;
  std::byte* const held_ = static_cast<std::byte*>(
      ::mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  std::int64_t size_ = 0;
  mutable std::mutex mutex_;
  mutable int opened_ = 0;
  mutable std::int64_t launches_ = 0;
  mutable std::int32_t most_trips_ = 0;
  mutable std::atomic<const std::byte*> last_read_ = nullptr;
};

} // namespace mc_test
