// The memory of the host, and memory spaces in it: anonymous mappings, which are reserved once and
// never grow.
#pragma once

#include <megacpp/exec/device.hpp>
#include <megacpp/io/error.hpp>
#include <megacpp/threads/parallel.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include <sys/mman.h>

namespace mc {

/// Throws mc::error(exit_code::memory) unless there is memory for the code that libraries make at
/// their first calls: oneDNN ends the process where it gets none (2.6.3).
inline void require_room(const char* what) {
  constexpr std::size_t bytes = std::size_t{64} << 20;
  void* const p =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED)
    throw error(exit_code::memory, std::string("less than ") + std::to_string(bytes >> 20) +
                                       " MiB of memory are left for " + what +
                                       "; raise the limits on memory (ulimit -v), or use a smaller "
                                       "micro-batch or a machine with more memory");
  ::munmap(p, bytes);
}

/// Maps zeroed pages, huge ones where the system grants them. Throws mc::error(exit_code::memory),
/// with `what` the memory is for and a `remedy` beside a machine with more memory.
inline std::byte* map_pages(std::int64_t bytes, const char* what, const char* remedy) {
  void* const p = ::mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED)
    throw error(exit_code::memory, std::string("cannot reserve ") +
                                       std::to_string(((bytes - 1) >> 20) + 1) + " MiB for " +
                                       what + ": use " + remedy + " or a machine with more memory");
  ::madvise(p, static_cast<std::size_t>(bytes), MADV_HUGEPAGE);
  return static_cast<std::byte*>(p);
}
inline void unmap_pages(std::byte* p, std::int64_t bytes) {
  ::munmap(p, static_cast<std::size_t>(bytes));
}

/// A memory space in the host's own memory.
template <class Space> class in_host_memory : public Space {
public:
  std::byte* reserve(std::int64_t bytes, const char* what, const char* remedy) override {
    return map_pages(bytes, what, remedy);
  }
  void release(std::byte* p, std::int64_t bytes) override { unmap_pages(p, bytes); }
  void fill(std::byte* to, std::uint8_t byte, std::int64_t bytes) override {
    constexpr std::int64_t block = 1 << 20;
    parallel_for((bytes + block - 1) / block, [=](std::int64_t i) {
      std::memset(to + i * block, byte,
                  static_cast<std::size_t>(std::min(block, bytes - i * block)));
    });
  }
  void write(std::byte* to, const void* from_host, std::int64_t bytes) override {
    std::memcpy(to, from_host, static_cast<std::size_t>(bytes));
  }
  void read(void* to_host, const std::byte* from, std::int64_t bytes) const override {
    std::memcpy(to_host, from, static_cast<std::size_t>(bytes));
  }
  std::byte* open(std::byte* p, std::int64_t /*bytes*/) override { return p; }
  void close(std::byte* /*p*/, std::int64_t /*bytes*/, std::byte* /*seen*/,
             bool /*changed*/) override {}
  bool host_sees() const override { return true; }
};

/// The host's memory, for data that no device computes with.
class host_memory final : public in_host_memory<memory_space> {
public:
  static host_memory& of_process() {
    static host_memory one;
    return one;
  }
};

} // namespace mc
